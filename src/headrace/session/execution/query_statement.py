"""A query as a statement: its plan, the types of its parameters, the columns of its result, EXPLAIN."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from sqlglot import exp

from headrace.errors import HeadraceError
from headrace.plan.catalyst.java_calls import physical_text
from headrace.session.context import Context
from headrace.session.execution.handler import Columns, Handler, Needs, Types
from headrace.session.execution.select import describe_query, select
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.execution.spark_queries import frame_of
from headrace.session.introspection import parameter_types_of
from headrace.session.names import BoundQuery, names_of
from headrace.session.reading.explaining import explained
from headrace.session.reading.read_planning import PlannedRead, plan_read
from headrace.session.result import Result
from headrace.session.system.asking_functions import localize
from headrace.sql import statements as st
from headrace.sql.parser import bind


def run(context: Context, statement: st.Select) -> Result:
    """SELECT."""
    return select(context, statement.query)


def plan(context: Context, statement: st.Select, types: Types) -> PlannedRead | None:
    """The query as a read without Spark."""
    return plan_read(context, statement.query, types)


def describe(context: Context, statement: st.Select, types: Types) -> Columns:
    """The columns of a query, whatever its parameters are."""
    query = bind(statement, [None] * len(types), types).query if types else statement.query
    return describe_query(context, query)


def infer(context: Context, statement: st.Select, types: list[str | None]) -> None:
    """Fill in types from where parameters stand; what is wrong with the query comes up later.

    Beside what has a type of the system catalogs' own they have that.
    """
    try:
        for number, kind in parameter_types_of(context, statement.query).items():
            types[number - 1] = types[number - 1] or kind
        if None not in types:
            return
        bound = BoundQuery(statement.query, names_of(context))
        types[:] = bound.parameter_types(types)
        found = _compared(statement.query.tree, {c: t for cs in bound.schema().values() for c, t in cs.items()})
    except HeadraceError:
        return
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


def explain(context: Context, statement: st.Select) -> list[str]:
    """How a query is answered: by kernels in this process, or by Spark's physical plan."""
    planned = plan_read(context, statement.query)
    if planned is not None:
        return explained(planned.plan)
    return query_plan(context, BoundQuery(localize(context, statement.query), names_of(context)))


def query_plan(context: Context, bound: BoundQuery) -> list[str]:
    """Spark's physical plan."""
    with ExitStack() as stack:
        frame = frame_of(context, bound, open_snapshot(context, bound, stack))
        with context.jobs.running("EXPLAIN"):
            plan = physical_text(frame)
    return [line for line in plan.splitlines() if line.strip()]


HANDLERS: Final = (Handler(st.Select, run, describe, explain, plan, infer, needs=Needs.READ),)
