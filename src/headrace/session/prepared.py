"""Statements whose parameters are still open, with the plan that they are run by where there is one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeAlias, cast

from headrace.catalog.records import ObjectRecord
from headrace.coordinator.reads import LATER, Later
from headrace.coordinator.writes.layout import Row
from headrace.errors import HeadraceError
from headrace.session.context import Context
from headrace.session.coordination import Coordination
from headrace.session.execution.points import is_found_by
from headrace.session.execution.row_writes import RowPlan, plan_all_rows, plan_rows
from headrace.session.handlers import handler_of
from headrace.session.reading.at_once import PointRead, is_at_once, is_of_newest, rows_of
from headrace.session.reading.read_planning import SETTING, PlannedRead
from headrace.session.reading.read_plans import ReadPlan
from headrace.session.result import Pending, Result, ResultColumn, require_same_types
from headrace.sql import statements as st
from headrace.sql.catalog_types import held_as
from headrace.sql.parser import bind, parameter_types, parse_one
from headrace.sql.repeated_rows import repeated_rows


class StatementRunner(Protocol):
    """What runs a prepared statement: its session, which admits it, limits its time and tells its errors."""

    @property
    def context(self) -> Context:
        """What the statement uses."""
        ...

    @property
    def starts_quickly(self) -> bool:
        """Whether statements may be started without waiting for them."""
        ...

    def starts_at_once(self, statement: st.Statement) -> bool:
        """Whether a statement without a plan may be started so."""
        ...

    @property
    def finds_quickly(self) -> bool:
        """Whether an open transaction finds single rows without waiting for a store across the network."""
        ...

    def run(self, statement: st.Statement) -> Result:
        """Run a statement."""
        ...

    def run_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result:
        """Run a statement that was planned before, with the texts of its parameters."""
        ...

    def run_read(
        self, statement: st.Statement, plan: Callable[[], PlannedRead | None], texts: Sequence[str | None]
    ) -> Result | None:
        """The same of a read; None for what is to be run the ordinary way."""
        ...

    def start_bracket(self, statement: st.Statement) -> Result | Pending:
        """Start a statement that begins or ends a transaction."""
        ...

    def start_planned(self, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]) -> Result | Pending:
        """Start a statement that was planned before."""
        ...

    def start_read(self, statement: st.Statement, planned: PlannedRead, texts: Sequence[str | None]) -> Result | None:
        """The same of a read."""
        ...

    def begin_point(
        self, statement: st.Statement, planned: PlannedRead, texts: Sequence[str | None]
    ) -> PointRead | Result | None:
        """Begin a read of a single row, which is still to be looked up; its result where there is none to look up."""
        ...


class PreparedStatement:
    """A statement that has been parsed, with its parameters still open."""

    def __init__(
        self, runner: StatementRunner, statement: st.Statement, types: Sequence[str | None],
        columns: list[ResultColumn] | None, plan: RowPlan | None = None, described: AsOf | None = None,
    ):  # fmt: skip
        """A type of a parameter is Spark's, or one of the system catalogs' own. `columns` are as of `described`."""
        self._runner = runner
        self._context = runner.context
        self._plan = plan
        self._statement = statement
        self._types = [None if t is None else held_as(t) for t in types]
        self.parameter_types = [t or "string" for t in types]
        self.columns = columns
        self._described = described
        self._held: tuple[object, int] | None = None
        """The catalog's objects and the session's settings with which the plan was last found to hold."""

    def _holds(self, plan: RowPlan) -> bool:
        """Whether the plan still is what the statement means."""
        context = self._context
        now = context.catalog.image.objects, context.variables.version
        if self._held is None or self._held[0] is not now[0] or self._held[1] != now[1]:
            self._held = now if plan.holds(context) else None
        return self._held is not None

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        statement, plan = self._statement, self._plan
        if plan is not None and self._holds(plan):
            return self._runner.run_planned(statement, plan, parameters)
        self._check_columns()
        if self._types:
            statement = bind(statement, parameters, self._types)
        return self._runner.run(statement)

    def _check_columns(self) -> None:
        """Raise `NotSupported` if a statement that writes would return other columns by now: before it writes."""
        context, now = self._context, plans_as_of(self._context)
        if self.columns is None or not self._statement.writes:
            return
        if self._described is not None and self._described[0] is now[0] and self._described[1] == now[1]:
            return
        columns = handler_of(self._statement).describe(context, self._statement, self._types)
        require_same_types(self.columns, columns)
        self._described = now

    @property
    def is_planned(self) -> bool:
        """Whether it has a plan of its own which still is what it means."""
        return self._plan is not None and self._holds(self._plan)

    @property
    def is_quick(self) -> bool:
        """See `Quick`."""
        runner, plan = self._runner, self._plan
        if plan is None:
            return runner.starts_at_once(self._statement)
        return runner.starts_quickly and runner.finds_quickly and self._holds(plan)

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        if self._plan is None:
            return self._runner.start_bracket(self._statement)
        return self._runner.start_planned(self._statement, self._plan, parameters)


class PreparedRows(PreparedStatement):
    """An INSERT of many rows of parameters, of which one was parsed; all of them are where its plan does not hold."""

    is_quick = False
    """Others would wait for as many values."""

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        if self.is_planned:
            return super().execute(parameters)
        return prepare(self._runner, parse_one(self._statement.text), self._types).execute(parameters)


AsOf: TypeAlias = tuple[object, int]
"""What a plan depends on beside the text: the catalog's objects and the version of the session's settings."""


def plans_as_of(context: Context) -> AsOf:
    """What a plan that is made from now on depends on."""
    return context.catalog.image.objects, context.variables.version


def _meaning(context: Context, text: str, types: Sequence[str | None], lifted: bool) -> Hashable:
    """What the plan of a text follows from beside the catalog's objects and the rights of who runs it."""
    variables = context.variables
    return text, tuple(types), lifted, variables.search_path(), context.zone.name, variables.is_on(SETTING)


