"""Values on their way into columns: Spark SQL that casts them as PostgreSQL's assignments do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headrace.common.columns import Column
from headrace.common.zones import Zone
from headrace.errors import DatatypeMismatch, NotSupported
from headrace.session.result import ResultColumn
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import fill

_ZONED: Final = re.compile(r"\btimestamp\b")
_WHOLE = ("tinyint", "smallint", "int", "bigint")


def assigned(found: Sequence[ResultColumn], text: str, targets: Sequence[Column], zone: Zone) -> str:
    """Spark SQL around a query that casts its columns to those of a table, as an assignment does in a time zone."""
    names = ", ".join(f"`c{i}`" for i in range(len(found)))
    items = [f"{assignment(f'`c{i}`', c.type, t, zone)} AS `c{i}`" for i, (c, t) in enumerate(zip(found, targets))]
    return f"SELECT {', '.join(items)} FROM ({text}) AS __rows({names})"


def assignment(expression: str, source: str, target: Column, zone: Zone) -> str:
    """Spark SQL that stores a value of one type in a column of another; raises `DatatypeMismatch`."""
    if source == target.type:
        return expression
    scalar = not source.startswith(("array<", "struct<", "map<"))
    if (source == "boolean") != (target.type == "boolean") and not {source, target.type} & {"string", "void"}:
        raise DatatypeMismatch(
            f'column "{target.name}" is of type {target.type} but expression is of type {source}',
            hint="You will need to rewrite or cast the expression.",
        )
    if scalar and target.type in _WHOLE and source in ("float", "double"):
        expression = f"RINT({expression})"
    elif scalar and target.type in _WHOLE and source.startswith("decimal"):
        expression = f"ROUND({expression})"
    if not zone.is_utc and _ZONED.search(f"{source} {target.type}"):
        expression = _in_zone(expression, source, target, zone)
    return f"CAST({expression} AS {target.type})"


def _in_zone(expression: str, source: str, target: Column, zone: Zone) -> str:
    """Between moments and what the clocks of a zone show."""
    kinds = source, target.type
    if kinds in (("timestamp", "timestamp_ntz"), ("timestamp", "date")):
        return fill(zone_times.local_form(zone), (expression,))
    if kinds == ("timestamp", "string"):
        return fill(zone_times.text_form(zone), (expression,))
    if kinds in (("timestamp_ntz", "timestamp"), ("date", "timestamp")):
        return fill(zone_times.moment_form(zone), (f"CAST({expression} AS TIMESTAMP_NTZ)",))
    if kinds == ("string", "timestamp"):
        return fill(zone_times.read_form(zone), (expression,))
    if source == "void":
        return expression
    raise NotSupported(
        f'a value of type {source} for the column "{target.name}" in another time zone than UTC',
        hint="Cast the expression.",
    )
