"""What a reading process knows of the tables, and the rows that it finds there."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

from headrace.catalog.contents import IndexContent
from headrace.catalog.fence_file import FenceFile
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.coordinator.reads import LATER, Later, SnapshotTable
from headrace.coordinator.writes.layout import Key, Row, RowLayout
from headrace.coordinator.writes.stored import StoredRows
from headrace.errors import HeadraceError
from headrace.server.readers.news import CatalogOwner, News, TableEpochs, TableNews, unpacked
from headrace.server.readers.reading_board import ReadingBoard, now_ms
from headrace.state.run import OPEN_RUNS
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot

_LOOKS: Final = 20
"""How often it is looked whether a change that is becoming visible is there, before the server is asked instead."""
_TAKEN: Final = 1 << 20


@dataclass
class KnownTable:
    """A table, view or index, with the runs that it has now."""

    record: ObjectRecord
    schema: TableSchema
    state_table: int
    runs: dict[str, RunRef]
    slot: int
    epochs: TableEpochs
    refs: tuple[RunRef, ...] = ()
    """The runs, in a row."""
    newest: int = 0
    """No row of theirs is of a later epoch."""

    @cached_property
    def layout(self) -> RowLayout:
        """How rows of a table are laid out."""
        return RowLayout(self.record, self.schema)

    def count(self) -> None:
        """Note what follows from the runs."""
        self.refs = tuple(self.runs.values())
        self.newest = max((ref.epoch_hi for ref in self.refs), default=0)

    def at(self, epoch: int) -> SnapshotTable:
        """Its rows as of an epoch."""
        refs = self.refs if self.newest <= epoch else tuple([ref for ref in self.refs if ref.epoch_lo <= epoch])
        return SnapshotTable(self.schema, refs, epoch, self.record.columns)


class Held(NamedTuple):
    """What a read is of: a relation at an epoch, and its indexes with what they had then or before."""

    table: SnapshotTable
    indexes: Mapping[int, tuple[ObjectRecord, SnapshotTable]]
    root: StoreRoot


class Followed:
    """The tables as the server has told of them. `current` says whether that is what the server itself would read."""

    def __init__(self, board: ReadingBoard, number: int, line: socket.socket) -> None:
        """`line` is the one that the news comes on; it does not block."""
        self._board = board
        self._number = number
        self._line = line
        self._buffer = bytearray()
        self._version = -1
        self._complete = 0
        self.meaning = -1
        self._tables: dict[int, KnownTable] = {}
        self._indexes: dict[int, list[int]] = {}
        """Of each relation the indexes that are known."""
        self._stored: StoredRows | None = None
        self._root: StoreRoot | None = None
        self._fence: FenceFile | None = None
        self.ended = False
        """Whether the server is gone."""

    def take_in(self) -> None:
        """Take in all that has come."""
        while not self.ended:
            try:
                data = self._line.recv(_TAKEN)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
            self._buffer += data
        for news in unpacked(self._buffer):
            assert isinstance(news, News)
            self._take(news)

    def _take(self, news: News) -> None:
        if news.owner is not None:
            self._own(news.owner)
        for i in news.gone:
            self._tables.pop(i, None)
            if self._stored is not None:
                self._stored.forget(i)
        for i, table in news.tables.items():
            self._tables[i] = known = _known(table)
            known.count()
        if news.gone or news.tables:
            self._note_indexes()
        for i, epochs in news.epochs.items():
            self._tables[i].epochs = epochs
        for i in {*news.added, *news.removed}:
            known = self._tables[i]
            for name in news.removed.get(i, ()):
                known.runs.pop(name, None)
            known.runs |= news.added.get(i, {})
            known.count()
        self._complete, self.meaning, self._version = news.complete, news.meaning, news.version

    def _note_indexes(self) -> None:
        self._indexes = {}
        for i, table in self._tables.items():
            content = table.record.content
            if isinstance(content, IndexContent):
                self._indexes.setdefault(content.on, []).append(i)

    def _own(self, owner: CatalogOwner) -> None:
        if self._fence is not None:
            self._fence.close()
        self._root, self._stored = owner.root, StoredRows(owner.root)
        try:
            self._fence = FenceFile(owner.file, owner.token)
        except sqlite3.Error:
            self._fence = None

    def current(self) -> bool:
        """Whether all is known that is visible now."""
        board = self._board
        for _ in range(_LOOKS):
            version = board.version
            if version == self._version:
                return not self.ended
            if not version & 1:
                self.take_in()
                if board.version == version != self._version:
                    return False  # the server has not been able to tell yet
        return False

    def row_now(self, table_id: int, key: Key, at_least: int) -> Row | Later | None:
        """The row of a table that has a primary key as of the newest complete epoch, as `Reads.row_now` finds it.

        To be called where `current` was true at or after the moment that the read is for. `LATER` where it is for the
        server to say.
        """
        table, fence, stored = self._tables.get(table_id), self._fence, self._stored
        epoch = self._complete
        if table is None or stored is None or fence is None or epoch < at_least or not fence.holds():
            return LATER
        # What is newer than the epoch is told apart as long as nothing of it is merged; these runs were there with it.
        as_of = None if table.newest <= epoch else epoch
        try:
            found = stored.find(table_id, table.layout, table.refs, [(key, table.layout.hash_list([key])[0])], as_of)
        except (HeadraceError, OSError):  # merged and deleted meanwhile, say
            stored.forget(table_id)
            return LATER
        self._board.show(self._number, table.slot, epoch)
        return found[key].row

    def held_now(self, relation_id: int, at_least: int) -> Held | None:
        """A relation as the server would read it at this moment, no earlier than an epoch; None where that is for the
        server to say. To be called as `row_now`. It counts as shown."""
        table, fence, root = self._tables.get(relation_id), self._fence, self._root
        if table is None or fence is None or root is None:
            return None
        epoch = self._complete if table.record.content.writable else self._exact(table)
        if epoch is None or epoch < at_least or not fence.holds():
            return None
        self._board.show(self._number, table.slot, epoch)
        indexes = dict[int, tuple[ObjectRecord, SnapshotTable]]()
        for i in self._indexes.get(relation_id, ()):
            index = self._tables[i]
            if table.epochs.safe <= index.epochs.committed <= epoch and index.epochs.committed:
                indexes[i] = index.record, index.at(index.epochs.committed)
        return Held(table.at(epoch), indexes, root)

    def _exact(self, view: KnownTable) -> int | None:
        """The epoch at which a view is shown; None where the server may have something to tell of it."""
        exact, until_ms = self._board.vouched(view.slot)
        # What was noted of a later version than this one is not true of it.
        if until_ms <= now_ms() or not view.epochs.committed or self._board.version != self._version:
            return None
        return max(exact, view.epochs.committed)

    def answered(self) -> None:
        """Count a read that was answered."""
        self._board.count(self._number)

    def tidy(self) -> None:
        """Let go of runs that no table has any more: their place on the disk is theirs as long as they are open."""
        if self._root is not None:
            OPEN_RUNS.tidy(self._root, {t.state_table: t.refs for t in self._tables.values()})
        if self._stored is not None:
            self._stored.tidy()


def _known(news: TableNews) -> KnownTable:
    return KnownTable(news.record, news.schema, news.state_table, dict(news.runs), news.slot, news.epochs)
