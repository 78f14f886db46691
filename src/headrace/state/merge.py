"""Compaction: which runs to merge, and the streaming merge itself.

A merge keeps the epoch of each row until the table's safe epoch has passed it, so merging never breaks a reader of
the log.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.state.arrangement import CHUNK_ROWS, with_epochs
from headrace.state.kernels import concat, consolidate, int64_values
from headrace.state.kernels.sizes import overflows_named
from headrace.state.run import Run, Section, write_run
from headrace.state.run_cursor import K_LOWEST, RowSpan, chunks, overlaps, spans
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.watermark import alive

FAN_IN = 8
"""Runs of one size tier that are merged together, and the ratio of size between tiers."""
TIER_BYTES = 1 << 20
"""Size below which a run is in tier 0; tier t ends at `TIER_BYTES * FAN_IN**t`."""
SMALL_BYTES = 4 << 20
"""Input of a merge up to which it reads more runs than it otherwise may: many small writes make many small runs."""
SMALL_RUNS = 1_000
"""Runs that a merge reads, at most, however small they are."""
_PART = re.compile(r"(.*)\.p\d+\.run$")
MAX_RUNS = 48
"""Runs of a table beyond which the smallest are merged whatever their tiers."""


def choose_compaction(
    refs: Sequence[RunRef], *, fan_in: int = FAN_IN, tier_bytes: int = TIER_BYTES, max_runs: int = MAX_RUNS
) -> list[list[RunRef]]:
    """Which runs of one table to merge into one: disjoint groups of at least two, smallest sizes first.

    Size-tiered: runs are put into tiers of sizes that grow by `fan_in`, and a tier with `fan_in` runs is merged
    as a whole, so that a row is rewritten about once per tier and at most `fan_in - 1` runs per tier are left.
    Should there be more than `max_runs` after that, the smallest left over are merged too. Runs of any epochs may
    be merged with each other. The runs that one merge made of disjoint ranges of keys count as a single one.
    """
    tiers: dict[int, list[list[RunRef]]] = defaultdict(list)
    for level in levels(refs):
        tiers[_tier(_size(level), fan_in, tier_bytes)].append(level)
    groups = [tiers.pop(t) for t in sorted(tiers) if len(tiers[t]) >= fan_in]
    rest = sorted((level for tier in tiers.values() for level in tier), key=_size)
    excess = len(rest) + len(groups) - max_runs
    if excess > 0 and len(rest) > 1:
        groups.append(rest[: min(len(rest), excess + fan_in)])
    return [[ref for level in group for ref in level] for group in groups]


def least_runs(fan_in: int, max_runs: int = MAX_RUNS) -> int:
    """With fewer runs than this, `choose_compaction` has nothing to merge."""
    return min(fan_in, max_runs)


def part_path(name: str, part: int) -> str:
    """The path of one part of a merge that is split by keys, whose paths all begin with `name`."""
    return f"{name}.p{part}.run"


def levels(refs: Sequence[RunRef]) -> list[list[RunRef]]:
    """The runs, those together that one merge made of disjoint ranges of keys: a key is looked up once in each list."""
    found: dict[str | int, list[RunRef]] = defaultdict(list)
    for i, ref in enumerate(refs):
        part = _PART.match(ref.path)
        found[part.group(1) if part else i].append(ref)
    return list(found.values())


def first_levels(refs: Sequence[RunRef], most: int) -> list[RunRef]:
    """As many of the runs as make up `most` of their `levels`; more where they are small."""
    found: list[RunRef] = []
    size = 0
    for number, level in enumerate(levels(refs)):
        size += _size(level)
        if (number >= most and size > SMALL_BYTES) or number >= SMALL_RUNS:
            break
        found += level
    return found


def _size(refs: Sequence[RunRef]) -> int:
    return sum(r.length for r in refs)


def _tier(size: int, fan_in: int, tier_bytes: int) -> int:
    tier, limit = 0, tier_bytes
    while size >= limit:
        tier, limit = tier + 1, limit * fan_in
    return tier


def split_by_keys(refs: Sequence[RunRef], root: Root, parts: int) -> list[tuple[int, int | None]]:
    """At most `parts` ranges of keys (from, to exclusive; None in the last) that together cover all keys.

    By the sparse indexes of the runs each holds about as many bytes. A key is never cut in two, so that there are
    fewer ranges where one key has very many rows. Raises `CorruptObject`.
    """
    runs = [Run.open(root, r) for r in refs]
    keys = np.concatenate([run.index[:, 0] for run in runs])
    weights = np.concatenate([np.full(len(run.index), run.ref.length / len(run.index)) for run in runs])
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(weights[order])
    places = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    cuts = [int(k) for k in np.unique(keys[order][places]) if k > min(r.k_min for r in refs)]
    return list(zip([K_LOWEST, *cuts], [*cuts, None], strict=True))


@dataclass(frozen=True)
class MergePart:
    """A merge of runs, or of a range of their keys, that any process can do."""

    refs: tuple[RunRef, ...]
    schema: TableSchema
    root: Root
    path: str
    safe_epoch: int
    k_from: int = K_LOWEST
    k_to: int | None = None
    watermark: int | None = None
    fsync: bool = True

    def run(self) -> RunRef | None:
        """Merges what the plan names."""
        return merge(
            self.refs, self.schema, self.root, self.path, self.safe_epoch,
            watermark=self.watermark, k_from=self.k_from, k_to=self.k_to, fsync=self.fsync,
        )  # fmt: skip

    def split(self, name: str, parts: int) -> list[MergePart]:
        """The same merge in parts of about equal size, for paths that begin with `name`. Raises `CorruptObject`."""
        ranges = split_by_keys(self.refs, self.root, parts)
        return [replace(self, path=part_path(name, i), k_from=low, k_to=high) for i, (low, high) in enumerate(ranges)]


MergeRunner = Callable[[Sequence[MergePart]], "list[RunRef | None]"]
"""Does the parts of a merge somewhere and gives their results in order; raises if one fails."""


def merge(
    refs: Sequence[RunRef],
    schema: TableSchema,
    root: Root,
    out_path: str,
    safe_epoch: int,
    *,
    watermark: int | None = None,
    k_from: int = K_LOWEST,
    k_to: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    fsync: bool = True,
) -> RunRef | None:
    """Merge runs of one table, or a key slice of them, into a new run; None if no row is left.

    Rows at or below `safe_epoch` are combined to one epoch, the highest merged that is not above it; rows above
    keep theirs. Rows whose diffs come to zero are dropped, and so are those whose event time is below `watermark`.
    Every input's checksums are verified as it is read. Memory is bounded by about `chunk_rows` rows, or `CHUNK_BYTES`.
    Raises `CorruptObject`, `DiskFull`, `StorageError`, `OutOfBudget` for equal rows that are too large together.
    """
    if len({r.table_id for r in refs}) != 1:
        raise ValueError("only runs of one table can be merged")
    runs = [Run.open(root, r) for r in refs if overlaps(r, k_from, k_to)]
    highest = max(r.epoch_hi for r in refs)
    floor = max((min(r.epoch_hi, safe_epoch) for r in refs if r.epoch_lo <= safe_epoch), default=safe_epoch)
    epoch = floor if highest <= safe_epoch else None
    parts = chunks(spans(runs, k_from, k_to), chunk_rows)
    batches = _merged(parts, schema, floor, watermark, keep_epochs=epoch is None)
    with overflows_named(f"merging {len(refs)} runs of state table {refs[0].table_id}"):
        written = write_run(root, out_path, [Section(refs[0].table_id, schema, batches, epoch)], fsync=fsync)
    return written[0] if written else None


def _merged(
    parts: Iterator[list[RowSpan]], schema: TableSchema, floor: int, watermark: int | None, *, keep_epochs: bool
) -> Iterator[pa.RecordBatch]:
    stored = schema.arrow(with_epoch=keep_epochs)
    for part in parts:
        rows = []
        for span in part:
            for stored_batch in span.run.slices(span.start, span.stop):
                batch = alive(stored_batch, schema, watermark)
                if keep_epochs:
                    rows.append(_raised(with_epochs(span.run, batch, schema), schema, floor))
                else:
                    rows.append(batch.select(range(schema.width)))
        yield consolidate(concat(rows, stored), schema, by_epoch=keep_epochs)


def _raised(batch: pa.RecordBatch, schema: TableSchema, floor: int) -> pa.RecordBatch:
    """Rows with their epochs raised to `floor`."""
    epochs = np.maximum(int64_values(batch.column(schema.width)), floor)
    return batch.set_column(schema.width, batch.schema.field(schema.width), pa.array(epochs))