def share(prepared: PreparedRead, text: str, types: Sequence[str | None], *, lifted: bool) -> None:
    """Let other sessions have the plan of a text, out of which numbers were `lifted` or not."""
    context, planned = prepared.context, prepared.planned
    if planned is not None and prepared.is_planned:
        key = _meaning(context, text, types, lifted)
        context.shared_plans.keep(key, prepared.objects, (prepared.statement, planned))


def shared(
    runner: StatementRunner, text: str, types: Sequence[str | None], *, lifted: bool
) -> PreparedRead | None:  # fmt: skip
    """The read that somebody has planned of a text, if it means the same to this session, which may run it."""
    context = runner.context
    as_of = plans_as_of(context)
    found = context.shared_plans.find(_meaning(context, text, types, lifted), as_of[0])
    if found is None:
        return None
    statement, planned = cast(tuple[st.Statement, PlannedRead], found)
    try:
        _ = context.rights.superuser  # which raises for a role that is gone
        if planned.plan.record is not None:
            context.rights.require("r", planned.plan.record)
    except HeadraceError:
        return None  # which is told by who plans it
    return PreparedRead(runner, statement, planned, as_of)


def _is_same_row(one: Sequence[ResultColumn] | None, other: Sequence[ResultColumn] | None) -> bool:
    """Whether both have the same names and types; a relation that was made anew has another oid."""
    if one is None or other is None:
        return one is other
    return [(column.name, column.type) for column in one] == [(column.name, column.type) for column in other]


class PreparedRead(PreparedStatement):
    """A query that is answered without Spark, as long as its relation is the same; else it is planned again."""

    def __init__(self, runner: StatementRunner, statement: st.Statement, planned: PlannedRead, as_of: AsOf) -> None:
        """`as_of` was taken before it was planned: what changed meanwhile is to be seen."""
        super().__init__(runner, statement, planned.plan.types, planned.plan.columns)
        self._planned: PlannedRead | None = planned
        self._as_of = as_of
        self.statement = statement
        self.context = self._context

    @property
    def planned(self) -> PlannedRead | None:
        """The plan; None where it was planned again, and is not answered here any more."""
        return self._planned

    @property
    def objects(self) -> object:
        """The catalog's objects that it was planned with."""
        return self._as_of[0]

    def _is_current(self) -> bool:
        objects, version = plans_as_of(self._context)
        return self._as_of[0] is objects and self._as_of[1] == version

    def _current(self) -> PlannedRead | None:
        """The plan by what there is now. Raises what planning does."""
        if not self._is_current():
            now = plans_as_of(self._context)
            planned = handler_of(self._statement).plan(self._context, self._statement, self.parameter_types)
            self._planned, self._as_of = None, now  # what has changed is told by the ordinary way
            if (
                isinstance(planned, PlannedRead)
                and planned.lasting
                and _is_same_row(planned.plan.columns, self.columns)
            ):
                self._planned = planned
        return self._planned

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        result = self._runner.run_read(self._statement, self._current, parameters)
        return super().execute(parameters) if result is None else result

    @property
    def is_planned(self) -> bool:
        """Whether it has a plan, and that is still what it means."""
        return self._planned is not None and self._is_current()

    @property
    def is_quick(self) -> bool:
        """See `Quick`."""
        planned = self._planned
        if planned is None or not self._is_current():
            return False
        return self._runner.starts_quickly and is_at_once(self._context, planned)

    def plan_beside(self) -> PlanBeside | None:
        """The plan for whoever answers it beside the session; None for what hangs on more than that and the newest
        rows."""
        planned, context = self._planned, self._context
        if planned is None or not self._is_current():
            return None
        if not self._runner.starts_quickly or not is_of_newest(context, planned):
            return None
        plan = planned.plan
        relations = () if plan.record is None else (plan.record, *_indexes(context, plan, plan.record))
        return PlanBeside(plan, self._as_of[0], relations, context.settings.max_result_rows)

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        planned = self._planned
        return None if planned is None else self._runner.start_read(self._statement, planned, parameters)

    def begin(self, parameters: Sequence[str | None]) -> WantedRow | Result | None:
        """The same, but for the row that it reads: that is left to `look_up`."""
        planned = self._planned
        if planned is None or not planned.plan.point:
            return None if planned is None else self._runner.start_read(self._statement, planned, parameters)
        point = self._runner.begin_point(self._statement, planned, parameters)
        return WantedRow(self, self._context, point) if isinstance(point, PointRead) else point


