"""Expressions of which more is asked than of any: calls of aggregate, window and Python functions, and others."""

from __future__ import annotations

from headrace.errors import NotSupported
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.catalyst.typed_nodes import asked


class AggregateFunction(Expr, kinds=("Sum", "Average", "First")):
    """A function over rows of which more is asked than of any."""

    @asked
    def buffers(self) -> tuple[Attribute, ...]:
        """What Spark keeps for it."""
        seq = self.in_java.aggBufferAttributes()
        return tuple(Attribute(java, self.reader, kind="AttributeReference") for java in self.reader.items(seq))

    @asked
    def result(self) -> Expr:
        """What it makes of its buffers in the end."""
        return self.reader.part(self.in_java.evaluateExpression(), Expr)

    @asked
    def ignores_nulls(self) -> bool:
        """Of `first` and the like: whether a null is passed over."""
        return bool(self.in_java.ignoreNulls())


class AggregateCall(Expr, kinds=("AggregateExpression",)):
    """A call of an aggregate function."""

    @asked
    def function(self) -> Expr:
        """What is called."""
        return self.reader.part(self.in_java.aggregateFunction(), Expr)

    @asked
    def is_distinct(self) -> bool:
        """Whether each value counts once."""
        return bool(self.in_java.isDistinct())

    @asked
    def hides_distinct(self) -> bool:
        """The mark of `Making.hidden_distinct`."""
        return self.reader.kind(self.in_java.mode()) == "Partial"

    @asked
    def filter(self) -> Expr | None:
        """What lets a row through to it."""
        return self.reader.option(self.in_java.filter(), Expr)

    @asked
    def children(self) -> tuple[Expr, ...]:
        return (self.function,) if self.filter is None else (self.function, self.filter)


class SortOrder(Expr, kinds=("SortOrder",)):
    """What rows are ordered by."""

    @asked
    def falls(self) -> bool:
        """Whether the greatest comes first."""
        return self.reader.kind(self.in_java.direction()) == "Descending"

    @asked
    def nulls_last(self) -> bool:
        """Whether nulls come last."""
        return self.reader.kind(self.in_java.nullOrdering()) == "NullsLast"


class Frame(Expr, kinds=("SpecifiedWindowFrame",)):
    """The rows of a partition that a window function sees."""

    @asked
    def lower(self) -> Expr:
        """Where they begin."""
        return self.reader.part(self.in_java.lower(), Expr)

    @asked
    def upper(self) -> Expr:
        """Where they end."""
        return self.reader.part(self.in_java.upper(), Expr)

    @asked
    def unit(self) -> str:
        """`RangeFrame` or `RowFrame`."""
        return self.reader.kind(self.in_java.frameType())


class WindowSpec(Expr, kinds=("WindowSpecDefinition",)):
    """What a window function is computed over."""

    @asked
    def orders(self) -> tuple[SortOrder, ...]:
        """The order within a partition."""
        return self.reader.parts(self.in_java.orderSpec(), SortOrder)

    @asked
    def frame(self) -> Frame:
        """The rows that count."""
        return self.reader.part(self.in_java.frameSpecification(), Frame)


class WindowCall(Expr, kinds=("WindowExpression",)):
    """A call of a window function."""

    @asked
    def function(self) -> Expr:
        """What is called: an aggregate call, or a function that only windows have."""
        return self.reader.part(self.in_java.windowFunction(), Expr)

    @asked
    def spec(self) -> WindowSpec:
        """What it is over."""
        return self.reader.part(self.in_java.windowSpec(), WindowSpec)


class PythonCall(Expr, kinds=("PythonUDF", "PythonUDAF", "PythonUDTF")):
    """A call of a Python function."""

    @asked
    def name(self) -> str:
        """What the function is called."""
        return str(self.in_java.name())

    @asked
    def declared_deterministic(self) -> bool:
        """Whether whoever made it says that equal arguments give equal results."""
        return bool(self.in_java.udfDeterministic())

    @asked
    def eval_type(self) -> int:
        """PySpark's number for how it is called."""
        return int(self.in_java.evalType())

    @property
    def takes_table(self) -> bool:
        """Whether one of its arguments is a table."""
        taken = self.in_java.tableArguments()
        return not taken.isEmpty() and any(bool(t) for t in self.reader.items(taken.get()))

    def command(self, byte_tag: object) -> bytes:
        """What the function was pickled to. Raises `NotSupported` where it is too large."""
        function = self.in_java.func()
        if not function.broadcastVars().isEmpty():
            raise NotSupported(
                "a Python function with more than a megabyte of data or with broadcast variables in a view",
                hint="keep the data in a table and join it, or load it inside the function",
            )
        return bytes(function.command().toArray(byte_tag))


class GetStructField(Expr, kinds=("GetStructField",)):
    """A field of a struct."""

    @asked
    def ordinal(self) -> int:
        """Which one."""
        return int(self.in_java.ordinal())


class InSet(Expr, kinds=("InSet",)):
    """Whether a value is one of several constants."""

    @asked
    def values(self) -> tuple[int | str | None, ...]:
        """The constants; of what is no integer the text."""
        values, found = self.in_java.hset().iterator(), []
        while values.hasNext():
            value = values.next()
            found.append(value if value is None or isinstance(value, int) else str(value.toString()))
        return tuple(found)


class Like(Expr, kinds=("Like",)):
    """`LIKE`."""

    @asked
    def escape(self) -> str:
        """What takes a wildcard for itself."""
        return str(self.in_java.escapeChar())


class XxHash64(Expr, kinds=("XxHash64",)):
    """A hash of several columns."""

    @asked
    def seed(self) -> int:
        """Where it begins."""
        return int(self.in_java.seed())


class UnaryMinus(Expr, kinds=("UnaryMinus",)):
    """The negative of a number."""

    @asked
    def fails_on_error(self) -> bool:
        """Whether it raises where there is none."""
        return bool(self.in_java.failOnError())


class ElementAt(Expr, kinds=("ElementAt",)):
    """An element of an array or a map."""

    @asked
    def default(self) -> Expr | None:
        """What there is beyond the array's ends."""
        return self.reader.option(self.in_java.defaultValueOutOfBound(), Expr)
