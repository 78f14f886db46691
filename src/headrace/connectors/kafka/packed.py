"""Records of one partition side by side in one buffer, where values and offsets are all that is read of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from headrace.common.lazy_dataclass import dataclass

PAD: Final = 16
"""Zeros behind the last value, so that whoever decodes numbers may look a little further."""


@dataclass(frozen=True)
class PackedValues(Sequence[bytes]):
    """Values as ranges of `data`; a line break stands behind each."""

    data: bytes
    """With `PAD` zeros at the end."""
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: Sequence[bytes]) -> PackedValues:
        """Values that come one by one."""
        if isinstance(values, PackedValues):
            return values
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls.joined(b"\n".join(values), lengths)

    @classmethod
    def joined(cls, data: bytes | memoryview, lengths: npt.NDArray[np.int64]) -> PackedValues:
        """Values of these lengths, with line breaks between them."""
        ends = np.cumsum(lengths + 1) - 1
        return cls(b"".join([data, b"\n", bytes(PAD)]), ends - lengths, ends)

    @property
    def octets(self) -> npt.NDArray[np.uint8]:
        """The data as numbers."""
        return np.frombuffer(self.data, np.uint8)

    def chosen(self, which: npt.NDArray[np.bool_]) -> PackedValues:
        """Some of them."""
        return PackedValues(self.data, self.starts[which], self.ends[which])

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        return (self.data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist()))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> PackedValues: ...
    def __getitem__(self, at: int | slice) -> bytes | PackedValues:
        if isinstance(at, slice):
            return PackedValues(self.data, self.starts[at], self.ends[at])
        return self.data[int(self.starts[at]) : int(self.ends[at])]


@dataclass(frozen=True)
class BareMessage:
    """A record of which nothing is known but its value and place; see `Message`."""

    bare_value: bytes | None
    bare_partition: int
    bare_offset: int

    def key(self) -> bytes | None:
        """Not read."""
        return None

    def value(self) -> bytes | None:
        """The value."""
        return self.bare_value

    def partition(self) -> int:
        """The partition."""
        return self.bare_partition

    def offset(self) -> int:
        """The offset."""
        return self.bare_offset

    def timestamp(self) -> tuple[int, int]:
        """Not read."""
        return 0, 0

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        """Not read."""
        return None


@dataclass(frozen=True)
class PackedMessages(Sequence[BareMessage]):
    """Records with their offsets, which grow."""

    values: PackedValues
    split: int
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, at: int) -> BareMessage: ...
    @overload
    def __getitem__(self, at: slice) -> PackedMessages: ...
    def __getitem__(self, at: int | slice) -> BareMessage | PackedMessages:
        if isinstance(at, slice):
            return PackedMessages(self.values[at], self.split, self.offsets[at])
        return BareMessage(self.values[at], self.split, int(self.offsets[at]))
