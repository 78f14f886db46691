"""CREATE VIEW, CREATE MATERIALIZED VIEW and CREATE SINK, and what EXPLAIN tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.catalog.contents import MaterializedViewContent, SinkContent, ViewContent
from headrace.connectors import other_names
from headrace.connectors.sinks import delivers, spelled
from headrace.coordinator.decide.view_options import on_error
from headrace.errors import NotSupported
from headrace.session.context import Context
from headrace.session.execution import arrangement_choice, connections, dead_letters, into, unaligned
from headrace.session.execution.ddl import (
    check_reach,
    columns_from,
    create_planned,
    in_group,
    new_record,
    planned_text,
)
from headrace.session.execution.existing import taken
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.select import describe
from headrace.session.names import BoundQuery, names_of
from headrace.session.result import Result
from headrace.session.system.asking_functions import localize
from headrace.sql import statements as st
from headrace.sql.parser import parse_query


def create_view(context: Context, statement: st.CreateView) -> Result:
    """CREATE VIEW: its query is put in place of its name."""
    if statement.or_replace or statement.temporary:
        raise NotSupported("OR REPLACE and TEMPORARY views", hint="drop the view first")
    found = taken(context, statement)
    if found is not None:
        return found
    names = names_of(context)
    bound = BoundQuery(statement.query, names)  # as it is read: what asks about a session has no value there
    columns = columns_from(describe(context, bound), statement.columns)
    content = ViewContent(query=statement.query.text, search_path=tuple(names.search_path), typed=bound.typed)
    with context.coordinator.defining():
        bound.check_names()
        context.coordinator.create_relation(
            new_record(context, content, statement.name, columns, statement.text, (), {}, bound.dependencies())
        )
    return Result(statement.tag)


def create_materialized_view(context: Context, statement: st.CreateMaterializedView) -> Result:
    """CREATE MATERIALIZED VIEW; waits until it is filled unless `background_ddl` is on."""
    if statement.or_replace:
        raise NotSupported("OR REPLACE", hint="drop the view first")
    found = taken(context, statement)
    if found is not None:
        return found
    bound = BoundQuery(localize(context, statement.query), names_of(context))
    text = planned_text(bound, statement.columns)
    options = dict(statement.options)
    # What waits for windows to close needs the watermark that its joins pass on.
    if context.variables.is_on(unaligned.SETTING) and not statement.emit_on_window_close:
        unaligned.create(context, statement.name, text, statement.text, options, bound, create_planned)
        return Result(statement.tag)
    create_planned(
        context,
        statement.name,
        text,
        MaterializedViewContent(spark_sql=text, emit_on_window_close=statement.emit_on_window_close),
        statement.text,
        options,
        bound.dependencies(),
        check=bound.check_names,
    )
    return Result(statement.tag)


def create_sink(context: Context, statement: st.CreateSink) -> Result:
    """CREATE SINK; waits until it has taken what there is already unless `background_ddl` is on."""
    found = taken(context, statement)
    if found is not None:
        return found
    bound = sink_query(context, statement)
    if statement.into is not None:
        return _create_sink_into(context, statement, bound)
    text, given = planned_text(bound, None), _resolved(context, statement)
    check_reach(context, given.options, "pg_write_server_files", "create a sink that writes outside of the database")
    letters = dead_letters.table_of(context, given.options)
    content = SinkContent(
        spark_sql=text, emit_on_window_close=statement.emit_on_window_close,
        dead_letters=None if letters is None else letters.id,
    )  # fmt: skip
    needed = (*bound.dependencies(), *given.needed, *([] if letters is None else [letters.id]))
    create_planned(
        context, statement.name, text, content, statement.text, given.options, needed, given.secrets,
        check=bound.check_names,
    )  # fmt: skip
    return Result(statement.tag)


def _create_sink_into(context: Context, statement: st.CreateSink, bound: BoundQuery) -> Result:
    """CREATE SINK ... INTO a table."""
    wanted = into.into_table(context, statement)
    text = into.rows_text(context, statement, bound, wanted.target, planned_text(bound, None))
    closing = statement.emit_on_window_close
    content = SinkContent(spark_sql=text, into=wanted.target.id, emit_on_window_close=closing)
    needed = (*bound.dependencies(), wanted.target.id)
    create_planned(
        context, statement.name, text, content, statement.text, wanted.options, needed, planned=wanted.planned,
        check=bound.check_names,
    )  # fmt: skip
    return Result(statement.tag)


def sink_query(context: Context, statement: st.CreateSink) -> BoundQuery:
    """The query whose changes go into a sink."""
    query = statement.query
    if query is None:
        assert statement.source is not None
        parts = [p for p in (statement.source.schema, statement.source.name) if p is not None]
        query = parse_query("SELECT * FROM " + ".".join('"' + p.replace('"', '""') + '"' for p in parts))
    return BoundQuery(localize(context, query), names_of(context))


def incremental_plan(
    context: Context, bound: BoundQuery, columns: Sequence[str] | None = None, on_window_close: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[str]:  # fmt: skip
    """The operators that would keep a view of this query up to date."""
    text = planned_text(bound, columns)
    apart = context.variables.is_on(unaligned.SETTING) and not on_window_close
    joins = unaligned.explained(context, text) if apart else []
    given = options or {}
    shared, tolerated = arrangement_choice.usable(context, given), on_error(given)
    plan = context.planner.plan(text, on_window_close=on_window_close, arrangements=shared, on_error=tolerated)
    return [*plan.explain(), *arrangement_choice.explained(context, plan, given), *joins]


def _resolved(context: Context, statement: st.CreateSink) -> connections.Resolved:
    return connections.resolved(context, statement, spelled(statement.options), other_names.of_sink)


def sink_plan(context: Context, statement: st.CreateSink) -> list[str]:
    """The operators that would feed a sink."""
    bound = sink_query(context, statement)
    text, given = planned_text(bound, None), statement.options
    wanted = None if statement.into is None else into.into_table(context, statement)
    if wanted is not None:
        text = into.rows_text(context, statement, bound, wanted.target, text)
    else:
        given = _resolved(context, statement).options
    options = in_group(context, given, alone=wanted is not None or delivers(given))
    shared = arrangement_choice.usable(context, options)
    closing, tolerated = statement.emit_on_window_close, on_error(options)
    plan = context.planner.plan(text, on_window_close=closing, arrangements=shared, on_error=tolerated)
    return [
        *(plan.into(options) if wanted is None else wanted.planned(plan)).explain(),
        *arrangement_choice.explained(context, plan, options),
    ]


def _explain_view(context: Context, statement: st.CreateMaterializedView) -> list[str]:
    bound = BoundQuery(localize(context, statement.query), names_of(context))
    return incremental_plan(context, bound, statement.columns, statement.emit_on_window_close, statement.options)


HANDLERS: Final = (
    Handler(st.CreateView, create_view, needs=Needs.CREATE),
    Handler(st.CreateMaterializedView, create_materialized_view, explain=_explain_view, needs=Needs.CREATE),
    Handler(st.CreateSink, create_sink, explain=sink_plan, needs=Needs.CREATE),
)
