"""Views whose joins are jobs of their own, so that one that multiplies its input holds up nothing but itself.

With `streaming_enable_unaligned_join` a view is cut behind its joins. Each becomes a materialized view that is not
listed, with a checkpoint group and a log of its own, and the rest reads it like any other view: at its own pace, from a
durable position, and never more than `max_rows_per_epoch` at once.

A join whose rows the view only picks and computes with is the view, and is not cut. A part's content says of which view
it is a part (`session/hidden_views.py`); what is left of the view is stored as a plan, like the parts. Parts are shown
as jobs, not listed as relations, and paused and dropped with their view.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.catalog.contents import MaterializedViewContent
from headrace.connectors.job_options import CHECKPOINT, GROUP, MAX_ROWS, ON_ERROR, PARALLELISM
from headrace.coordinator.decide.view_options import on_error
from headrace.errors import HeadraceError, NotSupported
from headrace.plan.cuts import cut_joins, in_place_of, named
from headrace.plan.failures import translated
from headrace.plan.stored_plans import stored_query, to_content
from headrace.plan.tolerance import FAIL
from headrace.session.context import Context
from headrace.sql.statements import TableName

if TYPE_CHECKING:
    from headrace.plan.catalyst.nodes import Node
    from headrace.session.names import BoundQuery

SETTING = "streaming_enable_unaligned_join"


def create(
    context: Context, name: TableName, query: str, definition: str, options: dict[str, str], bound: BoundQuery,
    create_planned: Callable[..., int],
) -> None:  # fmt: skip
    """Create a view and before it those of its joins, each by `create_planned`; what fails leaves nothing behind."""
    planner, bridge = context.planner, context.planner.bridge
    _check(options)
    depends = bound.dependencies()
    made: list[int] = []
    whole = planner.plan(query)
    if whole.temporal or whole.lookups:  # What stands for the time in a plan is not stored.
        content = MaterializedViewContent(spark_sql=query)
        create_planned(context, name, query, content, definition, options, depends, check=bound.check_names)
        return

    def content_of(node: Node) -> MaterializedViewContent:
        with planner.lock:
            return to_content(bridge, node, planner.relation_of)

    def make(join: Node) -> Node:
        part = TableName(name.schema, f"{name.name}$join_{len(made) + 1}")
        content = replace(content_of(named(bridge, join)), part=name.name)
        own = {k: v for k, v in options.items() if k in (PARALLELISM, MAX_ROWS, CHECKPOINT)}
        made.append(
            create_planned(
                context, part, stored_query(planner, content), content, f"-- a join of {name}",
                {**own, GROUP: "own"}, depends,
            )
        )  # fmt: skip
        return in_place_of(bridge, join, bridge.analyzed(planner.relation_frame(made[-1])))

    try:
        with translated():
            rest = cut_joins(bridge, planner.optimized(query), make)
            content = content_of(rest) if made else MaterializedViewContent(spark_sql=query)
            rest_of = stored_query(planner, content)
            create_planned(context, name, rest_of, content, definition, options, depends, check=bound.check_names)
    except BaseException:
        with suppress(HeadraceError):
            if made:
                context.coordinator.drop(made)
        raise


def _check(options: dict[str, str]) -> None:
    if on_error(options) != FAIL:
        raise NotSupported(
            f"{ON_ERROR} other than {FAIL} in a view whose joins are jobs of their own",
            hint=f"SET {SETTING} = off",
        )


def explained(context: Context, query: str) -> list[str]:
    """The joins that would become jobs of their own, for EXPLAIN."""
    joins: list[str] = []

    def make(join: Node) -> Node:
        joins.append(join.numbered)
        return join

    planner = context.planner
    with translated():
        cut_joins(planner.bridge, planner.optimized(query), make)
    return [f"job of its own, join_{i}: {text}" for i, text in enumerate(joins, 1)]
