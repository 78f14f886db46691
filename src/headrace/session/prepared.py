"""Statements whose parameters are still open, with the plan that they are run by where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from headrace.session.context import Context
from headrace.session.execution.row_writes import RowPlan
from headrace.session.handlers import handler_of
from headrace.session.reading.at_once import is_at_once
from headrace.session.reading.read_planning import PlannedRead
from headrace.session.result import Pending, Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.parser import bind, parameter_types


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


class PreparedStatement:
    """A statement that has been parsed, with its parameters still open."""

    def __init__(
        self, runner: StatementRunner, statement: st.Statement, types: Sequence[str | None],
        columns: list[ResultColumn] | None, plan: RowPlan | None = None,
    ):  # fmt: skip
        self._runner = runner
        self._context = runner.context
        self._plan = plan
        self._statement = statement
        self._types = list(types)
        self.parameter_types = [t or "string" for t in types]
        self.columns = columns
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
        if self._types:
            statement = bind(statement, parameters, self._types)
        return self._runner.run(statement)

    @property
    def is_planned(self) -> bool:
        """Whether it has a plan of its own which still is what it means."""
        return self._plan is not None and self._holds(self._plan)

    @property
    def is_quick(self) -> bool:
        """See `Quick`."""
        runner, plan = self._runner, self._plan
        if plan is None:
            return runner.starts_quickly and handler_of(self._statement).start is not None
        return runner.starts_quickly and runner.finds_quickly and self._holds(plan)

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        if self._plan is None:
            return self._runner.start_bracket(self._statement)
        return self._runner.start_planned(self._statement, self._plan, parameters)


AsOf: TypeAlias = tuple[object, int]
"""What a plan depends on beside the text: the catalog's objects and the version of the session's settings."""


def plans_as_of(context: Context) -> AsOf:
    """What a plan that is made from now on depends on."""
    return context.catalog.image.objects, context.variables.version


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

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        planned = self._planned
        return None if planned is None else self._runner.start_read(self._statement, planned, parameters)


def prepare(runner: StatementRunner, statement: st.Statement, known: Sequence[str | None]) -> PreparedStatement:
    """Prepare a statement; its parameters' types are as `known`, or follow from where they stand."""
    context, handler = runner.context, handler_of(statement)
    if not handler.binds:
        return PreparedStatement(runner, statement, (), None)
    types = list(parameter_types(statement, known))
    as_of = plans_as_of(context)
    plan = handler.plan(context, statement, types)
    if isinstance(plan, RowPlan):
        return PreparedStatement(runner, statement, plan.types, plan.columns, plan)
    if plan is not None and plan.lasting and len(plan.plan.types) == len(types):
        return PreparedRead(runner, statement, plan, as_of)
    if None in types:
        handler.infer(context, statement, types)
    return PreparedStatement(runner, statement, types, handler.describe(context, statement, types))
