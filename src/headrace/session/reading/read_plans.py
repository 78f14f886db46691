"""What is understood of a query over one relation, or over none, so that it is answered here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.dataflow.operators.kernel_expressions import Column, Expression
from headrace.session.reading.read_totals import COUNT_ROWS, total
from headrace.session.reading.twins import NoTwin, Twins, Values, value_of
from headrace.session.result import Origin, ResultColumn
from headrace.sql.binder import bound_tree as bt
from headrace.sql.binder.origins import column_origins
from headrace.sql.binder.types import INTEGERS, TEXTS

_SORTED: Final = (*INTEGERS, *TEXTS, "date", "timestamp", "timestamptz", "bool")
"""Types whose values are sorted here."""
_LOOKED_UP: Final = (*INTEGERS, *TEXTS, "date", "bool")
"""Types by whose values rows are looked up: equal as the state has them exactly where Spark finds them equal."""
_BITS: Final = {"smallint": 15, "int": 31, "bigint": 63}


@dataclass(frozen=True)
class ReadOrder:
    """A key that rows are sorted by, with its direction."""

    value: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Steps:
    """What is done with rows whose columns are `ReadPlan.names`: all expressions with the values of the parameters."""

    where: Expression | None
    rest: Expression | None
    """The same without what a look-up by `ReadPlan.equal` has seen to."""
    outputs: tuple[Expression, ...]
    """Of each row, or over the columns that the aggregates are."""
    over: tuple[Expression | None, ...]
    """What each aggregate is over; None for one of rows."""
    order: tuple[ReadOrder, ...]
    limit: int | None
    offset: int

    @cached_property
    def copied(self) -> tuple[int, ...] | None:
        """The places of the columns that are put out, if all that is put out are columns."""
        found = tuple([o.index for o in self.outputs if isinstance(o, Column)])
        return found if len(found) == len(self.outputs) else None

    @property
    def plain(self) -> bool:
        """Whether rows are handed out as they are read: nothing is computed that may turn out to be Spark's."""
        return self.where is None and not self.order and self.copied is not None


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """A query, with its parameters open. Good as long as its relation is the same."""

    query: bt.SelectQuery
    record: ObjectRecord | None
    """The relation that it reads; None for none."""
    types: tuple[str, ...]
    """Of the parameters."""
    names: tuple[str, ...]
    """The columns of the relation that it reads."""
    aggregates: tuple[bt.BoundAggregate, ...]
    """What it wants to know of all rows together, for one row of its own."""
    point: bool
    """Whether it reads at most the one row with a primary key."""
    equal: Mapping[str, bt.Expr]
    """Columns that are to have a value which a literal or a parameter gives; of a point those of its key."""
    rest: tuple[bt.Expr, ...]
    """What else the condition wants."""

    @cached_property
    def columns(self) -> list[ResultColumn]:
        """The result's columns."""
        found = [ResultColumn(n, k.spark) for n, k in zip(self.query.names, self.query.types, strict=True)]
        if self.record is None:
            return found
        numbers = {c.name: i for i, c in enumerate(self.record.columns, 1)}
        for i, origin in enumerate(column_origins(self.query)):
            if origin is not None:
                found[i] = replace(found[i], origin=Origin(self.record.id, numbers[origin[1]]))
        return found

    @cached_property
    def counts(self) -> bool:
        """Whether all that it wants to know is how many rows there are."""
        only = self.query.outputs[0].value if len(self.query.outputs) == 1 else None
        return only in self.aggregates and self.aggregates[0].form == COUNT_ROWS

    @cached_property
    def streams(self) -> bool:
        """Whether rows are only counted, or handed out as they are read: however many they are."""
        if self.query.where is not None or self.query.order:
            return False
        return self.counts or all(
            isinstance(o.value, bt.BoundColumn) for o in self.query.outputs
        )  # no aggregate is one

    @cached_property
    def kinds(self) -> tuple[pa.DataType, ...]:
        """The types of the result's columns."""
        return tuple([arrow_type(c.type) for c in self.columns])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the columns that it reads stand among those of the relation."""
        assert self.record is not None
        at = {c.name: i for i, c in enumerate(self.record.columns)}
        return tuple([at[name] for name in self.names])

    @cached_property
    def read_kinds(self) -> tuple[pa.DataType, ...]:
        """Their types."""
        assert self.record is not None
        return tuple([arrow_type(self.record.columns[i].type) for i in self.places])

    @cached_property
    def _fixed(self) -> Steps | None:
        """The steps, if they are the same for all values."""
        found = any(isinstance(e, bt.Parameter) for part in self._computed() for e in bt.walk(part))
        return None if found else self._steps(())

    def _computed(self) -> Iterator[bt.Expr]:
        query = self.query
        yield from self.rest if self.point else () if query.where is None else (query.where,)
        yield from (o.value for o in query.outputs)
        yield from (k.value for k in query.order)
        yield from (part for part in (query.limit, query.offset) if part is not None)

    def steps(self, values: Values) -> Steps:
        """The steps with these values of the parameters. Raises `NoTwin` where one of them has no twin."""
        return self._fixed or self._steps(values)

    def _steps(self, values: Values) -> Steps:
        query, at = self.query, Twins({n: i for i, n in enumerate(self.names)}, values)
        return Steps(
            None if query.where is None or self.point else at.of(query.where),
            at.of(bt.conjunction("AND", self.rest)) if self.rest else None,
            self._outputs(at, values),
            tuple([total(at, aggregate) for aggregate in self.aggregates]),
            tuple([ReadOrder(at.of(k.value), k.descending, k.nulls_first) for k in query.order]),
            None if query.limit is None else _count(query.limit, values),
            0 if query.offset is None else _count(query.offset, values),
        )

    def _outputs(self, at: Twins, values: Values) -> tuple[Expression, ...]:
        found = [o.value for o in self.query.outputs]
        if self.aggregates:
            at = Twins({str(i): i for i in range(len(self.aggregates))}, values)
            found = [_of_totals(value, self.aggregates) for value in found]
        return tuple([at.of(value) for value in found])

    def wanted(self, values: Sequence[object]) -> dict[str, object] | None:
        """The values of the columns that are to have one; None where no row can have them."""
        assert self.record is not None
        types = {c.name: c.type for c in self.record.columns}
        found = {}
        for name, expr in self.equal.items():
            value = _given(expr, values)
            bits = _BITS.get(types[name])
            if value is None or (bits is not None and not -(1 << bits) <= value < 1 << bits):
                return None
            found[name] = value
        return found


def read_plan(query: bt.Query, types: Sequence[str], record: ObjectRecord | None) -> ReadPlan:
    """The plan of a query over a relation, or over none. Raises `NoTwin` for one that is Spark's."""
    if not isinstance(query, bt.SelectQuery) or query.grouping or query.having is not None or query.distinct:
        raise NoTwin("a query of another kind")
    if record is not None and not (isinstance(query.source, bt.Scan) and not query.source.looked_up):
        raise NoTwin("another relation")
    if record is None and query.source is not None:
        raise NoTwin("another relation")
    aggregates = _aggregates(query)
    if aggregates and (record is None or query.order or query.limit is not None or query.offset is not None):
        raise NoTwin("aggregates with bounds")
    equal, rest = _split(query.where)
    point = False
    if record is not None and record.content.writable and record.primary_key and not aggregates:
        point = set(record.primary_key) <= set(equal)
        for name in [n for n in equal if point and n not in record.primary_key]:
            rest.append(equal.pop(name)[1])
    values = {name: value for name, (value, _) in equal.items()}
    plan = ReadPlan(query, record, tuple(types), _names(query, record), aggregates, point, values, tuple(rest))
    plan._steps(None)
    return plan


