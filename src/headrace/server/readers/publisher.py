"""Tells reading processes of commits: what they need of each, before anybody else can act on it.

A change of the catalog that matters to them, and an epoch that becomes complete, is a new version. The publisher marks
the board, sends the news, lets the change be seen in this process, and then puts the new version on the board. So as
long as a reading process finds a version there that it has the news of, this process would read the same.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.catalog.catalog import Catalog
from headrace.catalog.records import ObjectRecord, RunRecord, SettingRecord, StateTableRecord, run_id
from headrace.catalog.state import CatalogState, Change
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.server.readers.news import CatalogOwner, News, TableEpochs, TableNews, packed
from headrace.server.readers.reading_board import TABLES, ReadingBoard, now_ms
from headrace.state.schema import ROWS, RunRef

if TYPE_CHECKING:
    from headrace.coordinator.coordinator import Coordinator

_log = get_logger("headrace.readers")
_BACKLOG_BYTES: Final = 64 << 20
"""What may wait for a process that takes nothing in, before it is given up."""
VOUCHED_MS: Final = 2_000
"""How long it may be relied on that there is nothing to tell who reads a view."""


class NewsLine:
    """The line on which one reading process is told the news. The publisher's lock guards it."""

    def __init__(self, line: socket.socket, clogged: Callable[[], None], lost: Callable[[], None]) -> None:
        """`line` does not block. `clogged` is called when something waits for it, `lost` where it is of no use any
        more; both in any thread."""
        self._line = line
        self._clogged, self._lost = clogged, lost
        self._backlog = bytearray()
        self._over = False

    def send(self, data: bytes) -> None:
        """Send it, now or as soon as it can be taken."""
        if self._over:
            return
        waits = bool(self._backlog)
        self._backlog += data
        if not waits and not self.flush() and not self._over:
            self._clogged()
        if len(self._backlog) > _BACKLOG_BYTES:
            self._end()

    def flush(self) -> bool:
        """Send what waits; whether nothing does any more."""
        while self._backlog and not self._over:
            try:
                sent = self._line.send(memoryview(self._backlog)[: 1 << 18])
            except BlockingIOError:
                return False
            except OSError:
                self._end()
                break
            del self._backlog[:sent]
        return True

    def _end(self) -> None:
        self._over = True
        self._backlog.clear()
        self._lost()


@dataclass
class _Published:
    """A table that reading processes know."""

    news: TableNews
    runs: dict[str, RunRef]
    epochs: TableEpochs


@dataclass(frozen=True)
class _NewVersion:
    """What a version has that the one before had not, see `News`."""

    owner: CatalogOwner | None = None
    tables: Mapping[int, TableNews] = field(default_factory=dict)
    added: Mapping[int, Mapping[str, RunRef]] = field(default_factory=dict)
    removed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    epochs: Mapping[int, TableEpochs] = field(default_factory=dict)
    gone: tuple[int, ...] = ()


