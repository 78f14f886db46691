"""Tables that connectors feed: what they cannot be made of, and that nothing is left where they read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.catalog.contents import MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common import span, time_of_day
from headrace.common.columns import Column
from headrace.common.jsonb import document
from headrace.connectors import sinks, sources
from headrace.coordinator.ddl import letting_go
from headrace.errors import InvalidParameter, NotSupported, UndefinedTable
from headrace.session.execution import fed


def test_types_that_no_connector_reads_are_refused_by_name() -> None:
    for kind, name in ((document.SPARK_TYPE, "jsonb"), (span.SPARK_TYPE, "interval"), (time_of_day.SPARK_TYPE, "time")):
        for spelled in (kind, f"array<{kind}>"):
            with pytest.raises(NotSupported, match=f'"b" of type {name}'):
                fed.check_types([Column("a", "int"), Column("b", spelled)])
    fed.check_types([Column("a", "struct<x:int>")])


class Coordinator:
    """Drops what it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.dropped: list[int] = []
        self.fails = fails

    def drop(self, ids: list[int]) -> None:
        if self.fails:
            raise UndefinedTable("it is gone")
        self.left = letting_go.leaving(STATE, ids, 0)
        self.dropped += ids

    def let_go(self, ids: list[int]) -> list[str]:
        assert ids == self.dropped
        told = [letting_go.released(CatalogState(), left, lambda _: {}, later=False) for left in self.left]
        return [text for text in told if text is not None]


def context_of(coordinator: Coordinator) -> Any:
    return SimpleNamespace(coordinator=coordinator)


RECORDS = [
    ObjectRecord(1, MaterializedViewContent(), "public", "t"),
    ObjectRecord(2, SourceContent(), "public", "t$changes", options={"connector": "postgres-cdc"}),
]
STATE = CatalogState(RECORDS)


def test_what_a_source_holds_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, discarded = Coordinator(), list[list[int]]()
    opened = SimpleNamespace(discard=lambda last: discarded.append([*coordinator.dropped]))
    monkeypatch.setattr(letting_go, "open_source", lambda *_: opened)
    assert fed.drop(context_of(coordinator), RECORDS) == []
    assert discarded == [[1, 2]], "once it is dropped, and not before"
    with pytest.raises(UndefinedTable):
        fed.drop(context_of(Coordinator(fails=True)), RECORDS)
    assert len(discarded) == 1


def test_passwords_have_to_be_secrets() -> None:
    for check, options in (
        (sinks.check_secret_options, {"connector": "postgres", "password": "x"}),
        (sinks.check_secret_options, {"connector": "kafka", "properties.sasl.password": "x"}),
        (sources.check_secret_options, {"connector": "kafka", "properties.ssl.key.password": "x"}),
        (sources.check_secret_options, {"connector": "kafka", "properties.sasl.oauthbearer.client.secret": "x"}),
        (sources.check_secret_options, {"connector": "postgres-cdc", "password": "x"}),
    ):
        with pytest.raises(InvalidParameter, match="has to be a secret") as caught:
            check(options, [])
        assert "SECRET s" in str(caught.value.hint)
    sources.check_secret_options({"connector": "postgres-cdc", "username": "x"}, ["password"])


def test_only_records_that_say_what_they_do_feed_a_table_by_key() -> None:
    kinds = {name: sources.feeds({"connector": name}) for name in sources.connector_names()}
    assert [name for name, feeds in kinds.items() if feeds] == ["kafka", "postgres-cdc"]
