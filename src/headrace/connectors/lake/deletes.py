"""What Iceberg's delete files delete of a data file: positions, deletion vectors, and rows that equal others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as papq

from headrace.common.last_used import LastUsed
from headrace.connectors.declared import needed_module
from headrace.connectors.lake.changes import Deletes
from headrace.connectors.lake.rows import Kept
from headrace.errors import NotSupported, SourceError

_TABLES_KEPT: Final = 16
Gone = Callable[[pa.RecordBatch, int], npt.NDArray[np.bool_]]
"""Which rows of a batch are deleted."""


class Reading(Protocol):
    """What reads data files, with columns by their field ids."""

    places: Mapping[int, int]

    def batches(self, file: Mapping[str, Any]) -> Iterable[pa.RecordBatch]:
        """The rows of a file."""


class DeleteFiles:
    """Delete files of a table."""

    def __init__(self, table: Any):
        self._table = table
        self._tables = LastUsed[str, pa.Table](_TABLES_KEPT)
        """Files of positions, which may be about many data files."""

    def columns(self, *deletes: Deletes | None) -> list[int]:
        """The field ids by whose values rows are deleted."""
        found = (i for several in deletes for d in several or [] if d[0] == "equality" for i in d[3])
        return sorted(dict.fromkeys(found))

    def kept(self, file: Mapping[str, Any], deletes: Deletes, reading: Any) -> Kept:
        """Which rows of a data file are kept, of batches whose last columns are those of `reading`."""
        gone: list[Gone] = []
        positions = [self._positions(d, file["path"]) for d in deletes if d[0] != "equality"]
        if positions:
            gone.append(at_positions(np.unique(np.concatenate(positions))))
        for _, path, kind, ids, _rows in (d for d in deletes if d[0] == "equality"):
            gone.append(self._equal(path, kind, ids, reading))

        def kept(batch: pa.RecordBatch, position: int) -> np.ndarray[Any, Any]:
            found = np.ones(batch.num_rows, np.int64)
            for which in gone:
                found[which(batch, position)] = 0
            return found

        return kept

    def _positions(self, delete: Sequence[Any], path: str) -> npt.NDArray[np.int64]:
        source = self._table.io.new_input(delete[1])
        if delete[0] == "vector":
            puffin = needed_module("pyiceberg.table.puffin", "iceberg").PuffinFile
            vectors = needed_module("pyiceberg.table.deletion_vector", "iceberg")
            with source.open() as raw:
                found = vectors.deletion_vectors_from_puffin_file(puffin(raw.read()))
            own = next((v for v in found if v.referenced_data_file == path), None)
            if own is None:
                raise SourceError(f"the file {delete[1]} has no deletion vector of {path}")
            return _int64(own.to_vector())
        if delete[2] != "PARQUET":
            raise NotSupported(f"position deletes in a file of the format {delete[2]}: {delete[1]}")

        def read() -> pa.Table:
            with source.open() as raw, papq.ParquetFile(raw, read_dictionary=["file_path"]) as file:
                return file.read(columns=["file_path", "pos"])

        table = self._tables.of(delete[1], read)
        return _int64(table.filter(pc.equal(table.column("file_path"), path)).column("pos"))

    def _equal(self, path: str, kind: str, ids: Sequence[int], reading: Any) -> Gone:
        deletes = type(reading)(self._table, None, ids)
        batches = deletes.batches({"path": path, "format": kind, "spec": -1, "partition": []})
        columns: list[list[pa.Array]] = [[] for _ in ids]
        for batch in batches:
            for found, i in zip(columns, ids):
                found.append(batch.column(deletes.places[i]))
        shift = len(reading.places)
        places = [reading.places[i] - shift for i in ids]  # from the end: other columns stand before them
        return equal_to([pa.chunked_array(c) if c else None for c in columns], places)


def _int64(values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(values.to_numpy() if values.length() else [], np.int64)


def at_positions(positions: npt.NDArray[np.int64]) -> Gone:
    """Rows that are deleted by where they are; positions are sorted."""

    def gone(batch: pa.RecordBatch, position: int) -> npt.NDArray[np.bool_]:
        found = np.zeros(batch.num_rows, np.bool_)
        low, high = np.searchsorted(positions, [position, position + batch.num_rows])
        found[positions[low:high] - position] = True
        return found

    return gone


def equal_to(columns: Sequence[pa.ChunkedArray | None], places: Sequence[int]) -> Gone:
    """Rows that are deleted because they equal one of these, NULL being equal to NULL; `places` are those in batches.

    Each row is a number: that of its values among all that are looked for, column by column.
    """
    if not columns or columns[0] is None:
        return lambda batch, position: np.zeros(batch.num_rows, np.bool_)
    known: list[pa.Array] = []
    ranks: list[npt.NDArray[np.int64]] = []
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        assert column is not None
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise NotSupported(f"equality deletes of a column of type {column.type}")
        values = column.unique()
        known.append(values)
        ranks.append(np.unique(codes))
        own = pc.index_in(column, value_set=values).to_numpy().astype(np.int64)
        codes = np.searchsorted(ranks[-1], codes) * len(values) + own
    wanted = np.unique(codes)

    def gone(batch: pa.RecordBatch, position: int) -> npt.NDArray[np.bool_]:
        numbers = np.zeros(batch.num_rows, np.int64)
        possible = np.ones(batch.num_rows, np.bool_)
        for values, rank, place in zip(known, ranks, places):
            column = batch.column(batch.num_columns + place)
            column = column if column.type == values.type else column.cast(values.type)
            own = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy(zero_copy_only=False)
            at = np.minimum(np.searchsorted(rank, numbers), len(rank) - 1)
            possible &= (own >= 0) & (rank[at] == numbers)
            numbers = at * len(values) + own.astype(np.int64)
        return possible & np.isin(numbers, wanted)

    return gone
