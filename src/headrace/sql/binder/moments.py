"""Times that a query asks for: when its transaction began, when its statement did, and what the clock shows.

In the typed tree they are calls with forms of their own, so that a query is bound once for all times. What runs it puts
values in their places; in a view they stay, and the planner has rules for them. To Spark all these forms mean the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr, Query, everything, mapped
from headrace.sql.text_values import to_text

TRANSACTION: Final = "current_timestamp()"
TODAY: Final = "current_date()"
"""The day of it in UTC."""
STATEMENT: Final = "now()"
CLOCK: Final = "(now())"
_FORMS: Final = (TRANSACTION, TODAY, STATEMENT, CLOCK)
TIMES: Final = len(_FORMS)
"""How many values of `Times` there are."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Times(NamedTuple):
    """The times of a statement that runs, in microseconds since 1970."""

    transaction_us: int
    statement_us: int
    clock_us: int
    """When it was asked for them."""

    @property
    def now(self) -> datetime:
        """When its transaction began."""
        return _moment(self.transaction_us)

    def values(self) -> tuple[object, ...]:
        """What each of the forms stands for, in their order."""
        now = self.now
        return now, now.date(), _moment(self.statement_us), _moment(self.clock_us)


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def place_of(expr: Expr) -> int | None:
    """Which of `Times.values` an expression stands for; None for anything else."""
    return _FORMS.index(expr.form) if isinstance(expr, Call) and expr.form in _FORMS else None


def asks(query: Query) -> bool:
    """Whether a query asks for any time."""
    return any(place_of(expr) is not None for expr in everything(query))


def at(query: Query, times: Times) -> Query:
    """The query with these times in the places where it asks for them."""
    values = times.values()

    def given(expr: Expr) -> Expr | None:
        place = place_of(expr)
        if place is None:
            return None
        value = values[place]
        return Constant(expr.type, to_text(value) if expr.type == t.DATE else f"{value:%Y-%m-%d %H:%M:%S.%f}+00")

    return mapped(query, given)