def _aggregates(query: bt.SelectQuery) -> tuple[bt.BoundAggregate, ...]:
    found = [e for o in query.outputs for e in bt.walk(o.value) if isinstance(e, bt.BoundAggregate)]
    return tuple(dict.fromkeys(found))


def _of_totals(expr: bt.Expr, aggregates: Sequence[bt.BoundAggregate]) -> bt.Expr:
    """An expression with columns in the place of aggregates, each called by its number."""
    if isinstance(expr, bt.BoundAggregate):
        at = str(aggregates.index(expr))
        return bt.BoundColumn(expr.type, 0, at, at)
    if isinstance(expr, bt.Call):
        return replace(expr, arguments=tuple([_of_totals(a, aggregates) for a in expr.arguments]))
    return expr


def _names(query: bt.SelectQuery, record: ObjectRecord | None) -> tuple[str, ...]:
    """The columns that a query reads, at least one; their types are those that the relation has."""
    if record is None:
        return ()
    types = {c.name: c.type for c in record.columns}
    found: dict[str, None] = {}
    for expr in bt.everything(query):
        if isinstance(expr, bt.BoundColumn):
            if types.get(expr.name) != expr.type.spark:
                raise NoTwin(f"the type of {expr.name}")
            found[expr.name] = None
    for key in query.order:
        if key.value.type.name not in _SORTED:
            raise NoTwin(f"an order of {key.value.type}")
    return tuple(found) or (record.columns[0].name,)


