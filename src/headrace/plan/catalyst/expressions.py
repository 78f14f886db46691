"""Catalyst's expressions. A kind of which more is asked than of any expression has a class of its own."""

from __future__ import annotations

import json
from builtins import type as Class
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from py4j.java_gateway import JavaObject
from pyspark.sql.types import DataType, _parse_datatype_json_string

from headrace.plan.catalyst.typed_nodes import Part, asked

E = TypeVar("E", bound="Expr")

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_DAY_US = 86_400_000_000


class Expr(Part):
    """An expression."""

    @asked
    def children(self) -> tuple[Expr, ...]:
        """The expressions right below it."""
        return self._children(Expr)

    @property
    def child(self) -> Expr:
        """The first of them, often the only one."""
        return self.children[0]

    @asked
    def type(self) -> str:
        """Spark's simple string of its type."""
        return str(self._type.catalogString())

    @asked
    def _type(self) -> JavaObject:
        return self.in_java.dataType()

    @asked
    def _type_json(self) -> str:
        return str(self._type.json())

    @property
    def spark_type(self) -> DataType:
        """Its PySpark type."""
        return _parsed(self._type_json)

    def has_type_of(self, other: Expr) -> bool:
        """Whether it has the very type of another one."""
        return bool(self._type.equals(other._type))

    @property
    def is_collated(self) -> bool:
        """Whether its strings are compared otherwise than by their bytes."""
        return any(word in self._type_json for word in ("string", "char")) and "collate" in self.type.lower()

    @asked
    def nullable(self) -> bool:
        """Whether it may be null."""
        return bool(self.in_java.nullable())

    @asked
    def is_null_intolerant(self) -> bool:
        """Whether it is null where one of its children is."""
        return bool(self.in_java.nullIntolerant())

    @asked
    def is_deterministic(self) -> bool:
        """Whether it gives the same for the same row, each time."""
        return bool(self.in_java.deterministic())

    @asked
    def is_foldable(self) -> bool:
        """Whether it is the same for all rows."""
        return bool(self.in_java.foldable())

    @asked
    def is_form(self) -> bool:
        """Whether it is not computed for a row by itself: an aggregate or window function, and the like."""
        names = ("Unevaluable", "aggregate.AggregateFunction")
        return any(self.reader.is_a(self.in_java, f"{_EXPRESSIONS}.{name}") for name in names)

    @asked
    def references(self) -> frozenset[int]:
        """Ids of the attributes that it reads."""
        seq = self.in_java.references().toSeq()
        return frozenset(int(java.exprId().id()) for java in self.reader.items(seq))

    @property
    def interval_us(self) -> int | None:
        """The microseconds of an interval that is a constant; None for anything else, and for one with months."""
        return None

    @asked
    def canonical(self) -> Expr:
        """The form that all expressions have that Catalyst takes for the same."""
        return Expr(self.in_java.canonicalized(), self.reader)

    @asked
    def pretty_name(self) -> str:
        """What users call its function."""
        return str(self.in_java.prettyName())

    @asked
    def eval_mode(self) -> str:
        """`ANSI`, `LEGACY` or `TRY`: what an aggregate, a cast or arithmetic does on overflow."""
        own = self.kind in ("Average", "Cast")
        mode = self.in_java.evalMode() if own else self.in_java.evalContext().evalMode()
        return str(mode.toString())

    def does_as(self, other: Expr) -> bool:
        """Whether Catalyst takes both for the same."""
        return bool(self.in_java.semanticEquals(other.in_java))

    def evaluated(self) -> object:
        """The value of a constant expression. Raises what it fails with."""
        return self.in_java.eval(None)

    def with_children(self: E, children: Sequence[Expr]) -> E:
        """A copy with other children."""
        return self._with_children(children)

    @property
    def conjuncts(self) -> list[Expr]:
        """What a condition joins by AND."""
        if self.kind != "And":
            return [self]
        return [part for child in self.children for part in child.conjuncts]

    def find(self, kinds: Collection[str]) -> Iterator[Expr]:
        """Every part of it, itself included, that is of one of the kinds."""
        if self.kind in kinds:
            yield self
        for child in self.children:
            yield from child.find(kinds)

    def every(self, of: Class[E]) -> Iterator[E]:
        """Every part of it, itself included, that is of a class."""
        own: Expr = self
        if isinstance(own, of):
            yield own
        for child in self.children:
            yield from child.every(of)

    def has(self, kinds: Collection[str]) -> bool:
        """Whether any part of it, itself included, is of one of the kinds."""
        return any(True for _ in self.find(kinds))

    def rewritten(self, replace: Callable[[Expr], Expr | None]) -> Expr:
        """With every part replaced for which `replace` gives another one, from the top."""
        other = replace(self)
        if other is not None:
            return other
        changed = [child.rewritten(replace) for child in self.children]
        if all(new is old for new, old in zip(changed, self.children)):
            return self
        return self.with_children(changed)


