"""Expressions that are made, not read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from py4j.java_gateway import JavaObject, JVMView
from pyspark.sql import Column as SparkColumn

from headrace.errors import NotSupported
from headrace.plan.catalyst.expressions import Alias, Expr, Literal, Named
from headrace.plan.catalyst.kinds import AggregateCall, SortOrder
from headrace.plan.catalyst.typed_nodes import Package, PartReader


class ExpressionMaker:
    """Makes expressions in one classic Spark session."""

    def __init__(self, reader: PartReader, session: JavaObject, jvm: JVMView) -> None:
        self._reader = reader
        self._session = session
        spark = jvm.org.apache.spark.sql
        self._expressions = Package(spark.catalyst.expressions)
        self._aggregates = Package(spark.catalyst.expressions.aggregate)
        self._optimizer = Package(spark.catalyst.optimizer)
        self._columns = Package(spark.classic.ExpressionUtils)
        self._types: dict[str, JavaObject] = {}
        self._modes: dict[str, JavaObject] = {}

    # -- names and columns ---------------------------------------------------------------------------------------

    def alias(self, expression: Expr, name: str, under: Named | None = None) -> Alias:
        """`expression AS name`, under a new id or under that of another column."""
        expr_id = self._expressions.NamedExpression.newExprId() if under is None else under.in_java.exprId()
        empty, none = self._reader.seq([]), self._reader.none
        made = self._expressions.Alias(expression.in_java, name, expr_id, empty, none, empty)
        return Alias(made, self._reader, kind="Alias", children=(expression,), name=name)

    def column(self, expression: Expr) -> SparkColumn:
        """The expression as a PySpark column."""
        return SparkColumn(self._columns.column(expression.in_java))

    def expression(self, column: SparkColumn) -> Expr:
        """The inverse of `column`."""
        return self._reader.part(self._columns.expression(column._jc), Expr)

    def ordering(self, order: Expr) -> SparkColumn:
        """A sort order as a column to order by."""
        assert isinstance(order, SortOrder)
        column = self.column(order.child)
        if order.falls:
            return column.desc_nulls_last() if order.nulls_last else column.desc_nulls_first()
        return column.asc_nulls_last() if order.nulls_last else column.asc_nulls_first()

    # -- constants -----------------------------------------------------------------------------------------------

    def literal(self, value: bool | int | str | None) -> Literal:
        """A constant."""
        made = self._expressions.module("Literal").apply(value)
        return Literal(made, self._reader, kind="Literal", children=(), value=value)

    def literal_long(self, value: int) -> Expr:
        """A bigint."""
        return self._cast(self.literal(value), self._spelled('"long"'))

    def literal_decimal(self, scale: int) -> Expr:
        """A null of type decimal(38, scale)."""
        return self._cast(self.literal(None), self._spelled(f'"decimal(38,{scale})"'))

    def null_of(self, expression: Expr) -> Expr:
        """A null of the expression's type."""
        return self.cast(self.literal(None), expression)

    def text_as(self, text: str | None, typed_like: Expr) -> Expr:
        """A constant of the expression's type, from its text."""
        return self.cast(self.literal(text), typed_like) if text is not None else self.null_of(typed_like)

    # -- casts ---------------------------------------------------------------------------------------------------

    def cast(self, expression: Expr, to: Expr) -> Expr:
        """An ANSI cast to the type of another expression, in UTC; nothing where the type is right already."""
        return self._cast(expression, to._type)

    def try_cast(self, expression: Expr, to: Expr) -> Expr:
        """A cast that gives null for what does not fit; nothing where the type is right already."""
        return self._cast(expression, to._type, "TRY")

    def widens(self, source: Expr, target: Expr) -> bool:
        """Whether a cast between two expressions' types keeps every value, so that it can be cast back."""
        return bool(self._expressions.module("Cast").canUpCast(source._type, target._type))

    def unscaled(self, decimal: Expr) -> Expr:
        """The unscaled value of a decimal of at most 18 digits, as bigint."""
        return self._made("UnscaledValue", decimal)

    def _cast(self, expression: Expr, to: JavaObject, mode: str = "ANSI") -> Expr:
        if expression._type.equals(to):
            return expression
        made = self._expressions.Cast(expression.in_java, to, self._reader.some("UTC"), self._mode(mode))
        return Expr(made, self._reader, kind="Cast", children=(expression,))

    def _spelled(self, json: str) -> JavaObject:
        """Catalyst's type for the JSON of one."""
        if json not in self._types:
            self._types[json] = self._session.parseDataType(json)
        return self._types[json]

    def _mode(self, name: str) -> JavaObject:
        if name not in self._modes:
            self._modes[name] = getattr(self._expressions.module("EvalMode"), name)()
        return self._modes[name]

    # -- conditions ----------------------------------------------------------------------------------------------

    def and_(self, left: Expr, right: Expr) -> Expr:
        """`left AND right`."""
        return self._made("And", left, right)

    def all_of(self, conditions: Sequence[Expr]) -> Expr:
        """The conditions, at least one, joined by AND."""
        return reduce(self.and_, conditions)

    def if_(self, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
        """One value where the condition holds, else another one."""
        return self._made("If", condition, then, otherwise)

    def if_else_null(self, condition: Expr, value: Expr) -> Expr:
        """The value where the condition holds, else null."""
        return self.if_(condition, value, self.null_of(value))

    def is_null(self, expression: Expr) -> Expr:
        """`expression IS NULL`."""
        return self._made("IsNull", expression)

    def is_not_null(self, expression: Expr) -> Expr:
        """`expression IS NOT NULL`."""
        return self._made("IsNotNull", expression)

    def greater(self, left: Expr, right: Expr) -> Expr:
        """`left > right`."""
        return self._made("GreaterThan", left, right)

    def at_least(self, left: Expr, right: Expr) -> Expr:
        """`left >= right`."""
        return self._made("GreaterThanOrEqual", left, right)

    def all_not_null(self, expressions: Sequence[Expr]) -> Expr:
        """True where no expression is null, else null."""
        condition: Expr = self.literal(True)
        for e in expressions:
            condition = self.and_(condition, self.is_not_null(e))
        return self.if_else_null(condition, self.literal(True))

    def try_eval(self, expression: Expr) -> Expr:
        """The expression, but null where it fails."""
        return self._made("TryEval", expression)

    # -- other forms ---------------------------------------------------------------------------------------------

    def struct(self, names: Sequence[str], values: Sequence[Expr]) -> Expr:
        """A struct with these fields."""
        fields = [part for name, value in zip(names, values, strict=True) for part in (self.literal(name), value)]
        made = self._expressions.CreateNamedStruct(self._reader.seq(fields))
        return Expr(made, self._reader, kind="CreateNamedStruct", children=tuple(fields))

    def hash(self, columns: Sequence[Expr]) -> Expr:
        """The hash of several columns."""
        made = self._expressions.XxHash64(self._reader.seq(columns))
        return self._reader.part(made, Expr)

    def normalized(self, expression: Expr) -> Expr:
        """The expression with one form of NaN and of zero, at any depth: what grouping and joining compare.

        Raises `NotSupported` for text with a collation, of which different values are equal.
        """
        if expression.is_collated:
            raise NotSupported(
                f"bringing rows together by values of type {expression.type}",
                hint="group, join or partition by lower(...) of the text, or another form of it that is equal",
            )
        made = self._optimizer.module("NormalizeFloatingNumbers").normalize(expression.in_java)
        return self._reader.part(made, Expr)

    def mark(self, expression: Expr) -> Expr:
        """Return the expression in a wrapping that changes nothing, for which it may be NULL."""
        return self._made("KnownNullable", expression)

    def call(self, like: AggregateCall, function: Expr, *, distinct: bool, condition: Expr | None) -> AggregateCall:
        """Return a call of an aggregate function in the place of another one."""
        return self._call(like, function, distinct, condition, like.in_java.mode())

    def hidden_distinct(self, like: AggregateCall, function: Expr) -> AggregateCall:
        """Return the call without DISTINCT. Its mode tells that it had it: the optimizer does not look at that."""
        return self._call(like, function, False, like.filter, self._aggregates.module("Partial"))

    def shown_distinct(self, like: AggregateCall, function: Expr) -> AggregateCall:
        """Return the inverse of `hidden_distinct`."""
        return self._call(like, function, True, like.filter, self._aggregates.module("Complete"))

    def _call(
        self, like: AggregateCall, function: Expr, distinct: bool, condition: Expr | None, mode: JavaObject
    ) -> AggregateCall:
        given = self._reader.some_or_none(condition)
        made = self._aggregates.AggregateExpression(function.in_java, mode, distinct, given, like.in_java.resultId())
        return AggregateCall(made, self._reader, kind=like.kind, function=function, filter=condition)

    def filtered(self, call: AggregateCall, value: Expr) -> Expr:
        """The value where the aggregate call's own filter holds, else null."""
        return value if call.filter is None else self.if_else_null(call.filter, value)

    def _made(self, kind: str, *children: Expr) -> Expr:
        """An expression that is made of its children alone."""
        made = getattr(self._expressions, kind)(*(c.in_java for c in children))
        return Expr(made, self._reader, kind=kind, children=children)
