"""Finds out which queries are answered here, and answers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, ObjectMissing, QueryCanceled, StorageError
from headrace.session.context import Context
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.names import BoundQuery, names_of
from headrace.session.reading.read_plans import ReadPlan, read_plan
from headrace.session.reading.read_steps import constant_rows, snapshot_rows
from headrace.session.reading.twins import NoTwin
from headrace.session.system.asking_functions import localize
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.way import bound_query
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.coordinator.reads import Snapshot

SETTING = "enable_quick_reads"


@dataclass(frozen=True, eq=False)
class PlannedRead:
    """A query that is answered here, with its plan."""

    bound: BoundQuery
    plan: ReadPlan
    timed: bool
    """Whether it says as of when it reads."""
    lasting: bool
    """Whether the plan is good for later, too: it knows nothing of the session."""


def plan_read(context: Context, query: Query, types: Sequence[str | None] = ()) -> PlannedRead | None:
    """The plan of a query whose parameters have these types, as far as they are known; None for what is Spark's.

    Raises what is wrong with the names in it, and `InsufficientPrivilege`.
    """
    if not context.variables.is_on(SETTING):
        return None
    localized = localize(context, query)
    if localized.offset is None or localized.change is not None:
        return None
    bound = BoundQuery(localized, names_of(context))
    targets = list(bound.targets.values())
    record = targets[0] if targets else None
    if bound.functions or len(targets) > 1 or not (record is None or _is_stored(record)):
        return None
    try:
        tree, found = bound_query(localized.text, bound.schema(), localized.world(zone=bound.zone), types)
        plan = read_plan(tree, found, record if isinstance(record, ObjectRecord) else None)
    except (NoTwin, NotBound, HeadraceError):
        return None  # an error is told by the ordinary way, in its words
    return PlannedRead(bound, plan, bool(localized.as_of()), localized is query)


def _is_stored(target: object) -> bool:
    return isinstance(target, ObjectRecord) and target.content.keeps_rows


def read_here(
    context: Context, planned: PlannedRead, values: Sequence[object], stack: ExitStack
) -> tuple[Iterator[pa.RecordBatch], Snapshot | None] | None:
    """The rows of a query, and the snapshot that they are of, which the stack holds; None where Spark is to answer.

    `values` are those of its parameters.
    """
    plan = planned.plan
    snapshot = None
    if plan.record is not None:
        point = None
        if plan.point:
            key = plan.key(values)
            point = None if key is None else (plan.record.id, key)
        snapshot = open_snapshot(context, planned.bound, stack, point)
        assert snapshot is not None
    try:
        if snapshot is None:
            return constant_rows(plan, values), None
        return snapshot_rows(context, plan, values, snapshot, stack), snapshot
    except (QueryCanceled, ObjectMissing, StorageError):
        raise
    except Exception:  # of whatever kind: Spark gives the verdict
        context.check()
        return None
