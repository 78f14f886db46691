"""What is understood of a query over one relation, or over none, so that it is answered here."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.coordinator.writes.layout import Key
from headrace.dataflow.operators.kernel_expressions import Column, Expression
from headrace.session.reading.read_totals import COUNT_ROWS, Total, group_key, total
from headrace.session.reading.twins import NoTwin, Twins, Values, value_of
from headrace.session.result import Origin, ResultColumn
from headrace.sql.binder import bound_tree as bt
from headrace.sql.binder.moments import asks
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
    """Of each row, or of each group, over its keys and what the aggregates make of it."""
    keys: tuple[Expression, ...]
    """What rows are grouped by."""
    totals: tuple[Total, ...]
    having: Expression | None
    """Which groups are wanted."""
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
    keys: tuple[bt.Expr, ...]
    """What it groups rows by."""
    aggregates: tuple[bt.BoundAggregate, ...]
    """What it wants to know of each group, or of all rows together."""
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
        if self.keys or self.query.having is not None or self.query.limit is not None or self.query.offset is not None:
            return False
        only = self.query.outputs[0].value if len(self.query.outputs) == 1 else None
        return only in self.aggregates and self.aggregates[0].form == COUNT_ROWS and self.aggregates[0].where is None

    @property
    def grouped(self) -> bool:
        """Whether it has a row for each group, and not for each row."""
        return bool(self.keys or self.aggregates)

    @cached_property
    def streams(self) -> bool:
        """Whether rows are only counted, or handed out as they are read: however many they are."""
        if self.query.where is not None or self.query.order or self.keys:
            return False
        return self.counts or all(
            isinstance(o.value, bt.BoundColumn) for o in self.query.outputs
        )  # no aggregate is one

    @cached_property
    def width(self) -> int:
        """How many expressions it computes for each row, at most."""
        return sum(1 for part in self._computed() for _ in bt.walk(part))

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
    def uses_now(self) -> bool:
        """Whether it asks for a time: then these stand behind the values of its parameters."""
        return asks(self.query)

    @cached_property
    def _fixed(self) -> Steps | None:
        """The steps, if they are the same for all values."""
        found = self.uses_now or any(isinstance(e, bt.Parameter) for part in self._computed() for e in bt.walk(part))
        return None if found else self._steps(())

    def _computed(self) -> Iterator[bt.Expr]:
        query = self.query
        yield from self.rest if self.point else () if query.where is None else (query.where,)
        yield from (o.value for o in query.outputs)
        yield from (k.value for k in query.order)
        yield from self.keys
        if query.having is not None:
            yield query.having
        yield from (part for part in (query.limit, query.offset) if part is not None)

    def question(self, values: Sequence[object], zone: Zone) -> Hashable:
        """Equal for plans and values that ask a relation for the same."""
        return _Asked(self), tuple(map(repr, values)), self.types, zone.name

    @cached_property
    def _hash(self) -> int:
        return hash(self.query)

    def steps(self, values: Values) -> Steps:
        """The steps with these values of the parameters. Raises `NoTwin` where one of them has no twin."""
        return self._fixed or self._steps(values)

    def _steps(self, values: Values) -> Steps:
        query, at = self.query, Twins({n: i for i, n in enumerate(self.names)}, values)
        after, of = at, self._of_groups
        if self.grouped:
            width = len(self.keys) + len(self.aggregates)
            after = Twins({_group_column(i): i for i in range(width)}, values, few=True)
        return Steps(
            None if query.where is None or self.point else at.of(query.where),
            at.of(bt.conjunction("AND", self.rest)) if self.rest else None,
            tuple([after.of(of(o.value)) for o in query.outputs]),
            tuple([group_key(at, key) for key in self.keys]),
            tuple([total(at, aggregate) for aggregate in self.aggregates]),
            None if query.having is None else after.of(of(query.having)),
            tuple([ReadOrder(after.of(of(k.value)), k.descending, k.nulls_first) for k in query.order]),
            None if query.limit is None else _count(query.limit, values),
            0 if query.offset is None else _count(query.offset, values),
        )

    def _of_groups(self, expr: bt.Expr) -> bt.Expr:
        """An expression over groups, with columns in the place of keys and aggregates."""
        if not self.grouped:
            return expr
        at = None
        if expr in self.keys:
            at = self.keys.index(expr)
        elif isinstance(expr, bt.BoundAggregate):
            at = len(self.keys) + self.aggregates.index(expr)
        if at is not None:
            return bt.BoundColumn(expr.type, 0, _group_column(at), _group_column(at))
        if isinstance(expr, bt.Call):
            return replace(expr, arguments=tuple([self._of_groups(a) for a in expr.arguments]))
        return expr

    @cached_property
    def _sought(self) -> tuple[_Sought, ...]:
        assert self.record is not None
        types = {c.name: c.type for c in self.record.columns}
        return tuple([_sought(name, expr, _BITS.get(types[name])) for name, expr in self.equal.items()])

    def wanted(self, values: Sequence[object]) -> dict[str, object] | None:
        """The values of the columns that are to have one; None where no row can have them."""
        found = {}
        for name, place, value, below in self._sought:
            if place is not None:
                value = values[place]
            if value is None or (below is not None and not (isinstance(value, int) and -below <= value < below)):
                return None
            found[name] = value
        return found

    def key(self, values: Sequence[object]) -> Key | None:
        """The primary key of the one row that a point reads; None where no row can have it."""
        assert self.record is not None
        wanted = self.wanted(values)
        return None if wanted is None else tuple([wanted[name] for name in self.record.primary_key])

    @cached_property
    def copied(self) -> tuple[int, ...] | None:
        """The places in a row of the relation of what a point puts out of it; None if anything is computed, or not
        every row is put out."""
        steps = self._fixed
        if steps is None or steps.rest is not None or steps.copied is None or steps.offset or steps.limit == 0:
            return None
        return tuple([self.places[i] for i in steps.copied])


class _Sought(NamedTuple):
    """What a column is to be equal to: a parameter, by its place, or a value."""

    name: str
    place: int | None
    value: object
    below: int | None
    """The first number that is too large for the column, and the least one, negated; None where any value will do."""


def _sought(name: str, expr: bt.Expr, bits: int | None) -> _Sought:
    expr, below = _unwidened(expr), None if bits is None else 1 << bits
    if isinstance(expr, bt.Parameter):
        return _Sought(name, expr.number - 1, None, below)
    return _Sought(name, None, _given(expr, ()), below)


class _Asked:
    """A plan's query, hashed once."""

    __slots__ = ("plan",)

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def __hash__(self) -> int:
        return self.plan._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and (self.plan is other.plan or self.plan.query == other.plan.query)


