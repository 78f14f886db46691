"""What a standby makes of changes of the catalog is what it would make of all of it."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import MaterializedViewContent, SourceContent, TableContent
from headrace.catalog.edits import AddEvent, AdvanceJob, CommitTable, Delete, Edit, Put, RaiseSafe
from headrace.catalog.following import FollowedCatalog, Refreshed
from headrace.catalog.moving import Places
from headrace.catalog.places import PlaceOptions
from headrace.catalog.records import JobPlan, JobRecord, ObjectRecord, RemapRecord, RunRecord, StateTableRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.coordinator.run.mirror import complete_epoch, mirror
from headrace.coordinator.run.standby import Standby
from headrace.errors import CorruptObject
from headrace.state.schema import ROWS, RunRef, TableSchema

OPTIONS = PlaceOptions(full_sync=False, lease_ms=0)
SCHEMA = TableSchema((pa.field("k", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))


class Active:
    """Makes transactions as a server does."""

    def __init__(self, catalog: Catalog, seed: int) -> None:
        self._catalog, self._random = catalog, random.Random(seed)
        self._epoch = 1
        self._tables: dict[int, int] = {}
        """Table or view -> its state table."""
        self._sources: list[int] = []
        self._runs: dict[int, list[str]] = {}

    def step(self) -> None:
        self._epoch += 1
        choice = self._random.choice(["create", "source", "write", "write", "write", "merge", "bind", "drop", "event"])
        edits: list[Edit] = getattr(self, f"_{choice}")()
        if edits:
            self._catalog.transact(edits)

    def _any(self) -> int | None:
        return self._random.choice(sorted(self._tables)) if self._tables else None

    def _create(self) -> list[Edit]:
        i, table = self._catalog.allocate_ids(2)
        content = self._random.choice([TableContent(), MaterializedViewContent()])
        upstreams = [] if content.writable or self._any() is None else [self._any()]
        self._tables[i], self._runs[i] = table, []
        status = "created" if content.writable else "creating"
        return [
            Put(ObjectRecord(i, content, "public", f"o{i}", depends_on=tuple(u for u in upstreams if u is not None))),
            Put(JobRecord(i, f"g{i}", status, plan=JobPlan(upstreams=tuple(u for u in upstreams if u is not None)))),
            Put(StateTableRecord.from_table_schema(table, i, ROWS, SCHEMA)),
        ]

    def _source(self) -> list[Edit]:
        (i,) = self._catalog.allocate_ids(1)
        self._sources.append(i)
        return [Put(ObjectRecord(i, SourceContent(), "public", f"s{i}", options={"connector": "datagen"}))]

    def _write(self) -> list[Edit]:
        i = self._any()
        if i is None:
            return []
        path = f"{i}/{self._epoch}.run"
        self._runs[i].append(f"{path}:0")
        return [self._put(i, path, self._epoch, self._epoch), CommitTable(self._tables[i], self._epoch),
                AdvanceJob(i, self._epoch, self._epoch, ((self._epoch, self._epoch),))]  # fmt: skip

    def _put(self, i: int, path: str, low: int, high: int) -> Put:
        return Put(RunRecord(RunRef(self._tables[i], path, 0, 10, 1, low, high, 0, 0), 0, 0))

    def _merge(self) -> list[Edit]:
        i = self._any()
        if i is None or len(self._runs[i]) < 2:
            return []
        old, path = self._runs[i], f"{i}/merged{self._epoch}.run"
        high = self._catalog.state.state_tables[self._tables[i]].committed_epoch
        self._runs[i] = [f"{path}:0"]
        return [*(Delete("run", r) for r in old), self._put(i, path, 2, high), RaiseSafe(self._tables[i], high)]

    def _bind(self) -> list[Edit]:
        if not self._sources:
            return []
        return [Put(RemapRecord(self._random.choice(self._sources), self._epoch, {"0": self._epoch}))]

    def _drop(self) -> list[Edit]:
        i = self._any()
        if i is None or self._catalog.state.dependents(i) or self._random.random() < 0.5:
            return []
        del self._tables[i], self._runs[i]
        return [Delete("object", i)]

    def _event(self) -> list[Edit]:
        return [AddEvent("x", None, "something")]


def made(graph: Graph[LiveRelation, Job]) -> tuple[dict[int, Any], dict[int, Any]]:
    relations = {
        i: (r.record, r.schema, r.state_table, r.changes._ranges, r.rows_by_epoch, r.safe, r.bound)
        for i, r in graph.relations.items()
    }
    return relations, dict(graph.jobs)


def empty() -> Graph[LiveRelation, Job]:
    return Graph(lambda: 0)


@pytest.mark.parametrize("seed", range(5))
def test_changes_come_to_the_same_as_all(tmp_path: Path, seed: int) -> None:
    location = f"file://{tmp_path}/catalog"
    rng = random.Random(seed)
    with Catalog.open(location, options=OPTIONS) as catalog:
        active = Active(catalog, seed)
        with FollowedCatalog.begin(location, Places.known([location], OPTIONS)) as followed:
            graph, epochs = empty(), []
            mirror(graph, followed.image)

            def take(found: Refreshed, state: CatalogState) -> None:
                mirror(graph, state, found.change)

            for _ in range(120):
                for _ in range(rng.randint(1, 3)):
                    active.step()
                followed.refresh(take)
                whole = empty()
                mirror(whole, followed.image)
                assert made(graph) == made(whole)
                epochs.append(complete_epoch(graph))
            assert len(graph.relations) > 3
            assert max(epochs) > 0


def test_what_was_not_taken_in_is_news_all_the_same() -> None:
    """Functions and system parameters are told of by what a look has found, which an error half-way has lost."""
    told: list[Any] = []
    guard: Any = SimpleNamespace(chore=lambda name, work: work())
    nothing: Any = None
    runtime: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_s=lambda: 0.0))
    catalog: Any = SimpleNamespace(followed_token=1, reading=lambda: nullcontext(None))
    standby = Standby(nothing, catalog, nothing, runtime, guard, take_over=lambda why: None, news=told.append)

    def half_way(taken: Any) -> Any:
        standby._torn = True
        raise CorruptObject("injected")

    catalog.refresh = half_way
    standby._refresh()
    assert told == []
    catalog.refresh = lambda taken: None
    standby._take_in = lambda found, state, began_s=None: setattr(standby, "_torn", False)  # type: ignore[method-assign]
    standby._refresh()
    standby._refresh()
    assert told == [None]
