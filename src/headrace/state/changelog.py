"""The changes of a table or view in the order of their epochs, read from its runs piece by piece.

The runs are the log: every row keeps its epoch until the table's safe epoch has passed it. A piece is a number of whole
epochs, or of an epoch that is larger than a piece a range of keys; so memory is bounded by the piece, whatever the
backlog. The order of an epoch's rows is the same however its runs have been merged meanwhile: a reader can stop at any
row, and go on there in another process.

Where merged runs hold many epochs, their sizes by epoch are read once for `PLANNED` pieces. Takings away come first
where there is no primary key, then `__k` decides, then values where hashes collide. So a `Position` (epoch; side, key
and number of rows within it) means the same row for ever, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InvalidParameter
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import concat, consolidate, int64_values, rows_equal, take
from headrace.state.kernels.copies import piece_rows
from headrace.state.kernels.equality import Bools, Ints
from headrace.state.run import OPEN_RUNS
from headrace.state.run_cursor import K_LOWEST, spans
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root

PIECE_ROWS: Final = 65_536
"""Stored rows of a piece, about."""
PIECE_BYTES: Final = 16 << 20
"""Bytes of a piece, about, by the mean width of the rows of a run."""
PLANNED: Final = 64
"""Pieces that are planned at one go: what tells the epochs of merged runs is read once for all of them."""
INSERT, UPDATE_DELETE, UPDATE_INSERT, DELETE = range(4)
OPERATIONS: Final = ("Insert", "UpdateDelete", "UpdateInsert", "Delete")
"""What can happen to a row; the two of an update follow one another."""
_K_HIGHEST: Final = 2**63 - 1


class RowPlace(NamedTuple):
    """Where a reader is among the rows of one epoch: before those of a key, or behind so many of them.

    Without a primary key all that is taken away (side 0) comes before all that is added (side 1).
    """

    side: int = 0
    key: int = K_LOWEST
    rows: int = 0


@dataclass(frozen=True)
class LogPosition:
    """How far a reader is: it has the changes of all epochs up to one, or of that one only what lies before a place.

    Or, while it reads content, of the rows as of that epoch those before a place.
    """

    epoch: int
    place: RowPlace | None = None
    content: bool = False

    @property
    def after(self) -> int:
        """The epoch whose successors' changes, or with `content` whose rows, must still be readable."""
        return self.epoch - (self.place is not None and not self.content)

    @property
    def within(self) -> bool:
        """Whether something is left of what has begun."""
        return self.place is not None

    def __str__(self) -> str:
        head = f"full:{self.epoch}" if self.content else str(self.epoch)
        return head if self.place is None else ".".join([head, *map(str, self.place)])

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """The inverse of `str`. Raises `InvalidParameter`."""
        body = text.strip()
        content = body.startswith("full:")
        parts = body.removeprefix("full:").split(".")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 4) or not 0 <= numbers[0] <= _K_HIGHEST or (content and len(numbers) == 1):
            raise InvalidParameter(f'"{text}" is no position of a subscription', hint="give one that was shown")
        if len(numbers) == 1:
            return cls(numbers[0])
        side, key, rows = numbers[1:]
        if side not in (0, 1) or not K_LOWEST <= key <= _K_HIGHEST or rows < 0:
            raise InvalidParameter(f'"{text}" is no position of a subscription', hint="give one that was shown")
        return cls(numbers[0], RowPlace(side, key, rows), content)


def beginning_of(epoch: int) -> LogPosition:
    """The position of who is to read all content as of an epoch, and then what changes."""
    return LogPosition(epoch, RowPlace(), content=True)


