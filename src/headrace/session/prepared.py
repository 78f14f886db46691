"""Statements whose parameters are still open, with the plan that they are run by where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.session.execution.row_writes import RowPlan
from headrace.session.handlers import handler_of
from headrace.session.reading.at_once import is_at_once
from headrace.session.reading.planning import PlannedRead
from headrace.session.result import Pending, Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.parser import bind, parameter_types

if TYPE_CHECKING:
    from headrace.session.session import Session


class PreparedStatement:
    """A statement that has been parsed, with its parameters still open."""

    def __init__(
        self, session: Session, statement: st.Statement, types: Sequence[str | None],
        columns: list[ResultColumn] | None, plan: RowPlan | None = None,
    ):  # fmt: skip
        self._session = session
        self._plan = plan
        self._statement = statement
        self._types = list(types)
        self.parameter_types = [t or "string" for t in types]
        self.columns = columns
        self._held: tuple[object, int] | None = None
        """The catalog's objects and the session's settings with which the plan was last found to hold."""

    def _holds(self, plan: RowPlan) -> bool:
        """Whether the plan still is what the statement means."""
        session = self._session
        now = session.database.catalog.image.objects, session.variables.version
        if self._held is None or self._held[0] is not now[0] or self._held[1] != now[1]:
            self._held = now if plan.holds(session) else None
        return self._held is not None

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        statement, plan = self._statement, self._plan
        if plan is not None and self._holds(plan):
            return self._session.run_planned(statement, plan, parameters)
        if self._types:
            statement = bind(statement, parameters, self._types)
        return self._session.run(statement)

    @property
    def is_planned(self) -> bool:
        """Whether it has a plan of its own which still is what it means."""
        return self._plan is not None and self._holds(self._plan)

    @property
    def is_quick(self) -> bool:
        """See `Quick`."""
        session, plan = self._session, self._plan
        if plan is None:
            return session.starts_quickly and handler_of(self._statement).start is not None
        return session.starts_quickly and session.finds_quickly and self._holds(plan)

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        if self._plan is None:
            return self._session.start_bracket(self._statement)
        return self._session.start_planned(self._statement, self._plan, parameters)


AsOf: TypeAlias = tuple[object, int]
"""What a plan depends on beside the text: the catalog's objects and the version of the session's settings."""


def plans_as_of(session: Session) -> AsOf:
    """What a plan that is made from now on depends on."""
    return session.database.catalog.image.objects, session.variables.version


class PreparedRead(PreparedStatement):
    """A query that is answered without Spark, as long as its relation is the same; else it is planned again."""

    def __init__(self, session: Session, statement: st.Statement, planned: PlannedRead, as_of: AsOf) -> None:
        """`as_of` was taken before it was planned: what changed meanwhile is to be seen."""
        super().__init__(session, statement, planned.plan.types, planned.plan.columns)
        self._planned: PlannedRead | None = planned
        self._as_of = as_of

    def _is_current(self) -> bool:
        objects, version = plans_as_of(self._session)
        return self._as_of[0] is objects and self._as_of[1] == version

    def _current(self) -> PlannedRead | None:
        """The plan by what there is now. Raises what planning does."""
        if not self._is_current():
            now = plans_as_of(self._session)
            planned = handler_of(self._statement).plan(self._session, self._statement, self.parameter_types)
            self._planned, self._as_of = None, now  # what has changed is told by the ordinary way
            if isinstance(planned, PlannedRead) and planned.lasting and planned.plan.columns == self.columns:
                self._planned = planned
        return self._planned

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        result = self._session.run_read(self._statement, self._current, parameters)
        return super().execute(parameters) if result is None else result

    @property
    def is_planned(self) -> bool:
        """Whether it has a plan, and that is still what it means."""
        return self._planned is not None and self._is_current()

    @property
    def is_quick(self) -> bool:
        """See `Quick`."""
        planned, session = self._planned, self._session
        return planned is not None and self._is_current() and session.starts_quickly and is_at_once(session, planned)

    def start(self, parameters: Sequence[str | None]) -> Result | Pending | None:
        """See `Quick`."""
        planned = self._planned
        return None if planned is None else self._session.start_read(self._statement, planned, parameters)


def prepare(session: Session, statement: st.Statement, known: Sequence[str | None]) -> PreparedStatement:
    """Prepare a statement; its parameters' types are as `known`, or follow from where they stand."""
    handler = handler_of(statement)
    if not handler.binds:
        return PreparedStatement(session, statement, (), None)
    types = list(parameter_types(statement, known))
    as_of = plans_as_of(session)
    plan = handler.plan(session, statement, types)
    if isinstance(plan, RowPlan):
        return PreparedStatement(session, statement, plan.types, plan.columns, plan)
    if plan is not None and plan.lasting and len(plan.plan.types) == len(types):
        return PreparedRead(session, statement, plan, as_of)
    if None in types:
        handler.infer(session, statement, types)
    return PreparedStatement(session, statement, types, handler.describe(session, statement, types))
