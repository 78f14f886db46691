"""Texts that differ in whole numbers only share a plan, and mean what they meant."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from write_world import Tables

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.errors import HeadraceError
from headrace.session import session as session_module
from headrace.session.literal_texts import lifted
from headrace.session.result import Result
from headrace.session.session import Session
from homes import Home


@pytest.mark.parametrize(
    ("sql", "text", "values"),
    [
        ("UPDATE t SET a = a + 1 WHERE id = 17", "UPDATE t SET a = a + $1 WHERE id = $2", ("1", "17")),
        ("insert into t2 values (1, 'a 5 b', -3)", "insert into t2 values ($1, 'a 5 b', -$2)", ("1", "3")),
        ("DELETE FROM \"t 1\" WHERE id=12345678901;", "DELETE FROM \"t 1\" WHERE id=$1;", ("12345678901",)),
        ("SELECT count(*) FROM t", "SELECT count(*) FROM t", ()),
    ],
)  # fmt: skip
def test_numbers_are_lifted_out(sql: str, text: str, values: tuple[str, ...]) -> None:
    found = lifted(sql)
    assert found is not None and (found.text, found.values) == (text, values)


@pytest.mark.parametrize(
    "sql",
    [
        "VALUES (1)", "UPDATE t SET a = 1.5", "UPDATE t SET a = .5", "UPDATE t SET a = 1e5",
        "UPDATE t SET a = 1 -- WHERE id = 2", "UPDATE t SET a = 1 /* */", "UPDATE t SET a = $1 WHERE id = 1",
        "INSERT INTO t VALUES (E'\\'', 1)", "INSERT INTO t VALUES ($$a$$, 1)", "UPDATE t SET a = 2147483648",
        "UPDATE t SET a = -9223372036854775808", "UPDATE s.t SET a = 1", "",
        "INSERT INTO t VALUES (U&'a', 1)", "INSERT INTO t VALUES ('a\\', 1)", "UPDATE t SET a = ١",
        "UPDATE t SET a = 1" + " " * 2000, "INSERT INTO t VALUES ('a' 1, 'b)",
        "UPDATE t SET a = 00000000005",
    ],
)  # fmt: skip
def test_what_is_not_plain_stays_as_it_is(sql: str) -> None:
    assert lifted(sql) is None


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[list[Session]]:
    """Two sessions over tables of their own, without Spark: what needs it fails."""
    db = Tables(tmp_path)
    columns = (Column("id", "bigint"), Column("i", "int"), Column("s", "smallint"), Column("t", "string"))
    for name in ("one", "two"):
        db.c.create_relation(ObjectRecord(0, TableContent(), "public", name, columns, primary_key=("id",)))
    home = Home(db.c, db.catalog, db.settings)
    made = [Session(home), Session(home)]
    yield made
    for session in made:
        session.close()
    db.close()


def the_long_way(session: Session, sql: str) -> Any:
    try:
        (result,) = session.execute(sql)
        return told(result)
    except HeadraceError as error:
        return error.sqlstate, error.message
    except (AttributeError, TypeError):
        return "for Spark"


def the_short_way(session: Session, sql: str) -> Any:
    assert session.knows_text(sql)
    try:
        started = session.start_text(sql)
        assert started is not None
        if not isinstance(started, Result):
            started.ready.exception(60)
            started = started.finish()
        return told(started)
    except HeadraceError as error:
        return error.sqlstate, error.message


def told(result: Result) -> Any:
    return result.tag, result.rows() if result.columns else None


KINDS = (
    "INSERT INTO {t} VALUES ({k}, {n}, {m}, 'a')",
    "INSERT INTO {t} (i, id) VALUES (-{n}, {k}), ({n}, {k})",
    "UPDATE {t} SET i = i + {n} WHERE id = {k}",
    "UPDATE {t} SET i = i * {n} - {m}, s = {n} WHERE id = {k} AND i < {n}",
    "UPDATE {t} SET s = s + {m} WHERE id = -{k}",
    "UPDATE {t} SET t = t || 'x', i = -{n} WHERE id = {k} RETURNING id, i, t",
    "DELETE FROM {t} WHERE id = {k} AND (s > {m} OR i = {n})",
)
NUMBERS = (0, 1, 7, 32767, 32768, 40000, 99999999, 999999999, 12345678901, 922337203685477580)


def test_both_ways_do_the_same(sessions: list[Session]) -> None:
    pick, (one, two) = random.Random(5), sessions
    short = 0
    for _ in range(600):
        k, n, m = pick.randrange(6), pick.choice(NUMBERS), pick.choice(NUMBERS)
        sql = pick.choice(KINDS).format(t="{t}", k=k, n=n, m=m)
        wanted = the_long_way(one, sql.format(t="one"))
        quickly = two.knows_text(sql.format(t="two"))
        short += quickly
        found = (the_short_way if quickly else the_long_way)(two, sql.format(t="two"))
        if wanted != "for Spark":
            assert found == wanted, sql
        else:
            assert not quickly, sql
    assert short > 300


def test_another_table_of_that_name_is_planned_anew(sessions: list[Session]) -> None:
    one = sessions[0]
    for k in range(3):
        the_long_way(one, f"INSERT INTO one VALUES ({k}, 1, 1, 'a')")
    assert one.knows_text("INSERT INTO one VALUES (7, 1, 1, 'a')")
    coordinator = one.context.coordinator
    record = one.context.catalog.state.object_named("public", "one")
    assert record is not None
    coordinator.drop([record.id])
    assert not one.knows_text("INSERT INTO one VALUES (7, 1, 1, 'a')")
    columns = (Column("id", "bigint"), Column("x", "bigint"), Column("y", "bigint"), Column("t", "string"))
    coordinator.create_relation(ObjectRecord(0, TableContent(), "public", "one", columns, primary_key=("id",)))
    assert the_long_way(one, "INSERT INTO one VALUES (7, 1, 1, 'a')") == ("INSERT 0 1", None)
    assert the_short_way(one, "INSERT INTO one VALUES (8, 1, 1, 'a')") == ("INSERT 0 1", None)


def test_what_limits_time_is_not_run_the_short_way(sessions: list[Session]) -> None:
    one = sessions[0]
    for k in range(3):
        the_long_way(one, f"INSERT INTO one VALUES ({k}, 1, 1, 'a')")
    one.context.variables.set("statement_timeout", "5s")
    assert not one.knows_text("INSERT INTO one VALUES (7, 1, 1, 'a')")
    assert one.start_text("INSERT INTO one VALUES (7, 1, 1, 'a')") is None


def test_as_many_kinds_are_remembered_as_have_room(sessions: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.session.literal_texts.KEPT", 5)
    one = sessions[0]
    assert session_module.KnownTexts is type(one._texts)
    for n in range(40):
        the_long_way(one, f"INSERT INTO one VALUES ({n}, 1, 1, 'a{n // 2}')")
    assert len(one._texts._known) == 5 and len(one._texts._planned) <= 5


def test_what_clients_are_told_of_settings_is_the_same_thing_until_one_changes(sessions: list[Session]) -> None:
    session = sessions[0]
    told = session.parameters
    assert told["in_hot_standby"] == "off" and session.parameters is told
    session.context.variables.set("application_name", "me")
    again = session.parameters
    assert again["application_name"] == "me" and again is not told and session.parameters is again