@dataclass(frozen=True)
class ChangePiece:
    """Rows in order, each once, with how often it is meant; `after` is the position of who has taken them all."""

    rows: pa.RecordBatch
    epochs: Ints
    keys: Ints
    sides: Ints
    operations: Ints
    """Places in `OPERATIONS`."""
    counts: Ints
    after: LogPosition
    skipped: int = 0
    """Rows of the first key that had been taken before."""
    content: bool = False

    @cached_property
    def _ends(self) -> Ints:
        bounded = np.clip(self.counts, 0, (1 << 62) // max(len(self.counts), 1))
        return np.cumsum(bounded)

    def __len__(self) -> int:
        """How many rows it stands for."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def _fitting(self) -> int:
        return piece_rows(self.rows, _K_HIGHEST)

    def most(self, rows: int) -> int:
        """How many of them may be together in memory, up to so many."""
        return min(rows, self._fitting)

    def places(self, low: int, high: int) -> Ints:
        """Which rows those from `low` to `high`, exclusive, are copies of."""
        return np.searchsorted(self._ends, np.arange(low, high), side="right").astype(np.int64, copy=False)

    def position(self, taken: int) -> LogPosition:
        """The position of who has taken so many of its rows, one at least."""
        if taken >= len(self):
            return self.after
        at = int(np.searchsorted(self._ends, taken, side="left"))
        epoch = int(self.epochs[at])
        if not self.content and taken == self._ends[at] and self.epochs[at + 1] != epoch:
            return LogPosition(epoch)
        same = (self.epochs == epoch) & (self.sides == self.sides[at]) & (self.keys == self.keys[at])
        first = int(np.argmax(same))
        before = int(self._ends[first - 1]) if first else 0
        rows = taken - before + (0 if first else self.skipped)
        return LogPosition(epoch, RowPlace(int(self.sides[at]), int(self.keys[at]), rows), self.content)


@dataclass
class ChangeReader:
    """Reads the changes of one relation. It keeps nothing but where to cut them, which can be found again."""

    schema: TableSchema
    unique: bool
    """Whether the key columns are a primary key: what has the same key before and after is an update."""
    _planned: list[tuple[int, bool]] = field(default_factory=list)
    """The last epochs of the next pieces, and whether that one epoch is larger than a piece."""

    def read(self, refs: Sequence[RunRef], root: Root, position: LogPosition, up_to: int) -> ChangePiece:
        """The next piece after a position, of epochs up to one; empty where there is nothing.

        `refs` are all runs of the table. Position and epoch must be within what is readable.
        """
        if position.content:
            return self._content(refs, root, position)
        refs = [r for r in refs if r.epoch_hi > position.after and r.epoch_lo <= up_to]
        end, large = self._end(refs, root, position.after, up_to)
        if large:
            return self._part(refs, root, LogPosition(end, position.place or RowPlace()))
        log = list(Arrangement(self.schema, refs, root).log(position.after, end, with_epoch=True))
        rows = consolidate(concat(log, self.schema.arrow(with_epoch=True)), self.schema, by_epoch=True)
        return self._piece(rows, LogPosition(end), position)

    # ---- where to cut

    def _end(self, refs: Sequence[RunRef], root: Root, after: int, up_to: int) -> tuple[int, bool]:
        """The last epoch of the next piece, and whether it is one that is larger than a piece."""
        planned = self._planned
        while planned and planned[0][0] <= after:
            planned.pop(0)
        if not planned:
            planned += _cuts(*self._sizes(refs, root, after, up_to), up_to)
        return planned[0]

    def _sizes(self, refs: Sequence[RunRef], root: Root, after: int, up_to: int) -> tuple[Ints, list[float]]:
        """The epochs that have rows, and the size of each in pieces."""
        epochs, sizes = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        for ref in refs:
            one = 1 / PIECE_ROWS + ref.length / max(ref.rows, 1) / PIECE_BYTES
            if ref.constant_epoch:
                found, rows = np.array([ref.epoch_lo]), np.array([ref.rows])
            else:
                found, rows = _epochs_in(self.schema, ref, root, after, up_to)
            epochs.append(found)
            sizes.append(rows * one)
        known, at = np.unique(np.concatenate(epochs), return_inverse=True)
        return known, np.bincount(at, np.concatenate(sizes), len(known)).tolist()

    def _range(self, refs: Sequence[RunRef], root: Root, k_from: int) -> int | None:
        """Where a range of keys from one on ends, exclusive, of which not too much is stored; None for the last."""
        left = spans(OPEN_RUNS.get_all(root, [r for r in refs if r.k_max >= k_from]), k_from, None)
        if not left:
            return None
        width = max(s.run.ref.length / max(s.run.ref.rows, 1) for s in left)
        quota = max(1, int(min(PIECE_ROWS, PIECE_BYTES / max(width, 1))) // len(left))
        cuts = [s.run.point_at(s.start + quota)[0] for s in left if len(s) > quota]
        if not cuts:
            return None
        cut = max(min(cuts), k_from + 1)
        return None if cut > _K_HIGHEST else cut

    # ---- rows

    def _part(self, refs: Sequence[RunRef], root: Root, at: LogPosition) -> ChangePiece:
        """What comes next of an epoch that is larger than a piece."""
        place = at.place
        assert place is not None
        arrangement = Arrangement(self.schema, refs, root)

        def rows(k_from: int, k_to: int | None) -> pa.RecordBatch:
            log = list(arrangement.log(at.epoch - 1, at.epoch, k_from, k_to, with_epoch=True))
            found = consolidate(concat(log, self.schema.arrow(with_epoch=True)), self.schema, by_epoch=True)
            if self.unique:
                return found
            added = int64_values(found.column(self.schema.diff_start)) > 0
            return found.filter(pa.array(added == bool(place.side)))

        found, k_to = self._gathered(refs, root, place.key, rows)
        if k_to is not None:
            after = LogPosition(at.epoch, RowPlace(place.side, k_to))
        elif self.unique or place.side:
            after = LogPosition(at.epoch)
        else:
            after = LogPosition(at.epoch, RowPlace(1))
        return self._piece(found, after, at)

    def _content(self, refs: Sequence[RunRef], root: Root, at: LogPosition) -> ChangePiece:
        """What comes next of the rows as of an epoch."""
        place = at.place
        assert place is not None
        refs = [r for r in refs if r.epoch_lo <= at.epoch]
        arrangement = Arrangement(self.schema, refs, root, as_of=at.epoch)

        def rows(k_from: int, k_to: int | None) -> pa.RecordBatch:
            return concat(list(arrangement.scan(k_from, k_to)), self.schema.arrow())

        found, k_to = self._gathered(refs, root, place.key, rows)
        epochs = pa.array(np.full(found.num_rows, at.epoch, dtype=np.int64))
        found = pa.RecordBatch.from_arrays([*found.columns, epochs], schema=self.schema.arrow(with_epoch=True))
        after = LogPosition(at.epoch) if k_to is None else LogPosition(at.epoch, RowPlace(0, k_to), content=True)
        return self._piece(found, after, at)

    def _gathered(
        self, refs: Sequence[RunRef], root: Root, k_from: int, read: Callable[[int, int | None], pa.RecordBatch]
    ) -> tuple[pa.RecordBatch, int | None]:
        """The first rows that there are from a key on, of whole keys, and the key that follows; None for the end."""
        while True:
            k_to = self._range(refs, root, k_from)
            rows = read(k_from, k_to)
            if rows.num_rows or k_to is None:
                return rows, k_to
            k_from = k_to

    def _piece(self, rows: pa.RecordBatch, after: LogPosition, at: LogPosition) -> ChangePiece:
        """Rows in their order, without those that a reader at a position has taken."""
        schema, content = self.schema, at.content
        weights = int64_values(rows.column(schema.diff_start))
        epochs, keys = int64_values(rows.column(schema.width)), int64_values(rows.column(0))
        sides = np.zeros(len(keys), dtype=np.int64) if self.unique or content else (weights > 0).astype(np.int64)
        order, paired = _order(rows, schema, self.unique and not content, epochs, sides, keys, weights > 0)
        rows, weights = take(rows, order), weights[order]
        epochs, keys, sides = epochs[order], keys[order], sides[order]
        added = weights > 0
        operations = np.where(added, INSERT, DELETE)
        operations = np.where(paired, np.where(added, UPDATE_INSERT, UPDATE_DELETE), operations)
        piece = ChangePiece(rows, epochs, keys, sides, operations, np.abs(weights), after, content=content)
        return piece if at.place is None else _without(piece, at.epoch, at.place)


def _cuts(epochs: Ints, sizes: list[float], up_to: int) -> list[tuple[int, bool]]:
    """Where to cut a log into pieces: the last epoch of each, and whether that one is larger than a piece by itself."""
    cuts: list[tuple[int, bool]] = []
    held = 0.0
    for i, size in enumerate(sizes):
        if held and held + size > 1:
            cuts.append((int(epochs[i - 1]), False))
            held = 0.0
        if len(cuts) >= PLANNED:
            return cuts
        held += size
        if size > 1:
            cuts.append((int(epochs[i]), True))
            held = 0.0
    if held or not cuts:
        cuts.append((up_to, False))
    return cuts


def _epochs_in(schema: TableSchema, ref: RunRef, root: Root, after: int, up_to: int) -> tuple[Ints, Ints]:
    """The epochs of a merged run within (after, up_to], and how many rows each has."""
    epochs, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    run = OPEN_RUNS.get(root, ref)
    for batch in run.slices(0, ref.rows):
        values = int64_values(batch.column(schema.width))
        found, rows = np.unique(values[(values > after) & (values <= up_to)], return_counts=True)
        epochs.append(found)
        counts.append(rows)
    known, at = np.unique(np.concatenate(epochs), return_inverse=True)
    return known, np.bincount(at, np.concatenate(counts), len(known)).astype(np.int64)


def _order(
    rows: pa.RecordBatch, schema: TableSchema, unique: bool, epochs: Ints, sides: Ints, keys: Ints, added: Bools
) -> tuple[Ints, Bools]:
    """The order of rows, which does not depend on how they come; and which, in it, are the half of an update."""
    if not len(keys):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    order = np.lexsort((added, keys, sides, epochs))
    near = _neighbours(order, epochs, sides, keys)
    if unique:
        near_keys = rows.columns[schema.data_start : schema.data_start + len(schema.key)]
        at = np.flatnonzero(near)
        equal = rows_equal(near_keys, order[at], near_keys, order[at + 1]) if len(at) else np.zeros(0, dtype=np.bool_)
        turned = ~added[order[at]] & added[order[at + 1]]
        strange = at[~(equal & turned)]
    else:
        strange = np.flatnonzero(near)
    if not len(strange):
        return order, _halves(near) if unique else np.zeros(len(order), dtype=np.bool_)
    ranks = _ranks(rows, schema, unique, order, near, strange)
    order = np.lexsort((added, ranks, keys, sides, epochs))
    if not unique:
        return order, np.zeros(len(order), dtype=np.bool_)
    near = _neighbours(order, epochs, sides, keys) & (ranks[order[1:]] == ranks[order[:-1]])
    return order, _halves(near)


def _neighbours(order: Ints, *columns: Ints) -> Bools:
    """Whether each row and the next one, in an order, agree in all columns."""
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in columns:
        values = column[order]
        same &= values[1:] == values[:-1]
    return same


def _halves(near: Bools) -> Bools:
    """Which rows belong to a pair, where each row is or is not paired with the next one."""
    return np.concatenate((near, [False])) | np.concatenate(([False], near))


def _ranks(rows: pa.RecordBatch, schema: TableSchema, unique: bool, order: Ints, near: Bools, strange: Ints) -> Ints:
    """An order of different rows, or keys, that share a hash: by their values. Such rows are next to never there."""
    groups = np.concatenate(([0], np.cumsum(~near)))
    concerned = order[np.isin(groups, groups[strange])]
    stop = schema.data_start + len(schema.key) if unique else schema.diff_start
    columns = [rows.column(i).take(pa.array(concerned)).to_pylist() for i in range(schema.data_start, stop)]
    texts = [repr(values) for values in zip(*columns, strict=True)]
    known = {text: rank for rank, text in enumerate(sorted(set(texts)))}
    ranks = np.zeros(rows.num_rows, dtype=np.int64)
    ranks[concerned] = [known[text] for text in texts]
    return ranks


def _without(piece: ChangePiece, epoch: int, place: RowPlace) -> ChangePiece:
    """A piece without the rows of an epoch that lie before a place in it."""
    same_side = piece.sides == place.side
    before = (piece.sides < place.side) | (same_side & (piece.keys < place.key))
    gone = (piece.epochs < epoch) | ((piece.epochs == epoch) & before)
    counts, skipped = piece.counts.copy(), 0
    left = place.rows
    for i in np.flatnonzero((piece.epochs == epoch) & same_side & (piece.keys == place.key)):
        taken = min(left, int(counts[i]))
        counts[i] -= taken
        left -= taken
        skipped += taken
    keep = np.flatnonzero(~gone & (counts > 0))
    return ChangePiece(
        take(piece.rows, keep), piece.epochs[keep], piece.keys[keep], piece.sides[keep], piece.operations[keep],
        counts[keep], piece.after, skipped if len(keep) and _begins(piece, keep[0], epoch, place) else 0, piece.content,
    )  # fmt: skip


def _begins(piece: ChangePiece, at: int, epoch: int, place: RowPlace) -> bool:
    """Whether a row is one of the key that a place is within."""
    found = int(piece.epochs[at]), int(piece.sides[at]), int(piece.keys[at])
    return found == (epoch, place.side, place.key)


__all__ = [
    "ChangePiece",
    "ChangeReader",
    "DELETE",
    "INSERT",
    "LogPosition",
    "OPERATIONS",
    "RowPlace",
    "UPDATE_DELETE",
    "UPDATE_INSERT",
    "beginning_of",
]
