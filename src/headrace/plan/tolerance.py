"""Views that go on past rows on which an expression fails: `on_error` = 'null' or 'skip'.

Before the plan of such a view is optimized, every expression in it that may fail is *guarded*: where it fails it gives
NULL, and else what it always gives. With 'skip' a row (of a join, a pair) is also left out where an expression fails
that a projection, a filter, a join, an aggregate or a window computes of it: by a condition below that node. All that
is Catalyst's own, so it holds wherever and however often an expression is computed, for inserted and removed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.connectors.options import ON_ERROR
from headrace.errors import NotSupported
from headrace.plan.alike import Alike
from headrace.plan.catalyst.bridge import Bridge, JExpr, JNode

if TYPE_CHECKING:
    from headrace.plan.temporal import Clock

FAIL, NULL, SKIP = ON_ERROR

# Expressions that never fail by themselves, whatever their arguments; to guard them would only cost time.
_SURE = frozenset(
    {"Alias", "And", "Or", "Not", "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan",
     "GreaterThanOrEqual", "IsNull", "IsNotNull", "In", "InSet", "If", "CaseWhen", "Coalesce", "KnownNullable",
     "KnownNotNull", "KnownNotContainsNull", "CreateNamedStruct", "GetStructField", "CreateArray", "TryEval",
     "PreciseTimestampConversion", "Length", "Lower", "Upper", "Contains", "StartsWith",
     "EndsWith", "Hour", "Minute", "Second", "Year", "Month", "DayOfMonth", "Quarter", "XxHash64", "UnixMicros"}
)  # fmt: skip
# What has other expressions in it and is not computed by itself.
_FORMS = frozenset(
    {"AggregateExpression", "WindowExpression", "WindowSpecDefinition", "SortOrder", "LambdaFunction", "OuterReference",
     "ScalarSubquery", "Exists", "ListQuery", "InSubquery"}
)  # fmt: skip
_OPAQUE = frozenset({"SpecifiedWindowFrame", "UnspecifiedFrame", "TryEval"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery"})
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "PythonFuncExpression", "ScalaUDF", "ScalaAggregator"})
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("timestamp", "timestamp_ntz")

# Nodes whose expressions need no guard, or have none.
_PLAIN = frozenset(
    {"LogicalRDD", "LocalRelation", "OneRowRelation", "Range", "SubqueryAlias", "View", "Distinct", "Deduplicate",
     "Union", "Intersect", "Except", "GlobalLimit", "LocalLimit", "Offset", "ResolvedHint", "Repartition",
     "RepartitionByExpression", "RebalancePartitions", "Expand", "WithCTE", "CTERelationDef",
     "CTERelationRef", "MapInArrow"}
)  # fmt: skip


def tolerant(b: Bridge, clock: Clock, node: JNode, on_error: str) -> JNode:
    """The analyzed plan as `on_error` wants it. Raises `NotSupported` for what no rule covers."""
    return node if on_error == FAIL else _Tolerance(b, clock, on_error == SKIP).node(node)


@dataclass
class _Tolerance:
    """One pass over a plan."""

    b: Bridge
    clock: Clock
    skip: bool
    loosened: set[int] = field(default_factory=set)
    """Ids of attributes that could not be null and now can."""

    def node(self, node: JNode) -> JNode:
        """The node and all below it."""
        b, kind = self.b, self.b.kind(node)
        children = b.children(node)
        changed = [self.node(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            node = b.with_children(node, changed)
        rules: dict[str, Callable[[JNode], JNode]] = {
            "Project": self._rowwise, "Sort": self._rowwise, "Window": self._rowwise, "Generate": self._rowwise,
            "Filter": self._conditions, "Join": self._conditions, "Aggregate": self._aggregate,
        }  # fmt: skip
        if kind in rules:
            return rules[kind](node)
        plain = kind in _PLAIN and not any(b.has_guard(self.guarded(e)) for e in b.expressions_of(node))
        if kind == "MapInArrow":
            plain = self._reads(node)
        if not plain:
            raise NotSupported(
                f"on_error other than fail in a view with {kind}",
                hint="leave the option out, or compute this part in a view of its own, without it",
            )
        return node

    def _reads(self, node: JNode) -> bool:
        """Whether a `mapInArrow` stands for a relation or for session windows; else it calls a user's function."""
        name = str(node.functionExpr().name())
        return name.startswith(("headrace_relation_", "headrace_session_"))

    # ---- nodes

    def _rowwise(self, node: JNode) -> JNode:
        """A node with its expressions guarded; with `skip`, over the rows on which none of them fails."""
        made = self.b.with_expressions(node, self.guarded)
        self._loosen(node, made)
        raw = [part for e in self._given(node) for part in self._parts(e)] if self.skip else []
        return self._over(made, raw)

    def _over(self, node: JNode, raw: Sequence[JExpr]) -> JNode:
        """A node over those rows only on which none of the expressions fails."""
        b = self.b
        same = Alike(exactly=True)
        once: dict[int, JExpr] = {}
        for e in map(self._planned, raw):
            once.setdefault(same.number(e), e)
        wanted = [e for e in once.values() if self.guarded(e) is not e]
        if not wanted:
            return node
        child = b.children(node)[0]
        return b.with_children(node, [b.filter(self._sound(wanted), child)])

    def _conditions(self, node: JNode) -> JNode:
        """A filter or a join: what its condition fails on does not pass."""
        made = self.b.with_expressions(node, self._condition)
        self._loosen(node, made)
        return made

    def _condition(self, condition: JExpr) -> JExpr:
        b, found = self.b, []
        for part in b.conjuncts(condition):
            planned = self._planned(part)
            guarded = self.guarded(planned)
            found.append(guarded)
            # Where NULL goes through to the top the condition is not true: nothing passes.
            if self.skip and guarded is not planned and not self.clock.within(planned) and not self._strict(guarded):
                found.append(self._sound([planned]))
        return b.all_of(found)

    def _aggregate(self, node: JNode) -> JNode:
        b = self.b
        if not self.skip:
            return self._rowwise(node)
        inputs = [*b.items(node.groupingExpressions())]
        for e in b.items(node.aggregateExpressions()):
            inputs += [part for part in self._parts(e) if b.references(part)]
        if apart := b.apart(node, lambda e: self.guarded(e) is not e):
            above, below = apart
            below = self._over(b.with_expressions(below, self.guarded), inputs)
            return self._rowwise(b.with_children(above, [below]))
        made = b.with_expressions(node, self.guarded)
        self._loosen(node, made)
        return self._over(made, inputs)

    def _given(self, node: JNode) -> list[JExpr]:
        """The expressions that a node computes for each row of its input."""
        b = self.b
        if b.kind(node) == "Generate":
            return b.children(node.generator())
        return b.expressions_of(node)

    def _parts(self, e: JExpr) -> list[JExpr]:
        """What of an expression is computed of a single row: arguments of aggregates and window functions, keys."""
        b, kind = self.b, self.b.kind(e)
        if kind == "AggregateExpression":
            return self._of_call(e)
        if kind in ("Alias", "WindowExpression", "WindowSpecDefinition", "SortOrder"):
            return [part for c in b.children(e) for part in self._parts(c)]
        if kind in _OPAQUE or b.is_form(e):
            return [part for c in b.children(e) for part in self._parts(c)] if kind not in _OPAQUE else []
        if any(True for _ in b.find(e, frozenset({"AggregateExpression", "WindowExpression"}))):
            return [part for c in b.children(e) for part in self._parts(c)]
        return [e]

    def _of_call(self, call: JExpr) -> list[JExpr]:
        """The filter of an aggregate call, and its arguments where that lets the row through."""
        b = self.b
        function = call.aggregateFunction()
        while len(b.children(function)) == 1 and b.is_form(b.children(function)[0]):
            function = b.children(function)[0]
        arguments = [b.filtered(call, a) for a in b.children(function) if b.references(a)]
        return arguments if call.filter().isEmpty() else [call.filter().get(), *arguments]

    # ---- expressions

    def guarded(self, e: JExpr) -> JExpr:
        """The expression with NULL in place of every failure; itself if nothing in it may fail."""
        b, kind = self.b, self.b.kind(e)
        if kind in _PYTHON:
            raise NotSupported(
                "on_error other than fail in a view that calls Python functions",
                hint="catch the error in the function and return None, or call it in a view of its own",
            )
        if kind == "AttributeReference":
            return e.withNullability(True) if b.attribute_id(e) in self.loosened and not e.nullable() else e
        if kind in _OPAQUE or self.clock.is_now(e):
            return e
        e = self._planned(e)
        children = b.children(e)
        changed = [self.guarded(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            e = b.with_children(e, changed)
        if not children or kind in _SURE or kind in _FORMS or self._is_sure(e) or self.clock.within(e):
            return e
        return e if b.is_form(e) else b.guard(e)

    def _planned(self, e: JExpr) -> JExpr:
        """The expression with the plans of its own subqueries as this pass makes them."""
        if self.b.kind(e) not in _SUBQUERIES or self.clock.is_now(e):
            return e
        return e.withNewPlan(self.node(e.plan()))

    def _is_sure(self, e: JExpr) -> bool:
        """Whether it cannot fail for what its arguments are: widening casts, remainders by constants."""
        b, kind = self.b, self.b.kind(e)
        if kind == "Cast":
            source, target = b.simple_type(b.children(e)[0]), b.simple_type(e)
            if source in _INTEGERS:
                wider = (*_INTEGERS[_INTEGERS.index(source) :], "float", "double")
                return target in wider or target == "string"
            floats = source == "float" and target == "double"
            times = source in _TIMES and target in (*_TIMES, "date", "string")
            return source == target or source == "void" or floats or times
        if kind in ("Remainder", "Pmod"):
            by = b.children(e)[1]
            known = b.kind(by) == "Literal" and b.simple_type(by) in _INTEGERS and by.value() is not None
            return known and int(by.value()) != 0
        return False

    def _strict(self, e: JExpr) -> bool:
        """Whether the expression is NULL wherever a guard in it gives NULL."""
        b = self.b
        if b.unguarded(e) is not None:
            inner = b.unguarded(e)
            return not b.has_guard(inner) or self._strict(inner)
        below = [c for c in b.children(e) if b.has_guard(c)]
        return not below or (bool(e.nullIntolerant()) and all(self._strict(c) for c in below))

    def _sound(self, raw: Sequence[JExpr]) -> JExpr:
        """True for rows on which none of the expressions fails.

        Spark may compute what several expressions have in common before any of them, and out of reach of what catches
        its failure; but not what is in one branch of a conditional only. So all are in one, whose condition is true.
        """
        return self.b.is_sound([self.b.rewrite(e, self._attribute) for e in raw])

    def _attribute(self, e: JExpr) -> JExpr | None:
        return self.guarded(e) if self.b.is_attribute(e) else None

    def _loosen(self, old: JNode, new: JNode) -> None:
        """Note which columns of a node can be null now."""
        b = self.b
        before = {b.attribute_id(a): bool(a.nullable()) for a in b.output(old)}
        for a in b.output(new):
            if bool(a.nullable()) and not before.get(b.attribute_id(a), True):
                self.loosened.add(b.attribute_id(a))


__all__ = ["FAIL", "NULL", "SKIP", "tolerant"]
