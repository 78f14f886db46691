"""What EXPLAIN says of a read that is answered without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.session.names import label
from headrace.session.reading.read_plans import ReadPlan
from headrace.session.reading.read_steps import READ_BYTES, READ_ROWS
from headrace.sql.binder import bound_tree as bt


def explained(plan: ReadPlan) -> list[str]:
    """Which way is taken, and what is done on it."""
    if plan.record is None:
        return ["Values, computed by the server process"]
    name = label(plan.record)
    if plan.point:
        lines = [f"Row of {name} by its primary key, looked up by the server process"]
    else:
        lines = [f"Rows of {name}, read by the server process{_bounds(plan)}"]
    return [*lines, *(f"  {line}" for line in _steps(plan))]


def _bounds(plan: ReadPlan) -> str:
    if plan.streams:
        return ""
    return f" (by Spark where more than {READ_ROWS} rows or {READ_BYTES >> 20} MiB are stored and no key finds them)"


def _steps(plan: ReadPlan) -> Iterator[str]:
    for name, value in plan.equal.items():
        yield f"Key: {name} = {_text(value)}"
    for part in plan.rest:
        yield f"Filter: {_text(part)}"
    if plan.keys:
        yield f"{'Distinct' if plan.query.distinct else 'Group by'}: {', '.join(map(_text, plan.keys))}"
    for aggregate in plan.aggregates:
        yield f"Aggregate: {_text(aggregate)}"
    if plan.query.having is not None:
        yield f"Having: {_text(plan.query.having)}"
    for key in plan.query.order:
        direction = f"{'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        yield f"Sort: {_text(key.value)} {direction}"
    for word, bound in (("Limit", plan.query.limit), ("Offset", plan.query.offset)):
        if bound is not None:
            yield f"{word}: {_text(bound)}"


def _text(expr: bt.Expr) -> str:
    if isinstance(expr, bt.BoundColumn):
        return expr.name
    if isinstance(expr, bt.Parameter):
        return f"${expr.number}"
    if isinstance(expr, bt.Constant):
        if expr.text is None:
            return "NULL"
        return expr.text if expr.type.category == "N" else f"'{expr.text}'"
    if isinstance(expr, bt.BoundAggregate):
        named = {"d": "DISTINCT " if expr.distinct else "", "w": ""}
        text = bt.fill(expr.form, [_text(a) for a in expr.arguments], named)
        return text if expr.where is None else f"{text} FILTER (WHERE {_text(expr.where)})"
    assert isinstance(expr, bt.Call)
    return bt.fill(expr.form, [_text(a) for a in expr.arguments])
