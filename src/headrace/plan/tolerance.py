"""Views that go on past rows on which an expression fails: `on_error` = 'null' or 'skip'.

Before the plan of such a view is optimized, every expression in it that may fail is *guarded*: where it fails it gives
NULL, and else what it always gives. With 'skip' a row (of a join, a pair) is also left out where an expression fails
that a projection, a filter, a join, an aggregate or a window computes of it: by a condition below that node. All that
is Catalyst's own, so it holds wherever and however often an expression is computed, for inserted and removed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.option_reader import ON_ERROR
from headrace.errors import NotSupported
from headrace.plan import sessions
from headrace.plan.alike import Alike
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr, Literal
from headrace.plan.catalyst.kinds import AggregateCall
from headrace.plan.catalyst.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    PythonMap,
    Sort,
    Subquery,
    Window,
)
from headrace.plan.guards import apart, guard, has_guard, is_sound, unguarded

if TYPE_CHECKING:
    from headrace.plan.temporal import ClockLiteral

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


def tolerant(b: Bridge, clock: ClockLiteral, node: Node, on_error: str) -> Node:
    """The analyzed plan as `on_error` wants it. Raises `NotSupported` for what no rule covers."""
    return node if on_error == FAIL else _Tolerance(b, clock, on_error == SKIP).node(node)


@dataclass
class _Tolerance:
    """One pass over a plan."""

    b: Bridge
    clock: ClockLiteral
    skip: bool
    loosened: set[int] = field(default_factory=set)
    """Ids of attributes that could not be null and now can."""

    def node(self, node: Node) -> Node:
        """The node and all below it."""
        kind, children = node.kind, node.children
        changed = [self.node(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            node = node.with_children(changed)
        match node:
            case Project() | Sort() | Window() | Generate():
                return self._rowwise(node)
            case Filter() | Join():
                return self._conditions(node)
            case Aggregate():
                return self._aggregate(node)
        plain = kind in _PLAIN and not any(has_guard(self.guarded(e)) for e in node.expressions)
        if isinstance(node, PythonMap):  # or else it calls a user's function
            plain = node.relation is not None or sessions.read(node) is not None
        if not plain:
            raise NotSupported(
                f"on_error other than fail in a view with {kind}",
                hint="leave the option out, or compute this part in a view of its own, without it",
            )
        return node

    # ---- nodes

    def _rowwise(self, node: Node) -> Node:
        """A node with its expressions guarded; with `skip`, over the rows on which none of them fails."""
        made = self.b.with_expressions(node, self.guarded)
        self._loosen(node, made)
        raw = [part for e in self._given(node) for part in self._parts(e)] if self.skip else []
        return self._over(made, raw)

    def _over(self, node: Node, raw: Sequence[Expr]) -> Node:
        """A node over those rows only on which none of the expressions fails."""
        b = self.b
        same = Alike(exactly=True)
        once: dict[int, Expr] = {}
        for e in map(self._planned, raw):
            once.setdefault(same.number(e), e)
        wanted = [e for e in once.values() if self.guarded(e) is not e]
        if not wanted:
            return node
        child = node.child
        return node.with_children([b.filter(self._sound(wanted), child)])

    def _conditions(self, node: Node) -> Node:
        """A filter or a join: what its condition fails on does not pass."""
        made = self.b.with_expressions(node, self._condition)
        self._loosen(node, made)
        return made

    def _condition(self, condition: Expr) -> Expr:
        b, found = self.b, []
        for part in condition.conjuncts:
            planned = self._planned(part)
            guarded = self.guarded(planned)
            found.append(guarded)
            # Where NULL goes through to the top the condition is not true: nothing passes.
            if self.skip and guarded is not planned and not self.clock.within(planned) and not self._strict(guarded):
                found.append(self._sound([planned]))
        return b.all_of(found)

    def _aggregate(self, node: Aggregate) -> Node:
        b = self.b
        if not self.skip:
            return self._rowwise(node)
        inputs: list[Expr] = [*node.groups]
        for e in node.results:
            inputs += [part for part in self._parts(e) if part.references]
        if parted := apart(b, node, lambda e: self.guarded(e) is not e):
            above, below = parted
            return self._rowwise(above.with_children([self._over(b.with_expressions(below, self.guarded), inputs)]))
        made = b.with_expressions(node, self.guarded)
        self._loosen(node, made)
        return self._over(made, inputs)

    def _given(self, node: Node) -> Sequence[Expr]:
        """The expressions that a node computes for each row of its input."""
        return node.generator.children if isinstance(node, Generate) else node.expressions

    def _parts(self, e: Expr) -> list[Expr]:
        """What of an expression is computed of a single row: arguments of aggregates and window functions, keys."""
        kind = e.kind
        if isinstance(e, AggregateCall):
            return self._of_call(e)
        if kind in ("Alias", "WindowExpression", "WindowSpecDefinition", "SortOrder"):
            return [part for c in e.children for part in self._parts(c)]
        if kind in _OPAQUE or e.is_form:
            return [part for c in e.children for part in self._parts(c)] if kind not in _OPAQUE else []
        if e.has(frozenset({"AggregateExpression", "WindowExpression"})):
            return [part for c in e.children for part in self._parts(c)]
        return [e]

    def _of_call(self, call: AggregateCall) -> list[Expr]:
        """The filter of an aggregate call, and its arguments where that lets the row through."""
        b = self.b
        function = call.function
        while len(function.children) == 1 and function.child.is_form:
            function = function.child
        arguments = [b.filtered(call, a) for a in function.children if a.references]
        return arguments if call.filter is None else [call.filter, *arguments]

    # ---- expressions

    def guarded(self, e: Expr) -> Expr:
        """The expression with NULL in place of every failure; itself if nothing in it may fail."""
        b, kind = self.b, e.kind
        if kind in _PYTHON:
            raise NotSupported(
                "on_error other than fail in a view that calls Python functions",
                hint="catch the error in the function and return None, or call it in a view of its own",
            )
        if isinstance(e, Attribute):
            return e.as_nullable if e.id in self.loosened and not e.nullable else e
        if kind in _OPAQUE or self.clock.is_now(e):
            return e
        e = self._planned(e)
        children = e.children
        changed = [self.guarded(c) for c in children]
        if any(new is not old for new, old in zip(changed, children)):
            e = e.with_children(changed)
        if not children or kind in _SURE or kind in _FORMS or self._is_sure(e) or self.clock.within(e):
            return e
        return e if e.is_form else guard(b, e)

    def _planned(self, e: Expr) -> Expr:
        """The expression with the plans of its own subqueries as this pass makes them."""
        if not isinstance(e, Subquery) or e.kind not in _SUBQUERIES or self.clock.is_now(e):
            return e
        return e.over(self.node(e.plan))

    def _is_sure(self, e: Expr) -> bool:
        """Whether it cannot fail for what its arguments are: widening casts, remainders by constants."""
        kind = e.kind
        if kind == "Cast":
            source, target = e.child.type, e.type
            if source in _INTEGERS:
                wider = (*_INTEGERS[_INTEGERS.index(source) :], "float", "double")
                return target in wider or target == "string"
            floats = source == "float" and target == "double"
            times = source in _TIMES and target in (*_TIMES, "date", "string")
            return source == target or source == "void" or floats or times
        if kind in ("Remainder", "Pmod"):
            by = e.children[1]
            return isinstance(by, Literal) and isinstance(by.value, int) and by.type in _INTEGERS and by.value != 0
        return False

    def _strict(self, e: Expr) -> bool:
        """Whether the expression is NULL wherever a guard in it gives NULL."""
        inner = unguarded(e)
        if inner is not None:
            return not has_guard(inner) or self._strict(inner)
        below = [c for c in e.children if has_guard(c)]
        return not below or (e.is_null_intolerant and all(self._strict(c) for c in below))

    def _sound(self, raw: Sequence[Expr]) -> Expr:
        """True for rows on which none of the expressions fails.

        Spark may compute what several expressions have in common before any of them, and out of reach of what catches
        its failure; but not what is in one branch of a conditional only. So all are in one, whose condition is true.
        """
        return is_sound(self.b, [e.rewritten(self._attribute) for e in raw])

    def _attribute(self, e: Expr) -> Expr | None:
        return self.guarded(e) if isinstance(e, Attribute) else None

    def _loosen(self, old: Node, new: Node) -> None:
        """Note which columns of a node can be null now."""
        before = {a.id: a.nullable for a in old.output}
        for a in new.output:
            if a.nullable and not before.get(a.id, True):
                self.loosened.add(a.id)


__all__ = ["FAIL", "NULL", "SKIP", "tolerant"]
