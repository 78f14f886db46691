"""Queries that need no Spark: constants, and scans of one relation whose meaning is plain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.common.columns import Column, arrow_type
from headrace.errors import HeadraceError
from headrace.session.result import ResultColumn
from headrace.sql.datatypes import spark_type
from headrace.sql.dml import literal_of
from headrace.sql.parser import parse_expression
from headrace.sql.query import Expression, Query
from headrace.state.kernels import checked

SORT_ROWS = 200_000
"""Most stored rows that are sorted outside Spark."""
_SORTABLE = ("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "boolean")


class Slices(Protocol):
    """What is read slice by slice."""

    @property
    def parallelism(self) -> int:
        """How many slices there are."""
        ...

    @property
    def output(self) -> pa.Schema:
        """Columns of the rows."""
        ...

    def stored(self, i: int) -> Iterator[pa.RecordBatch]:
        """A slice as it is stored: each row once, and in the last column how often it is there."""
        ...

    def expanded(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Each of these rows as often as it is there, in batches of bounded size."""
        ...


@dataclass(frozen=True)
class Order:
    """A column to sort by."""

    name: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Scan:
    """`SELECT items FROM relation [ORDER BY columns] [LIMIT n] [OFFSET n]`, or the count of its rows."""

    items: tuple[tuple[str, str], ...]
    """(column of the relation, name in the result)."""
    count: str | None = None
    """The name of the result where only the number of rows is asked for."""
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    equal: Mapping[str, Any] = field(default_factory=dict)
    """Values that columns are to have."""

    def columns(self, of: Sequence[Column]) -> list[ResultColumn]:
        """The result's columns."""
        if self.count is not None:
            return [ResultColumn(self.count, "bigint")]
        types = {c.name: c.type for c in of}
        return [ResultColumn(label, types[name]) for name, label in self.items]

    def names(self) -> tuple[str, ...]:
        """The columns to read."""
        return tuple(dict.fromkeys([name for name, _ in self.items] + [o.name for o in self.order]))


def constant_row(query: Query) -> tuple[list[ResultColumn], pa.RecordBatch] | None:
    """The one row of a query that is nothing but literals; None if it is more."""
    tree = query.tree
    if query.refused is not None or not isinstance(tree, exp.Select) or set(_used(tree)) != {"expressions"}:
        return None
    columns, values = [], []
    for item in tree.expressions:
        expression = item.this if isinstance(item, exp.Alias) else item
        kind = _literal_type(expression)
        if kind is None:
            return None
        known, value = literal_of(Expression(expression.copy(), ""), kind)
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


def simple_scan(query: Query, columns: Sequence[Column]) -> Scan | None:
    """The query as a scan of the one relation it reads, which has `columns`; None if it is more than that."""
    tree = query.tree
    if (
        query.refused is not None
        or not isinstance(tree, exp.Select)
        or not set(_used(tree))
        <= {
            "expressions",
            "from_",
            "limit",
            "offset",
            "order",
            "where",
        }
    ):
        return None
    source = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(source, exp.Table) or not set(_used(source)) <= {"this", "db", "alias"}:
        return None
    if not isinstance(source.this, exp.Identifier):
        return None
    alias = source.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return None
    names = {c.name: c.type for c in columns}
    bounds = _bounds(tree)
    if bounds is None:
        return None
    qualifier = source.alias or source.name
    where = tree.args.get("where")
    equal = _equal(where.this, names, qualifier) if where is not None else {}
    if equal is None:
        return None
    counted = _count(tree.expressions)
    if counted is not None:
        plain = not tree.args.get("order") and bounds == (None, 0)
        return Scan((), counted, equal=equal) if plain else None
    items = _items(tree.expressions, names, qualifier)
    order = _order(tree.args.get("order"), items or (), names, qualifier)
    if items is None or order is None:
        return None
    return Scan(items, None, order, *bounds, equal)


def _equal(condition: exp.Expr, names: dict[str, str], qualifier: str) -> dict[str, Any] | None:
    """The values that a condition wants columns to have; None where it is more than that.

    Only of types whose values are equal in Arrow exactly where they are in Spark.
    """
    found: dict[str, Any] = {}
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        part = part.unnest()
        if isinstance(part, exp.And):
            more = _equal(part, names, qualifier)
            if more is None or set(more) & set(found):
                return None
            found |= more
            continue
        if not isinstance(part, exp.EQ):
            return None
        sides = (part.this, part.expression) if isinstance(part.this, exp.Column) else (part.expression, part.this)
        column, value = sides
        if not isinstance(column, exp.Column) or column.table not in ("", qualifier) or column.name in found:
            return None
        known = _comparable(value, names.get(column.name, ""))
        if known is None:
            return None
        found[column.name] = known
    return found


def _comparable(node: exp.Expr, kind: str) -> Any:
    """The value of a literal that is compared with a column of a type; None where that is not plain."""
    own = _literal_type(node)
    if kind in _INTEGERS and own in _INTEGERS:
        known, value = literal_of(Expression(node.copy(), ""), "bigint")
        bits = _INTEGERS[kind] - 1
        return value if known and value is not None and -(2**bits) <= value < 2**bits else None
    if kind == "string" and own == "string" and not isinstance(node.unnest(), exp.Null):
        known, value = literal_of(Expression(node.copy(), ""), "string")
        return value if known else None
    return None


