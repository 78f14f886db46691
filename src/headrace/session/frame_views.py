"""Views from DataFrames and from Spark SQL."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from headrace.catalog.contents import MaterializedViewContent, SourceContent, TableContent, ViewContent
from headrace.errors import NotSupported, SyntaxFault
from headrace.plan.catalyst.answers import Raised
from headrace.plan.catalyst.nodes import Node
from headrace.plan.failures import translated
from headrace.plan.python import names_called
from headrace.plan.stored_plans import leaf_ids, to_content
from headrace.session.context import Context
from headrace.session.execution import ddl
from headrace.session.names import BoundQuery, names_of, table_name
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName


def create_view(
    context: Context, name: TableName, frame: DataFrame, options: dict[str, str], on_window_close: bool = False
) -> None:
    """Create a view from a DataFrame over relations of the database."""
    planner = context.planner
    bridge = planner.bridge
    known: dict[int, int] = {}
    for record in context.catalog.state.objects_of(TableContent, SourceContent, MaterializedViewContent):
        leaves = leaf_ids(bridge.analyzed(planner.relation_frame(record.id)))
        known.update(dict.fromkeys(leaves, record.id))

    def id_of(node: Node) -> int | None:
        leaf = node.leaf_id
        return None if leaf is None else known.get(leaf)

    with translated():
        analyzed = bridge.analyzed(frame)
        definition = "-- DataFrame\n" + analyzed.text[:10_000]
        try:
            content = to_content(bridge, analyzed, id_of)
        except Raised as error:
            raise NotSupported(
                "this DataFrame as a view: its plan cannot be stored", hint="write the view in SQL"
            ) from error
        depends_on = _functions_in(context, analyzed)
    content = replace(content, emit_on_window_close=on_window_close)
    ddl.create_planned(context, name, frame, content, definition, options, depends_on)


def relation(context: Context, name: str) -> DataFrame:
    """A relation as it stands in plans: without rows, to build views from."""
    record = names_of(context).get(table_name(name))
    if isinstance(record.content, ViewContent):
        bound = BoundQuery(localize(context, parse_query(f"SELECT * FROM {name}")), names_of(context))
        return context.planner.bridge.spark.sql(ddl.planned_text(bound, None))
    return context.planner.relation_frame(record.id)


def functions_called(context: Context, text: str) -> list[int]:
    """Ids of the created functions that a query in Spark SQL calls."""
    bridge = context.planner.bridge
    with translated():
        return _functions_in(context, bridge.analyzed(bridge.spark.sql(text)))


def _functions_in(context: Context, analyzed: Node) -> list[int]:
    called = names_called(analyzed)
    return [record.id for record in names_of(context).functions(called).values()]


def bound_spark_sql(context: Context, text: str) -> str:
    """Spark SQL with the names of relations replaced by their planning names. Raises `SyntaxFault`."""
    try:
        tree = parse_one(text, dialect="spark")
    except SqlglotError as error:
        raise SyntaxFault(f"cannot read the Spark SQL: {str(error).splitlines()[0]}") from None
    names = names_of(context)
    ctes = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.lower() in ctes):
            continue
        record = names.get(TableName(table.db or None, table.name))
        alias = table.alias or table.name
        table.set("this", exp.to_identifier(f"r{record.id}", quoted=True))
        table.set("db", None)
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    return str(tree.sql(dialect="spark"))
