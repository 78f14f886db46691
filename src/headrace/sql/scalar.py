"""Scalar expressions that Python computes exactly as Spark does, over one row at a time.

Only what is understood in full: columns, parameters and literals of plain types; arithmetic of whole numbers; strings
that are joined; comparisons; AND, OR, NOT, IS NULL; the time of the transaction. Everything else raises `NotScalar`,
and an engine computes it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from sqlglot import exp

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.errors import HeadraceError, NumericOutOfRange
from headrace.sql.datatypes import spark_type
from headrace.sql.text_values import assign, parse_text
from headrace.sql.type_names import pg_type_text

Values: TypeAlias = Sequence[object]
Run: TypeAlias = Callable[[Values, Values], Any]
"""From a row and the parameters to a value; None is null."""

_WHOLE: Final = ("smallint", "int", "bigint")
_BITS: Final = {"smallint": 15, "int": 31, "bigint": 63}
_COMPARED: Final = (*_WHOLE, "string", "boolean", "date", "timestamp", "timestamp_ntz")
_PARAMETERS: Final = (*_COMPARED, "float", "double", "binary")
_ARITHMETIC: Final[Mapping[type[exp.Expr], Callable[[object, object], object]]] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul,
}  # fmt: skip
_COMPARISONS: Final[Mapping[type[exp.Expr], Callable[[Any, Any], bool]]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.LT: operator.lt, exp.LTE: operator.le, exp.GT: operator.gt,
    exp.GTE: operator.ge,
}  # fmt: skip
_TIMES: Final[Mapping[type[exp.Expr], str]] = {
    exp.CurrentTimestamp: "timestamp", exp.Localtimestamp: "timestamp_ntz", exp.CurrentDate: "date",
}  # fmt: skip
"""What asks for the time of the transaction, and the types of the answers."""


class NotScalar(Exception):
    """Raised for an expression that Python does not compute here."""


@dataclass(frozen=True)
class Scalar:
    """A compiled expression: its type, and the function that computes it."""

    kind: str | None
    """Spark's type; None for a string literal, a null or a parameter whose type its context decides."""
    run: Run
    text: str | None = None
    """What a string literal says."""
    parameter: int | None = None
    """The number, from 0, of a parameter whose type is open."""
    constant: bool = False
    """Whether it is the same for all rows, as soon as the parameters are known."""
    of_statement: bool = False
    """Whether it is the moment at which the statement is run."""


