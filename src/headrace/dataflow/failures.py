"""What fails on a row in a view that goes on past it: which rows are noted, and what the failure says.

The driver computes a sample's expression once more, over constants, for its message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.acknowledgements import NotedFailure
from headrace.errors import HeadraceError, SparkLost
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.failures import translate

_EXPR_ID = re.compile(r"#\d+L?")
_WITHOUT_TEXT = ("struct", "array", "map", "binary", "variant", "interval")
UNKNOWN_STATE = "22000"
SAMPLE_CHARS = 80
"""Of each value in a sample of a row that is shown."""


@dataclass(frozen=True)
class NotedChecks:
    """The expressions whose failures one stage notes, and the columns of its samples, by id and name."""

    checks: tuple[Expr, ...]
    texts: tuple[str, ...]
    """The expressions as people read them."""
    columns: tuple[tuple[int, str], ...]


def noted_by(checks: Sequence[Expr], columns: Sequence[tuple[int, str]]) -> NotedChecks:
    """What a stage notes."""
    return NotedChecks(tuple(checks), tuple(_EXPR_ID.sub("", c.text) for c in checks), tuple(columns))


@dataclass(frozen=True)
class FailedExpression:
    """A row on which an expression failed, as people read it."""

    operator: str
    expression: str
    message: str
    sqlstate: str
    row: Mapping[str, str | None]
    """What the operator has of the row, as texts by column."""


def described(b: Bridge, noted: Mapping[str, NotedChecks], error: NotedFailure) -> FailedExpression:
    """What a stage has noted, with its message, by computing the expression once more."""
    found, values = noted[error.stage], error.values
    failure = _failure(b, found.checks[error.check], {i: v for (i, _), v in zip(found.columns, values, strict=True)})
    shown = {name: _short(v) for (_, name), v in zip(found.columns, values, strict=True)}
    return FailedExpression(
        error.operator, found.texts[error.check],
        "the expression failed" if failure is None else failure.message,
        UNKNOWN_STATE if failure is None else failure.sqlstate, shown,
    )  # fmt: skip


def _failure(b: Bridge, check: Expr, values: Mapping[int, str | None]) -> HeadraceError | None:
    """The error of an expression over a row; None where the row's values have no text to compute it by."""
    try:
        if any(a.type.startswith(_WITHOUT_TEXT) for a in check.find(frozenset({"AttributeReference"}))):
            return None
        constant = check.rewritten(lambda e: b.text_as(values.get(e.id), e) if isinstance(e, Attribute) else None)
        constant.evaluated()
    except Exception as error:  # of whatever kind it is in Spark
        found = translate(error)
        return None if isinstance(found, SparkLost) else found
    return None


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= SAMPLE_CHARS else value[: SAMPLE_CHARS - 1] + "…"