class Publisher:
    """What reading processes have been told, and their lines. Thread-safe.

    Its lock is taken within those of the catalog's image and of the epochs, and nothing else is waited for under it.
    """

    def __init__(self, coordinator: Coordinator, catalog: Catalog, board: ReadingBoard) -> None:
        self._catalog = catalog
        self._root = coordinator.root
        self._board = board
        self._undisturbed = coordinator.undisturbed
        self._lock = threading.Lock()
        self._version = 0
        self._meaning = 0
        self._objects: object = catalog.image.objects
        self._owner: CatalogOwner | None = None
        self._tables: dict[int, _Published] = {}
        self._by_state: dict[int, int] = {}
        self._of_run: dict[str, int] = {}
        """Of each run the table."""
        self._broken = False
        """Whether something went wrong here: then nobody reads beside the server any more."""
        self._free = deque(range(TABLES))
        """Places on the board, first the one that has been free for the longest time."""
        self._shown_in: dict[int, int] = {}
        """Place -> the table that has it, or has had it last: what was shown of that table still stands there."""
        self._shown_before: dict[int, int] = {}
        """Table -> the newest epoch at which it was shown, where other tables have its places now."""
        self._lines: list[NewsLine] = []
        self._complete = 0
        coordinator.read_beside(self)

    # ---- lines

    def join(self, line: NewsLine) -> None:
        """Tell one more process of everything, and from now on of what is new."""
        with self._lock:
            line.send(packed(self._all()))
            self._lines.append(line)

    def leave(self, line: NewsLine) -> None:
        """Tell a process nothing more."""
        with self._lock:
            if line in self._lines:
                self._lines.remove(line)

    def flush(self, line: NewsLine) -> bool:
        """Send what waits on a line; whether nothing does any more."""
        with self._lock:
            return line.flush()

    def _all(self) -> News:
        tables = {
            i: TableNews(t.news.record, t.news.schema, t.news.state_table, dict(t.runs), t.news.slot, t.epochs)
            for i, t in self._tables.items()
        }
        return News(self._version, self._complete, self._meaning, self._owner, tables)

    # ---- what the coordinator calls

    def begin(self, complete: int) -> None:
        """The newest complete epoch, before anything is told of."""
        self._complete = complete

    @contextmanager
    def completing(self, epoch: int) -> Iterator[None]:
        """Around the moment from which on an epoch counts as complete."""
        with self._lock:
            self._complete = epoch
            if not self._tables:
                yield
                return
            with self._becoming(_NewVersion()):
                yield

    @contextmanager
    def showing(self, change: Change, state: CatalogState) -> Iterator[None]:
        """Around the moment from which on everybody sees a change of the catalog."""
        with self._lock:
            try:
                changed = self._changed(change, state)
            except Exception:  # of whatever kind: what is durable is to be seen all the same
                self._break()
                changed = None
            if changed is None:
                yield
                return
            with self._becoming(changed):
                yield

    def _changed(self, change: Change, state: CatalogState) -> _NewVersion | None:
        """What a change has for who reads; None for nothing."""
        added, removed = self._runs_of(change)
        epochs = self._epochs_of(change)
        gone: list[int] = []
        renewed = state.objects is not self._objects or _sets(change)
        if renewed:
            gone = self._renew(state)
        if not renewed and not added and not removed and not epochs:
            return None
        known = self._tables
        return _NewVersion(
            added={i: runs for i, runs in added.items() if i in known},
            removed={i: runs for i, runs in removed.items() if i in known},
            epochs={i: now for i, now in epochs.items() if i in known}, gone=tuple(gone),
        )  # fmt: skip

    def _renew(self, state: CatalogState) -> list[int]:
        """Texts may mean something else from now on. Returns the tables that are gone, or others than they were."""
        self._objects, self._meaning = state.objects, self._meaning + 1
        gone = [i for i, table in self._tables.items() if state.objects.get(i) is not table.news.record]
        for i in gone:
            self._forget(i)
        return gone

    def shown(self) -> Mapping[int, int]:
        """Return the newest epoch at which a reading process has shown each table. Any thread.

        Also of tables that are not told of any more: their records have changed, and a reading process that did not
        know yet has shown them since.
        """
        if not self._shown_in:
            return {}
        shown = self._board.shown()
        with self._lock:
            newest = dict(self._shown_before)
            for slot in np.flatnonzero(shown).tolist():
                table = self._shown_in[slot]
                newest[table] = max(newest.get(table, 0), int(shown[slot]))
            return newest

    # ---- what may be read

    def grant(self, relations: Sequence[ObjectRecord], objects: object) -> int | None:
        """Let reading processes read relations and indexes by a plan that was made with these objects of the catalog.

        Returns the number of what texts mean now; None where that has changed, or one of them cannot be told of.
        """
        catalog = self._catalog
        if not catalog.settled:
            return None
        with catalog.reading() as state, self._lock:
            if state.objects is not objects:
                return None
            if objects is not self._objects:  # changed where nobody told of it: another server has had the catalog
                with self._becoming(_NewVersion(gone=tuple(self._renew(state)))):
                    pass
            if not all(record.id in self._tables or self._add(record, state) for record in relations):
                return None
            return self._meaning

    def _add(self, record: ObjectRecord, state: CatalogState) -> bool:
        tables = [table for table in state.tables_of(record.id) if table.operator == ROWS]
        file, token = self._catalog.file, self._catalog.token
        if len(tables) != 1 or tables[0].expires is not None or not self._free or file is None or token is None:
            return False
        if self._owner is None or self._owner.token != token:
            self._owner = CatalogOwner(file, token, self._root)
        runs = {r.id: r.ref for r in state.runs_of(tables[0].id)}
        epochs, slot = _epochs(tables[0]), self._take_place(record.id, state)
        news = TableNews(record, tables[0].to_table_schema(), tables[0].id, runs, slot, epochs)
        self._tables[record.id] = _Published(news, dict(runs), epochs)
        self._by_state[tables[0].id] = record.id
        self._of_run |= dict.fromkeys(runs, record.id)
        with self._becoming(_NewVersion(owner=self._owner, tables={record.id: news})):
            pass
        return True

    def _take_place(self, table_id: int, state: CatalogState) -> int:
        """Give a table a place on the board. What was shown of the table before it there is kept, unless it is dropped.

        The place that was free for the longest time is taken: a reading process may note there until it has the news.
        """
        slot = self._free.popleft()
        before, shown = self._shown_in.get(slot, table_id), self._board.clear(slot)
        if before in state.objects and shown:
            self._shown_before[before] = max(shown, self._shown_before.get(before, 0))
        self._shown_before = {i: epoch for i, epoch in self._shown_before.items() if i in state.objects}
        self._shown_in[slot] = table_id
        return slot

    def _forget(self, table_id: int) -> None:
        table = self._tables.pop(table_id)
        for name in table.runs:
            self._of_run.pop(name, None)
        del self._by_state[table.news.state_table]
        self._free.append(table.news.slot)

    def _runs_of(self, change: Change) -> tuple[dict[int, dict[str, RunRef]], dict[int, tuple[str, ...]]]:
        """What a change does to the runs of the tables that are known, by table."""
        added: dict[int, dict[str, RunRef]] = {}
        removed: dict[int, tuple[str, ...]] = {}
        if not self._tables:
            return added, removed
        for collection, key in change.deletes:
            found = self._of_run.pop(str(key), None) if collection == "run" else None
            if found is not None:
                del self._tables[found].runs[str(key)]
                removed[found] = (*removed.get(found, ()), str(key))
        for record in change.puts:
            if isinstance(record, RunRecord):
                i_found = self._by_state.get(record.ref.table_id)
                if i_found is None:
                    continue
                runs, name = self._tables[i_found].runs, run_id(record.ref)
                if runs.get(name) != record.ref:
                    runs[name], self._of_run[name] = record.ref, i_found
                    added.setdefault(i_found, {})[name] = record.ref
        return added, removed

    def _epochs_of(self, change: Change) -> dict[int, TableEpochs]:
        """Where the versions of the tables that are known stand after a change that moves them."""
        found: dict[int, TableEpochs] = {}
        for record in change.puts if self._tables else ():
            i = self._by_state.get(record.id) if isinstance(record, StateTableRecord) else None
            if i is not None and isinstance(record, StateTableRecord) and _epochs(record) != self._tables[i].epochs:
                self._tables[i].epochs = found[i] = _epochs(record)
        return found

    def vouch(self) -> None:
        """Note on the board up to which epochs views may be shown: for a short time, in which nothing is to be told who
        reads them. To be called again and again."""
        with self._lock:
            views = {i: table for i, table in self._tables.items() if not table.news.record.content.writable}
        if not views:
            return
        until_ms = now_ms() + VOUCHED_MS
        exact = self._undisturbed(list(views))
        with self._lock:
            for i, table in views.items():
                if self._tables.get(i) is table:
                    self._board.vouch(table.news.slot, exact.get(i, 0), until_ms if i in exact else 0)

    @contextmanager
    def _becoming(self, changed: _NewVersion) -> Iterator[None]:
        """Around what makes a new version. Whatever happens within, what was told stays told."""
        version = self._version + 2
        self._board.version = version - 1
        self._version = version
        try:
            self._tell(version, changed)
        except Exception:  # of whatever kind: what is durable is to be seen all the same
            self._break()
        try:
            yield
        finally:
            if not self._broken:
                self._board.version = version

    def _tell(self, version: int, changed: _NewVersion) -> None:
        if self._lines:
            data = packed(
                News(
                    version,
                    self._complete,
                    self._meaning,
                    changed.owner,
                    changed.tables,
                    changed.added,
                    changed.removed,
                    changed.epochs,
                    changed.gone,
                )
            )
            for line in list(self._lines):
                line.send(data)

    def _break(self) -> None:
        """Let nobody find a version that they know."""
        if not self._broken:
            _log.exception("reading processes cannot be told of changes: the server answers all reads")
        self._broken = True
        self._board.version = self._version | 1


def _epochs(record: StateTableRecord) -> TableEpochs:
    return TableEpochs(record.committed_epoch, record.safe_epoch)


def _sets(change: Change) -> bool:
    """Whether a change sets a parameter of the system."""
    return any(isinstance(record, SettingRecord) for record in change.puts) or any(
        collection == "setting" for collection, _ in change.deletes
    )
