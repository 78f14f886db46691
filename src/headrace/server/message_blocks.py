"""Many messages of one kind at once, made by columns, since Python is slow value by value.

Arrow joins the values of each row with room between them: its separator. What depends on the row is written into that
room afterwards, by columns too: the size of the message, and the length of the value that comes behind. So each value
is touched once, and lengths are no columns to be joined.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FEW_ROWS: Final = 64
"""Rows of which messages are made one by one."""
_BLOCK_BYTES: Final = 256 << 10
_LENGTH_BYTES: Final = 4
_WIDTH: Final = struct.Struct("!h").pack
_HEAD_BYTES: Final = 5
"""The kind of a message and its size."""

Ints: TypeAlias = npt.NDArray[np.int32]
Octets: TypeAlias = npt.NDArray[np.uint8]
Values: TypeAlias = "pa.Array | npt.NDArray[np.generic]"
"""The values of a column as they stand in messages: binary ones, or numbers of one size without nulls."""


def fixed_binary(values: npt.NDArray[np.generic]) -> pa.Array:
    """The bytes of values of a fixed size."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def bytes_of(values: pa.Array) -> tuple[Ints, Octets]:
    """Where each of some binary values begins, with the end of the last one, and the bytes of all."""
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return at, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def sized_blocks(kind: bytes, columns: Sequence[Values]) -> Iterator[memoryview]:
    """A message for each row: how many values, and each with its length before it, -1 for null."""
    head = kind + bytes(_HEAD_BYTES - len(kind)) + _WIDTH(len(columns))
    parts, lengths = [], []
    for values in _packed(columns):
        part, sizes = _part(values)
        parts.append(part)
        lengths.append(sizes)
    joined = _joined([pa.scalar(head, pa.binary()), *parts], bytes(_LENGTH_BYTES), b"")
    offsets, data = bytes_of(joined)
    _write_sizes(data, offsets, kind)
    place = offsets[:-1] + np.int32(len(head))
    for part, sizes in zip(parts, lengths, strict=True):
        _write(data, place, sizes)
        taken = sizes if sizes.ndim else _whole(part)
        place += np.maximum(taken, 0) + np.int32(_LENGTH_BYTES)
    return _blocks(joined)


def delimited_blocks(kind: bytes, columns: Sequence[pa.Array], delimiter: bytes, null: bytes) -> Iterator[memoryview]:
    """A message for each row: its binary values with a byte between them, `null` for null, and the end of the line."""
    head = pa.scalar(kind + bytes(_HEAD_BYTES - len(kind) - len(delimiter)), pa.binary())
    joined = _joined([head, *columns, pa.scalar(b"", pa.binary())], delimiter, null)
    offsets, data = bytes_of(joined)
    data[offsets[1:] - 1] = ord("\n")
    _write_sizes(data, offsets, kind)
    return _blocks(joined)


def _joined(parts: Sequence[pa.Array | pa.Scalar], room: bytes, null: bytes) -> pa.Array:
    return pc.binary_join_element_wise(
        *parts, pa.scalar(room, pa.binary()), null_handling="replace", null_replacement=null
    )


def _packed(columns: Iterable[Values]) -> Iterator[Values]:
    """The columns, neighbours of a fixed size as one: the lengths of all but the first of them stand in between."""
    fixed: list[npt.NDArray[np.generic]] = []
    for values in columns:
        if isinstance(values, np.ndarray):
            fixed.append(values)
            continue
        if fixed:
            yield _struct(fixed)
            fixed = []
        yield values
    if fixed:
        yield _struct(fixed)


def _struct(columns: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    fields: list[tuple[str, str]] = [("0", columns[0].dtype.str)]
    for i, values in enumerate(columns[1:], 1):
        fields += [(f"length{i}", ">i4"), (str(i), values.dtype.str)]
    made = np.empty(len(columns[0]), fields)
    for i, values in enumerate(columns):
        made[str(i)] = values
        if i:
            made[f"length{i}"] = values.dtype.itemsize
    return made


def _part(values: Values) -> tuple[pa.Array, Ints]:
    """What is to be joined, and the length of the first value in it: one for each row, -1 for null, or one for all."""
    if isinstance(values, np.ndarray):
        assert values.dtype.fields is not None
        return fixed_binary(values), np.array(values.dtype.fields["0"][0].itemsize, np.int32)
    lengths = np.diff(bytes_of(values)[0])
    if values.null_count:
        lengths[np.asarray(values.is_null())] = -1
    return values, lengths


def _whole(part: pa.Array) -> Ints:
    return np.diff(bytes_of(part)[0][:2])


def _write_sizes(data: Octets, offsets: Ints, kind: bytes) -> None:
    _write(data, offsets[:-1] + np.int32(len(kind)), np.diff(offsets) - np.int32(len(kind)))


def _write(data: Octets, at: Ints, numbers: Ints) -> None:
    """Write numbers of 32 bits, at least -1, into room that holds zeros but in its last byte; leading zeros stay."""
    most = int(numbers.max(initial=0)) if numbers.min(initial=0) >= 0 else -1
    for i in range(_LENGTH_BYTES):
        if i == 0 or most < 0 or most >> 8 * i:
            data[at + np.int32(_LENGTH_BYTES - 1 - i)] = (numbers >> 8 * i).astype(np.uint8)


def _blocks(joined: pa.Array) -> Iterator[memoryview]:
    """Whole messages, so that something else may be said between two blocks."""
    offsets, data = bytes_of(joined)[0], memoryview(joined.buffers()[2])
    row, last = 0, len(offsets) - 1
    while row < last:
        stop = max(row + 1, int(np.searchsorted(offsets, int(offsets[row]) + _BLOCK_BYTES, side="right")) - 1)
        yield data[offsets[row] : offsets[stop]]
        row = stop
