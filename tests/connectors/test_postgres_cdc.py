"""The postgres-cdc source against a server with logical replication: content, and then whole transactions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Binding, Offsets, Source
from headrace.connectors.sources import open_source
from headrace.errors import NotSupported, SourceError
from postgres import NoPostgres, Postgres, cdc_options, postgres_server

COLUMNS = [Column("id", "int", False), Column("v", "string"), Column("_op", "string"), Column("_at", "bigint")]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    try:
        with postgres_server({"wal_level": "logical", "fsync": "off", "max_replication_slots": "50"}) as found:
            yield found
    except NoPostgres as error:
        pytest.skip(str(error))


class Followed:
    """A table and its source, with a reader that takes in what is bound as a view would."""

    def __init__(self, server: Postgres, columns: str = "id int PRIMARY KEY, v text") -> None:
        self.server, self.table = server, f"t{next(_numbers)}"
        server.execute(f"CREATE TABLE {self.table} ({columns})")
        self.options = cdc_options(server, self.table)
        self.columns = COLUMNS
        self.source = self.open()
        self.at: Offsets = {}
        self.kept: dict[int, dict[str, Any]] = {}

    def open(self, **more: str) -> Source:
        return open_source({**self.options, **more}, self.columns)

    def run(self, *statements: str) -> None:
        self.server.execute(*(s.replace("#", self.table) for s in statements))

    def bind(self, rows: int | None = None) -> Binding:
        return self.source.latest_offsets(self.at, Admission(rows), 0)

    def read(self, from_: Offsets, to: Offsets) -> list[dict[str, Any]]:
        tasks = self.source.plan(from_, to, 4)
        return [row for task in tasks for made in self.source.read(task) for row in made.batch.to_pylist()]

    def take(self, rows: int | None = None) -> int:
        """Bind, read twice, keep, commit."""
        bound = self.bind(rows)
        found = self.read(self.at, bound.offsets)
        if self.at:
            assert str(self.read(self.at, bound.offsets)) == str(found)
        for row in found:
            if row["_at"] >= self.kept.get(row["id"], row)["_at"]:
                self.kept[row["id"]] = row
        self.at = bound.offsets
        self.source.acknowledge(self.at)
        return len(found)

    def rows(self) -> dict[int, Any]:
        return {i: row["v"] for i, row in self.kept.items() if row["_op"] != "delete"}

    def truth(self) -> dict[int, Any]:
        with self.server.connect() as connection:
            return dict(connection.execute(f"SELECT id, v FROM {self.table}").fetchall())


def test_content_and_then_changes(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a'), (2, 'b''\"\\'), (3, NULL)")
    followed.take()
    assert followed.rows() == followed.truth()
    followed.run("UPDATE # SET v = 'A' WHERE id = 1", "DELETE FROM # WHERE id = 2", "INSERT INTO # VALUES (4, '')")
    followed.take()
    assert followed.rows() == followed.truth()
    followed.run("UPDATE # SET id = 10 WHERE id = 1", "UPDATE # SET v = id WHERE id > 2")
    assert followed.take() > 0
    assert followed.rows() == followed.truth()
    assert followed.take() == 0


def test_what_happens_between_slot_and_content_counts_once(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # SELECT i, 'old' FROM generate_series(1, 20) AS g(i)")
    first = followed.bind()
    followed.run("UPDATE # SET v = 'new' WHERE id <= 5", "DELETE FROM # WHERE id = 6", "INSERT INTO # VALUES (21, 'x')")
    followed.at = {}
    bound = followed.read({}, first.offsets)
    followed.kept = {row["id"]: row for row in bound}
    followed.at = first.offsets
    assert followed.rows() == followed.truth()
    assert followed.bind().offsets == first.offsets  # first the content has to be taken in
    followed.source.acknowledge(first.offsets)
    followed.run("UPDATE # SET v = 'newest' WHERE id = 1", "DELETE FROM # WHERE id = 21")
    followed.take()
    assert followed.rows() == followed.truth()


def test_transactions_are_whole_and_in_order(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    with server.connect(autocommit=False) as open_one:
        open_one.execute(f"INSERT INTO {followed.table} SELECT i, 'one' FROM generate_series(1, 500) AS g(i)")
        followed.run("INSERT INTO # VALUES (1000, 'other')")
        followed.take()
        assert followed.rows() == {1000: "other"}
        open_one.execute(f"UPDATE {followed.table} SET v = 'two' WHERE id <= 250")
        open_one.commit()
    followed.run("DELETE FROM # WHERE id > 400 AND id < 1000")
    followed.take(rows=10)  # fewer than the transaction has
    assert len(followed.rows()) == 501
    followed.take(rows=10)
    assert followed.rows() == followed.truth()


def test_a_new_process_goes_on_where_the_last_has_committed(server: Postgres) -> None:
    followed = Followed(server)
    followed.run("INSERT INTO # VALUES (1, 'a')")
    followed.take()
    followed.run("INSERT INTO # VALUES (2, 'b')")
    lost = followed.bind()  # bound, and nothing read
    followed.source = followed.open()
    followed.source.acknowledge(followed.at)
    followed.run("INSERT INTO # VALUES (3, 'c')")
    before = followed.at
    followed.at = lost.offsets
    again = followed.bind()
    assert [r["id"] for r in followed.read(before, lost.offsets)] == [2]
    assert [r["id"] for r in followed.read(before, again.offsets)] == [2, 3]


def test_types(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, b bool, n numeric(20,3), d float8, ts timestamp, tz timestamptz, "
                                "da date, by bytea, j jsonb, u uuid")  # fmt: skip
    kinds = {"b": "boolean", "n": "decimal(20,3)", "d": "double", "ts": "timestamp_ntz", "tz": "timestamp",
             "da": "date", "by": "binary", "j": "string", "u": "string"}  # fmt: skip
    followed.columns = [COLUMNS[0], *(Column(n, k) for n, k in kinds.items()), *COLUMNS[2:]]
    followed.source = followed.open()
    values = """true, 12.5, 'NaN', '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00+02', '1999-01-01', '\\x00ff',
                '{"a": 1}', '00000000-0000-0000-0000-000000000001'"""
    followed.run(f"INSERT INTO # VALUES (1, {values})", "INSERT INTO # VALUES (2)")
    followed.take()
    followed.run(
        f"INSERT INTO # VALUES (3, {values})", "INSERT INTO # VALUES (4)", "UPDATE # SET b = false WHERE id = 4"
    )
    followed.take()

    def plain(i: int) -> list[str]:
        return [str(followed.kept[i][name]) for name in kinds]

    assert plain(1) == plain(3)
    assert plain(1)[:4] == ["True", "12.500", "nan", "2024-02-29 12:00:00.000001"]
    assert plain(1)[4].startswith("2024-02-29 10:00:00") and followed.kept[1]["by"] == b"\x00\xff"
    assert plain(2) == ["None"] * 9 and plain(4) == ["False", *["None"] * 8]


def test_values_out_of_line(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, v text, w int")
    followed.run("ALTER TABLE # ALTER v SET STORAGE EXTERNAL", "INSERT INTO # VALUES (1, repeat('long', 5000), 1)")
    followed.take()
    followed.run("INSERT INTO # VALUES (2, 'x', 1)", "UPDATE # SET w = 2 WHERE id = 1")
    with pytest.raises(SourceError, match='does not say what "v" of'):
        followed.take()
    whole = Followed(server, "id int PRIMARY KEY, v text, w int")
    whole.run("ALTER TABLE # ALTER v SET STORAGE EXTERNAL", "ALTER TABLE # REPLICA IDENTITY FULL",
              "INSERT INTO # VALUES (1, repeat('long', 5000), 1)")  # fmt: skip
    whole.take()
    whole.run("UPDATE # SET w = 2 WHERE id = 1", "UPDATE # SET id = 5", "INSERT INTO # VALUES (6, 'y', 1)")
    whole.take()
    assert whole.rows() == whole.truth()


def test_what_cannot_be_followed_is_told(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    followed.run("INSERT INTO # VALUES (1, 'a')", "TRUNCATE #")
    with pytest.raises(SourceError, match="was truncated"):
        followed.take()
    renamed = Followed(server)
    renamed.take()
    renamed.run("ALTER TABLE # RENAME v TO w", "INSERT INTO # VALUES (1, 'a')")
    with pytest.raises(SourceError, match='has no column "v" any more'):
        renamed.take()
    stolen = Followed(server)
    stolen.take()
    stolen.run("INSERT INTO # VALUES (1, 'a')")
    server.execute(f"SELECT pg_replication_slot_advance('{stolen.options['slot.name']}', pg_current_wal_lsn())")
    with pytest.raises(SourceError, match="somebody else has read"):
        stolen.take()
    stolen.source.discard()
    with pytest.raises(SourceError, match="does not have the replication slot"):
        stolen.take()
    with server.connect() as connection:
        left = connection.execute("SELECT slot_name FROM pg_replication_slots UNION SELECT pubname FROM pg_publication")
        assert (stolen.options["slot.name"],) not in left.fetchall()


def test_another_table_of_the_name_is_told(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    followed.run("ALTER TABLE # RENAME TO #_old")
    with pytest.raises(SourceError, match="not the one any more"):
        followed.bind()
    followed.run("CREATE TABLE # (id int PRIMARY KEY, v text)")
    server.execute(f"ALTER PUBLICATION {followed.options['publication.name']} ADD TABLE {followed.table}")
    with pytest.raises(SourceError, match="not the one any more"):
        followed.bind()
    followed.run("DROP TABLE #", "INSERT INTO #_old VALUES (1, 'a')", "ALTER TABLE #_old RENAME TO #")
    followed.take()
    assert followed.rows() == {1: "a"}, "what was changed under another name, too"


def test_a_publication_that_leaves_something_out_is_told(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()
    name = followed.options["publication.name"]
    for change, back, text in (
        (
            "SET (publish = 'insert, update')",
            "SET (publish = 'insert, update, delete, truncate')",
            "leaves out changes",
        ),
        ("SET TABLE # WHERE (id > 5)", "SET TABLE #", "leaves out changes"),
        ("DROP TABLE #", "ADD TABLE #", "does not have the table"),
    ):
        followed.run(f"ALTER PUBLICATION {name} {change}")
        with pytest.raises(SourceError, match=text):
            followed.bind()
        followed.run(f"ALTER PUBLICATION {name} {back}")
        followed.bind()


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        ("id int, v text", ""),
        ("id int, v text PRIMARY KEY", ""),
        ("id int, v text, PRIMARY KEY (id, v)", ""),
        ("id int PRIMARY KEY DEFERRABLE, v text", ""),
        ("id int NOT NULL UNIQUE, v text", ""),
        ("id int UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int NOT NULL, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int PRIMARY KEY, v text", "ALTER TABLE # REPLICA IDENTITY NOTHING"),
    ],
)
def test_what_is_no_key_there_is_refused(server: Postgres, columns: str, more: str) -> None:
    followed = Followed(server, columns)
    if more:
        followed.run(more)
    with pytest.raises(SourceError, match=r"\(id\) is no key of the table"):
        followed.source.claim()


def test_keys_that_are_taken(server: Postgres) -> None:
    for columns, more in (
        ("id int NOT NULL UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY USING INDEX #_id_key"),
        ("id int NOT NULL UNIQUE, v text", "ALTER TABLE # REPLICA IDENTITY FULL"),
        ("id int NOT NULL, v text", "CREATE UNIQUE INDEX ON # (id) INCLUDE (v); ALTER TABLE # REPLICA IDENTITY FULL"),
    ):
        followed = Followed(server, columns)
        followed.run(*more.split("; "))
        followed.source.claim()


def test_a_slot_that_is_there_already_is_somebody_elses(server: Postgres) -> None:
    followed = Followed(server)
    server.execute("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    with pytest.raises(SourceError, match="there is a replication slot theirs"):
        followed.open(**{"slot.name": "theirs"}).claim()
    server.execute("SELECT pg_drop_replication_slot('theirs')")


def test_the_slot_moves_with_the_reader(server: Postgres) -> None:
    followed = Followed(server)
    followed.take()

    def confirmed() -> int:
        sql = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        with server.connect() as connection:
            return int(connection.execute(sql, [followed.options["slot.name"]]).fetchone()[0])  # type: ignore[index]

    followed.run("INSERT INTO # VALUES (1, 'a')")
    before = confirmed()
    bound = followed.bind()
    followed.bind()
    assert confirmed() == before < bound.offsets["lsn"]
    followed.take()
    followed.bind()
    assert confirmed() == followed.at["lsn"]


def test_refused(server: Postgres) -> None:
    followed = Followed(server)
    with pytest.raises(SourceError, match="there is no table public"):
        followed.open(**{"table.name": "nowhere"}).start_offsets()
    with pytest.raises(SourceError, match="PostgreSQL at"):
        followed.open(port="1").start_offsets()
    with pytest.raises(NotSupported):
        type(followed.source).added_columns({})
    followed.columns = [*COLUMNS, Column("more", "int")]
    with pytest.raises(SourceError, match='has no column "more"'):
        followed.open().start_offsets()


def test_content_and_changes_say_the_same(server: Postgres) -> None:
    followed = Followed(server, "id int PRIMARY KEY, v char(4), w inet, x bool")
    followed.columns = [*COLUMNS[:2], Column("w", "string"), Column("x", "boolean"), *COLUMNS[2:]]
    followed.source = followed.open()
    followed.run("INSERT INTO # VALUES (1, 'a', '10.0.0.1', true), (2, 'b ', '10.0.0.2', false)")
    followed.take()
    before = {i: (row["v"], row["w"], row["x"]) for i, row in followed.kept.items()}
    assert before == {1: ("a   ", "10.0.0.1", True), 2: ("b   ", "10.0.0.2", False)}
    followed.run("UPDATE # SET id = id")
    assert followed.take() == 2
    assert before == {i: (row["v"], row["w"], row["x"]) for i, row in followed.kept.items()}
