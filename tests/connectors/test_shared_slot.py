"""Tables of one slot without a server: when they begin, what they are bound to, how far the slot is moved on."""

from __future__ import annotations

import struct

import numpy as np

from headrace.connectors.base import EMPTIED, FollowingTable, Offsets
from headrace.connectors.postgres.pgoutput import Decoder
from headrace.connectors.postgres.slot_sharing import CAUGHT_UP, LSN, TABLE, Joining, SharedTables, Transactions
from headrace.connectors.postgres.stretch import KEPT_BYTES, Collector, Recent, Stretch

ANN, BOB = 11, 12
Told = list[tuple[int, bytes]]


def relation(table: int) -> bytes:
    column = b"\x01id\0" + struct.pack("!Ii", 23, -1)
    return b"R" + struct.pack("!I", table) + b"public\0t\0d" + struct.pack("!H", 1) + column


def insert(table: int, value: str) -> bytes:
    row = struct.pack("!Hc", 1, b"t") + struct.pack("!I", len(value)) + value.encode()
    return b"I" + struct.pack("!I", table) + b"N" + row


def commit(at: int) -> Told:
    return [(at, b"C\0" + struct.pack("!QQQ", at - 1, at, 0))]


def truncate(*tables: int) -> bytes:
    return b"T" + struct.pack(f"!Ib{len(tables)}I", len(tables), 0, *tables)


LOG: Told = [
    (10, relation(ANN)), (11, insert(ANN, "1")), *commit(20),
    (21, relation(BOB)), (22, insert(BOB, "2")), (23, insert(ANN, "3")), *commit(30),
    *commit(40),
    (41, truncate(ANN, BOB)), *commit(50),
    (51, insert(ANN, "4")),
]  # fmt: skip


def stretch(log: Told = LOG, low: int = 5, end: int | None = 60, before: int = 0) -> Stretch:
    """What a collector makes of a log, with so many bytes before it."""
    collector = Collector()
    sizes = before + np.cumsum([len(data) for _, data in log])
    for first in range(0, len(log), 3):
        places, data = zip(*log[first : first + 3])
        collector.add(np.array(places, np.int64), list(data), sizes[first : first + 3])
    return collector.stretch(low, end)


def test_changes_are_counted_by_table_and_transaction() -> None:
    found = stretch()
    assert [found.count(ANN, low) for low in (0, 19, 20, 30, 50)] == [3, 3, 2, 1, 0]
    assert [found.count(BOB, low) for low in (0, 20, 30, 50)] == [2, 2, 1, 0]
    assert found.high == 60 and stretch(end=None).high == 50, "what has not come whole does not count"
    assert stretch(end=45).count(ANN, 0) == 2
    assert [found.pending(low) for low in (0, 20, 35, 60)] == [0, 3, 7, 10]


def test_a_stretch_ends_with_the_last_transaction_that_a_limit_lets_in() -> None:
    found = stretch()
    lengths = dict(zip(found.commits.tolist(), found.sizes.tolist()))
    for low in (0, 20, 30, 40):
        begun = lengths.get(low, 0)
        for most in range(0, lengths[50] + 2):
            within = found.within(low, most)
            fit = [at for at in lengths if at > low and lengths[at] - begun <= most]
            assert within.high == (60 if 50 in fit else max(fit, default=min(at for at in lengths if at > low)))
    assert found.within(0, None) is found and found.within(50, 0) is found
    cut = found.within(0, lengths[30])
    assert cut.high == 30 and cut.count(ANN, 0) == 2 and cut.emptied(ANN, 0) == 0 and found.emptied(ANN, 0) == 41
    assert cut.share(ANN, 5, 60) is None, "it does not reach so far"
    part, whole = cut.share(ANN, 5, 30), found.share(ANN, 5, 30)
    assert part is not None and whole is not None and part.data == whole.data


def values(table: int, low: int, high: int) -> list[str]:
    messages = stretch(LOG[:8]).share(table, low, high)
    assert messages is not None
    decoder = Decoder(table, ["id"], ["id"], low, high)
    return [value for change in decoder.changes([messages]) for value in change.values["id"].to_pylist()]


