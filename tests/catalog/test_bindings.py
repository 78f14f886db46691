"""Bindings that are stored as what they change: the same look-ups as of whole ones, at a fraction of the size."""

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog import bindings as bindings_module
from headrace.catalog.bindings import moves
from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import SourceContent
from headrace.catalog.edits import Delete, EditRejected, Put, plan_change
from headrace.catalog.records import ObjectRecord, RemapRecord, decode, encode
from headrace.catalog.state import CatalogState
from headrace.errors import CorruptObject

Positions = dict[str, Any]
SOURCE = Put(ObjectRecord(1, SourceContent(), "s", "t"))


def applied(state: CatalogState, *edits: Any) -> None:
    state.apply(plan_change(state, edits, 0))


def bound(history: Iterable[tuple[int, Positions, int | None]]) -> CatalogState:
    state = CatalogState()
    applied(state, SOURCE)
    for epoch, offsets, watermark_us in history:
        applied(state, Put(RemapRecord(1, epoch, offsets, watermark_us)))
    return state


def reopened(state: CatalogState) -> CatalogState:
    """What the stored texts come to."""
    texts = [(r.COLLECTION, encode(r)) for r in state.records()]
    return CatalogState((decode(collection, "?", text) for collection, text in reversed(texts)), state.config)


def whole_in(state: CatalogState, low: int, high: int) -> list[RemapRecord | None]:
    return [state.offsets_at(1, r.epoch) for r in state.remaps_in(1, low, high)]


positions = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2), max_size=8)
histories = st.lists(st.tuples(positions, st.sampled_from([None, 1, 2])), max_size=25)