def read_plan(query: bt.Query, types: Sequence[str], record: ObjectRecord | None) -> ReadPlan:
    """The plan of a query over a relation, or over none. Raises `NoTwin` for one that is Spark's."""
    if not isinstance(query, bt.SelectQuery):
        raise NoTwin("a query of another kind")
    if record is not None and not (isinstance(query.source, bt.Scan) and not query.source.looked_up):
        raise NoTwin("another relation")
    if record is None and query.source is not None:
        raise NoTwin("another relation")
    keys, aggregates = _keys(query), _aggregates(query)
    if query.having is not None and not (keys or aggregates):
        raise NoTwin("HAVING of nothing")
    if (keys or aggregates) and record is None:
        raise NoTwin("groups of no rows")
    equal, rest = _split(query.where)
    point = False
    if record is not None and record.content.writable and record.primary_key and not (keys or aggregates):
        point = set(record.primary_key) <= set(equal)
        for name in [n for n in equal if point and n not in record.primary_key]:
            rest.append(equal.pop(name)[1])
    values = {name: value for name, (value, _) in equal.items()}
    plan = ReadPlan(query, record, tuple(types), _names(query, record), keys, aggregates, point, values, tuple(rest))
    plan._steps(None)
    return plan


def _aggregates(query: bt.SelectQuery) -> tuple[bt.BoundAggregate, ...]:
    parts = [*(o.value for o in query.outputs), *(k.value for k in query.order)]
    parts += [] if query.having is None else [query.having]
    found = [e for part in parts for e in bt.walk(part) if isinstance(e, bt.BoundAggregate)]
    return tuple(dict.fromkeys(found))


def _keys(query: bt.SelectQuery) -> tuple[bt.Expr, ...]:
    """What rows are grouped by: the expressions of GROUP BY, or of rows that are to be different all outputs."""
    if not query.distinct:
        if query.grouping != ", ".join(f"{{{i}}}" for i in range(len(query.groups))):
            raise NoTwin("grouping sets")
        return query.groups
    if query.grouping or _aggregates(query):
        raise NoTwin("different groups")
    return tuple(dict.fromkeys(o.value for o in query.outputs))


def _group_column(place: int) -> str:
    """The name of a key or an aggregate among the columns of groups; no relation has such a column."""
    return f"\0{place}"


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