class PlanBeside(NamedTuple):
    """A plan for whoever answers a read beside its session."""

    plan: ReadPlan
    objects: object
    """The catalog's objects that it was made with."""
    relations: tuple[ObjectRecord, ...]
    """What it reads, with the indexes that may find the rows."""
    rows_at_most: int
    """How many rows a result may have; 0: any number."""


def _indexes(context: Context, plan: ReadPlan, record: ObjectRecord) -> list[ObjectRecord]:
    if plan.point or not plan.equal:
        return []
    return [index for index in context.indexes() if is_found_by(index, record, plan.names, plan.equal)]


class WantedRow(NamedTuple):
    """A row that a read waits for. What reads of many sessions want is looked up together."""

    statement: PreparedRead
    context: Context
    read: PointRead


def look_up(wanted: Sequence[WantedRow]) -> list[Row | Later | None]:
    """The row of each, or that there is none; `LATER` where that is to be found out the ordinary way."""
    groups: dict[tuple[Coordination, int], list[int]] = {}
    for i, (statement, context, read) in enumerate(wanted):
        if statement.is_planned:  # else it may mean something else by now, or be forbidden
            groups.setdefault((context.coordinator, read.table), []).append(i)
    found: list[Row | Later | None] = [LATER] * len(wanted)
    for (coordinator, _), places in groups.items():
        with suppress(Exception):  # of whatever kind: the ordinary way says what is wrong
            rows = rows_of(coordinator, [wanted[i][1:] for i in places])
            for i, row in zip(places, rows, strict=True):
                found[i] = row
    return found


def prepare(runner: StatementRunner, statement: st.Statement, known: Sequence[str | None]) -> PreparedStatement:
    """Prepare a statement; its parameters' types are as `known`, or follow from where they stand."""
    context, handler = runner.context, handler_of(statement)
    if not handler.binds:
        return PreparedStatement(runner, statement, (), None)
    told = parameter_types(statement, known)
    types = [None if t is None else held_as(t) for t in told]
    as_of = plans_as_of(context)
    plan = handler.plan(context, statement, types)
    if isinstance(plan, RowPlan):
        return PreparedStatement(runner, statement, plan.types, plan.columns, plan)
    if plan is not None and plan.lasting and len(plan.plan.types) == len(types):
        return PreparedRead(runner, statement, plan, as_of)
    if None in types:
        handler.infer(context, statement, types)
    told = [t or found for t, found in zip(told, types, strict=True)]
    held = [None if t is None else held_as(t) for t in told]
    columns = handler.describe(context, statement, held)
    return PreparedStatement(runner, statement, told, columns, described=as_of)


def prepare_rows(runner: StatementRunner, sql: str, known: Sequence[str | None]) -> PreparedRows | None:
    """Prepare an INSERT of many rows by one row of each kind; None for any other text, also one that is in error."""
    found = repeated_rows(sql)
    if found is None:
        return None
    with suppress(HeadraceError):
        statement = found.parsed()
        if statement is None:
            return None
        kinds, context = list(found.of_each(known)), runner.context
        plans = {kind: plan_rows(context, statement, _held(statement, kind)) for kind in dict.fromkeys(kinds)}
        statement = replace(statement, text=sql, parsed=sql)
        each = [plan for kind in kinds if (plan := plans[kind]) is not None]
        if len(each) == len(kinds):
            plan = plan_all_rows(context, each)
            return PreparedRows(runner, statement, plan.types, plan.columns, plan)
    return None


def _held(statement: st.Statement, known: Sequence[str | None]) -> list[str | None]:
    """The Spark types of a statement's parameters, as far as they are known or follow from casts."""
    return [None if t is None else held_as(t) for t in parameter_types(statement, known)]
