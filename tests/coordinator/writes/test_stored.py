"""Rows looked up by their keys one by one are those that the arrangement of the same runs has."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from write_world import layout_of

from headrace.coordinator.writes import stored as stored_module
from headrace.coordinator.writes.group import find_rows
from headrace.coordinator.writes.layout import Key, Row, RowLayout
from headrace.coordinator.writes.stored import StoredRows
from headrace.state.arrangement import Arrangement
from headrace.state.kernels import consolidate
from headrace.state.merge import merge
from headrace.state.run import OPEN_RUNS, Section, write_run
from headrace.state.schema import RunRef

LAYOUT = layout_of({"id": "bigint", "v": "double", "note": "string"}, ("id",))
KEYS = [(i,) for i in range(12)]


class Table:
    """Runs of a table, changed epoch by epoch and merged at random."""

    def __init__(self, root: Path, layout: RowLayout = LAYOUT) -> None:
        self.root = root
        self.layout = layout
        self.refs: list[RunRef] = []
        self.rows: dict[Key, Row] = {}
        self.epoch = 0
        self._objects = 0

    def _path(self) -> str:
        self._objects += 1
        return f"1/{self._objects}.run"

    def commit(self, changes: dict[Key, Row | None]) -> None:
        """One epoch: rows that take the place of those with their keys, or None for rows that go."""
        self.epoch += 1
        pairs: list[tuple[Row, int]] = []
        for key, new in changes.items():
            old = self.rows.pop(key, None)
            pairs += [(old, -1)] if old is not None else []
            if new is not None:
                self.rows[key] = new
                pairs.append((new, 1))
        rows = consolidate(self.layout.batch([row for row, _ in pairs], [w for _, w in pairs]), self.layout.schema)
        self.refs += write_run(self.root, self._path(), [Section(1, self.layout.schema, [rows], self.epoch)])

    def merge(self, places: list[int], safe_epoch: int) -> None:
        """Merge some runs, which need not be neighbours."""
        chosen = [self.refs[i] for i in places]
        merged = merge(chosen, self.layout.schema, self.root, self._path(), safe_epoch)
        self.refs = [r for r in self.refs if r not in chosen] + ([merged] if merged else [])


def _value(r: random.Random) -> Any:
    return r.choice([None, 0.0, -0.0, 1.5, 2.5, float("nan"), float("inf")])


def _history(table: Table, r: random.Random) -> int:
    """Some epochs with merges between; returns the epoch up to which rows may have been combined."""
    safe = 0
    for _ in range(r.randint(3, 12)):
        table.commit({k: r.choice([None, (*k, _value(r), r.choice("ab"))]) for k in r.sample(KEYS, r.randint(1, 6))})
        if len(table.refs) > 1 and r.random() < 0.4:
            safe = r.randint(safe, table.epoch)
            table.merge(r.sample(range(len(table.refs)), r.randint(2, len(table.refs))), safe)
    return safe


@pytest.mark.parametrize("seed", range(60))
def test_a_row_is_what_the_arrangement_has(tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)
    table = Table(tmp_path)
    safe = _history(table, r)
    rows = StoredRows(tmp_path)
    pairs = list(zip(KEYS, LAYOUT.hash_list(KEYS)))
    for as_of in (None, *range(safe, table.epoch + 1)):
        fetch = Arrangement(LAYOUT.schema, table.refs, tmp_path, as_of=as_of).fetch
        found = rows.find(1, LAYOUT, table.refs, pairs, as_of)
        wanted = find_rows(LAYOUT, fetch, KEYS)
        assert repr([found[k] for k in KEYS]) == repr([wanted[k] for k in KEYS]), (seed, as_of)
    now = rows.find(1, LAYOUT, table.refs, pairs, None)
    assert repr([now[k].row for k in KEYS]) == repr([table.rows.get(k) for k in KEYS])


def test_a_row_that_changed_in_many_runs_takes_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a merge has raised the epoch of an old row above that of its change, and where it was removed."""
    table = Table(tmp_path)
    table.commit({(1,): (1, 1.5, "a"), (2,): (2, 1.5, "a")})
    for turn in range(5):
        table.commit({(1,): (1, 2.5 + turn, "b")})
    table.commit({(2,): None})
    table.merge([0, 6], 7)

    def refuse(*_: object) -> None:
        raise AssertionError("arrays are not needed")

    monkeypatch.setattr(stored_module, "Arrangement", refuse)
    keys = [(1,), (2,), (3,)]
    found = StoredRows(tmp_path).find(1, LAYOUT, table.refs, list(zip(keys, LAYOUT.hash_list(keys))), None)
    assert [found[key].row for key in keys] == [(1, 6.5, "b"), None, None]


def test_only_new_runs_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    get_all = OPEN_RUNS.get_all
    monkeypatch.setattr(OPEN_RUNS, "get_all", lambda root, refs: opened.append(len(refs)) or get_all(root, refs))
    table = Table(tmp_path)
    rows = StoredRows(tmp_path)
    pairs = list(zip(KEYS, LAYOUT.hash_list(KEYS)))
    for turn in range(4):
        table.commit({(1,): (1, 1.5 + turn, "a")})
        rows.find(1, LAYOUT, table.refs[:1], pairs, None)
        rows.find(1, LAYOUT, table.refs, pairs, None)
    table.merge([0, 1], 1)
    rows.find(1, LAYOUT, table.refs, pairs, None)
    assert sum(opened) == 5
    rows.tidy()
    rows.find(1, LAYOUT, table.refs, pairs, None)
    assert sum(opened) == 8
