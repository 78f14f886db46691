"""Statements with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from sqlglot import exp

from headrace.errors import HeadraceError, NotSupported, SyntaxFault
from headrace.session.execution import dml
from headrace.session.execution.cursors import columns_named
from headrace.session.execution.row_writes import RowPlan, plan_rows
from headrace.session.execution.select import describe_query
from headrace.session.execution.show import CANCELLED_HEADS, PROMOTED_HEADS, heads
from headrace.session.execution.targets import target_table
from headrace.session.names import Bound
from headrace.session.reading.at_once import is_at_once
from headrace.session.reading.planning import PlannedRead, plan_read
from headrace.session.result import Pending, Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.dml import Returning
from headrace.sql.parser import bind, parameter_types
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.session.session import Session

_BRACKETS = (st.Begin, st.Commit, st.Rollback)


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
            return session.starts_quickly and isinstance(self._statement, _BRACKETS)
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

    def __init__(self, session: Session, statement: st.Select, planned: PlannedRead, as_of: AsOf) -> None:
        """`as_of` was taken before it was planned: what changed meanwhile is to be seen."""
        super().__init__(session, statement, planned.plan.types, planned.plan.columns)
        self._query = statement.query
        self._planned: PlannedRead | None = planned
        self._as_of = as_of

    def _is_current(self) -> bool:
        objects, version = plans_as_of(self._session)
        return self._as_of[0] is objects and self._as_of[1] == version

    def _current(self) -> PlannedRead | None:
        """The plan by what there is now. Raises what `plan_read` does."""
        if not self._is_current():
            now = plans_as_of(self._session)
            planned = plan_read(self._session, self._query, self.parameter_types)
            same = planned is not None and planned.lasting and planned.plan.columns == self.columns
            self._planned, self._as_of = planned if same else None, now  # what has changed is told by the ordinary way
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
    if isinstance(statement, st.Prepare):  # its parameters are those of what it prepares
        return PreparedStatement(session, statement, (), None)
    types = list(parameter_types(statement, known))
    if isinstance(statement, st.Select):
        as_of = plans_as_of(session)
        planned = plan_read(session, statement.query, types)
        if planned is not None and planned.lasting and len(planned.plan.types) == len(types):
            return PreparedRead(session, statement, planned, as_of)
    plan = plan_rows(session, statement, types)
    if plan is not None:
        return PreparedStatement(session, statement, plan.types, plan.columns, plan)
    if None in types:
        _infer(session, statement, types)
    return PreparedStatement(session, statement, types, _columns(session, statement, types))


def prepare_named(session: Session, statement: st.Prepare) -> Result:
    """PREPARE."""
    session.statements.require_free(statement.name)
    session.statements.put(statement.name, prepare(session, statement.statement, statement.types))
    return Result("PREPARE")


def execute(session: Session, statement: st.Execute) -> Result:
    """EXECUTE."""
    found = session.statements.get(statement.name)
    wanted, given = len(found.parameter_types), len(statement.values)
    if wanted != given:
        raise SyntaxFault(
            f'wrong number of parameters for prepared statement "{statement.name}"',
            detail=f"Expected {wanted} parameters but got {given}.",
        )
    result = found.execute(statement.values)
    if [c.type for c in found.columns or ()] != [c.type for c in result.columns or ()]:
        raise NotSupported("cached plan must not change result type", hint="Prepare the statement again.")
    return result


def deallocate(session: Session, statement: st.Deallocate) -> Result:
    """DEALLOCATE."""
    if statement.name is None:
        session.statements.clear()
        return Result("DEALLOCATE ALL")
    session.statements.get(statement.name)
    session.statements.pop(statement.name)
    return Result("DEALLOCATE")


def _infer(session: Session, statement: st.Statement, types: list[str | None]) -> None:
    """Fill in types from where parameters stand."""
    found: dict[int, str] = {}
    try:
        if isinstance(statement, st.Select):
            bound = Bound(statement.query, session.names())
            types[:] = bound.parameter_types(types)
            found = _compared(statement.query.tree, {c: t for cs in bound.schema().values() for c, t in cs.items()})
        elif isinstance(statement, (st.Insert, st.Update, st.Delete)):
            record = target_table(session, statement)
            for query in dml.queries_of(record, statement):
                types[:] = Bound(query, session.names()).parameter_types(types)
    except HeadraceError:
        if not isinstance(statement, st.Insert):
            return
        raise
    for number, kind in found.items():
        if types[number - 1] is None:
            types[number - 1] = kind


def _compared(tree: exp.Expr, columns: dict[str, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for parameter in tree.find_all(exp.Parameter):
        parent = parameter.parent
        if parent is None or not parameter.name.isdigit():
            continue
        if not isinstance(parent, (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In)):
            continue
        for other in parent.iter_expressions():
            if isinstance(other, exp.Column) and other.name in columns:
                found.setdefault(int(parameter.name), columns[other.name])
    return found


def _returning(statement: st.Statement) -> Returning | None:
    assert isinstance(statement, (st.Insert, st.Update, st.Delete))
    return statement.returning


def _columns(session: Session, statement: st.Statement, types: Sequence[str | None]) -> list[ResultColumn] | None:
    if isinstance(statement, st.Select):
        query: Query = statement.query
        if types:
            bound = bind(statement, [None] * len(types), types)
            assert isinstance(bound, st.Select)
            query = bound.query
        return describe_query(session, query)
    if isinstance(statement, (st.Insert, st.Update, st.Delete)):
        record = target_table(session, statement)
        if types and statement.returning is not None:
            statement = replace(statement, returning=_returning(bind(statement, [None] * len(types), types)))
        if statement.returning is None:
            return None
        return dml.returning_columns(session, statement.returning, record, statement.table)
    if isinstance(statement, (st.Show, st.Describe, st.Explain)):
        return [ResultColumn(*head) for head in heads(statement)]
    if isinstance(statement, st.Execute):
        return session.statements.get(statement.name).columns
    if isinstance(statement, st.FetchCursor) and not statement.moves:
        return columns_named(session, statement.name)
    if isinstance(statement, st.Promote):
        return [ResultColumn(*head) for head in PROMOTED_HEADS]
    if isinstance(statement, st.CancelJobs):
        if types:
            raise NotSupported("parameters in CANCEL JOBS")
        return [ResultColumn(*head) for head in CANCELLED_HEADS]
    return None