def _count(expr: bt.Expr, values: Values) -> int:
    """The number of a LIMIT or OFFSET."""
    value = 1 if values is None else _given(expr, values)
    if value is None or value < 0:
        raise NoTwin("a limit that is none")
    return int(value)


def _split(condition: bt.Expr | None) -> tuple[dict[str, tuple[bt.Expr, bt.Expr]], list[bt.Expr]]:
    """What a condition wants columns to be, each as the value and the part that says so; and all its other parts."""
    equal: dict[str, tuple[bt.Expr, bt.Expr]] = {}
    rest = []
    for part in _parts(condition):
        found = _equality(part)
        if found is None or found[0] in equal:
            rest.append(part)
        else:
            equal[found[0]] = found[1], part
    return equal, rest


def _parts(condition: bt.Expr | None) -> Iterator[bt.Expr]:
    if isinstance(condition, bt.Call) and _AND.fullmatch(condition.form):
        for argument in condition.arguments:
            yield from _parts(argument)
    elif condition is not None:
        yield condition


def _equality(part: bt.Expr) -> tuple[str, bt.Expr] | None:
    if not isinstance(part, bt.Call) or part.form != "({0} = {1})":
        return None
    for column, value in (part.arguments, part.arguments[::-1]):
        inner = _unwidened(column)
        if isinstance(inner, bt.BoundColumn) and inner.type.name in _LOOKED_UP and _is_given(value):
            return inner.name, value
    return None


def _unwidened(expr: bt.Expr) -> bt.Expr:
    """A whole number before it was cast to a wider type: equal to the same values."""
    wider = isinstance(expr, bt.Call) and expr.form in _WIDENED and expr.type.name in INTEGERS
    if (
        wider
        and isinstance(expr, bt.Call)
        and expr.arguments[0].type.name in INTEGERS[: INTEGERS.index(expr.type.name)]
    ):
        return expr.arguments[0]
    return expr


def _is_given(expr: bt.Expr) -> bool:
    return isinstance(_unwidened(expr), (bt.Constant, bt.Parameter)) and expr.type.name in _LOOKED_UP


def _given(expr: bt.Expr, values: Sequence[Any]) -> Any:
    expr = _unwidened(expr)
    if isinstance(expr, bt.Parameter):
        return values[expr.number - 1]
    assert isinstance(expr, bt.Constant)
    return value_of(expr)


_AND: Final = re.compile(r"\(\{0\}(?: AND \{\d+\})+\)")
_WIDENED: Final = ("CAST({0} AS INT)", "CAST({0} AS BIGINT)")
