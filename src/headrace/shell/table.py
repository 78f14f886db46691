"""Rows as text: aligned tables and the expanded form, the way psql prints them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len

from headrace.shell.link import Heading

_MEASURED_ROWS: Final = 10_000
Row = Sequence[str | None]


def aligned(headings: Sequence[Heading], rows: Iterator[Row]) -> Iterator[str]:
    """Lines of a table, with the row count at its end.

    Column widths come from the first 10,000 rows, so that a long result is printed as it arrives.
    """
    first = list(itertools.islice(rows, _MEASURED_ROWS))
    widths = [
        max([cell_len(heading.name), *(_width(row[i]) for row in first)], default=0)
        for i, heading in enumerate(headings)
    ]
    last = len(headings) - 1
    yield "|".join(f" {_centred(h.name, widths[i])} " for i, h in enumerate(headings))
    yield "+".join("-" * (width + 2) for width in widths)
    count = 0
    for row in itertools.chain(first, rows):
        count += 1
        yield from _lines(headings, row, widths, last)
    yield f"({count} row{'' if count == 1 else 's'})"


def expanded(headings: Sequence[Heading], rows: Iterator[Row]) -> Iterator[str]:
    """One line for each value, the rows under each other. The first 10,000 rows decide how wide it gets."""
    first = list(itertools.islice(rows, _MEASURED_ROWS))
    width = max((cell_len(heading.name) for heading in headings), default=0)
    widest = max((_width(value) for row in first for value in row), default=0)
    rule = "-" * (width + 1) + "+" + "-" * (widest + 1)
    for count, row in enumerate(itertools.chain(first, rows), 1):
        title = f"-[ RECORD {count} ]"
        yield title + rule[len(title) :]
        for heading, value in zip(headings, row, strict=True):
            lines = _parts(value)
            for i, line in enumerate(lines):
                name = _padded(heading.name if i == 0 else "", width)
                yield f"{name} | {_continued(line, widest) if i < len(lines) - 1 else line}"
    if not first:
        yield "(0 rows)"


def _continued(line: str, width: int) -> str:
    return _padded(line, width) + "+"


def _parts(value: str | None) -> list[str]:
    if value is None:
        return [""]
    return value.replace("\r", "\\r").replace("\t", "        ").split("\n")


def _width(value: str | None) -> int:
    if value is None:
        return 0
    return max(map(cell_len, _parts(value)))


def _lines(headings: Sequence[Heading], row: Row, widths: Sequence[int], last: int) -> Iterator[str]:
    cells = [_parts(value) for value in row]
    height = max(map(len, cells), default=1)
    for at in range(height):
        pieces = []
        for i, lines in enumerate(cells):
            text = lines[at] if at < len(lines) else ""
            mark = "+" if at < len(lines) - 1 else " "
            body = (
                _padded(text, widths[i], headings[i].numeric)
                if i < last or mark == "+" or headings[i].numeric
                else text
            )
            pieces.append(f" {body}{mark if i < last or mark == '+' else ''}")
        yield "|".join(pieces)


def _padded(text: str, width: int, right: bool = False) -> str:
    space = " " * max(width - cell_len(text), 0)
    return space + text if right else text + space


def _centred(text: str, width: int) -> str:
    space = max(width - cell_len(text), 0)
    return " " * (space // 2) + text + " " * (space - space // 2)