@given(histories, st.integers(0, 26), st.integers(0, 26), st.sampled_from([0, 20, 400_000]))
def test_look_ups_agree_with_whole_bindings(
    drawn: list[tuple[Positions, int | None]], low: int, high: int, cached: int
) -> None:
    whole = [RemapRecord(1, n, offsets, mark) for n, (offsets, mark) in enumerate(drawn, start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bindings_module, "CACHED_SPLITS", cached)
        state = bound((r.epoch, r.offsets, r.watermark_us) for r in whole)
        expected = CatalogState([SOURCE.record, *whole])
        for found in (state, reopened(state)):
            assert whole_in(found, 0, 99) == whole
            assert whole_in(found, low, high) == [r for r in whole if low < r.epoch <= high]
            assert found.offsets_at(1, high) == expected.offsets_at(1, high)
            assert found.newest_remap(1) == expected.newest_remap(1)
            assert found.changes_in(1, low, high) == expected.changes_in(1, low, high)
            assert found.remap(1, low) == expected.remap(1, low)


@given(histories, st.lists(st.integers(0, 26), max_size=4))
def test_pruning_leaves_all_that_can_be_read(drawn: list[tuple[Positions, int | None]], lows: list[int]) -> None:
    whole = [RemapRecord(1, n, offsets, mark) for n, (offsets, mark) in enumerate(drawn, start=1)]
    state = bound((r.epoch, r.offsets, r.watermark_us) for r in whole)
    for low in sorted(lows):
        applied(state, *(Delete("remap", r.key) for r in state.stale_remaps(1, low)))
        valid = max((r.epoch for r in whole if r.epoch <= low), default=1)
        for found in (state, reopened(state)):
            assert [r for r in whole_in(found, 0, 99) if r is not None and r.epoch >= valid] == whole[valid - 1 :]
    kept = sum(len(r.offsets) for r in state.all_remaps(1))
    assert not drawn or kept <= sum(len(r.offsets) for r in whole)


def test_what_is_stored_grows_with_what_changes() -> None:
    """A thousand files that come one by one: a thousand bindings, that would name half a million."""
    files = [(f"/data/{n:06}.csv", {"n": n, "size": n, "done": True}) for n in range(1000)]
    state = bound((n, dict(files[:n]), None) for n in range(1, 1001))
    stored = list(state.all_remaps(1))
    assert sum(len(r.offsets) for r in stored) <= 3 * len(files)
    assert sum(len(encode(r)) for r in stored) < 8 * len(json.dumps(dict(files)))
    assert state.offsets_at(1, 500) == RemapRecord(1, 500, dict(files[:500]))
    shared = state.offsets_at(1, 999), state.offsets_at(1, 1000)
    assert shared[0] is not None and shared[1] is not None
    assert all(shared[1].offsets[path] is position for path, position in shared[0].offsets.items())


def test_old_bindings_go_once_nothing_is_made_of_them() -> None:
    files = [(f"f{n}", n) for n in range(400)]
    state = bound((n, dict(files[:n]), None) for n in range(1, 401))
    stale = state.stale_remaps(1, 390)
    assert 100 < len(stale) < 390
    applied(state, *(Delete("remap", r.key) for r in stale))
    assert state.offsets_at(1, 390) == RemapRecord(1, 390, dict(files[:390]))
    assert state.stale_remaps(1, 390) == ()
    assert sum(len(r.offsets) for r in state.all_remaps(1)) <= 2 * 400


def test_a_binding_that_others_are_made_of_is_not_deleted() -> None:
    others = {"b": 1, "c": 1}
    state = bound([(1, {"a": 1, **others}, None), (2, {"a": 2, **others}, None)])
    with pytest.raises(EditRejected, match="remap 1:1 cannot be deleted, 2 is its change"):
        applied(state, Delete("remap", (1, 1)))
    with pytest.raises(EditRejected, match="is not whole"):
        applied(state, Put(RemapRecord(1, 3, {"a": 3}, base=2)))
    applied(state, Delete("remap", (1, 1)), Delete("remap", (1, 2)), Put(RemapRecord(1, 3, {"a": 2, **others})))
    assert state.newest_remap(1) == RemapRecord(1, 3, {"a": 2, **others})
    applied(state, Put(RemapRecord(1, 4, {"a": 4, **others})), Put(RemapRecord(1, 5, {"a": 5, **others})))
    assert [r.base for r in state.all_remaps(1)] == [None, None, None], "two at once: each by itself"
    applied(state, Delete("object", 1))
    assert state.newest_remap(1) is None


def test_a_part_that_is_missing_is_named() -> None:
    state = CatalogState([RemapRecord(1, 2, {"a": 2}, base=1, chained=1)])
    with pytest.raises(CorruptObject, match="the catalog has lost remap 1:1"):
        state.newest_remap(1)


@given(histories, positions)
def test_moves_are_what_each_binding_changes(drawn: list[tuple[Positions, int | None]], start: Positions) -> None:
    state = bound((n, offsets, mark) for n, (offsets, mark) in enumerate(drawn, start=1))
    before = start
    for (epoch, old, new), remap in zip(moves(state.all_remaps(1), start), whole_in(state, 0, 99), strict=True):
        assert remap is not None and epoch == remap.epoch
        assert new.items() >= {k: v for k, v in remap.offsets.items() if before.get(k) != v}.items()
        assert all(before[k] == v for k, v in old.items()) and old.keys() == before.keys() & new.keys()
        assert all(remap.offsets[k] == v for k, v in new.items())
        before = remap.offsets


OLD_BINDINGS = {
    "1:65536": '{"v":1,"source_id":1,"epoch":65536,"offsets":{"/d/a.csv":{"n":0,"size":14,"mtime_ns":5,"row":3,'
    '"byte":14,"done":true}},"watermark_us":null}',
    "1:131072": '{"v":1,"source_id":1,"epoch":131072,"offsets":{"/d/a.csv":{"n":0,"size":14,"mtime_ns":5,"row":3,'
    '"byte":14,"done":true},"/d/b.csv":{"n":1,"size":90,"mtime_ns":6,"row":2,"byte":40,"done":false},"/d/c.csv":{"n":2,'
    '"size":7,"mtime_ns":8,"row":0,"byte":0,"done":false}},"watermark_us":77}',
}
"""As version 0.1 has written them."""


def test_a_database_with_whole_bindings_opens_and_goes_on(tmp_path: Path) -> None:
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        catalog.transact([SOURCE])
    with sqlite3.connect(tmp_path / "catalog.db") as file:
        file.executemany("INSERT INTO record VALUES ('remap', ?, ?)", OLD_BINDINGS.items())
    a = {"n": 0, "size": 14, "mtime_ns": 5, "row": 3, "byte": 14, "done": True}
    b = {"n": 1, "size": 90, "mtime_ns": 6, "row": 2, "byte": 40, "done": False}
    c = {"n": 2, "size": 7, "mtime_ns": 8, "row": 0, "byte": 0, "done": False}
    last = b | {"row": 5, "byte": 90, "done": True}
    whole = [
        RemapRecord(1, 65536, {"/d/a.csv": a}),
        RemapRecord(1, 131072, {"/d/a.csv": a, "/d/b.csv": b, "/d/c.csv": c}, 77),
        RemapRecord(1, 196608, {"/d/a.csv": a, "/d/b.csv": last, "/d/c.csv": c}, 77),
    ]
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        assert whole_in(catalog.state, 0, 1 << 20) == whole[:2]
        catalog.transact([Put(whole[2])])
        stored = catalog.state.all_remaps(1)[2]
        assert (stored.base, stored.offsets) == (131072, {"/d/b.csv": last})
    with Catalog.open(tmp_path / "catalog.db") as catalog:
        assert whole_in(catalog.state, 0, 1 << 20) == whole
        assert catalog.state.stale_remaps(1, 196608) == (whole[0],)


def test_bytes_of_version_2_stay_readable() -> None:
    change = '{"v":2,"source_id":1,"epoch":9,"offsets":{"f":4},"watermark_us":null,"base":8,"gone":["g"],"chained":3}'
    assert decode("remap", "1:9", change) == RemapRecord(1, 9, {"f": 4}, None, 8, ("g",), 3)
    assert encode(RemapRecord(1, 9, {"f": 4}, None, 8, ("g",), 3)) == change
    whole = '{"v":2,"source_id":1,"epoch":9,"offsets":{"f":4},"watermark_us":5}'
    assert decode("remap", "1:9", whole) == RemapRecord(1, 9, {"f": 4}, 5)
    assert encode(RemapRecord(1, 9, {"f": 4}, 5)) == whole


def test_bindings_that_move_nothing_do_not_chain_for_ever() -> None:
    """Of watermarks alone: a chain has its end all the same, and what is in front of it can be deleted."""
    splits = {str(n): 1 for n in range(40)}
    state = bound((n, splits, n) for n in range(1, 200))
    chains = [r for r in state.all_remaps(1) if r.base is None]
    assert len(chains) > 1 and len(state.stale_remaps(1, 199)) > 100
