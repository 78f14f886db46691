"""Values on their way into columns: Spark SQL that casts them as PostgreSQL's assignments do."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.common.columns import Column
from headrace.errors import DatatypeMismatch
from headrace.session.result import ResultColumn

_WHOLE = ("tinyint", "smallint", "int", "bigint")


def assigned(found: Sequence[ResultColumn], text: str, targets: Sequence[Column]) -> str:
    """Spark SQL around a query that casts its columns to those of a table, as an assignment does."""
    names = ", ".join(f"`c{i}`" for i in range(len(found)))
    items = [f"{assignment(f'`c{i}`', c.type, t)} AS `c{i}`" for i, (c, t) in enumerate(zip(found, targets))]
    return f"SELECT {', '.join(items)} FROM ({text}) AS __rows({names})"


def assignment(expression: str, source: str, target: Column) -> str:
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
    return f"CAST({expression} AS {target.type})"
