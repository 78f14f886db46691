"""Two answers compared, and the reviewed list of differences that are meant."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Final

from headrace.common.jsonb import document
from headrace.errors import HeadraceError
from headrace.sql.intervals import parse_interval


@dataclass
class Answer:
    """Rows of texts, or the SQLSTATE of an error; `unknown` says what the binder did not know."""

    rows: list[tuple[str | None, ...]] | None = None
    error: str | None = None
    message: str = ""
    unknown: str | None = None

    def sorted(self) -> Answer:
        """The same, its rows in an order of their own."""
        return self if self.rows is None else replace(self, rows=sorted(self.rows, key=_sortable))


def _sortable(row: tuple[str | None, ...]) -> list[tuple[int, float, str]]:
    return [_cell(cell) for cell in row]


def _cell(cell: str | None) -> tuple[int, float, str]:
    if cell is None:
        return (2, 0.0, "")
    try:
        return (0, float(f"{float(cell):.9g}"), "")
    except ValueError:
        return (1, 0.0, cell)


# ---- what is the same


def same(ours: str | None, theirs: str | None) -> bool:
    """Whether two texts say the same: numbers to 15 digits, everything else literally."""
    if ours == theirs:
        return True
    if ours is None or theirs is None:
        return False
    try:
        a, b = Decimal(ours), Decimal(theirs)
    except InvalidOperation:
        return False
    if not (a.is_finite() and b.is_finite()):
        return str(a) == str(b)
    return math.isclose(a, b, rel_tol=_tolerance(theirs), abs_tol=1e-19)


def _tolerance(text: str) -> float:
    """Single floats have seven digits."""
    return 1e-6 if sum(c.isdigit() for c in text.partition("e")[0]) < 10 and ("." in text or "e" in text) else 1e-14


_TOGETHER: Final = re.compile(r"DISTINCT|GROUP BY|UNION|INTERSECT|EXCEPT")


def same_answer(sql: str, ours: Answer, theirs: Answer) -> bool:
    """Whether both have the same rows.

    Of values that are equal and look different any may stand for all, where rows are brought together by them.
    """
    if ours.rows is None or theirs.rows is None or len(ours.rows) != len(theirs.rows):
        return False
    if _all(same, ours, theirs):
        return True
    if not _TOGETHER.search(sql):
        return False
    parts = [replace(a, rows=[tuple(map(_canonical, row)) for row in a.rows or ()]).sorted() for a in (ours, theirs)]
    return _all(same, *parts)


def _agree(digits: int, ours: Answer, theirs: Answer) -> bool:
    """Whether all numbers agree to so many digits, and everything else is the same."""
    if len(ours.rows or ()) != len(theirs.rows or ()):
        return False
    return _all(partial(_alike, digits), ours, theirs)


_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def _alike(digits: int, ours: str | None, theirs: str | None) -> bool:
    """Whether the numbers in two texts agree to so many digits, and all else is the same."""
    if ours is None or theirs is None or _NUMBER.sub("", ours) != _NUMBER.sub("", theirs):
        return ours == theirs
    pairs = zip(_NUMBER.findall(ours), _NUMBER.findall(theirs), strict=False)
    return all(math.isclose(float(a), float(b), rel_tol=10**-digits) for a, b in pairs)


def _all(test: Callable[[str | None, str | None], bool], ours: Answer, theirs: Answer) -> bool:
    rows = zip(ours.rows or (), theirs.rows or (), strict=True)
    return all(len(a) == len(b) and all(map(test, a, b)) for a, b in rows)


def _canonical(text: str | None) -> str | None:
    """What all intervals, or documents, have in common that are equal to the one that is written."""
    if text is None:
        return None
    try:
        if text[:1] in ("{", "["):
            return "document " + document.key(document.read(text)).hex()
        if re.search(r"\d (day|mon|year)|\d:\d\d:\d", text):
            months, days, micros = parse_interval(text)
            return f"interval {(months * 30 + days) * 86_400_000_000 + micros}"
    except (HeadraceError, document.JsonbFault, ValueError):
        pass
    return text


# ---- what is meant


@dataclass(frozen=True)
class Meant:
    """A difference that is meant: why, and patterns of the statement, of ours and of PostgreSQL's answer."""

    why: str
    sql: str = ""
    ours: str = ""
    theirs: str = ""
    rows: str = ""
    """What an expression has where PostgreSQL fails for a row alone: `null`, or `any` value.

    All other rows have to be the same.
    """
    digits: int = 0
    """Digits that both have in common, where it is the last ones that differ."""

    def fits(self, sql: str, ours: str, theirs: str) -> bool:
        """Whether it is this one."""
        return bool(re.search(self.sql, sql) and re.search(self.ours, ours) and re.search(self.theirs, theirs))