def test_a_share_tells_what_all_of_it_does() -> None:
    assert values(ANN, 5, 60) == ["1", "3"] and values(BOB, 5, 60) == ["2"]
    assert values(ANN, 20, 30) == ["3"] and values(ANN, 5, 20) == ["1"] and values(BOB, 5, 20) == []
    shared = stretch().share(BOB, 5, 60)
    assert shared is not None and [m[:1] for m in shared.data] == [b"R", b"I", b"C", b"T", b"C"]


def test_what_is_not_all_there_is_not_shared() -> None:
    recent = Recent()
    assert recent.share("s", ANN, 5, 60) is None
    recent.keep("s", stretch())
    assert recent.share("s", ANN, 5, 60) is not None and recent.share("other", ANN, 5, 60) is None
    assert recent.share("s", ANN, 4, 60) is None and recent.share("s", ANN, 5, 61) is None
    recent.keep("s", stretch(before=KEPT_BYTES))
    assert recent.share("s", ANN, 5, 60) is None
    recent.forget("s")
    assert recent.share("s", ANN, 5, 60) is None


def bound(lsn: int, table: int, caught_up: bool = True) -> Offsets:
    return {LSN: lsn, CAUGHT_UP: caught_up, TABLE: table}


def follower(after: Offsets, taken: Offsets | None) -> FollowingTable:
    return FollowingTable({}, ("id",), after, taken)


def test_a_table_begins_when_all_is_over_that_was_under_way() -> None:
    new = Joining(100)
    waiting = new.step(Transactions(99, 105), 7, Transactions(99, 106))
    assert waiting == new, "number 99 may have changed the table before it was published"
    chosen = new.step(Transactions(100, 110), 8, Transactions(101, 112))
    assert chosen == Joining(112, 8) and not chosen.is_over(Transactions(111, 130)), "one below 112 may not be seen yet"
    assert chosen.is_over(Transactions(112, 130)) and not new.is_over(Transactions(200, 200))
    assert chosen.step(Transactions(150, 150), 9, Transactions(150, 150)) == chosen


def test_the_slot_waits_for_all_tables() -> None:
    done = follower(bound(20, ANN), bound(20, ANN))
    assert SharedTables({1: done}, {}, {}).holds(50) == 50, "nothing of it lies behind what it is bound to"
    behind = follower(bound(40, BOB), bound(30, BOB))
    assert SharedTables({1: done, 2: behind}, {}, {}).holds(50) == 30
    assert SharedTables({1: done, 2: follower(bound(40, BOB), None)}, {}, {}).holds(50) == 0, "a reader has not begun"
    content = follower(bound(25, BOB, False), bound(25, BOB, False))
    assert SharedTables({1: done, 2: content}, {}, {}).holds(50) == 25, "its changes since are still to come"
    new = follower({}, None)
    assert SharedTables({1: done, 2: new}, {2: Joining(5)}, {}).holds(50) == 50
    assert SharedTables({1: done, 2: new}, {2: Joining(5, 33)}, {}).holds(50) == 33
    assert SharedTables({}, {}, {}).holds(50) == 50


def test_tables_are_bound_together_and_only_where_there_is_something() -> None:
    tables = {1: follower(bound(5, ANN), bound(5, ANN)), 2: follower(bound(25, 99), bound(25, 99)),
              3: follower({}, None), 4: follower(bound(15, BOB, False), bound(15, BOB, False))}  # fmt: skip
    made = SharedTables(tables, {}, {}).bindings(stretch())
    assert {n: b.offsets for n, b in made.items()} == {1: bound(60, ANN) | {EMPTIED: 41}} and made[1].rows == 3
    assert 4 not in SharedTables(tables, {}, {4: 61}).bindings(stretch()), "its content may have what lies behind that"
    made = SharedTables(tables, {}, {4: 60}).bindings(stretch())
    assert made[4].offsets == bound(60, BOB) | {EMPTIED: 41} and made[4].rows == 2
    later = {1: follower(bound(50, ANN) | {EMPTIED: 41}, None)}
    made = SharedTables(later, {}, {}).bindings(stretch([*LOG, *commit(59)]))
    assert made[1].offsets == bound(60, ANN) | {EMPTIED: 41}, "of what was truncated before it is still known"
    assert stretch(end=45).emptied(ANN, 0) == 0, "not before the transaction has ended"
