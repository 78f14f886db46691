"""Changes in the order of their epochs: whole, and in one order, whatever is merged and wherever a reader stops."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrangement_model import SCHEMA, Model
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidParameter
from headrace.state import changelog as changelog_module
from headrace.state import run as run_module
from headrace.state.changelog import OPERATIONS, ChangePiece, ChangeReader, LogPosition, RowPlace, beginning_of
from headrace.state.run import Section, write_run
from headrace.state.schema import TableSchema
from support import examples

Row = tuple[int, str | None]
Change = tuple[int, str, Row]
"""Epoch (0 for content), what has happened, and the row."""


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "RUN_BATCH_ROWS", 8)
        patch.setattr(run_module, "INDEX_STRIDE", 4)
        patch.setattr(changelog_module, "PLANNED", 3)
        yield


def given_out(piece: ChangePiece, low: int, high: int) -> list[Change]:
    found = []
    for i in piece.places(low, high).tolist():
        row = piece.rows.slice(i, 1).to_pylist()[0]
        epoch = 0 if piece.content else int(piece.epochs[i])
        found.append((epoch, OPERATIONS[piece.operations[i]], (row["id"], row["name"])))
    return found


def read_all(model: Model, unique: bool, position: LogPosition, up_to: int) -> list[Change]:
    reader, found = ChangeReader(SCHEMA, unique), []
    while True:
        piece = reader.read(model.refs, model.root, position, up_to)
        found += given_out(piece, 0, len(piece))
        position = piece.after
        if not position.within and position.epoch >= up_to:
            return found


@dataclass
class Interrupted:
    """Reads a few rows at a time, and forgets all but the text of its position in between."""

    model: Model
    unique: bool
    text: str
    found: list[Change] = field(default_factory=list)

    def read(self, up_to: int, most: int, parts: int) -> bool:
        position = LogPosition.parse(self.text)
        piece = ChangeReader(SCHEMA, self.unique).read(self.model.refs, self.model.root, position, up_to)
        low = 0
        for _ in range(parts):
            high = min(low + most, len(piece))
            self.found += given_out(piece, low, high)
            low = high
        self.text = str(piece.position(low) if low else piece.after if not len(piece) else position)
        now = LogPosition.parse(self.text)
        return not now.within and now.epoch >= up_to

    @property
    def needs(self) -> int:
        return LogPosition.parse(self.text).after


IDS = st.integers(0, 9)
NAMES = st.sampled_from(["a", "b", "", None, "long"])
BAGS = st.lists(st.tuples(st.tuples(IDS, NAMES), st.integers(-2, 3)), min_size=1, max_size=25)
TABLES = st.dictionaries(IDS, st.none() | NAMES.map(lambda name: (name,)), min_size=1, max_size=8)
MERGES = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), max_size=2)
STOPS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=5)


def keyed_deltas(now: dict[int, str | None], changes: dict[int, tuple[str | None] | None]) -> list[tuple[Row, int]]:
    deltas: list[tuple[Row, int]] = []
    for ident, to in changes.items():
        if ident in now:
            deltas.append(((ident, now.pop(ident)), -1))
        if to is not None:
            now[ident] = to[0]
            deltas.append(((ident, to[0]), 1))
    return deltas


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.one_of(BAGS), TABLES, MERGES, STOPS, st.integers(1, 3)), min_size=1, max_size=6),
    st.booleans(), st.sampled_from([1, 3, 10, 65_536]), st.booleans(),
)  # fmt: skip
def test_a_reader_may_stop_anywhere(epochs: list[Any], unique: bool, piece_rows: int, full: bool) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog_module, "PIECE_ROWS", piece_rows)
        model, now = Model(Path(root)), dict[int, str | None]()
        reader = Interrupted(model, unique, "0")
        for epoch, (bag, changes, merges, stops, p) in enumerate(epochs, start=1):
            deltas = keyed_deltas(now, changes) if unique else there(model, bag)
            if deltas:
                model.write(deltas, epoch, p)
            if full and epoch == 1:
                reader.text = str(beginning_of(1))
            for chosen in merges:
                if model.refs:
                    model.merge(chosen, reader.needs, 8)
            for most, parts in stops:
                reader.read(epoch, most, parts)
        last = len(epochs)
        while not reader.read(last, 2, 4):
            pass
        check(model, reader, unique, full, last, epochs)


def there(model: Model, bag: list[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """Of a bag's changes those that take away no more than there is."""
    held: Counter[Row] = Counter()
    for row, weight, _ in model.history:
        held[row] += weight
    found = []
    for row, weight in bag:
        weight = max(weight, -held[row])
        held[row] += weight
        if weight:
            found.append((row, weight))
    return found


def check(model: Model, reader: Interrupted, unique: bool, full: bool, last: int, epochs: list[Any]) -> None:
    start = 1 if full else 0
    expected: dict[int, Counter[Row]] = {}
    for row, weight, epoch in model.history:
        expected.setdefault(0 if epoch <= start else epoch, Counter())[row] += weight
    found: dict[int, Counter[Row]] = {}
    for epoch, operation, row in reader.found:
        sign = 1 if operation in ("Insert", "UpdateInsert") else -1
        found.setdefault(epoch, Counter())[row] += sign
    assert found == {e: kept for e, rows in expected.items() if (kept := Counter({r: w for r, w in rows.items() if w}))}
    assert [e for e, _, _ in reader.found] == sorted(e for e, _, _ in reader.found)
    # In one order, without anything that cancels out, at whatever place the reader has stopped.
    if reader.model.safe <= start:
        whole = read_all(model, unique, beginning_of(1) if full else LogPosition(0), last)
        assert whole == reader.found
    for epoch in found:
        check_operations([c for c in reader.found if c[0] == epoch], unique)