class RowScope:
    """The columns and parameters that expressions may name; parameters whose type is open get it from their context.

    Behind the parameters whoever runs an expression gives the time of the transaction, an aware datetime.
    """

    def __init__(
        self, columns: Mapping[str, tuple[int, str]], types: list[str | None], zone: Zone,
        qualifiers: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`columns` are positions in the row and types by name, `qualifiers` the names of the one relation.

        Literals are read in the time zone.
        """
        self._columns = columns
        self._qualifiers = ("", *qualifiers)
        self._zone = zone
        self.types = types

    def compile(self, node: exp.Expr) -> Scalar:
        """The expression. Raises `NotScalar`."""
        if isinstance(node, exp.Paren) and not node.args.get("alias"):
            return self.compile(node.this)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Parameter):
            return self._parameter(node)
        if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
            return self._cast(node)
        if isinstance(node, (exp.Literal, exp.Neg, exp.Null, exp.Boolean)):
            return _literal(node) or self._negative(node)
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if isinstance(node, exp.DPipe):
            return self._joined(node)
        if type(node) in _TIMES:
            return self._time(node)
        return self._logic(node)

    def compile_as(self, node: exp.Expr, kind: str) -> Run:
        """The expression as an assignment to a column of that type stores it. Raises `NotScalar`."""
        found = self._settled(self.compile(node), kind)
        if found.of_statement and kind != found.kind:
            return self._time_as(kind)
        return stored(found, kind)

    def compile_constant(self, node: exp.Expr, kind: str) -> Run:
        """What is compared with a column of that type and does not depend on the row. Raises `NotScalar`.

        Whole numbers keep their own type: one that the column cannot hold is equal to none of its values.
        """
        return self._settled(self.compile(node), kind).run

    def compile_condition(self, node: exp.Expr) -> Run:
        """A condition. Raises `NotScalar`."""
        found = self.compile(node)
        if found.kind != "boolean":
            raise NotScalar
        return found.run

    # ---- kinds of nodes

    def _column(self, node: exp.Column) -> Scalar:
        if node.table not in self._qualifiers or node.args.get("db") or node.name not in self._columns:
            raise NotScalar
        if not isinstance(node.this, exp.Identifier):
            raise NotScalar
        at, kind = self._columns[node.name]
        return Scalar(kind, lambda row, _: row[at])

    def _parameter(self, node: exp.Parameter) -> Scalar:
        if not node.name.isdigit() or not 1 <= int(node.name) <= len(self.types):
            raise NotScalar
        at = int(node.name) - 1
        kind = self.types[at]
        if kind is not None and kind not in _PARAMETERS and not kind.startswith("decimal("):
            raise NotScalar
        return Scalar(kind, lambda _, parameters: parameters[at], None, at if kind is None else None, True)

    def _cast(self, node: exp.Cast) -> Scalar:
        kind = _type_of(node)
        inner = self.compile(node.this)
        if inner.kind is None:
            return self._settled(inner, kind)
        if inner.kind == kind or (inner.kind in _WHOLE and kind in _WHOLE):
            return Scalar(kind, stored(inner, kind), None, None, inner.constant)
        raise NotScalar

    def _negative(self, node: exp.Expr) -> Scalar:
        if not isinstance(node, exp.Neg):
            raise NotScalar
        inner = self.compile(node.this)
        return _checked(operator.sub, Scalar(inner.kind, lambda *_: 0, None, None, True), inner)

    def _arithmetic(self, node: exp.Expr) -> Scalar:
        left, right = self._alike(node)
        return _checked(_ARITHMETIC[type(node)], left, right)

    def _comparison(self, node: exp.Expr) -> Scalar:
        left, right = self._alike(node)
        same = left.kind == right.kind or (left.kind in _WHOLE and right.kind in _WHOLE)
        if not same or left.kind not in _COMPARED:
            raise NotScalar
        compare, a, b = _COMPARISONS[type(node)], left.run, right.run

        def run(row: Values, parameters: Values) -> object:
            x, y = a(row, parameters), b(row, parameters)
            return None if x is None or y is None else compare(x, y)

        return Scalar("boolean", run, None, None, left.constant and right.constant)

    def _joined(self, node: exp.DPipe) -> Scalar:
        left, right = self._alike(node)
        if left.kind != "string" or right.kind != "string":
            raise NotScalar
        a, b = left.run, right.run

        def run(row: Values, parameters: Values) -> object:
            x, y = a(row, parameters), b(row, parameters)
            return None if x is None or y is None else x + y

        return Scalar("string", run, None, None, left.constant and right.constant)

    def _logic(self, node: exp.Expr) -> Scalar:
        if isinstance(node, exp.Not):
            inner = self.compile_condition(node.this)

            def negated(row: Values, parameters: Values) -> object:
                value = inner(row, parameters)
                return None if value is None else not value

            return Scalar("boolean", negated)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            tested = self.compile(node.this)
            if tested.kind is None:
                raise NotScalar
            return Scalar("boolean", lambda row, parameters: tested.run(row, parameters) is None)
        if isinstance(node, (exp.And, exp.Or)):
            decisive = isinstance(node, exp.Or)
            parts = [self.compile_condition(node.this), self.compile_condition(node.expression)]
            return Scalar("boolean", lambda row, parameters: _combined(parts, row, parameters, decisive))
        raise NotScalar

    def _time(self, node: exp.Expr) -> Scalar:
        if any(node.args.values()):
            raise NotScalar  # a precision
        kind = _TIMES[type(node)]
        return Scalar(kind, self._time_as(kind), of_statement=kind == "timestamp")

    def _time_as(self, kind: str) -> Run:
        """The time of the transaction: the moment, or what clocks and calendars of the zone show."""
        if kind == "timestamp":
            return lambda _, parameters: parameters[-1]
        if kind not in ("timestamp_ntz", "date"):
            raise NotScalar
        local = self._zone.local
        if kind == "date":
            return lambda _, parameters: local(_moment(parameters)).date()
        return lambda _, parameters: local(_moment(parameters)).replace(tzinfo=None)

    # ---- types

    def _alike(self, node: exp.Expr) -> tuple[Scalar, Scalar]:
        """Both sides; one whose type is open takes that of the other."""
        left, right = self.compile(node.this), self.compile(node.expression)
        if left.kind is None and right.kind is None:
            raise NotScalar
        return self._settled(left, right.kind), self._settled(right, left.kind)

    def _settled(self, found: Scalar, kind: str | None) -> Scalar:
        """With the type that the context asks for, if its own is open."""
        if found.kind is not None or kind is None:
            return found
        if found.parameter is not None:
            if kind not in _PARAMETERS and not kind.startswith("decimal("):
                raise NotScalar
            self.types[found.parameter] = kind
            return Scalar(kind, found.run, None, None, True)
        value = None if found.text is None else parse_text(found.text, kind, self._zone)
        return Scalar(kind, lambda *_: value, None, None, True)


class PairScope(RowScope):
    """The columns of two rows of one table, one behind the other: each is named with what its row is called."""

    def __init__(
        self, columns: Sequence[tuple[str, str]], types: list[str | None], zone: Zone, relations: tuple[str, str]
    ) -> None:
        """`columns` are names and types, `relations` what the first row is called, and the second."""
        self._each = {
            relation: {name: (i + start, kind) for i, (name, kind) in enumerate(columns)}
            for relation, start in zip(relations, (0, len(columns)))
        }
        super().__init__({}, types, zone)

    def _column(self, node: exp.Column) -> Scalar:
        columns = self._each.get(node.table, {}) if len(self._each) == 2 else {}
        if node.args.get("db") or node.name not in columns or not isinstance(node.this, exp.Identifier):
            raise NotScalar
        at, kind = columns[node.name]
        return Scalar(kind, lambda row, _: row[at])


def _moment(parameters: Values) -> datetime:
    found = parameters[-1]
    assert isinstance(found, datetime)
    return found


def stored(found: Scalar, kind: str) -> Run:
    """How a value is stored in a column of that type, as an assignment casts it. Raises `NotScalar`."""
    run = found.run
    if found.kind == kind:
        return run
    if found.kind in _WHOLE and kind in _WHOLE:
        if _BITS[found.kind] <= _BITS[kind]:
            return run
        return lambda row, parameters: _in_range(run(row, parameters), kind)
    if kind == "float" and found.kind not in ("smallint", "int"):
        raise NotScalar  # rounded once, and what is too large becomes infinite
    plain = found.kind in (*_WHOLE, "float", "double") or (found.kind or "").startswith("decimal(")
    if plain and (kind in (*_WHOLE, "float", "double") or kind.startswith("decimal(")):
        return lambda row, parameters: assign(run(row, parameters), kind)
    raise NotScalar


def values_of(texts: Sequence[str | None], types: Sequence[str | None], zone: Zone) -> list[object]:
    """Parameters as values of their types, moments read in a time zone.

    Raises `InvalidText` and other `DataError`s for text that is none.
    """
    return [None if text is None else parse_text(text, kind or "string", zone) for text, kind in zip(texts, types)]


def _literal(node: exp.Expr) -> Scalar | None:
    """A literal; None for what is something else."""
    if isinstance(node, exp.Null):
        return Scalar(None, lambda *_: None, None, None, True)
    if isinstance(node, exp.Boolean):
        value: object = bool(node.this)
        return Scalar("boolean", lambda *_: value, None, None, True)
    sign, inner = 1, node
    while isinstance(inner, exp.Neg):  # PostgreSQL's parser, too, takes signs for a part of the number
        sign, inner = -sign, inner.this.unnest()
    if not isinstance(inner, exp.Literal):
        return None
    if inner.is_string:
        if inner is not node:
            raise NotScalar
        return Scalar(None, lambda *_: None, str(inner.this), None, True)
    if not (inner.is_int and str(inner.this).isdigit()):
        raise NotScalar
    number = sign * int(inner.this)
    kind = next((k for k in ("int", "bigint") if -(1 << _BITS[k]) <= number < 1 << _BITS[k]), None)
    if kind is None:
        raise NotScalar
    return Scalar(kind, lambda *_: number, None, None, True)


def _type_of(node: exp.Cast) -> str:
    try:
        kind = spark_type(node.to)
    except HeadraceError:
        raise NotScalar from None
    if kind not in _PARAMETERS or node.to.expressions:
        raise NotScalar
    return kind


def _checked(compute: Callable[[object, object], object], left: Scalar, right: Scalar) -> Scalar:
    """Arithmetic of whole numbers in the wider type of both, which the result must fit into."""
    if left.kind not in _WHOLE or right.kind not in _WHOLE:
        raise NotScalar
    kind = max(left.kind, right.kind, key=_BITS.__getitem__)
    a, b = left.run, right.run

    def run(row: Values, parameters: Values) -> object:
        x, y = a(row, parameters), b(row, parameters)
        return None if x is None or y is None else _in_range(compute(x, y), kind)

    return Scalar(kind, run, None, None, left.constant and right.constant)


def _in_range(value: Any, kind: str) -> Any:
    if value is not None and not -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]:
        raise NumericOutOfRange(f"{pg_type_text(kind)} out of range")
    return value


def _combined(parts: Sequence[Run], row: Values, parameters: Values, decisive: bool) -> object:
    """AND or OR of three values: `decisive` decides, else null if there is one."""
    result: object = not decisive
    for part in parts:
        value = part(row, parameters)
        if value is decisive:
            return decisive
        if value is None:
            result = None
    return result
