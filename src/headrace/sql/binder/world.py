"""What a query may name beside relations: functions that users have created, and what only the session knows."""

from __future__ import annotations

from typing import Literal

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone

Form = Literal["scalar", "table", "aggregate"]


@dataclass(frozen=True)
class Routine:
    """What a query must know of a function: types are Spark's, None where any will do."""

    name: str
    spark_name: str
    form: Form
    arguments: tuple[str, ...] | None
    returns: str | None
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types of a table function's columns."""
    volatile: bool = False


@dataclass(frozen=True)
class World:
    """Functions by name, values of the session by what asks for them, such as `current_user`, and its time zone."""

    routines: tuple[Routine, ...] = ()
    session: tuple[tuple[str, str | bool | int | tuple[str, ...]], ...] = ()
    zone: Zone = UTC

    def routine(self, name: str) -> Routine | None:
        """The function of that name."""
        return next((r for r in self.routines if r.name == name), None)

    def value(self, name: str) -> str | bool | int | tuple[str, ...] | None:
        """The session's value of that name; None where it has none."""
        return dict(self.session).get(name)


NOTHING = World()
"""For queries that know of nothing but relations."""