def check_operations(changes: list[Change], unique: bool) -> None:
    operations = [operation for _, operation, _ in changes]
    if not unique:
        assert operations == sorted(operations)  # Delete, and then Insert
        assert set(operations) <= {"Delete", "Insert"}
        return
    rows = [row for _, _, row in changes]
    for i, (operation, row) in enumerate(zip(operations, rows)):
        same = [j for j, other in enumerate(rows) if other[0] == row[0]]
        if operation == "UpdateDelete":
            assert same == [i, i + 1] and operations[i + 1] == "UpdateInsert"
        elif operation == "UpdateInsert":
            assert same == [i - 1, i]
        else:
            assert same == [i]


def test_a_row_that_is_there_many_times_is_given_in_parts(tmp_path: Path) -> None:
    model = Model(tmp_path)
    model.write([((1, "a"), 10**9), ((2, "b"), 1)], 1, 1)
    piece = ChangeReader(SCHEMA, False).read(model.refs, model.root, LogPosition(0), 1)
    assert len(piece) == 10**9 + 1 and piece.most(100) <= 100
    position = piece.position(3)
    again = ChangeReader(SCHEMA, False).read(model.refs, model.root, LogPosition.parse(str(position)), 1)
    assert len(again) == len(piece) - 3
    assert str(again.position(2)) == str(piece.position(5))


def test_what_is_quiet_costs_nothing(tmp_path: Path) -> None:
    model = Model(tmp_path)
    model.write([((1, "a"), 1)], 5, 1)
    reader = ChangeReader(SCHEMA, False)
    piece = reader.read([], model.root, LogPosition(5), 90)
    assert not len(piece) and piece.after == LogPosition(90)
    piece = reader.read(model.refs, model.root, LogPosition(0), 90)
    assert len(piece) == 1 and piece.after == LogPosition(90)


@pytest.mark.parametrize("position", [
    LogPosition(7), LogPosition(7, RowPlace(1, -5, 3)), beginning_of(9),
    LogPosition(2**63 - 1, RowPlace(0, 2**63 - 1, 0)),
])  # fmt: skip
def test_a_position_is_a_text(position: LogPosition) -> None:
    assert LogPosition.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "x", "-1", "1.2", "1.2.3.4", "1.0.0.-1", "full:1", "1.0.9223372036854775808.0"])
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(InvalidParameter):
        LogPosition.parse(text)


def test_pieces_are_bounded_whatever_the_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_module, "PIECE_ROWS", 100)
    monkeypatch.setattr(changelog_module, "PLANNED", 16)
    monkeypatch.setattr(run_module, "RUN_BATCH_ROWS", 1024)
    model, last, rows = Model(tmp_path), 120, 10
    for epoch in range(1, last + 1):
        many = 2_000 if epoch == 60 else rows
        model.write([((i * 7 + epoch, str(i)), 1) for i in range(many)], epoch, 1)
    model.merge(list(range(last)), 0, 8)
    model.write([((5, "new"), 1)], last + 1, 1)
    counted: list[Any] = []
    count = changelog_module._epochs_in
    monkeypatch.setattr(changelog_module, "_epochs_in", lambda *given: counted.append(1) or count(*given))
    reader, position, found, pieces = ChangeReader(SCHEMA, False), LogPosition(0), 0, 0
    while position.within or position.epoch <= last:
        piece = reader.read(model.refs, tmp_path, position, last + 1)
        assert piece.rows.num_rows <= 100 or 60 in piece.epochs  # of which a fifth has one `__k`
        found, pieces, position = found + len(piece), pieces + 1, piece.after
    assert found == (last - 1) * rows + 2_000 + 1
    assert pieces > 10 and len(counted) <= 2 + pieces // 8


def test_an_epoch_that_is_larger_than_a_piece_is_read_by_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_module, "PIECE_ROWS", 50)
    schema = TableSchema((pa.field("id", pa.int64()),), (), ((pa.field("__w", pa.int64()), "add"),))
    ids = np.arange(1_000, dtype=np.int64)
    keys = ids * 2**40 - 2**49
    refs = []
    for name, part in enumerate((ids % 2 == 0, ids % 2 == 1)):
        arrays = [pa.array(keys[part]), pa.array(ids[part]), pa.array(np.where(ids[part] % 3 == 0, -1, 1))]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow())
        refs += write_run(tmp_path, str(name), [Section(1, schema, [batch], 7)], fsync=False)
    position, flat = LogPosition(3), []
    while position.within or position.epoch < 9:
        piece = ChangeReader(schema, False).read(refs, tmp_path, position, 9)
        assert piece.rows.num_rows <= 60
        flat += piece.rows.column("id").to_pylist()
        position = LogPosition.parse(str(piece.after))
    gone, come = [i for i in flat if i % 3 == 0], [i for i in flat if i % 3]
    assert flat == gone + come and gone == sorted(gone) and come == sorted(come) and len(flat) == 1_000
