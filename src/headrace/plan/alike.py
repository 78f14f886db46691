"""Which of Catalyst's expressions do the same."""

from __future__ import annotations

from headrace.plan.catalyst.expressions import Expr


class Alike:
    """Numbers expressions: those that do the same have the same number.

    Their texts alone would not tell: a constant is written without quotes and type, so that `x IN ('a,b')` reads like
    `x IN ('a', 'b')`, and 1 like '1'. They only save most of the comparisons.

    To Spark `(a + b) + c` and `a + (b + c)` are the same, though one of them may overflow where the other does not.
    `exactly` tells these apart, too.
    """

    def __init__(self, *, exactly: bool = False) -> None:
        self._exactly = exactly
        self._known: dict[str, list[tuple[Expr, int]]] = {}
        self._count = 0

    def number(self, expression: Expr) -> int:
        """The number of an expression, from 0 in the order of first appearance."""
        canonical = expression if self._exactly else expression.canonical
        same_text = self._known.setdefault(canonical.text, [])
        for known, number in same_text:
            if known.equals(canonical):
                return number
        self._count += 1
        same_text.append((canonical, self._count - 1))
        return self._count - 1


__all__ = ["Alike"]
