"""What a database's state consists of, whether it is sound, and what of it is left over: for people, not for running.

Works from the outside, on a stopped or a running database: everything is read from the catalog as of now, without
shutting out the process that serves it.

`headrace state` prints it; `state/inspect.py` reads single runs from the first to the last byte. A process that
serves a database holds a lock in its directory (`common/ownership.py`), so that `headrace state gc` keeps away from
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from headrace.catalog.records import ObjectRecord, StateTableRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.upkeep.owner import FOLDER
from headrace.errors import UndefinedTable
from headrace.state.inspect import run_problems
from headrace.state.schema import RunRef
from headrace.state.stores import Root, store_of

Look = Callable[[], CatalogState]
"""The catalog's content as of now."""


@dataclass(frozen=True)
class TableInfo:
    """A state table as `headrace state` lists it."""

    id: int
    name: str
    """`<relation>.<operator>.<table>`; with the relation's schema before it where that is not public."""
    owner: str
    """The relation that it belongs to."""
    operator: str
    """`<operator>/<table>`."""
    runs: int
    rows: int
    """Stored rows: at least as many as the table has."""
    bytes: int
    levels: str
    """`<level>:<runs>` of each level."""
    committed_epoch: int
    safe_epoch: int


@dataclass(frozen=True)
class Loose:
    """A stored object that nothing in the catalog refers to."""

    path: str
    age_s: float


@dataclass(frozen=True)
class VerifyReport:
    """The findings of `verify`: what is damaged, missing or left over."""

    runs: int
    bytes: int
    problems: list[str]
    loose: list[Loose]


def owner_name(owner: ObjectRecord | None) -> str:
    """A relation's name as state tables carry it."""
    if owner is None:
        return "?"
    return owner.name if owner.schema in ("", "public") else f"{owner.schema}.{owner.name}"


def table_name(state: CatalogState, record: StateTableRecord) -> str:
    """The name of a state table."""
    return f"{owner_name(state.objects.get(record.job_id))}.{record.operator.replace('/', '.')}"


def table_infos(state: CatalogState) -> list[TableInfo]:
    """All state tables, by id."""
    return [_info(state, record) for _, record in sorted(state.state_tables.items())]


def _info(state: CatalogState, record: StateTableRecord) -> TableInfo:
    runs = state.runs_of(record.id)
    levels = Counter(run.level for run in runs)
    return TableInfo(
        id=record.id,
        name=table_name(state, record),
        owner=owner_name(state.objects.get(record.job_id)),
        operator=record.operator,
        runs=len(runs),
        rows=sum(r.ref.rows for r in runs),
        bytes=sum(r.ref.length for r in runs),
        levels=" ".join(f"{level}:{count}" for level, count in sorted(levels.items())),
        committed_epoch=record.committed_epoch,
        safe_epoch=record.safe_epoch,
    )


def find_table(state: CatalogState, name: str) -> StateTableRecord:
    """The state table of that name or id. Raises `UndefinedTable`."""
    found = [r for r in state.state_tables.values() if name in (str(r.id), table_name(state, r))]
    if not found:
        raise UndefinedTable(f'there is no state table "{name}"', hint="headrace state ls lists them")
    if len(found) > 1:
        ids = ", ".join(str(r.id) for r in found)
        raise UndefinedTable(f'"{name}" is the name of several state tables', hint=f"use one of their ids: {ids}")
    return found[0]


def verify(look: Look, root: Root, now_s: float, grace_s: float, *, served: bool) -> VerifyReport:
    """Read every referenced section and say what is wrong; takes as long as reading the whole state.

    An unreferenced object counts as wrong once it is older than the grace period, unless the database is `served`:
    then it may have become unreferenced just now, and is deleted in time. `now_s` is Unix time in seconds.
    """
    state = look()
    problems: list[str] = []
    runs = [(table, run.ref) for table in state.state_tables.values() for run in state.runs_of(table.id)]
    for table, ref in runs:
        # Above the checkpoint there may be durable parts of the epoch that the job is at.
        newest = max([table.committed_epoch, *(p.epoch for p in state.positions_of(table.job_id))])
        found = list(run_problems(root, ref, table.to_table_schema(), newest))
        if found and served and ref not in _references(look()):
            continue  # replaced by compaction meanwhile, and deleted
        problems += [f"state table {table_name(state, table)}: {text}" for text in found]
    problems += _epoch_problems(state)
    loose = unreferenced(look, root, now_s)
    if not served:
        problems += [f"object {o.path} is referenced by nothing" for o in loose if o.age_s >= grace_s]
    return VerifyReport(len(runs), sum(ref.length for _, ref in runs), problems, loose)


def _references(state: CatalogState) -> set[RunRef]:
    return {run.ref for run in state.runs.values()}


def _epoch_problems(state: CatalogState) -> Iterator[str]:
    """PC-47: the state tables of one job are committed together."""
    for job in state.jobs.values():
        for table in state.tables_of(job.id):
            if table.committed_epoch != job.committed_epoch:
                yield (
                    f"state table {table_name(state, table)} is committed at epoch {table.committed_epoch}, "
                    f"its job at {job.committed_epoch}"
                )
            if table.safe_epoch > table.committed_epoch:
                yield f"state table {table_name(state, table)}: the safe epoch is above the committed one"


def unreferenced(look: Look, root: Root, now_s: float) -> list[Loose]:
    """The objects that no run refers to, by name: what was written and not committed yet is among them."""
    found = {o.path: o.modified_s for o in store_of(root).list() if not o.path.startswith(f"{FOLDER}/")}
    # After the listing: what has been committed in between is referenced now.
    referenced = {ref.path for ref in _references(look())}
    return [Loose(path, now_s - found[path]) for path in sorted(found.keys() - referenced)]


def collect(root: Root, loose: list[Loose], grace_s: float, *, dry_run: bool) -> list[str]:
    """Delete the unreferenced objects that are older than the grace period; returns their names.

    Nothing must write to the database meanwhile, unless it is a dry run. Raises `StorageError`.
    """
    old = [o.path for o in loose if o.age_s >= grace_s]
    for path in [] if dry_run else old:
        store_of(root).delete(path)
    return old
