"""Statements with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from headrace.errors import HeadraceError, NotSupported
from headrace.session.execution import dml
from headrace.session.execution.select import describe_query
from headrace.session.names import Bound
from headrace.session.result import Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.parser import bind, parameter_types, parse_one
from headrace.sql.query import Query

if TYPE_CHECKING:
    from headrace.session.session import Session

_SHOWN = {
    "setting": None,
    "all": ("name", "setting", "description"),
    "columns": ("Name", "Type", "Nullable", "Primary Key", "Watermark"),
    "create": ("Name", "Create Sql"),
}


class PreparedStatement:
    """A statement that has been parsed, with its parameters still open."""

    def __init__(
        self, session: Session, statement: st.Statement, types: Sequence[str | None], columns: list[ResultColumn] | None
    ):
        self._session = session
        self._statement = statement
        self._types = list(types)
        self.parameter_types = [t or "string" for t in types]
        self.columns = columns

    def execute(self, parameters: Sequence[str | None]) -> Result:
        """Run it with text values, one for each `$n`."""
        statement = self._statement
        if self._types:
            statement = bind(statement, parameters, self._types)
        return self._session.run(statement)


def prepare(session: Session, sql: str, known: Sequence[str | None]) -> PreparedStatement:
    """Parse one statement; its parameters' types are as `known`, or follow from where they stand."""
    statement = parse_one(sql)
    types = list(parameter_types(statement, known))
    if None in types:
        _infer(session, statement, types)
    return PreparedStatement(session, statement, types, _columns(session, statement, types))


def _infer(session: Session, statement: st.Statement, types: list[str | None]) -> None:
    """Fill in types from the columns that parameters are stored in or compared with."""
    found: dict[int, str] = {}
    try:
        if isinstance(statement, st.Insert):
            record = dml.target_table(session, statement.table, "insert into")
            found = dml.parameter_targets(record, statement)
        elif isinstance(statement, st.Select):
            bound = Bound(statement.query, session.names())
            found = _compared(statement.query.tree, {c: t for cs in bound.schema().values() for c, t in cs.items()})
        elif isinstance(statement, (st.Update, st.Delete)):
            record = dml.target_table(session, statement.table, "write to")
            columns = {c.name: c.type for c in record.columns}
            trees = [statement.where.tree] if statement.where is not None else []
            for tree in trees:
                found |= _compared(tree, columns)
            for assignment in statement.assignments if isinstance(statement, st.Update) else ():
                value = assignment.value.tree if assignment.value is not None else None
                if isinstance(value, exp.Parameter) and assignment.column in columns:
                    found[int(value.name)] = columns[assignment.column]
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


def _columns(session: Session, statement: st.Statement, types: Sequence[str | None]) -> list[ResultColumn] | None:
    if isinstance(statement, st.Select):
        query: Query = statement.query
        if types:
            bound = bind(statement, [None] * len(types), types)
            assert isinstance(bound, st.Select)
            query = _without_open_limits(bound.query)
        return describe_query(session, query)
    if isinstance(statement, (st.Insert, st.Update, st.Delete)):
        record = dml.target_table(session, statement.table, "write to")
        if statement.returning is None:
            return None
        return dml.returning_columns(session, statement.returning, record, statement.table)
    if isinstance(statement, st.Show):
        names = _SHOWN.get(statement.what, ("Name",))
        if statement.what == "jobs":
            return [ResultColumn("Id", "bigint"), ResultColumn("Name", "string"), ResultColumn("Status", "string"),
                    ResultColumn("Lag ms", "bigint"), ResultColumn("Error", "string")]  # fmt: skip
        return [ResultColumn(n, "string") for n in names or (statement.setting or "",)]
    if isinstance(statement, st.Describe):
        return [ResultColumn(n, "string") for n in _SHOWN["columns"] or ()]
    if isinstance(statement, st.Explain):
        return [ResultColumn("QUERY PLAN", "string")]
    if isinstance(statement, st.CancelJobs):
        if types:
            raise NotSupported("parameters in CANCEL JOBS")
        return [ResultColumn("Id", "bigint")]
    return None


def _without_open_limits(query: Query) -> Query:
    """The query for description: Spark refuses a LIMIT whose value is not known."""
    tree = query.tree
    for node in list(tree.find_all(exp.Limit, exp.Offset)):
        if not isinstance(node.args.get("expression"), exp.Literal):
            node.pop()
    return Query(tree, query.text)
