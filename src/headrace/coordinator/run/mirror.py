"""What a standby knows of relations and jobs: made of the catalog's content, and again of what has changed in it.

It plans nothing and opens no source: jobs have neither plans nor runners here, only what reads ask for.

It is made together with the image that reads take their runs from (`LiveState.mirrored`): so a read chooses its epoch
and its runs by one and the same content, and pins nothing on the active server.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.records import (
    JobRecord,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SourceRecord,
    StateTableRecord,
)
from headrace.catalog.state import CatalogState, Change
from headrace.coordinator.ddl.recovered import recovered_job, recovered_relation
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.steps import position_of
from headrace.coordinator.run.live_state import Job, LiveRelation


def mirror(graph: Graph[LiveRelation, Job], state: CatalogState, change: Change | None = None) -> None:
    """Let relations and jobs be as the catalog says; only those that a change concerns, if one is given.

    The caller holds the lock.
    """
    if change is None:
        graph.jobs.clear()
        graph.relations.clear()
        concerned = set(state.objects)
    else:
        concerned = set(_concerned(change, state))
    for i in sorted(concerned):
        record = state.objects.get(i)
        if record is None or not record.content.in_graph:
            graph.jobs.pop(i, None)
            gone = graph.relations.pop(i, None)
            if gone is not None:
                gone.dropped = True
            continue
        graph.relations[i] = recovered_relation(record, state, None)
        if record.content.has_job:
            tables = {t.operator: t.id for t in state.tables_of(i)}
            position = position_of(state.positions_of(i))
            graph.jobs[i] = recovered_job(record, state.jobs[i], tables, position)


def complete_epoch(graph: Graph[LiveRelation, Job]) -> int:
    """The newest epoch that is complete for certain, as views tell: each was committed at a complete one, and what was
    written up to there is in the catalog before it. The caller holds the lock.
    """
    return max((job.committed for job in graph.jobs.values()), default=0)


def _concerned(change: Change, state: CatalogState) -> Iterator[int]:
    for record in change.puts:
        yield from _relation_of(record, state)
    for collection, key in change.deletes:
        if collection in ("remap", "position"):
            assert isinstance(key, tuple)
            yield key[0]
        elif collection in ("object", "job", "source"):
            assert isinstance(key, int)
            yield key
        # A run goes with others that come in its place, a state table with its object.


def _relation_of(record: Record, state: CatalogState) -> Iterator[int]:
    if isinstance(record, (ObjectRecord, JobRecord, SourceRecord)):
        yield record.key
    elif isinstance(record, (StateTableRecord, PositionRecord)):
        yield record.job_id
    elif isinstance(record, RemapRecord):
        yield record.source_id
    elif isinstance(record, RunRecord):
        table = state.state_tables.get(record.ref.table_id)
        if table is not None:
            yield table.job_id
