"""Which tables and indexes the joins of a new view look rows up in, instead of keeping these once more.

That may take an index that the system makes first (`coordinator/decide/automatic.py` says when). If then the view is
not created after all, because its statement fails, is cancelled or the process ends, the index goes again.

An automatic index is an index like any other but for its schema (`headrace_internal`, where no user can make
anything) and a mark in its content. The statement makes it, waits for it, plans the view again and creates the view
under the lock of DDL, so that no drop comes between. These are two transactions: after a crash between them nobody
uses the index, and `Lifecycle.recover` deletes it before anything else. `Lifecycle.drop` adds the automatic indexes
that nothing uses any more to the very transaction that drops their last user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from headrace.catalog.contents import IndexContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.connectors.job_options import GROUP, MAX_ROWS, PARALLELISM
from headrace.coordinator.decide import automatic
from headrace.coordinator.decide.automatic import WantedIndex, is_automatic
from headrace.coordinator.decide.life import Life
from headrace.errors import DuplicateTable, HeadraceError, JobFailed, StatementError, UndefinedTable
from headrace.plan.planner import ViewPlan
from headrace.plan.tree import Sharable
from headrace.session.context import Context
from headrace.sql.binder.spark_text import quoted

SETTING = "streaming_use_arrangements"
_PASSED_ON = (PARALLELISM, MAX_ROWS)
"""Options of a view that the index gets which is made for it."""


def usable(context: Context, options: Mapping[str, str]) -> frozenset[int]:
    """Ids of tables with a primary key and of indexes that are filled, unless the session has it switched off.

    An index is left out where its checkpoint group and that of the view (which `options` may say) would wait for each
    other, or where it is not being kept up to date; one of the system's also where its group is another.
    """
    if not context.variables.is_on(SETTING):
        return frozenset()
    coordinator, state = context.coordinator, context.catalog.state
    group = _group(context, options)

    def fits(index: ObjectRecord) -> bool:
        job = state.jobs[index.id]
        if not Life.of(job).serves or (is_automatic(index) and job.group != group):
            return False
        return coordinator.may_read(group, index.id)

    tables = {o.id for o in state.objects_of(TableContent) if o.primary_key}
    return frozenset(tables.union(o.id for o in state.objects_of(IndexContent) if fits(o)))


@contextmanager
def arranged(
    context: Context, plan: Callable[[frozenset[int]], ViewPlan], options: Mapping[str, str]
) -> Iterator[ViewPlan]:
    """The plan of a new view, made by `plan` of what it may use. The view is to be created within the block.

    The automatic indexes that it is to use are made before, and filled unless `background_ddl` is on; those that it
    does not come to use go again. Within the block none that it uses is dropped by others.
    """
    coordinator, catalog = context.coordinator, context.catalog
    base = usable(context, options)
    first = plan(base)
    made: list[int] = []
    try:
        provided = (_provided(context, want, options, made) for want in wanted(context, first, options))
        indexes = frozenset(i for i in provided if i is not None)
        if indexes or any(_is_systems(catalog.state, i) for i in first.arrangements):
            with coordinator.defining():
                there = frozenset(i for i in base | indexes if i in catalog.state.objects)
                yield plan(there) if indexes or not first.arrangements <= there else first
        else:
            yield first
    finally:
        _drop_unused(context, made)


def _is_systems(state: CatalogState, index: int) -> bool:
    """Whether something that rows are looked up in is an automatic index, or is gone."""
    record = state.objects.get(index)
    return record is None or is_automatic(record)


def wanted(context: Context, plan: ViewPlan, options: Mapping[str, str]) -> list[WantedIndex]:
    """The automatic indexes that a new view of this plan is to use beside those that it uses already."""
    coordinator, group = context.coordinator, _group(context, options)
    if group == "own" or not context.variables.is_on(SETTING):
        return []
    sides = [s for s in plan.sharable if coordinator.may_read(group, s.relation)]
    return automatic.wanted(context.catalog.state, group, sides)


def explained(context: Context, plan: ViewPlan, options: Mapping[str, str]) -> list[str]:
    """Lines for EXPLAIN: the automatic indexes that would be made."""
    objects, group = context.catalog.state.objects, _group(context, options)
    found = [w.side for w in wanted(context, plan, options)]
    return [f"shared once it is filled: {automatic.name_of(objects[s.relation], group, s)}" for s in found]


def _group(context: Context, options: Mapping[str, str]) -> str:
    asked = options.get(GROUP) or context.variables.get("default_checkpoint_group")
    return context.coordinator.group_named(asked)


def _provided(context: Context, want: WantedIndex, options: Mapping[str, str], made: list[int]) -> int | None:
    """The id of an index, filled if need be; None where there is none in the end: the view keeps the rows itself."""
    coordinator, index = context.coordinator, want.index
    try:
        if index is None:
            index = _make(context, want.side, options)
            made.append(index)
        if not context.variables.is_on("background_ddl"):
            waited_for = index
            context.wait(lambda check: coordinator.wait_created(waited_for, check=check))
        return index
    except (StatementError, JobFailed):  # it was dropped by others meanwhile, or it cannot be filled
        if index in made:
            _drop_unused(context, [index])
        return None


def _drop_unused(context: Context, made: Iterable[int]) -> None:
    state = context.catalog.state
    left = [i for i in made if i in state.objects and not state.dependents(i)]
    if left:
        with suppress(HeadraceError):  # the next start does it
            context.coordinator.drop(left)


def _make(context: Context, side: Sharable, options: Mapping[str, str]) -> int:
    """Create an index of all columns, in the checkpoint group that a view with these options has. Returns its id.

    That may be one which another statement has made at the same time. Raises `UndefinedTable` if the relation is gone.
    """
    group = _group(context, options)
    relation = context.catalog.state.objects.get(side.relation)
    if relation is None:
        raise UndefinedTable(f"relation {side.relation} does not exist", hint="it may have been dropped")
    rest = [c.name for c in relation.columns if c.name not in side.key]
    text = f"SELECT {', '.join(quoted(n) for n in [*side.key, *rest])} FROM `r{relation.id}`"
    plan = context.planner.plan(text).keyed(len(side.key))
    content = IndexContent(spark_sql=text, on=relation.id, key=side.key, automatic=True)
    own = {GROUP: group, **{name: options[name] for name in _PASSED_ON if name in options}}
    name = automatic.name_of(relation, group, side)
    record = ObjectRecord(
        0, content, automatic.SCHEMA, name, plan.columns, f"-- {name}", (), own, (relation.id,), context.clock.now_ms()
    )
    try:
        return context.coordinator.create_view(record, plan)
    except DuplicateTable:
        other = automatic.index_of(context.catalog.state, group, side)
        if other is None:
            raise
        return other.id
