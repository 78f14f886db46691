"""A table's content in parts: ranges of its blocks, each read by a task at a moment of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from headrace.connectors.base import Offsets, ReadTask
from headrace.connectors.postgres.slot_sharing import BLOCKS, FILE, ROWS, SETTLES, SIZE, TABLE
from headrace.connectors.postgres.slots import Connection
from headrace.connectors.postgres.tables import TableFile, table_file

LEAST_BYTES = 8 << 20
"""A smaller part of a table's content is not worth a task."""
_BLOCK_BYTES: Final = 8192
"""As blocks mostly are."""


def content_of(file: TableFile, lacks: bool) -> Offsets:
    """What offsets say of a table's content; `lacks` is whether rows with errors are left out of it."""
    found = {BLOCKS: file.blocks, FILE: file.node, ROWS: file.rows, SIZE: file.size}
    return {**found, SETTLES: lacks or _most_parts(found) > 1}


def _most_parts(content: Offsets) -> int:
    blocks = int(content.get(BLOCKS, 0))
    size = max(int(content.get(SIZE, 0)), blocks * _BLOCK_BYTES)
    return max(1, min(blocks, size // LEAST_BYTES))


def content_tasks(to: Offsets, parallelism: int) -> list[ReadTask]:
    """A table's content, by ranges of the blocks that it had; what it gets behind them is the last one's."""
    blocks, count = to.get(BLOCKS, 0), max(1, min(parallelism, _most_parts(to)))
    ends: list[int | None] = [blocks * i // count for i in range(count)]
    pieces = pairwise([*ends, None])
    return [{"content": True, TABLE: to.get(TABLE), FILE: to.get(FILE), BLOCKS: piece} for piece in map(list, pieces)]


def part_of(c: Connection, table: str, task: ReadTask) -> str:
    """The condition on rows that a task reads of a table's content; all of them where it was written anew meanwhile.

    Then rows may have moved, and no change says so; that one is read twice does not matter.
    """
    low, high = task[BLOCKS]
    c.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
    if (not low and high is None) or table_file(c, table).node != task[FILE]:
        return "true"
    return f"ctid >= '({low},0)'" + (f" AND ctid < '({high},0)'" if high is not None else "")
