"""Compaction: which runs to merge, and the streaming merge itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.arrangement import CHUNK_ROWS, with_epochs
from headrace.state.cursor import K_LOWEST, Span, chunks, overlaps, spans
from headrace.state.kernels import concat, consolidate, int64_values
from headrace.state.run import Run, Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root
from headrace.state.watermark import alive

FAN_IN = 8
"""Runs of one size tier that are merged together, and the ratio of size between tiers."""
TIER_BYTES = 1 << 20
"""Size below which a run is in tier 0; tier t ends at `TIER_BYTES * FAN_IN**t`."""
MAX_RUNS = 48
"""Runs of a table beyond which the smallest are merged whatever their tiers."""


def choose_compaction(
    refs: Sequence[RunRef], *, fan_in: int = FAN_IN, tier_bytes: int = TIER_BYTES, max_runs: int = MAX_RUNS
) -> list[list[RunRef]]:
    """Which runs of one table to merge into one: disjoint groups of at least two, smallest sizes first.

    Size-tiered: runs are put into tiers of sizes that grow by `fan_in`, and a tier with `fan_in` runs is merged
    as a whole, so that a row is rewritten about once per tier and at most `fan_in - 1` runs per tier are left.
    Should there be more than `max_runs` after that, the smallest left over are merged too. Runs of any epochs may
    be merged with each other.
    """
    tiers: dict[int, list[RunRef]] = defaultdict(list)
    for ref in refs:
        tiers[_tier(ref.length, fan_in, tier_bytes)].append(ref)
    groups = [tiers.pop(t) for t in sorted(tiers) if len(tiers[t]) >= fan_in]
    rest = sorted((r for tier in tiers.values() for r in tier), key=lambda r: r.length)
    excess = len(rest) + len(groups) - max_runs
    if excess > 0 and len(rest) > 1:
        groups.append(rest[: min(len(rest), excess + fan_in)])
    return groups


def _tier(size: int, fan_in: int, tier_bytes: int) -> int:
    tier, limit = 0, tier_bytes
    while size >= limit:
        tier, limit = tier + 1, limit * fan_in
    return tier


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
    Every input's checksums are verified as it is read. Memory is bounded by about `chunk_rows` rows. Raises
    `CorruptObject`, `DiskFull`, `StorageError`.
    """
    if len({r.table_id for r in refs}) != 1:
        raise ValueError("only runs of one table can be merged")
    runs = [Run.open(root, r) for r in refs if overlaps(r, k_from, k_to)]
    highest = max(r.epoch_hi for r in refs)
    floor = max((min(r.epoch_hi, safe_epoch) for r in refs if r.epoch_lo <= safe_epoch), default=safe_epoch)
    epoch = floor if highest <= safe_epoch else None
    parts = chunks(spans(runs, k_from, k_to), chunk_rows)
    batches = _merged(parts, schema, floor, watermark, keep_epochs=epoch is None)
    written = write_run(root, out_path, [Section(refs[0].table_id, schema, batches, epoch)], fsync=fsync)
    return written[0] if written else None


def _merged(
    parts: Iterator[list[Span]], schema: TableSchema, floor: int, watermark: int | None, *, keep_epochs: bool
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
