"""Literals: queries of nothing else, and defaults of columns."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from headrace.common.columns import arrow_type
from headrace.common.zones import Zone
from headrace.errors import HeadraceError
from headrace.session.result import ResultColumn
from headrace.sql.datatypes import spark_type
from headrace.sql.dml import literal_of
from headrace.sql.parser import parse_expression
from headrace.sql.query import Expression, Query


def constant_row(query: Query, zone: Zone) -> tuple[list[ResultColumn], pa.RecordBatch] | None:
    """The one row of a query that is nothing but literals, read in a time zone; None if it is more."""
    tree = query.tree
    if query.refused is not None or not isinstance(tree, exp.Select) or set(_used(tree)) != {"expressions"}:
        return None
    columns, values = [], []
    for item in tree.expressions:
        expression = item.this if isinstance(item, exp.Alias) else item
        kind = _literal_type(expression)
        if kind is None:
            return None
        known, value = literal_of(Expression(expression.copy(), ""), kind, zone)
        if not known:
            return None
        columns.append(ResultColumn(item.alias_or_name, kind))
        values.append(pa.array([value], arrow_type(kind)))
    return columns, pa.RecordBatch.from_arrays(values, names=[c.name for c in columns])


def _literal_type(node: exp.Expr) -> str | None:
    while isinstance(node, (exp.Paren, exp.Neg)):
        node = node.this
    if isinstance(node, exp.Boolean):
        return "boolean"
    if isinstance(node, exp.Null):
        return "string"
    if isinstance(node, exp.Literal):
        return "string" if node.is_string else _number_type(node.name)
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast) and isinstance(node.this, exp.Literal):
        kind = spark_type(node.to)
        return None if kind.startswith(("array<", "struct<", "map<", "interval")) or node.to.expressions else kind
    return None


def _number_type(text: str) -> str | None:
    try:
        value = Decimal(text)
    except ArithmeticError:
        return None
    if text.isdigit():
        return "int" if value < 2**31 else "bigint" if value < 2**63 else None
    scale = max(-int(value.as_tuple().exponent), 0)
    precision = max(len(value.as_tuple().digits), scale + 1)
    return f"decimal({precision},{scale})" if precision <= 38 else None


def _used(tree: exp.Expr) -> list[str]:
    return [key for key, value in tree.args.items() if value not in (None, [], False, ())]


def constant_value(text: str, kind: str, zone: Zone) -> tuple[bool, object]:
    """Whether a default is a literal, and its value as Spark type `kind` in the zone in which it was declared."""
    try:
        return literal_of(parse_expression(text), kind, zone)
    except HeadraceError:
        return False, None
