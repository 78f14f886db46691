"""By what it is told that a view would be planned as before: all of the catalog that its plan follows from. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from headrace.catalog.contents import FunctionContent, IndexContent, PlannedContent, SinkContent, ViewContent
from headrace.catalog.records import JobRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.view_options import on_error
from headrace.state.schema import ROWS


def identity_of(state: CatalogState, record: ObjectRecord, job: JobRecord, tables: Iterable[str]) -> str | None:
    """A digest of what the plan of a job follows from; None for one whose plan is made anew each time.

    `state` need not have the record and the job yet; `tables` are the names of the job's state tables. Anew are made
    the plans of sinks, whose targets may need more than the plan; of DataFrames, which Java has written; and of what
    calls functions of users: where their modules are gone only planning says so.
    """
    content = record.content
    if not isinstance(content, PlannedContent) or isinstance(content, SinkContent) or content.spark_sql is None:
        return None
    near = _near(state, record, job)
    if any(isinstance(state.objects[i].content, FunctionContent) for i in near):
        return None
    told = [_plain(record), job.plan.to_json(), on_error(job.options), sorted(tables)]
    told += [[_plain(state.objects[i]), _layout(state, i)] for i in sorted(near)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _near(state: CatalogState, record: ObjectRecord, job: JobRecord) -> set[int]:
    """All objects that a job is made of, and the ways in which rows of these can be looked up."""
    plan = job.plan
    found = {*record.depends_on, *(plan.upstreams or ()), *(plan.lookups or ()), *(plan.arrangements or ())}
    views = [i for i in found if i in state.objects and isinstance(state.objects[i].content, ViewContent)]
    while views:  # a plain view's query is part of the job's own, with all that it names
        further = set(state.objects[views.pop()].depends_on) - found
        found |= further
        views += [i for i in further if i in state.objects and isinstance(state.objects[i].content, ViewContent)]
    indexes = [(o.id, c.on) for o in state.objects.values() if isinstance(c := o.content, IndexContent)]
    found |= {on for i, on in indexes if i in found}
    found |= {i for i, on in indexes if on in found}
    return {i for i in found if i in state.objects} - {record.id}


def _plain(record: ObjectRecord) -> object:
    """What of an object's record can make a difference: not whose it is, nor who may use it."""
    return {k: v for k, v in record.to_json().items() if k not in ("v", "owner", "grants", "secrets", "created_ms")}


def _layout(state: CatalogState, object_id: int) -> object:
    """How its rows lie."""
    return [t.to_json() | {"committed_epoch": 0, "safe_epoch": 0, "watermark": 0}
            for t in state.tables_of(object_id) if t.operator == ROWS]  # fmt: skip
