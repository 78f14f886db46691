"""Small data files of a lake table put together, by a commit of its own that changes no row.

Every epoch adds a file, and who reads a table opens all of them. A sink that is told to puts them together once there
are so many. Its epoch has been delivered by then, and what notes the epochs stays as it is. If others commit meanwhile,
theirs counts, and the next epoch tries again. It does so, too, after whatever else fails here: an epoch that is there
is there, and people are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, TypeAlias

from headrace.common.faults import fault_point
from headrace.connectors.declared import Option, needed_module
from headrace.errors import InvalidParameter

Table: TypeAlias = Any
"""A table of its package, or what that gives, which is there where it is needed only."""
COMPACT: Final = Option(
    "compact_files", "Once the table has so many data files below 32 MiB, the commit of an epoch is followed by one "
    "that puts them together; 0 for never.", "number", default="0",
)  # fmt: skip
SMALL_BYTES: Final = 32 << 20
MOST_BYTES: Final = 64 << 20
"""Of files, as they are stored, that are put together at once: their rows are held in memory."""


def least_files(given: int) -> int:
    """From how many files on they are put together; 0 for never. Raises `InvalidParameter`."""
    if given == 1:
        raise InvalidParameter(f"option {COMPACT.name} must be 0 or at least 2: one file is as few as there can be")
    return given


def chosen(sizes: Sequence[int], least: int) -> list[int]:
    """Which files are put together, by place: the smallest ones; none where there are too few."""
    small = sorted((size, place) for place, size in enumerate(sizes) if size < SMALL_BYTES)
    if not least or len(small) < least:
        return []
    return [place for (_, place), all_of_them in zip(small, accumulate(size for size, _ in small), strict=True)
            if all_of_them <= MOST_BYTES]  # fmt: skip


def compact_iceberg(table: Table, least: int) -> None:
    """Put small files of an Iceberg table together; who follows the table sees a snapshot that replaces files."""
    failed = needed_module("pyiceberg.exceptions", "iceberg").CommitFailedException
    tasks = [*table.scan().plan_files()] if least else []
    places = chosen([task.file.file_size_in_bytes for task in tasks], least)
    if len(places) < 2:
        return
    fault_point("lake.compact.before")
    _rewrite(table, [tasks[place] for place in places], failed)
    fault_point("lake.compact.after")


def _rewrite(table: Table, tasks: Sequence[Table], failed: type[Exception]) -> None:
    """Write their rows to files of their own, and commit that; files that no snapshot has are deleted again."""
    files = needed_module("pyiceberg.io.pyarrow", "iceberg")
    expressions = needed_module("pyiceberg.expressions", "iceberg")
    rows = files.ArrowScan(table.metadata, table.io, table.schema(), expressions.AlwaysTrue()).to_table(tasks)
    table.metadata.properties["commit.retry.num-retries"] = "0"
    added: list[Table] = []
    try:
        for file in files._dataframe_to_data_files(table.metadata, rows, table.io):
            added.append(file)
        fault_point("lake.compact.written")
    except Exception:
        delete_files(table, added)
        raise
    try:
        _replace(table, tasks, added)
    except failed:
        delete_files(table, added)


def _replace(table: Table, tasks: Sequence[Table], added: Sequence[Table]) -> None:
    operation = needed_module("pyiceberg.table.snapshots", "iceberg").Operation
    note = {"headrace.compacted": str(len(tasks))}
    with table.transaction() as transaction, transaction.update_snapshot(snapshot_properties=note).overwrite() as made:
        summed_up = made._summary

        def replacing(properties: dict[str, str]) -> Table:
            """The package's summary, with the operation by which it is known that no row has changed."""
            found = summed_up(properties)
            return type(found)(operation=operation.REPLACE, **found.additional_properties)

        made._summary = replacing
        for task in tasks:
            made.delete_data_file(task.file)
        for file in added:
            made.append_data_file(file)


def delete_files(table: Table, files: Iterable[Table]) -> None:
    """Delete data files that no snapshot has; what cannot be deleted stays for whoever removes orphans."""
    for file in files:
        with suppress(Exception):
            table.io.delete(file.file_path)


def compact_delta(table: Table, least: int) -> None:
    """Put small files of a Delta table together."""
    failed = needed_module("deltalake.exceptions", "deltalake").CommitFailedError
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist() if least else []
    if len(chosen(sizes, least)) < 2:
        return
    fault_point("lake.compact.before")
    with suppress(failed):
        table.optimize.compact()
        fault_point("lake.compact.after")