_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def _bounds(tree: exp.Select) -> tuple[int | None, int] | None:
    found: list[int | None] = []
    for key in ("limit", "offset"):
        node = tree.args.get(key)
        value = node.args.get("expression") if node is not None else None
        if node is not None and not (isinstance(value, exp.Literal) and value.is_int):
            return None
        if node is not None and not set(_used(node)) <= {"expression"}:
            return None
        found.append(int(value.name) if value is not None else None)
    return found[0], found[1] or 0


def _count(items: Sequence[exp.Expr]) -> str | None:
    if len(items) != 1:
        return None
    inner = items[0].this if isinstance(items[0], exp.Alias) else items[0]
    return items[0].alias_or_name or "count" if isinstance(inner, exp.Count) and _used(inner) in (
        ["this"], ["this", "big_int"]) and isinstance(inner.this, exp.Star) else None  # fmt: skip


def _items(nodes: Sequence[exp.Expr], names: dict[str, str], qualifier: str) -> tuple[tuple[str, str], ...] | None:
    items: list[tuple[str, str]] = []
    for node in nodes:
        column = node.this if isinstance(node, exp.Alias) else node
        star = isinstance(column, exp.Star) or (isinstance(column, exp.Column) and isinstance(column.this, exp.Star))
        if star:
            inner = column if isinstance(column, exp.Star) else column.this
            if _used(inner) or (isinstance(column, exp.Column) and column.table not in ("", qualifier)):
                return None
            items += [(name, name) for name in names]
        elif isinstance(column, exp.Column) and column.name in names and column.table in ("", qualifier):
            items.append((column.name, node.alias_or_name))
        else:
            return None
    return tuple(items)


def _order(
    node: exp.Expr | None, items: Sequence[tuple[str, str]], names: dict[str, str], qualifier: str
) -> tuple[Order, ...] | None:
    found: list[Order] = []
    outputs = {label: name for name, label in items}
    for part in node.expressions if node is not None else ():
        key = part.this
        if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(items):
            name = items[int(key.name) - 1][0]
        elif isinstance(key, exp.Column) and not key.table and key.name in outputs:
            name = outputs[key.name]
        elif isinstance(key, exp.Column) and key.name in names and key.table in ("", qualifier):
            name = key.name
        else:
            return None
        if names[name] not in _SORTABLE or part.args.get("with_fill"):
            return None
        first = part.args.get("nulls_first")
        falls = bool(part.args.get("desc"))
        found.append(Order(name, falls, falls if first is None else bool(first)))
    return tuple(found)


def sorted_rows(table: pa.Table, order: Sequence[Order]) -> pa.Table:
    """The rows in order, nulls where each column wants them; stable."""
    index = np.arange(table.num_rows)
    # A stable sort by one key after the other, the last key first.
    for part in reversed(order):
        ranks = _ranks(table.column(part.name), part)
        index = index[np.argsort(ranks[index], kind="stable")]
    return table.take(pa.array(index))


def _ranks(column: pa.ChunkedArray, part: Order) -> npt.NDArray[np.int64]:
    """The place of each value among the different values of a column, in the order wanted."""
    values = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    different = values.unique().drop_null()
    ordered = different.take(pc.array_sort_indices(different))
    found = pc.index_in(values, value_set=ordered)
    ranks = np.asarray(found.fill_null(-1)).astype(np.int64)
    missing = ranks < 0
    if part.descending:
        ranks = len(ordered) - 1 - ranks
    ranks[missing] = -1 if part.nulls_first else len(ordered)
    return ranks


def scan_batches(plan: Scan, scan: Slices) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, read in this process."""
    stored = (batch for i in range(scan.parallelism) for batch in scan.stored(i))
    if plan.order:
        schema = scan.output.append(pa.field("__w", pa.int64()))
        given = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in stored]
        stored = iter(sorted_rows(pa.Table.from_batches(given, schema=schema), plan.order).to_batches())
    skip, left = plan.offset, plan.limit
    for batch in (part for rows in stored for part in scan.expanded(rows)):
        start = min(skip, batch.num_rows)
        skip -= start
        part = batch.slice(start, left) if left is not None else batch.slice(start)
        if left is not None:
            left -= part.num_rows
        if part.num_rows:
            columns: list[Any] = [part.column(name) for name, _ in plan.items]
            yield pa.RecordBatch.from_arrays(columns, names=[label for _, label in plan.items])
        if left == 0:
            return


def count_rows(scan: Slices) -> int:
    """The number of rows of a scan. Raises `NumericOutOfRange` where it is no bigint."""
    batches = (batch for i in range(scan.parallelism) for batch in scan.stored(i))
    return checked.as_bigint(sum(checked.count(np.asarray(b.column(b.num_columns - 1))) for b in batches))


def constant_value(text: str, kind: str) -> tuple[bool, Any]:
    """Whether a default is a literal, and its value as Spark type `kind`."""
    try:
        return literal_of(parse_expression(text), kind)
    except HeadraceError:
        return False, None
