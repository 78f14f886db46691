"""Values that grow out of a number: their size is checked before they are made.

The check stands in an argument. So Spark cannot compute the value of a literal while it optimises, as it does with the
branches of a CASE, and no server runs out of memory for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr
from headrace.sql.binder.catalogue.entries import Entry, Make, made

MOST_BYTES: Final = 1 << 24
"""Most bytes of a text that `repeat` makes, and most characters that `lpad` and `rpad` fill up to."""
MOST_ELEMENTS: Final = 1 << 24
"""Most rows of a series."""
_TEXT_TOO_LONG: Final = f"requested length too large: a text that is made may have {MOST_BYTES} bytes"
_TOO_MANY_ROWS: Final = f"generate_series would make more than {MOST_ELEMENTS} rows"


def functions() -> list[Entry]:
    """Return `repeat`, `lpad` and `rpad`."""
    return [
        made("repeat", "text, int4", _repeat, "text"),
        *(
            made(name, f"text, int4{fill}", _padded(name), "text")
            for name in ("lpad", "rpad")
            for fill in ("", ", text")
        ),
    ]


def series_end(kind: t.Type, step: int) -> str:
    """Return the form of the end of a series from `{0}` to `{1}`: an error if it has too many elements."""
    distance = "CAST({1} AS DECIMAL(20, 0)) - CAST({0} AS DECIMAL(20, 0))"
    return _checked(f"abs({distance}) >= {MOST_ELEMENTS * abs(step)}", _TOO_MANY_ROWS, "{1}", kind.spark)


def moments_end(kind: t.Type, step_us: int) -> str:
    """Return the form of the end of a series of times from `{0}` to `{1}`, as `series_end` does."""
    distance = "timestampdiff(MICROSECOND, {0}, {1})"
    return _checked(f"abs({distance}) >= {MOST_ELEMENTS * abs(step_us)}", _TOO_MANY_ROWS, "{1}", kind.spark)


def _repeat(arguments: Sequence[Expr]) -> Expr:
    text, times = arguments
    if not isinstance(text, Call):
        return Call(t.TEXT, _repeated("{0}"), (text, times))
    # A text that is computed stands there once: nested calls would double the statement each.
    return Call(t.TEXT, f"transform(array({{0}}), `__r` -> {_repeated('`__r`')})[0]", (text, times))


def _repeated(text: str) -> str:
    size = f"CAST(octet_length({text}) AS BIGINT) * {{1}}"
    return f"repeat({text}, {_checked(f'{size} > {MOST_BYTES}', _TEXT_TOO_LONG, '{1}', 'INT')})"


def _padded(name: str) -> Make:
    length = _checked(f"{{1}} > {MOST_BYTES}", _TEXT_TOO_LONG, "{1}", "INT")

    def make(arguments: Sequence[Expr]) -> Expr:
        fill = "{2}" if len(arguments) > 2 else "' '"
        return Call(t.TEXT, f"{name}({{0}}, {length}, {fill})", tuple(arguments))

    return make


def _checked(condition: str, message: str, value: str, kind: str) -> str:
    raised = f"CAST(raise_error('headrace.errors.DataError: [54000] {message}') AS {kind})"
    return f"CASE WHEN {condition} THEN {raised} ELSE {value} END"