class Named(Expr):
    """An expression with a name and an id: a column of what a node puts out."""

    @asked
    def id(self) -> int:
        """Catalyst's expression id."""
        return int(self.in_java.exprId().id())

    @asked
    def name(self) -> str:
        """The column's name."""
        return str(self.in_java.name())

    @asked
    def attribute(self) -> Attribute:
        """The column, as it is for what stands above."""
        known = {field: self.__dict__[field] for field in ("id", "name") if field in self.__dict__}
        return Attribute(self.in_java.toAttribute(), self.reader, kind="AttributeReference", **known)

    @property
    def value(self) -> Expr:
        """What has the name."""
        return self.child


class Attribute(Named, kinds=("AttributeReference",)):
    """A column of something below."""

    @property
    def value(self) -> Expr:
        return self

    @asked
    def references(self) -> frozenset[int]:
        return frozenset((self.id,))

    @asked
    def attribute(self) -> Attribute:
        return self

    @asked
    def metadata(self) -> Mapping[str, Any]:
        """What is noted of it beside its type."""
        found: dict[str, object] = json.loads(str(self.in_java.metadata().json()))
        return found

    @property
    def is_session_window(self) -> bool:
        """Whether it stands for Spark's session windows, which its physical operators merge."""
        return "spark.sessionWindow" in self.metadata

    @asked
    def as_nullable(self) -> Attribute:
        """The same, but it may be null."""
        return self._with(self.in_java.withNullability(True))

    def renamed(self, name: str) -> Attribute:
        """The same under another name."""
        return self._with(self.in_java.withName(name))

    def anew(self) -> Attribute:
        """One like it, with an id of its own."""
        return self._with(self.in_java.newInstance())

    def _with(self, java: JavaObject) -> Attribute:
        return Attribute(java, self.reader, kind="AttributeReference")


class Alias(Named, kinds=("Alias",)):
    """An expression under a name."""


class Literal(Expr, kinds=("Literal",)):
    """A constant."""

    @asked
    def value(self) -> bool | int | float | str | bytes | None:
        """Its value, or the text of one that only Java has: of strings, decimals, intervals with months."""
        found = self.in_java.value()
        return found if found is None or isinstance(found, (bool, int, float, str, bytes)) else str(found.toString())

    @property
    def interval_us(self) -> int | None:
        value = self.in_java.value()
        kind = None if value is None else self.reader.kind(self._type)
        if kind == "DayTimeIntervalType":
            return int(value)
        if kind != "CalendarIntervalType":
            return None
        period, duration = value.extractAsPeriod(), value.extractAsDuration()
        if period.toTotalMonths():
            return None
        return int(period.getDays()) * _DAY_US + int(duration.toNanos()) // 1000


def named(expression: Expr) -> Named:
    """An expression of which it is known that it has a name."""
    assert isinstance(expression, Named), expression
    return expression


def attribute(expression: Expr) -> Attribute:
    """An expression of which it is known that it is nothing but a column."""
    assert isinstance(expression, Attribute), expression
    return expression


_parsed = lru_cache(4096)(_parse_datatype_json_string)


def sources(named: Iterable[Named]) -> dict[int, int | None]:
    """For each named expression's id that of the attribute that it is; None for one that is computed.

    A projection may have the same column several times: it is one here.
    """
    return {e.id: e.value.id if isinstance(e.value, Attribute) else None for e in named}


def all_renamed(named: Iterable[Named]) -> dict[int, int] | None:
    """The same for expressions that are nothing but attributes under other names; None if any is computed."""
    found = sources(named)
    renamed = {new: old for new, old in found.items() if old is not None}
    return renamed if len(renamed) == len(found) else None
