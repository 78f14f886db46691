"""Operations on single rows against a dict, and what is remembered of them against a list of all changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace.coordinator.writes.gates import Gate, Gates
from headrace.coordinator.writes.history import KEYS_OF_CHANGE, ReadSet, Touched, WriteHistory, touches
from headrace.coordinator.writes.row_cache import RowCache
from headrace.coordinator.writes.written_rows import (
    Effect,
    FoundRow,
    RowChanges,
    append_rows,
    chained,
    change_row,
    insert_rows,
)

Row = tuple[Any, ...]
Model = dict[Row, Row]
KEYS = some.integers(0, 3)
VALUES = some.integers(0, 9)
INSERTS = some.tuples(
    some.just("insert"), some.lists(some.tuples(KEYS, VALUES), min_size=1, max_size=4), some.booleans()
)
CHANGES = some.tuples(some.sampled_from(["update", "delete"]), KEYS, VALUES)


def pairs(changes: RowChanges) -> list[tuple[Row, int]]:
    rows, weights, hashes = changes.weighted()
    assert hashes is None or len(hashes) == len(rows)
    return list(zip(rows, weights, strict=True))


def inserted(model: Model, rows: list[Row], ignore: bool) -> tuple[int, int, list[Row]]:
    """What an INSERT does: rows that come, rows that go, rows that RETURNING shows."""
    shown, before, touched = [], dict(model), set()
    for row in rows:
        if ignore and row[:1] in model:
            continue
        model[row[:1]] = row
        touched.add(row[:1])
        shown.append(row)
    return len(touched), sum(k in before for k in touched), shown


def changed(model: Model, step: Any) -> tuple[int, int, list[Row]]:
    """What an UPDATE of rows with an odd value, or their DELETE, does."""
    kind, key, value = step
    row = model.get((key,))
    if row is None or row[1] % 2 == 0:
        return 0, 0, []
    if kind == "delete":
        del model[(key,)]
        return 0, 1, [row]
    model[(key,)] = (key, value)
    return 1, 1, [(key, value)]


def operation(step: Any) -> Any:
    if step[0] == "insert":
        return insert_rows(step[1], [row[:1] for row in step[1]], ignore=step[2])
    kind, key, value = step
    return change_row((key,), lambda row: row[1] % 2 == 1, lambda row: None if kind == "delete" else (row[0], value))


@given(some.dictionaries(KEYS, VALUES), some.lists(some.one_of(INSERTS, CHANGES), max_size=12), some.integers(0, 12))
def test_operations_come_to_what_a_dict_does(start: dict[int, int], steps: list[Any], cut: int) -> None:
    """Each operation sees those before it, also those of an earlier layer; the net change is that of the dict."""
    model: Model = {(k,): (k, v) for k, v in start.items()}
    first = dict(model)
    layers = [RowChanges(), RowChanges()]
    lookup = chained([part.changed for part in layers], lambda key: FoundRow(key[0], first.get(key)))
    for number, step in enumerate(steps):
        effect = operation(step)(lookup)
        wanted = inserted(model, step[1], step[2]) if step[0] == "insert" else changed(model, step)
        assert (effect.inserted, effect.deleted, effect.affected) == wanted
        layers[number >= cut].add(effect)
    weights: Counter[Row] = Counter(first.values())
    for layer in layers:
        for row, weight in pairs(layer):
            weights[row] += weight
    assert {row: n for row, n in weights.items() if n} == dict.fromkeys(model.values(), 1)


def test_a_row_that_ends_as_it_was_is_no_change() -> None:
    changes = RowChanges()
    assert not changes
    there = {(1,): (1, 5)}
    for value in (7, 5):
        lookup = chained([changes.changed], lambda key: FoundRow(9, there.get(key)))
        changes.add(change_row((1,), lambda row: True, lambda row, v=value: (1, v))(lookup))  # type: ignore[misc]
    assert changes and sum(weight for _, weight in pairs(changes)) == 0
    changes.add(append_rows([(1, 5), (1, 5)])(lookup))
    assert pairs(changes)[2:] == [((1, 5), 1), ((1, 5), 1)]


def test_the_other_zero_is_a_change() -> None:
    changes = RowChanges()
    changes.add(change_row((1,), lambda row: True, lambda row: (1, -0.0))(lambda key: FoundRow(9, (1, 0.0))))
    assert repr(pairs(changes)) == "[((1, 0.0), -1), ((1, -0.0), 1)]"


# ---- history

EVENTS = some.lists(
    some.tuples(some.integers(1, 3), some.one_of(some.none(), some.frozensets(some.integers(0, 5), max_size=4))),
    max_size=20,
)


@given(EVENTS, some.integers(0, 8), some.integers(0, 20))
def test_the_history_never_misses_a_change(events: list[Any], kept: int, since: int) -> None:
    """It may say of too much that it has changed, but only as far as it had to forget; of tables it is exact."""
    history = WriteHistory(kept)
    for epoch, (table, keys) in enumerate(events, 1):
        history.note(table, epoch, keys)
    after = [(t, keys) for epoch, (t, keys) in enumerate(events, 1) if epoch > since]
    roomy = sum(len(keys or ()) for _, keys in events) <= kept
    for table in (1, 2, 3):
        moved = [keys for t, keys in after if t == table]
        assert history.changed(table, since) is bool(moved)
        assert history.conflict(ReadSet(tables={table}), since) == (table if moved else None)
        for key in range(6):
            truly = any(keys is None or key in keys for keys in moved)
            told = history.key_changed(table, key, since)
            assert told or not truly
            assert not roomy or told == truly
            assert (history.conflict(ReadSet(keys={table: {key}}), since) == table) is told


def test_the_history_forgets_a_table_and_large_changes() -> None:
    history = WriteHistory()
    history.note(1, 5, range(KEYS_OF_CHANGE + 1))
    assert history.key_changed(1, -1, 4) and not history.key_changed(1, -1, 5) and history.last_change(1) == 5
    history.forget(1)
    assert not history.changed(1, 0) and not history.last_change(1)
    small = WriteHistory(1)
    small.note(2, 1, [1])
    small.forget(2)
    small.note(3, 2, [1])  # what is forgotten of a table that is gone is no harm
    assert small.key_changed(3, 1, 1) and not small.changed(2, 5)


@given(some.sets(some.integers(1, 2)), some.dictionaries(some.integers(1, 3), some.sets(some.integers(0, 3))),
       some.lists(some.tuples(some.integers(1, 3), some.sets(some.integers(0, 3)), some.booleans())))  # fmt: skip
def test_touches(tables: set[int], keys: dict[int, set[int]], changes: list[Any]) -> None:
    reads, touched, naive = ReadSet(tables), {i: Touched() for i in (1, 2, 3)}, False
    for table, found in keys.items():
        reads.add_keys(table, found)
    for table, found, many in changes:
        touched[table].add(found, KEYS_OF_CHANGE + 1 if many else len(found))
        hit = table in tables and (many or found)
        naive |= bool(hit or (table in keys and (many or keys[table] & found)))
    answer = touches(reads, touched)
    assert (answer is not None) == naive
    assert answer is None or answer in tables | set(keys)


# ---- gates, cache


def test_a_gate_is_taken_as_a_whole() -> None:
    gates, ab, bc, nothing = Gates(), Gate(frozenset((1, 2))), Gate(frozenset((2, 3))), Gate(frozenset())
    assert gates.try_close(ab) and not gates.try_close(bc) and gates.try_close(nothing)
    assert gates.admits({3}, None) and not gates.admits({2}, None) and not gates.admits({2, 3}, bc)
    assert gates.admits({1, 2, 3}, ab) and gates.admits((), None)
    gates.open(bc)
    assert not gates.admits({1}, None)
    gates.open(ab)
    gates.open(ab)
    assert gates.try_close(bc) and not gates.admits({3}, ab) and gates.admits({1}, ab)


PUTS = some.lists(
    some.tuples(some.sampled_from(["put", "drop", "forget"]), some.integers(1, 2), some.dictionaries(KEYS, VALUES)),
    max_size=20,
)


@given(PUTS, some.integers(0, 5))
def test_the_cache_never_gives_an_old_row(steps: list[Any], kept: int) -> None:
    """Whatever it has, is what was put last; it never holds more than it may."""
    cache = RowCache(kept)
    model: dict[int, dict[Row, FoundRow]] = {1: {}, 2: {}}
    for kind, table, rows in steps:
        found = {(k,): FoundRow(k, (k, v) if v else None) for k, v in rows.items()}
        if kind == "put":
            cache.put(table, found)
            model[table] |= found
        elif kind == "drop":
            cache.drop(table, list(found))
            model[table] = {k: v for k, v in model[table].items() if k not in found}
        else:
            cache.forget(table)
            model[table] = {}
    total = 0
    for table in (1, 2):
        known, missing = cache.get(table, [(k,) for k in range(4)])
        assert len(known) + len(missing) == 4 and known.items() <= model[table].items()
        total += len(known)
    assert total <= kept
    if sum(len(rows) for _, _, rows in steps) <= kept:
        assert total == sum(map(len, model.values()))


def test_an_unannounced_key_is_an_error() -> None:
    effect = Effect()
    with pytest.raises(KeyError):
        chained([effect.changed], {}.__getitem__)((1,))