MEANT: Final = (
    Meant("a numeric has 38 digits", ours=r"^22003 .*(numeric field overflow|more than 38 digits|precision)"),
    Meant("what is too small for a float becomes zero, but in exp and power", theirs=r"^22003.*underflow"),
    Meant("sums of floats become infinite", sql=r"(sum|avg)\(", theirs=r"^22003.*overflow", ours="Infinity"),
    Meant("a pattern of LIKE that ends with its escape character is refused even where nobody gets there",
          ours="^22025 "),
    Meant("years beyond 9999 or before 4713 BC", ours=r"^22008|'-\d{4}-", theirs=r"'\d{5,}-|BC"),
    Meant("dates end sooner for PostgreSQL", ours="'-?[0-9]{4,}-", theirs="^22008"),
    Meant("a strict function of a constant NULL is NULL for PostgreSQL, whatever its other arguments are",
          ours=r"^(2\w{4}|0A000) ", theirs=r"^\[(\(None,\)(, )?)+\]$"),
    Meant("PostgreSQL computes constants before all else, and here nobody does whom nobody asks", sql=r"(?i)coalesce\(",
          ours=r"^\[", theirs="^22023", rows="any"),
    Meant("of powers of powers the last digits depend on the library", ours=r"^\[", theirs=r"^\[", digits=10,
          sql=r"(?s)(\^|pow|exp).*(\^|pow|exp)"),
    Meant("numbers of an array have the places of its type", ours=r"'\{[^'\"]*\d", theirs=r"'\{[^'\"]*\d", digits=14),
    Meant("of two texts that read back as a large float PostgreSQL may take the longer one", ours=r"\d{16}|e\+1[5-9]",
          theirs=r"\d{16}", digits=15),
    Meant("the last digit of these functions depends on the library", sql=r"cbrt|sin|cos|tan|cot|exp|ln|log|power|\^",
          ours=r"^\[", theirs=r"^\[", digits=14),
    Meant("a sum of bigint ends where bigint does", sql=r"(sum|avg)\(", ours="^22003 value out of", theirs=r"^\["),
    Meant("a date is at most five million days from another", ours="^22008 date out of range"),
    Meant("beside a NULL nothing is computed here", ours=r"^\[.*\bNone\b", theirs=r"^22(003|008|012|01|P02|007|023)",
          rows="null"),
    Meant("whether a row is null does not need its values", sql="row.*IS NULL", theirs="^22", ours=r"^\[",
          rows="any"),
    Meant("what is equal to no value of its type is not computed to be compared with it", ours=r"^\[",
          sql="(?i)nullif|=|<>|IN \\(|CASE|BETWEEN", theirs="^22(012|003)", rows="any"),
    Meant("of two conditions either may be computed first, and the other one not at all", sql="(?i)BETWEEN|AND|OR",
          ours="^22(012|003|01E)", theirs=r"^\["),
    Meant("of two conditions either may be computed first, and the other one not at all", sql="(?i)BETWEEN|AND|OR",
          ours=r"^\[", theirs="^22(012|003|01E)", rows="any"),
    Meant("what cannot be computed for constants is refused before anybody asks for it", sql="(?i)CASE|coalesce",
          ours="^22023 argument list", theirs=r"^\["),
    Meant("a time is read from a time alone, not from a date with a time", sql="::time\\b", ours="^22007 .* type time:",
          theirs=r"^\["),
    Meant("of two texts that read back as a real PostgreSQL may take the longer one", ours=r"0{6}", theirs=r"\d{8}",
          sql="f4|float4", digits=7),
    Meant("what no element of an array needs is not computed", sql="array_(replace|remove)|ANY|ALL",
          ours=r"^\[", theirs="^22012|^22003", rows="any"),
)  # fmt: skip
"""The reviewed list: whatever is not on it is a difference."""
_OF_SPARK: Final = re.compile(
    r"Traceback|\btry_|[Jj]ava|py4j|[Ss]park|\bUDF\b|[Ll]ambda|\[[A-Z]+_[A-Z_.]{4,}\]|DECIMAL\(|BIGINT|\bSTRUCT<|hr_|`|SQLSTATE"
)
"""Words of the machinery, which no message has."""


def _leaks(sql: str, message: str) -> bool:
    """Whether a message has words of the machinery, and not from the statement."""
    return any(found[0] not in sql for found in _OF_SPARK.finditer(message))


RowByRow = Callable[[bool], bool]
"""Whether each row is as PostgreSQL has it alone; where that fails, whether it is NULL, or with `False` anything."""


def of_a_query(null: bool) -> bool:
    """Rows of a query are made of several, so that none can be asked for alone."""
    return False


def judged(sql: str, ours: Answer, theirs: Answer, row_by_row: RowByRow = of_a_query) -> tuple[str, str | None]:
    """How a comparison counts, and what differs, in words; None if nothing does that is not meant."""
    if ours.unknown is None and ours.rows is None and (ours.error in ("XX000", "HR020") or _leaks(sql, ours.message)):
        return "internal error", f"internal error: {ours.error} {ours.message}"
    if ours.rows is None and theirs.rows is None:
        return "refused by both", None
    if ours.unknown is not None or ours.error == "0A000":
        return f"not known: {ours.unknown or ours.message}", None
    if same_answer(sql, ours, theirs):
        return "equal", None
    mine, other = _shown(ours), _shown(theirs)
    for meant in MEANT:
        if not meant.fits(sql, mine, other) or (meant.rows and not row_by_row(meant.rows == "null")):
            continue
        if not meant.digits or _agree(meant.digits, ours, theirs):
            return f"meant: {meant.why}", None
    return "different", f"{mine} for {other}"


def difference(sql: str, ours: Answer, theirs: Answer, row_by_row: RowByRow = of_a_query) -> str | None:
    """What differs, in words; None if nothing does that is not meant."""
    return judged(sql, ours, theirs, row_by_row)[1]


def _shown(answer: Answer) -> str:
    return str(answer.rows) if answer.rows is not None else f"{answer.error} {answer.message[:200]}"
