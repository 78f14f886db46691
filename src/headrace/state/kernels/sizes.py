"""How many bytes rows take, and pieces of bounded size: what is held together is bounded by bytes as well as by rows.

Arrow counts the bytes of a column of texts, and the elements of a column of lists, in 32 bits.

Batches of a run are bounded (`RUN_BATCH_BYTES`; they have fewer rows then, and the run another magic number), and so
are chunks of scans and merges, cut in the middle of their keys until they fit, and what a stage gathers, joins and
puts out. What cannot be cut, such as rows of one key, is declined with 53200 and says what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from headrace.errors import OutOfBudget
from headrace.state.kernels.equality import Ints, list_children, list_layout

CHUNK_BYTES = 64 << 20
"""Bytes of rows that a scan, a merge or a join holds together, about."""
INPUT_BYTES = 1 << 30
"""Bytes of rows that a stage takes in as one batch; more are cut by key."""
COLUMN_BYTES = 2**31 - 1
"""Bytes that a column of one batch can hold where its values differ in length."""
_HINT = "lower max_rows_per_epoch, or keep such long values elsewhere and their addresses here"


def varies(kind: pa.DataType) -> bool:
    """Whether values of a type differ in length."""
    t = pa.types
    return not (t.is_primitive(kind) or t.is_decimal(kind) or t.is_fixed_size_binary(kind) or t.is_null(kind))


def check_column(nbytes: int, name: str) -> None:
    """Raise `OutOfBudget` where a column of varying length would hold so many bytes."""
    if nbytes > COLUMN_BYTES:
        raise OutOfBudget(f'column "{name}" would hold {nbytes} bytes at once, more than {COLUMN_BYTES}', hint=_HINT)


@contextmanager
def overflows_named(what: str) -> Iterator[None]:
    """Say in an `OutOfBudget` what it is about. Arrow's complaints that something is too large become one, too."""
    try:
        yield
    except OutOfBudget as error:
        raise OutOfBudget(f"{what}: {error.message}", hint=error.hint) from error
    except (pa.ArrowInvalid, pa.ArrowCapacityError, MemoryError) as error:
        if isinstance(error, pa.ArrowInvalid) and "overflow" not in str(error):
            raise
        raise OutOfBudget(f"{what}: too many bytes at once: {error or 'out of memory'}", hint=_HINT) from error


def row_bytes(batch: pa.RecordBatch) -> Ints:
    """Bytes that each row takes, about."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        total += _value_bytes(column)
    return total


def _value_bytes(array: pa.Array) -> Ints | int:
    kind, t, n = array.type, pa.types, len(array)
    if not n or t.is_null(kind):
        return 0
    if not varies(kind):
        return -(-kind.bit_width // 8)
    if t.is_string(kind) or t.is_binary(kind):
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=n + 1, offset=array.offset * 4)
        return np.diff(offsets).astype(np.int64) + 4
    if t.is_struct(kind):
        return sum((_value_bytes(array.field(i)) for i in range(kind.num_fields)), np.zeros(n, dtype=np.int64))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind) or t.is_fixed_size_list(kind):
        return 4 + _element_bytes(array)
    return -(-array.nbytes // n)


def _element_bytes(array: pa.Array) -> Ints:
    """Bytes that the elements of each list take. Looks at those of these lists only, which may be a slice of many."""
    starts, lengths = list_layout(array)
    low, high = int(starts.min()), int((starts + lengths).max())
    result = np.zeros(len(array), dtype=np.int64)
    for child in list_children(array):
        sizes = _value_bytes(child.slice(low, high - low))
        if isinstance(sizes, int):  # one number for all: the elements may be very many
            result += lengths * sizes
            continue
        ends = np.concatenate(([0], np.cumsum(sizes)))
        result += ends[starts - low + lengths] - ends[starts - low]
    return result


def cut_rows(sizes: Ints, most_bytes: int) -> list[int]:
    """Where to cut rows of these sizes into pieces of about `most_bytes`: ends, the last one that of all.

    A piece has at least one row, and is larger only where that row is.
    """
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        start = max(start + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        cuts.append(start)
    return cuts


def pieces(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of bounded size, without a copy."""
    for start in range(0, batch.num_rows, most_rows):
        part = batch.slice(start, most_rows)
        if part.nbytes <= most_bytes:
            yield part
            continue
        begin = 0
        for end in cut_rows(row_bytes(part), most_bytes):
            yield part.slice(begin, end - begin)
            begin = end
