"""What a state table looks like and where its sorted runs are: plain records that travel to Spark tasks."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass

K = "__k"
"""int64 sort key of every row: a hash of the key columns, or an order-preserving encoding."""
H = "__h"
"""int64 hash of key and value columns; present only where there are value columns. Orders rows of one key."""
E = "__e"
"""int64 epoch in which the row was written; left out of a run whose rows all have one epoch."""
W = "__w"
"""int64 signed weight: the usual diff column."""

ROWS = "view/rows"
"""The state table that holds a relation's rows, of views and tables alike."""
HANDED = "into/rows"
"""The state table with what a sink has for a table, until the commit of the epoch."""

Combine = Literal["add", "min", "max", "exact"]

_LIMB = re.compile(r"(.*)_(\d)")


@dataclass(frozen=True)
class TableSchema:
    """Columns of an arrangement, in stored order: `__k`, [`__h`], key, value, diffs, [`__e`].

    Rows equal in key and value are one row, whose diffs combine: "add" sums int64, "min"/"max" keep the
    extremum (null is neutral), "exact" sums doubles without rounding, in the form of `kernels.exact_sum` (null is
    zero). In a schema with "add" diffs a row is gone when all its sums, "add" and "exact", are zero. "min" and "max"
    cannot take anything back: they are for rows that are never retracted.

    Neighbouring "add" diffs `<name>_0`, `<name>_1` ... are the limbs of one number, lowest first: when rows are
    combined, what of a limb is above its lowest 32 bits goes to the next one, so that no limb but the last ever grows.

    `expires` names a key or value column, a timestamp or int64 of Unix microseconds, or as `column.field` such a field
    of a struct: rows whose time lies below the table's watermark do not matter any more, are skipped by every read and
    dropped in time.
    """

    key: tuple[pa.Field, ...]
    value: tuple[pa.Field, ...]
    diffs: tuple[tuple[pa.Field, Combine], ...]
    expires: str | None = None

    def __post_init__(self) -> None:
        if self.expires is not None and self.expires.partition(".")[0] not in [f.name for f in self.data_fields]:
            raise ValueError(f"no key or value column {self.expires} whose rows could expire")

    @cached_property
    def combinable(self) -> bool:
        """Whether this version knows how all its diffs combine: of a table that an earlier one wrote it may not."""
        return all(how in get_args(Combine) for _, how in self.diffs)

    @cached_property
    def carries(self) -> tuple[int, ...]:
        """Which diffs are limbs that have another one above them."""
        limbs = [_LIMB.fullmatch(f.name) if how == "add" else None for f, how in self.diffs]
        pairs = enumerate(pairwise(limbs))
        return tuple(i for i, (a, b) in pairs if a and b and (a[1], int(a[2]) + 1) == (b[1], int(b[2])))

    @property
    def has_row_hash(self) -> bool:
        """Whether rows carry `__h`."""
        return bool(self.value)

    @property
    def data_fields(self) -> list[pa.Field]:
        """Key then value fields: what decides whether two rows are the same."""
        return [*self.key, *self.value]

    @property
    def data_start(self) -> int:
        """Position of the first key column."""
        return 2 if self.value else 1

    @property
    def diff_start(self) -> int:
        """Position of the first diff column."""
        return self.data_start + len(self.key) + len(self.value)

    @property
    def width(self) -> int:
        """Number of columns without `__e`, which is the position of `__e` where it is stored."""
        return self.diff_start + len(self.diffs)

    def arrow(self, *, with_epoch: bool = False) -> pa.Schema:
        """The Arrow schema of stored rows."""
        return self._arrow_with_epoch if with_epoch else self._arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        fields = [pa.field(K, pa.int64(), nullable=False)]
        if self.has_row_hash:
            fields.append(pa.field(H, pa.int64(), nullable=False))
        fields += self.data_fields
        fields += [f for f, _ in self.diffs]
        return pa.schema(fields)

    @cached_property
    def _arrow_with_epoch(self) -> pa.Schema:
        return self._arrow.append(pa.field(E, pa.int64(), nullable=False))


@dataclass(frozen=True)
class RunRef:
    """Where one sorted run is, and what it can hold. Small, JSON-able, immutable."""

    table_id: int
    path: str
    """Object name relative to the store's root."""
    offset: int
    length: int
    """Where the section starts in the object, and its bytes, unpacked."""
    rows: int
    epoch_lo: int
    epoch_hi: int
    """Lowest and highest epoch of its rows. `__e` is left out of the file only where they are equal."""
    k_min: int
    k_max: int
    crc32: int | None = None
    """CRC-32 of the section's bytes that are in no batch; among them are the checksums of the batches."""
    packed: int | None = None
    """Bytes that the section takes in the object if it is stored compressed (zstd); None if it is stored as is."""

    time_min: int | None = None
    time_max: int | None = None
    """Lowest and highest event time of its rows, Unix microseconds; None if they are not known of every row."""

    @property
    def constant_epoch(self) -> bool:
        """Whether all rows have one epoch."""
        return self.epoch_lo == self.epoch_hi

    def to_json(self) -> dict[str, object]:
        """A dict of JSON scalars."""
        return {name: getattr(self, name) for name in _REF_NAMES}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRef:
        """The inverse of `to_json`."""
        return cls(**data)


_REF_NAMES = tuple(f.name for f in fields(RunRef))
