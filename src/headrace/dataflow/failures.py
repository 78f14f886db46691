"""What fails on a row in a view that goes on past it: which rows are noted, and what the failure says.

The driver computes a sample's expression once more, over constants, for its message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def described(b: Bridge, noted: Mapping[str, NotedChecks], error: Mapping[str, Any]) -> dict[str, Any]:
    """A row error as it is shown. What a stage has noted gets its message by computing the expression once more."""
    found = noted.get(error.get("stage", ""))
    if found is None:
        return dict(error)
    check, values = error["check"], error["values"]
    failure = _failure(b, found.checks[check], {i: v for (i, _), v in zip(found.columns, values, strict=True)})
    shown = {name: _short(v) for (_, name), v in zip(found.columns, values, strict=True)}
    return {
        "operator": error["operator"], "expression": found.texts[check],
        "message": "the expression failed" if failure is None else failure.message,
        "sqlstate": UNKNOWN_STATE if failure is None else failure.sqlstate, "row": shown,
    }  # fmt: skip


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
