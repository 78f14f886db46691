"""Statements by the binder in a whole database: queries, views, changes and prepared statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from headrace.catalog.contents import ViewContent
from headrace.errors import HeadraceError
from headrace.session.database import Database
from headrace.session.prepared import PreparedRows, PreparedStatement
from headrace.sql.binder.way import COUNTS
from headrace.sql.query import Query
from headrace.sql.repeated_rows import FEW_ROWS


@pytest.fixture(scope="module")
def world(database: Database) -> Iterator[Database]:
    database.sql("CREATE TABLE w (id int PRIMARY KEY, a int, s text, n numeric(10,2))")
    database.sql("INSERT INTO w VALUES (1, 7, 'x', 1.50), (2, NULL, 'y', 2.25), (3, 9, NULL, NULL)")
    yield database


def test_a_query_is_bound_and_counted(world: Database) -> None:
    before = COUNTS["bound"]
    assert world.sql("SELECT q.x / 2, avg(n) FROM (SELECT a AS x, n FROM w) AS q GROUP BY 1 ORDER BY 1").rows() == [
        (3, Decimal("1.5000000000")), (4, None), (None, Decimal("2.2500000000")),
    ]  # fmt: skip
    assert COUNTS["bound"] > before


def test_renamed_columns_of_a_table_are_read(world: Database) -> None:
    assert world.sql("SELECT q.y FROM w AS q(x, y) WHERE q.x = 1 AND y > 0").rows() == [(7,)]


def test_a_materialized_view_means_what_the_query_means(world: Database) -> None:
    world.sql("CREATE MATERIALIZED VIEW m AS SELECT s IS NULL AS e, sum(a / 2) AS h, avg(a) AS m FROM w GROUP BY 1")
    query = "SELECT s IS NULL, sum(a / 2), avg(a) FROM w GROUP BY 1 ORDER BY 1"
    assert world.sql("SELECT * FROM m ORDER BY e").rows() == world.sql(query).rows()
    world.sql("INSERT INTO w VALUES (4, 5, NULL, 1); UPDATE w SET a = 3 WHERE id = 2")
    world.sql("FLUSH")
    assert world.sql("SELECT * FROM m ORDER BY e").rows() == world.sql(query).rows()
    world.sql("DROP MATERIALIZED VIEW m; DELETE FROM w WHERE id = 4; UPDATE w SET a = NULL WHERE id = 2")


def test_a_view_keeps_the_meaning_that_it_was_created_with(world: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Query.__init__

    def of_parts(self: Query, tree: Any, text: str, offset: int | None = None, *rest: Any, **named: Any) -> None:
        made(self, tree, text, None, *rest, **named)  # nothing says what it means but the tree

    with monkeypatch.context() as patched:
        patched.setattr(Query, "__init__", of_parts)
        world.sql("CREATE VIEW older AS SELECT avg(id) AS m FROM w")
    world.sql("CREATE VIEW newer AS SELECT avg(id) AS m FROM w")
    assert world.sql("SELECT m FROM older").rows() == [(2.0,)]
    assert isinstance(world.sql("SELECT m FROM older").rows()[0][0], float)
    assert isinstance(world.sql("SELECT m FROM newer").rows()[0][0], Decimal)
    found = [world.catalog.state.object_named("public", name) for name in ("older", "newer")]
    assert [record is not None and record.content_as(ViewContent).typed for record in found] == [False, True]


def test_changes_divide_and_round_as_postgresql_does(world: Database) -> None:
    world.sql("UPDATE w SET a = a / 2, n = a / 4.0 WHERE id = 1")
    assert world.sql("SELECT a, n FROM w WHERE id = 1").rows() == [(3, Decimal("1.75"))]
    world.sql("UPDATE w SET a = q.x + 0.5 FROM (VALUES (1, 7), (3, 8)) AS q(k, x) WHERE q.k = w.id AND w.id = 1")
    assert world.sql("SELECT a FROM w WHERE id = 1").rows() == [(8,)]
    world.sql("UPDATE w SET a = 7, n = 1.50 WHERE id = 1")
    for text, state in (("UPDATE w SET a = s", "42804"), ("DELETE FROM w WHERE s = 1", "42883")):
        with pytest.raises(HeadraceError) as raised:
            world.sql(text)
        assert raised.value.sqlstate == state


def test_a_parameter_divides_an_integer_as_one(world: Database) -> None:
    session = world.session()
    session.prepare("UPDATE w SET a = a / $1 WHERE id = 1").execute(["2"])
    assert world.sql("SELECT a FROM w WHERE id = 1").rows() == [(3,)]
    found = session.prepare("SELECT a / $1 AS h, s || $2 AS t FROM w WHERE id = 1")
    assert found.parameter_types == ["int", "string"]
    assert found.execute(["2", "z"]).table().to_pylist() == [{"h": 1, "t": "xz"}]
    session.close()


TYPED = [
    ("UPDATE w SET a = a / $1", ["int"]),
    ("UPDATE w SET a = 1 WHERE n < $1 AND s || $2 = 'x' RETURNING a * $3", ["decimal(38,10)", "string", "int"]),
    ("UPDATE w SET a = CASE WHEN n > $1 THEN $2 ELSE a END", ["decimal(38,10)", "int"]),
    ("UPDATE w SET a = q.id FROM w AS q WHERE q.id = w.id + $1", ["int"]),
    ("DELETE FROM w WHERE a + $1 > 5 AND to_jsonb(a) = $2", ["int", "struct<hr_key:binary,hr_jsonb:string>"]),
    ("INSERT INTO w (id, a, s) VALUES ($1, abs($2) + id_of($3), upper($4))", None),
    ("INSERT INTO w (id, n, s) VALUES ($1 + 0, $2, upper($3)) RETURNING n + $4", ["int", "decimal(10,2)", "string",
                                                                                  "decimal(38,10)"]),
    ("INSERT INTO w (id, s) SELECT id + $1, $2 FROM w WHERE n = $3", ["int", "string", "decimal(38,10)"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "types"), TYPED, ids=[text for text, _ in TYPED])
def test_parameters_of_changes_have_the_types_of_their_places(
    world: Database, text: str, types: list[str] | None
) -> None:
    session = world.session()
    if types is None:
        with pytest.raises(HeadraceError) as raised:
            session.prepare(text)
        assert raised.value.sqlstate == "42883"
    else:
        found = session.prepare(text)
        assert found.parameter_types == types
        assert (found.columns is not None) == ("RETURNING" in text)
    session.close()


def test_values_and_returning_are_bound(world: Database) -> None:
    world.sql("CREATE TABLE v (id int PRIMARY KEY, a int DEFAULT 7 / 2, s text DEFAULT 'x' || 1)")
    before = COUNTS["bound"]
    found = world.sql(
        "INSERT INTO v VALUES (1, 7 / 2, upper('a') || 1), (2, DEFAULT, DEFAULT), "
        "(3, (SELECT max(id) FROM w), to_hex(-1)) RETURNING id, a / 2, s || '!'"
    )
    assert found.rows() == [(1, 1, "A1!"), (2, 1, "x1!"), (3, 1, "ffffffff!")]
    assert COUNTS["bound"] > before
    assert world.sql("UPDATE v SET a = DEFAULT, s = NULL WHERE id = 3 RETURNING row(a, s)::text").rows() == [("(3,)",)]
    assert world.sql("DELETE FROM v WHERE a / 2 = 1 AND id > 1 RETURNING a::numeric / 2").rows() == [
        (Decimal("1.50000000000000000000"),), (Decimal("1.50000000000000000000"),),
    ]  # fmt: skip
    for text, state in (
        ("INSERT INTO v VALUES (9, 1 = 1, 'x')", "42804"),
        ("INSERT INTO v VALUES (9, 1, reflect('java.util.UUID', 'randomUUID'))", "42883"),
        ("INSERT INTO v VALUES (9, 1, 'x') RETURNING java_method('java.lang.System', 'getProperty', 'x')", "42883"),
        ("UPDATE v SET s = java_method('java.lang.System', 'getProperty', 'x')", "42883"),
        ("DELETE FROM v WHERE s = java_method('java.lang.System', 'getProperty', 'x')", "42883"),
        ("CREATE TABLE v2 (a int, s text DEFAULT java_method('java.lang.System', 'getProperty', 'x'))", "42883"),
        ("CREATE VIEW v2 AS SELECT reflect('java.util.UUID', 'randomUUID')", "42883"),
        ("CREATE MATERIALIZED VIEW v2 AS SELECT reflect('java.util.UUID', 'randomUUID') FROM v", "42883"),
        ("SELECT '${env:PATH}' || java_method('a', 'b')", "42883"),
    ):
        with pytest.raises(HeadraceError) as raised:
            world.sql(text)
        assert raised.value.sqlstate == state, text
    assert world.sql("SELECT '${env:PATH}' || s FROM v WHERE id = 1").rows() == [("${env:PATH}A1",)]
    world.sql("DROP TABLE v")


def test_what_the_session_knows_is_bound(world: Database) -> None:
    before = COUNTS["bound"]
    assert world.sql("SELECT id / 2, current_user, current_database(), current_schema FROM w WHERE id = 3").rows() == [
        (1, "root", "dev", "public")
    ]
    assert COUNTS["bound"] > before


def test_the_catalogue_is_listed(world: Database) -> None:
    found = world.sql("SELECT prokind, proargtypes FROM pg_catalog.pg_proc WHERE proname = 'lower'").rows()
    assert found == [("f", "25")]


def test_views_with_sets_lists_and_templates(world: Database) -> None:
    world.sql("CREATE TABLE e (id int PRIMARY KEY, a int, d timestamp)")
    world.sql("CREATE MATERIALIZED VIEW e1 AS SELECT id, generate_series(1, a) AS g, to_char(d, 'YYYY-MM') AS m FROM e")
    world.sql(
        "CREATE MATERIALIZED VIEW e2 AS SELECT a % 2 AS k, percentile_disc(0.5) WITHIN GROUP (ORDER BY id) AS p, "
        "array_agg(id ORDER BY id DESC) AS l FROM e GROUP BY 1"
    )
    world.sql("INSERT INTO e VALUES (1, 2, '2024-02-03'), (2, 1, NULL), (3, 0, '2024-01-01'); FLUSH")
    assert world.sql("SELECT * FROM e1 ORDER BY 1, 2").rows() == [(1, 1, "2024-02"), (1, 2, "2024-02"), (2, 1, None)]
    assert world.sql("SELECT * FROM e2 ORDER BY 1").rows() == [(0, 1, [3, 1]), (1, 2, [2])]
    world.sql("DELETE FROM e WHERE id = 1; FLUSH")
    assert world.sql("SELECT * FROM e1 ORDER BY 1, 2").rows() == [(2, 1, None)]
    assert world.sql("SELECT * FROM e2 ORDER BY 1").rows() == [(0, 3, [3]), (1, 2, [2])]
    world.sql("DROP TABLE e CASCADE")


PATTERNS = [
    ("s LIKE $1", "\\x", [1]), ("s LIKE $1", "\\%", []), ("s || '%' LIKE $1", "_\\%", [1, 2]),
    ("'x%' LIKE s || $1", "\\%", [1]), ("s ILIKE $1", "\\X", [1]), ("s ~ $1", "^[[:alpha:]]$", [1, 2]),
    ("regexp_replace(s, $1, 'z') = 'z'", "[xy]", [1, 2]), ("s SIMILAR TO $1", "x|z", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "pattern", "expected"), PATTERNS)
def test_a_pattern_in_a_parameter(world: Database, condition: str, pattern: str, expected: list[int]) -> None:
    """An escape character before an ordinary one stands for that, in a parameter, too."""
    session = world.session()
    prepared = session.prepare(f"SELECT id FROM w WHERE {condition} ORDER BY id")
    assert prepared.execute([pattern]).table()["id"].to_pylist() == expected
    session.close()


def test_a_pattern_in_a_parameter_that_ends_with_its_escape_character(world: Database) -> None:
    session = world.session()
    with pytest.raises(HeadraceError) as caught:
        session.prepare("SELECT id FROM w WHERE s LIKE $1").execute(["x\\"]).table()
    assert caught.value.sqlstate == "22025"
    session.close()


def test_patterns_of_rows_in_a_view(world: Database) -> None:
    world.sql("CREATE TABLE rules (p text PRIMARY KEY)")
    world.sql("INSERT INTO rules VALUES ('^x'), ('[y-z]'), ('\\d')")
    world.sql("CREATE MATERIALIZED VIEW ruled AS SELECT w.id, p FROM w JOIN rules ON w.s ~ p")
    world.sql("CREATE MATERIALIZED VIEW swapped AS SELECT p, regexp_replace('x1y', p, '<\\&>') AS v FROM rules")
    assert world.sql("SELECT * FROM ruled ORDER BY id").rows() == [(1, "^x"), (2, "[y-z]")]
    world.sql("DELETE FROM rules WHERE p = '^x'; INSERT INTO rules VALUES ('^.$')")
    world.sql("FLUSH")
    assert world.sql("SELECT * FROM ruled ORDER BY id, p").rows() == [(1, "^.$"), (2, "[y-z]"), (2, "^.$")]
    swapped = dict(world.sql("SELECT * FROM swapped").rows())
    assert swapped == {"[y-z]": "x1<y>", "\\d": "x<1>y", "^.$": "x1y"}
    with pytest.raises(HeadraceError, match="parentheses") as caught:
        world.sql("SELECT 'x' ~ (p || '(') FROM rules").rows()
    assert caught.value.sqlstate == "2201B"
    world.sql("DROP MATERIALIZED VIEW ruled; DROP MATERIALIZED VIEW swapped; DROP TABLE rules")


def test_a_window_over_a_document_and_what_it_is_compared_by(world: Database) -> None:
    world.sql("CREATE TABLE documents (id int PRIMARY KEY, j jsonb)")
    world.sql("INSERT INTO documents VALUES (1, '[]'), (2, '{\"a\": 1}')")
    query = "SELECT id, bool_or((greatest('{}'::jsonb, j) > j)) OVER (ORDER BY id) FROM documents ORDER BY id"
    assert world.sql(query).rows() == [(1, True), (2, True)]
    world.sql("DROP TABLE documents")


def test_long_texts_do_not_end_spark(world: Database) -> None:
    """Java keeps frames on its stack for the turns of some loops: who asks for too much is told, others go on."""
    world.sql("CREATE TABLE long (id int PRIMARY KEY, body text, pattern text)")
    world.sql("INSERT INTO long SELECT 1, repeat('ab', 500000), '^(a|ab)*$'")
    world.sql("INSERT INTO long SELECT 2, repeat('ab', 3000), '^(a|ab|b)*$'")
    assert world.sql("SELECT body ~ '^(a|b)*$', regexp_count(body, '(ab?)+') FROM long WHERE id = 1").rows() == [
        (True, 1)
    ]
    assert world.sql("SELECT id, body ~ '^(a|ab|b)*$', body ~ pattern FROM long WHERE id = 2").rows() == [
        (2, True, True)
    ]
    for condition in (
        "body ~ '^(a|ab|b)*$'",
        "body ~ pattern",
        "body SIMILAR TO '(a|ab)*'",
        "body SIMILAR TO left(pattern, 9)",
    ):
        with pytest.raises(HeadraceError, match="too long for a regular expression") as caught:
            world.sql(f"SELECT {condition} FROM long WHERE id = 1")
        assert caught.value.sqlstate == "54001"
    assert world.sql("SELECT count(*) FROM w").rows() == [(3,)]
    world.sql("DROP TABLE long")


def test_many_rows_of_parameters_are_planned_as_one_row(world: Database) -> None:
    world.sql("CREATE TABLE many (id int PRIMARY KEY, b bigint, s text NOT NULL DEFAULT 'x', t text)")
    session, count = world.session(), FEW_ROWS + 4

    def made(names: str, more: str = "", types: Sequence[str | None] = ()) -> PreparedStatement:
        width = names.count(",") + 1
        rows = ("(" + ", ".join(f"${i * width + n}" for n in range(1, width + 1)) + ")" for i in range(count))
        found = session.prepare(f"INSERT INTO many ({names}) VALUES {', '.join(rows)}{more}", types)
        assert isinstance(found, PreparedRows)
        return found

    def given(*columns: Callable[[int], str | None]) -> list[str | None]:
        return [column(i) for i in range(count) for column in columns]

    inserted = made("id, b, t", " RETURNING id, s, t")
    assert inserted.parameter_types == ["int", "bigint", "string"] * count and not inserted.is_quick
    texts = given(str, lambda i: str(-i), lambda i: None if i % 2 else f"'{i}")
    wanted = [(i, "x", None if i % 2 else f"'{i}") for i in range(count)]
    assert inserted.execute(texts).rows() == wanted
    assert world.sql("SELECT count(*), sum(b) FROM many").rows() == [(count, -sum(range(count)))]
    kinds = [kind for i in range(count) for kind in (("smallint", None) if i % 3 else ("bigint", "int"))]
    typed = made("id, b", "", kinds)
    assert typed.parameter_types == [kind or "bigint" for kind in kinds]
    assert typed.execute(given(str, lambda i: "5")).tag == f"INSERT 0 {count}"
    assert world.sql("SELECT count(*), sum(b), count(t) FROM many").rows() == [(count, 5 * count, 0)]
    for column, text, state in (("s", None, "23502"), ("b", "x", "22P02")):
        wrong = [*given(lambda i: str(100 + i), lambda _: "1")[:-1], text]
        with pytest.raises(HeadraceError) as raised:
            made(f"id, {column}").execute(wrong)
        assert raised.value.sqlstate == state
    world.sql("DELETE FROM many")
    list(session.execute("SET TIME ZONE 'Europe/Berlin'"))  # which it was not planned in
    assert not inserted.is_planned and inserted.execute(texts).rows() == wanted
    assert world.sql("SELECT count(*) FROM many").rows() == [(count,)]
    session.close()
