"""Statements carried out with nothing but a context: without a server, a session, a coordinator or Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import RoleContent
from headrace.catalog.edits import Put
from headrace.catalog.records import ObjectRecord
from headrace.config import Settings
from headrace.errors import HeadraceError, InsufficientPrivilege, NotSupported, QueryCanceled
from headrace.session.context import Context
from headrace.session.handlers import handler_of
from headrace.session.result import Result
from headrace.session.stored_roles import ROLES_SCHEMA
from headrace.sql import statements as st
from headrace.sql.parser import parse_one
from homes import Home


class Runner:
    """Statements as a session would run them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def prepared(self, statement: st.Statement, types: Sequence[str | None]) -> Any:
        self.asked.append(statement.words)
        return SimpleNamespace(
            parameter_types=list(types), columns=None, execute=lambda values: Result(f"ran with {list(values)}")
        )

    def explaining(self, statement: st.Statement) -> Callable[[], list[str]] | None:
        return (lambda: ["a line"]) if isinstance(statement, st.Select) else None

    def going_on(self, statement: st.Statement) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self, statement: st.Statement, result: Callable[[], Result]) -> Result:
        return result()


class Scene:
    """A catalog, and a coordinator that notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(data_dir=folder, catalog_commit_sync=False)
        self.catalog = Catalog.open(self.settings.catalog_location, full_sync=False)
        self.said: list[str] = []
        self.running = False
        self.coordinator: Any = SimpleNamespace(
            is_standby=False,
            refuse_writes=lambda what: self.said.append(f"writes: {what}"),
            wait_ready=lambda check: self.said.append("ready"),
            runs_all=lambda: self.running,
            wait_planned=lambda check: self.said.append("planned"),
            flush=lambda check: self.said.append("flushed"),
            source_errors=dict,
        )
        self.home = Home(self.coordinator, self.catalog, self.settings)
        self.runner = Runner()

    def context(self, **settings: str) -> Context:
        made = Context(self.home.services, {"session_authorization": "root", **settings}, self.runner)
        self.home.others.append(made)
        return made

    def role(self, name: str) -> None:
        record = ObjectRecord(7 + len(self.catalog.state.objects), RoleContent(superuser=False), ROLES_SCHEMA, name)
        self.catalog.transact([Put(record)])


def run(context: Context, sql: str) -> Result:
    statement = parse_one(sql)
    return handler_of(statement).run(context, statement)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.catalog.close()


def test_settings_are_the_contexts_own(scene: Scene) -> None:
    one, two = scene.context(application_name="one"), scene.context()
    run(one, "SET TimeZone = 'Europe/Berlin'")
    assert (one.zone.name, two.zone.name) == ("Europe/Berlin", "UTC")
    assert run(one, "SHOW application_name").rows() == [("one",)]
    assert run(two, "SHOW transaction_read_only").rows() == [("off",)]
    scene.coordinator.is_standby = True
    assert run(two, "SHOW transaction_read_only").rows() == [("on",)]


def test_a_system_parameter_is_for_superusers(scene: Scene) -> None:
    scene.role("reader")
    run(scene.context(), "ALTER SYSTEM SET max_result_rows = 5")
    with pytest.raises(InsufficientPrivilege):
        run(scene.context(session_authorization="reader"), "ALTER SYSTEM SET max_result_rows = 6")
    assert scene.home.altered == [("max_result_rows", "5")]


def test_another_context_is_cancelled_by_its_own_user_and_superusers(scene: Scene) -> None:
    scene.role("one")
    scene.role("two")
    root, one, two = (
        scene.context(),
        scene.context(session_authorization="one"),
        scene.context(session_authorization="two"),
    )
    with pytest.raises(InsufficientPrivilege):
        run(one, f"KILL {two.number}")
    two.check()
    assert run(root, f"KILL {two.number}").notices == []
    with pytest.raises(QueryCanceled, match="user request"):
        two.check()
    one.check()
    assert [n.message for n in run(root, "KILL 0").notices] == ["there is no session 0"]


def test_a_statement_within_a_statement_goes_by_the_port(scene: Scene) -> None:
    context = scene.context()
    run(context, "PREPARE p (int) AS SELECT $1")
    assert scene.runner.asked == ["SELECT"] and context.statements.has("p")
    assert run(context, "EXECUTE p (3)").tag == "ran with ['3']"
    assert run(context, "EXPLAIN SELECT 1").rows() == [("a line",)] and scene.said == []
    with pytest.raises(NotSupported):
        run(context, "EXPLAIN DROP TABLE t")
    assert scene.said == ["writes: EXPLAIN DROP", "ready"]
    run(context, "DEALLOCATE ALL")
    with pytest.raises(HeadraceError, match="does not exist"):
        run(context, "EXECUTE p (3)")


def test_a_flush_waits_for_what_views_need(scene: Scene) -> None:
    assert run(scene.context(), "FLUSH").tag == "FLUSH"
    assert scene.said == ["planned", "flushed"]


def test_what_is_written_is_never_said_to_be_cancelled(scene: Scene) -> None:
    context = scene.context()
    context.cancel()
    context.wrote(5)
    context.wrote(3)
    context.check()
    assert context.last_write == 5 and scene.said == []
    run(context, "SET rw_implicit_flush = on")
    context.wrote(6)
    assert scene.said == ["planned", "flushed"]
