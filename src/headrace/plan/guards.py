"""Guards: expressions that give NULL where they would fail, and what is asked about expressions that have them.

A guard is two `TryEval`s, one within the other, which Spark's own `try_` functions are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Alias, Attribute, Expr, Literal, Named
from headrace.plan.catalyst.nodes import Aggregate, Node

_TRY = frozenset({"TryEval"})
_CALL = frozenset({"AggregateExpression"})
_IF = frozenset({"If"})
_SOUND = "__sound"
"""What the names of the fields of a struct begin with that is tried as a whole."""
_NESTED = ("struct", "array", "map", "variant")
_FORMS = frozenset({"AggregateExpression", "WindowExpression", "WindowSpecDefinition", "SortOrder", "Alias"})


def guard(b: Bridge, expression: Expr) -> Expr:
    """The expression, but NULL where it fails."""
    return b.try_eval(b.try_eval(expression))


def unguarded(expression: Expr) -> Expr | None:
    """What a guard is of; None if the expression is none."""
    for _ in range(2):
        if expression.kind != "TryEval":
            return None
        expression = expression.child
    return expression


def has_guard(expression: Expr) -> bool:
    """Whether there is a guard in the expression."""
    return any(unguarded(e) is not None for e in expression.find(_TRY))


def bare(expression: Expr) -> Expr:
    """The expression without its guards, at any depth."""
    if not has_guard(expression):
        return expression
    inner = unguarded(expression)
    if inner is not None:
        return bare(inner)
    return expression.with_children([bare(c) for c in expression.children])


def is_sound(b: Bridge, raw: Sequence[Expr]) -> Expr:
    """True where none of the expressions fails, else false."""
    tried = b.is_not_null(b.try_eval(b.struct([f"{_SOUND}{i}" for i in range(len(raw))], raw)))
    columns = (a for e in raw for a in e.every(Attribute))
    column = min(columns, key=lambda a: a.type.startswith(_NESTED), default=None)
    if column is None:
        return tried
    always = b.at_least(b.hash([column]), b.literal_long(-(2**63)))
    return b.if_(always, tried, always)  # the other branch is never taken, and nothing that could be simplified


def soundness(expression: Expr) -> Expr | None:
    """The struct of the expressions that an `is_sound` tries; None for any other expression."""
    if expression.kind != "If" or expression.children[1].kind != "IsNotNull":
        return None
    tried = expression.children[1].child
    struct = tried.child if tried.kind == "TryEval" else None
    if struct is None or struct.kind != "CreateNamedStruct":
        return None
    name = struct.child
    return struct if isinstance(name, Literal) and str(name.value).startswith(_SOUND) else None


def tried(expression: Expr) -> list[Expr]:
    """For an expression with guards: what must not fail for it to be what it is without them."""
    found = [s for part in expression.find(_IF) if (s := soundness(part)) is not None]
    if found:
        return [value for struct in found for value in struct.children[1::2]]
    inner = expression.child if isinstance(expression, Alias) else expression
    return [bare(inner)] if has_guard(inner) else []


def row_parts(expression: Expr) -> Iterator[Expr]:
    """The parts with guards of an expression that are computed of one row: arguments of aggregates, sort keys."""
    if not has_guard(expression):
        return
    if expression.is_form or expression.has(_FORMS):
        for child in expression.children:
            yield from row_parts(child)
    else:
        yield expression


def fails(b: Bridge, expression: Expr, where: Expr) -> Expr:
    """Whether the expression fails, in rows where a number is above 0; false in others.

    The conditional keeps what expressions have in common from being computed before, where nothing catches it.
    """
    above = b.greater(where, b.literal_long(0))
    return b.if_(above, b.is_null(b.try_eval(b.struct(["v"], [expression]))), above)


def apart(b: Bridge, node: Aggregate, wanted: Callable[[Expr], bool]) -> tuple[Node, Aggregate] | None:
    """An Aggregate whose results compute with its aggregates: a Project, and the bare Aggregate below it.

    None if `wanted` is of no part of a result that has an aggregate in it.
    """
    inner = [e.value for e in node.results]
    if not any(e.kind not in _CALL and e.has(_CALL) and wanted(e) for e in inner):
        return None
    named: list[tuple[Expr, Named]] = []
    for part in [*node.groups, *(c for e in node.results for c in e.find(_CALL))]:
        if not any(part.does_as(known) for known, _ in named):
            named.append((part, part if isinstance(part, Attribute) else b.alias(part, "part")))

    def replace(e: Expr) -> Expr | None:
        return next((n.attribute for known, n in named if e.does_as(known)), None)

    below = b.aggregate(node.groups, [n for _, n in named], node.child)
    above: list[Named] = []
    for e in node.results:
        made = e.rewritten(replace)
        same = isinstance(made, Attribute) and made.id == e.id
        kept = made if same or isinstance(made, Alias) else b.alias(made, e.name, e)
        assert isinstance(kept, Named)
        above.append(kept)
    return b.project(above, below), below


__all__ = [
    "apart", "bare", "fails", "guard", "has_guard", "is_sound", "row_parts", "soundness", "tried", "unguarded",
]  # fmt: skip
