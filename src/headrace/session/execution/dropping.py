"""DROP: what goes together, in which order, and what is in its way; and CANCEL JOBS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import IndexContent, RoleContent, SchemaContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide.automatic import is_automatic
from headrace.coordinator.decide.former import formers, table_of
from headrace.coordinator.decide.life import Life
from headrace.errors import DependentObjectsExist, HeadraceError, NotSupported, UndefinedTable, WrongObjectType
from headrace.session.context import Context
from headrace.session.execution import fed, routines
from headrace.session.execution.existing import missing, refuse_automatic
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.value_results import having, rows_result
from headrace.session.hidden_views import is_part, parts_of
from headrace.session.names import check_named, kind_called, label, names_of
from headrace.session.result import Notice, Result
from headrace.sql import statements as st
from headrace.sql.statements import TableName

_CANCELLED = (("Id", "bigint"),)


def drop(context: Context, statement: st.Drop) -> Result:
    """DROP of relations and schemas."""
    notices: list[Notice] = []
    wanted: list[ObjectRecord] = []
    for name in statement.names:
        found = _to_drop(context, statement.kind, name)
        if found is None and not statement.if_exists:
            raise missing(statement.kind, name)
        if found is None:
            notices.append(Notice(f'{statement.kind} "{name}" does not exist, skipping'))
        else:
            context.rights.require_owner(found, to_drop=True)
            wanted.append(found)

    def check() -> None:
        state = context.catalog.state
        for record in (o for o in wanted if o.id in state.objects):  # what is gone is told in other words
            check_named(state, record)

    return Result(statement.tag, notices=[*notices, *drop_records(context, wanted, check, cascade=statement.cascade)])


def cancel_jobs(context: Context, statement: st.CancelJobs) -> Result:
    """CANCEL JOBS: drop views that are still being created."""
    state = context.catalog.state
    for job_id in statement.ids:
        job = state.jobs.get(job_id)
        if job is None or Life.of(job).serves or job.exact:
            raise UndefinedTable(f"there is no job {job_id} that is being created", sqlstate="42704")
        context.rights.require_owner(state.objects[job_id])
    parts = parts_of(state, statement.ids)
    told = fed.drop(context, list({o.id: o for o in [*(state.objects[i] for i in statement.ids), *parts]}.values()))
    found = rows_result(statement.tag, _CANCELLED, [[i] for i in statement.ids])
    return replace(found, notices=[*found.notices, *map(Notice, told)])


def drop_records(
    context: Context, wanted: Sequence[ObjectRecord], check: Callable[[], None] | None = None, *, cascade: bool
) -> list[Notice]:  # fmt: skip
    """Drop objects, and with `cascade` those built on them. What to tell. Raises `DependentObjectsExist`, and `check`,
    which is asked while nobody else defines anything.
    """
    order, extra = _drop_order(context, wanted)
    needed = [o for o in extra if not isinstance(o.content, IndexContent)]
    if needed and not cascade:
        raise _still_needed(context, wanted, needed)
    shown = [o for o in extra if not is_part(o) and not is_automatic(o)]
    notices = [Notice(f"drop cascades to {o.kind_name} {label(o)}") for o in shown]
    if order:
        state = context.catalog.state
        parts = parts_of(state, [o.id for o in order])
        gone = list({o.id: o for o in [*order, *parts, *_filled_beside(state, parts)]}.values())
        notices += map(Notice, fed.drop(context, gone, check))
    for record in order:
        routines.forget(context, record)
    return notices


def _filled_beside(state: CatalogState, parts: Iterable[ObjectRecord]) -> Iterator[ObjectRecord]:
    """What is being filled over the hidden sources of tables, to take their place."""
    for above in (state.objects[i] for part in parts if part.content.external for i in state.dependents(part.id)):
        yield above
        yield from _filled_beside(state, [above])
        yield from (o for o in (state.objects[i] for i in state.dependents(above.id)) if _is_index(o))


def _is_index(record: ObjectRecord) -> bool:
    return isinstance(record.content, IndexContent)


def _to_drop(context: Context, word: str, name: TableName) -> ObjectRecord | None:
    kind = kind_called(word)
    if kind is SchemaContent:
        return context.catalog.state.object_named("", name.name)
    if kind is None or kind is RoleContent:  # a role is no object of a schema, and has a statement of its own
        raise NotSupported(f"DROP {word.upper()}")
    found = names_of(context).find(name)
    fed_table = found is not None and kind is TableContent and fed.is_fed(context.catalog.state, found)
    if found is not None and not isinstance(found.content, kind) and not fed_table:
        raise WrongObjectType(
            f'"{name}" is not a {kind.kind.replace("_", " ")}',
            hint=f"Use DROP {found.kind_name.upper()} to remove a {found.kind_name}.",
        )
    if found is not None:
        refuse_automatic(context, found, "dropped")
    return found


def _drop_order(context: Context, wanted: Sequence[ObjectRecord]) -> tuple[list[ObjectRecord], list[ObjectRecord]]:
    """All objects to drop, dependents first; and those among them that nobody asked for."""
    state = context.catalog.state
    known = formers(state)
    order: list[ObjectRecord] = []
    seen: set[int] = set()

    def visit(record: ObjectRecord) -> None:
        if record.id in seen:
            return
        seen.add(record.id)
        whole = isinstance(record.content, SchemaContent)
        inside = [o for o in state.objects.values() if o.schema == record.name] if whole else []
        for above in [*(state.objects[i] for i in state.dependents(record.id)), *known.get(record.id, ()), *inside]:
            visit(above)
        order.append(record)

    for record in wanted:
        visit(record)
    asked = {record.id for record in wanted}
    return order, [o for o in order if o.id not in asked]


def _still_needed(context: Context, wanted: Sequence[ObjectRecord], extra: Sequence[ObjectRecord]) -> HeadraceError:
    state = context.catalog.state
    lines: list[str] = []
    for above in reversed(extra):
        if is_part(above) or is_automatic(above):
            continue
        below = list(_visible(state, above.depends_on))
        known = [b for b in below if b in wanted or b in extra]
        owner = known[0] if known else wanted[0]
        lines.append(f"{above.kind_name} {label(above)} depends on {owner.kind_name} {label(owner)}")
    first = wanted[0]
    return DependentObjectsExist(
        f"cannot drop {first.kind_name} {label(first)} because other objects depend on it",
        detail="\n".join(lines),
        hint="Use DROP ... CASCADE to drop the dependent objects too.",
    )


def _visible(state: CatalogState, ids: Iterable[int]) -> Iterator[ObjectRecord]:
    """Objects; in the place of former tables those with their names, of hidden parts what these are built on."""
    for each in (table_of(state, state.objects[i]) for i in ids if i in state.objects):
        if is_part(each):
            yield from _visible(state, each.depends_on)
        else:
            yield each


HANDLERS: Final = (
    Handler(st.Drop, drop, needs=Needs.OWNER),
    Handler(st.CancelJobs, cancel_jobs, having(_CANCELLED), needs=Needs.OWNER),
)
