"""Statements by the binder in a whole database: queries, views, changes and prepared statements."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from headrace.errors import HeadraceError
from headrace.session.database import Database
from headrace.sql.binder.way import COUNTS


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
    with monkeypatch.context() as patched:
        patched.setattr("headrace.sql.query.bound_text", lambda *_: None)
        world.sql("CREATE VIEW older AS SELECT avg(id) AS m FROM w")
    world.sql("CREATE VIEW newer AS SELECT avg(id) AS m FROM w")
    assert world.sql("SELECT m FROM older").rows() == [(2.0,)]
    assert isinstance(world.sql("SELECT m FROM older").rows()[0][0], float)
    assert isinstance(world.sql("SELECT m FROM newer").rows()[0][0], Decimal)
    found = [world.catalog.state.object_named("public", name) for name in ("older", "newer")]
    assert [record is not None and record.payload["typed"] for record in found] == [False, True]


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
