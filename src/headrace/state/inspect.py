"""Looking into a run: is it what its reference says, and what its table allows?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptObject, StorageError
from headrace.state.kernels import int64_values
from headrace.state.kernels.equality import Ints
from headrace.state.run import Run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root


def run_problems(root: Root, ref: RunRef, schema: TableSchema, newest_epoch: int) -> Iterator[str]:
    """All that is wrong with a run, in words that name the object; reads every byte of it, one batch at a time."""
    where = f"object {ref.path} at byte {ref.offset}"
    try:
        run = Run.open(root, ref)
        yield from (f"{where}: {text}" for text in _contradictions(run, schema, newest_epoch))
    except CorruptObject as error:
        yield error.message if ref.path in error.message else f"{where}: {error.message}"
    except StorageError as error:
        yield f"{where} cannot be read: {error.message}"


def _contradictions(run: Run, schema: TableSchema, newest_epoch: int) -> Iterator[str]:
    ref = run.ref
    if ref.epoch_hi > newest_epoch:
        yield f"holds epoch {ref.epoch_hi}, the table is at most at {newest_epoch}"
    stored = run.arrow_schema
    with_epoch = len(stored) > schema.width
    if stored.remove_metadata() != schema.arrow(with_epoch=with_epoch).remove_metadata():
        yield f"has columns {stored.names}, the table has {schema.arrow().names}"
        return
    if not with_epoch and not ref.constant_epoch:
        yield f"has no epochs, and is to hold those from {ref.epoch_lo} to {ref.epoch_hi}"
    rows, last = 0, None
    for i, batch in enumerate(run.batches):
        keys = [int64_values(batch.column(c)) for c in range(schema.data_start)]
        first = tuple(int(k[0]) for k in keys)
        if not _ascending(keys) or (last is not None and first < last):
            yield f"batch {i} is not sorted"
        if rows != int(run.starts[i]):
            yield f"batch {i} starts at row {rows}"
        if int(run.batch_first_k[i]) != first[0]:
            yield f"the index is wrong about batch {i}"
        if first[0] < ref.k_min or int(keys[0][-1]) > ref.k_max:
            yield f"batch {i} has keys outside of {ref.k_min} to {ref.k_max}"
        yield from _epochs_outside(batch, schema, ref, i) if with_epoch else ()
        last = tuple(int(k[-1]) for k in keys)
        rows += batch.num_rows
    if rows != ref.rows:
        yield f"holds {rows} rows, not {ref.rows}"


def _ascending(keys: list[Ints]) -> bool:
    lower = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    same = np.ones_like(lower)
    for key in keys:
        lower |= same & (key[1:] < key[:-1])
        same &= key[1:] == key[:-1]
    return not lower.any()


def _epochs_outside(batch: pa.RecordBatch, schema: TableSchema, ref: RunRef, i: int) -> Iterator[str]:
    epochs = int64_values(batch.column(schema.width))
    if len(epochs) and (epochs.min() < ref.epoch_lo or epochs.max() > ref.epoch_hi):
        yield f"batch {i} has epochs outside of {ref.epoch_lo} to {ref.epoch_hi}"
