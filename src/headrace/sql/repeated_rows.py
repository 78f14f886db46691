"""INSERT of many rows that differ in the numbers of their parameters alone: what drivers make. One row is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.sql import statements as st
from headrace.sql.parser import parse_one

FEW_ROWS: Final = 16
"""Rows that are parsed as they stand."""
_BEGINS: Final = re.compile(
    r"""\s*INSERT\s+INTO\s[^$'();/-]*(?:\([^$'();/-]*\)\s*)?\bVALUES\s*(?=\()""", re.ASCII | re.IGNORECASE
)
_PARAMETER: Final = re.compile(r"\$(\d+)", re.ASCII)
_UNCLEAR: Final = re.compile(r"""['"/;-]""")
"""What may hold brackets that are none."""


@dataclass(frozen=True)
class RepeatedRows:
    """An INSERT of rows whose parameters are numbered from 1 on, one row after another."""

    sql: str
    """The statement with its first row alone."""
    width: int
    """Parameters of a row."""
    rows: int

    def of_each(self, given: Sequence[str | None]) -> Iterator[tuple[str | None, ...]]:
        """What is given for parameters, in order, by rows; None where it ends too early."""
        for start in range(0, self.width * self.rows, self.width):
            part = tuple(given[start : start + self.width])
            yield part + (None,) * (self.width - len(part))

    def parsed(self) -> st.Insert | None:
        """The statement with its first row alone; None where it is another one. Raises as `parse_one`."""
        statement = parse_one(self.sql)
        if isinstance(statement, st.Insert) and statement.rows is not None and len(statement.rows) == 1:
            return statement
        return None


def repeated_rows(sql: str) -> RepeatedRows | None:
    """What a text is, if it is such an INSERT of more than a few rows. Whether it is a statement is not looked at."""
    begins = _BEGINS.match(sql)
    first = "" if begins is None else _first_row(sql, begins.end())
    width = first.count("$")
    if begins is None or not width or _UNCLEAR.search(first):
        return None
    texts = _PARAMETER.split(sql[begins.end() :])
    between, numbers = texts[::2], texts[1::2]
    rows, left = divmod(len(numbers), width)
    if left or rows <= FEW_ROWS or numbers != [str(n) for n in range(1, len(numbers) + 1)]:
        return None
    head, *inner, tail = _PARAMETER.split(first)[::2]
    joint, rest = between[width], between[-1][len(tail) :]
    comma = joint[len(tail) : len(joint) - len(head)].strip()
    alike = between[:-1] == [head, *[*inner, joint] * (rows - 1), *inner] and between[-1].startswith(tail)
    if not alike or comma != "," or joint != f"{tail}{joint[len(tail) : len(joint) - len(head)]}{head}":
        return None
    return None if rest.lstrip().startswith(",") else RepeatedRows(sql[: begins.end()] + first + rest, width, rows)


def _first_row(sql: str, start: int) -> str:
    """From a bracket up to the one that closes it; empty where none does."""
    depth = 0
    for at in range(start, len(sql)):
        depth += (sql[at] == "(") - (sql[at] == ")")
        if not depth:
            return sql[start : at + 1]
    return ""
