"""DuckDB's extension for PostgreSQL: `duckdb_client.py EXTENSION PORT` says of each step whether it held."""

import datetime as dt
import sys
from decimal import Decimal

import duckdb

EXTENSION, PORT = sys.argv[1:]
COLUMNS = (
    "id int PRIMARY KEY, big bigint, name varchar, price decimal(10,2), ratio double, day date, moment timestamp, "
    "done boolean"
)
ROWS = [
    (1, 2**40, "a", Decimal("1.50"), 0.5, dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 10, 0, 0, 5), True),
    (2, -1, "ö'\"", Decimal("-0.01"), float("inf"), dt.date(1960, 2, 29), dt.datetime(1960, 1, 1), False),
    (3, None, None, None, None, None, None, None),
]
duck = duckdb.connect(config={"allow_unsigned_extensions": True})


def ask(sql: str) -> list[tuple]:
    return duck.execute(sql).fetchall()


def check(name: str, found: object, wanted: object) -> None:
    print(f"ok {name}" if found == wanted else f"failed {name}: {found!r} is not {wanted!r}", flush=True)


def fails(name: str, sql: str, told: str) -> None:
    try:
        check(name, ask(sql), f"an error with {told}")
    except duckdb.Error as error:
        check(name, told in str(error) or str(error), True)


duck.execute(f"LOAD '{EXTENSION}'")
duck.execute(f"ATTACH 'host=127.0.0.1 port={PORT} user=root dbname=dev' AS h (TYPE postgres)")
check("attach", ask("SELECT 1 FROM duckdb_databases() WHERE database_name = 'h'"), [(1,)])
duck.execute(f"CREATE TABLE h.public.things ({COLUMNS})")
check("primary key", ask("SELECT constraint_column_names FROM duckdb_constraints() WHERE database_name = 'h' AND "
                         "table_name = 'things' AND constraint_type = 'PRIMARY KEY'"), [(["id"],)])  # fmt: skip
duck.executemany("INSERT INTO h.things VALUES (?, ?, ?, ?, ?, ?, ?, ?)", ROWS)
check("insert and select", ask("SELECT * FROM h.things ORDER BY id"), ROWS)
check("filters", ask("SELECT id FROM h.things WHERE price > 1 AND name = 'a' AND day < DATE '2024-02-01'"), [(1,)])
check("filter of null", ask("SELECT id FROM h.things WHERE name IS NULL"), [(3,)])
check("filter of a list", ask("SELECT id FROM h.things WHERE id IN (1, 3) ORDER BY 1"), [(1,), (3,)])
check("count", ask("SELECT count(*), sum(id) FROM h.things"), [(3, 6)])

duck.execute("CREATE TABLE h.many AS SELECT i::int AS i, 'row ' || i AS t FROM range(3000) r(i)")
check("create as", ask("SELECT count(*), sum(i), max(t) FROM h.many"), [(3000, 4498500, "row 999")])
check("join with own rows", ask("SELECT t FROM h.many JOIN (SELECT unnest([5, 2999]) AS i) USING (i) ORDER BY i"),
      [("row 5",), ("row 2999",)])  # fmt: skip
duck.execute("CALL postgres_execute('h', 'CREATE VIEW few AS SELECT i, t FROM many WHERE i < 3')")
duck.execute("CALL postgres_execute('h', 'CREATE MATERIALIZED VIEW ends AS SELECT i % 10 AS e, count(*) AS n FROM many "
             "GROUP BY i % 10')")  # fmt: skip
duck.execute("CALL pg_clear_cache()")
check("view", ask("SELECT i FROM h.few ORDER BY 1"), [(0,), (1,), (2,)])
check("materialized view", ask("SELECT e, n FROM h.ends WHERE e = 7"), [(7, 300)])
MINE = "database_name = 'h' AND schema_name = 'public' AND table_name IN ('ends', 'few', 'many', 'things')"
check("tables", ask(f"SELECT table_name FROM duckdb_tables() WHERE {MINE} ORDER BY 1"),
      [("ends",), ("few",), ("many",), ("things",)])  # fmt: skip
check(
    "query as it is", ask("SELECT * FROM postgres_query('h', 'SELECT count(*) AS n FROM many WHERE i < 10')"), [(10,)]
)

duck.execute("BEGIN")
duck.execute("INSERT INTO h.things (id) VALUES (4)")
duck.execute("ROLLBACK")
check("roll back", ask("SELECT count(*) FROM h.things"), [(3,)])
fails("update by place", "UPDATE h.things SET name = 'x' WHERE id = 1", "ctid")
duck.execute("CALL postgres_execute('h', 'UPDATE things SET name = ''x'' WHERE id = 1')")
check("update by statement", ask("SELECT name FROM h.things WHERE id = 1"), [("x",)])
duck.execute("DROP TABLE h.things")
fails("drop", "SELECT * FROM h.things", "does not exist")
