"""The checker over histories written by hand: each anomaly by its name, and none where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anomalies as names
import pytest
from checker import anomalies_of, check, names_of
from events import Bank, Broken, Freshness, History, Key, Op, Register, Status, Transaction, load, save
from recheck import report

X, Y = Key("list", 0), Key("list", 2)
S, U = Key("set", 0), Key("set", 2)
R, Q = Key("register", 0), Key("register", 2)
C = Key("counter", 0)
B = Key("bank", 0)


def append(key: Key, value: int) -> Op:
    return Op("append", key, value)


def insert(key: Key, value: int) -> Op:
    return Op("insert", key, value)


def read(key: Key, result: Any, via: str = "table") -> Op:
    return Op("read", key, result=result, via=via)


def plus(result: int | None) -> Op:
    return Op("increment", C, 1, result=result)


class Story:
    """A history told transaction by transaction; by default all at once, each in a session of its own."""

    def __init__(self) -> None:
        self.history = History(balance=100)

    def add(
        self, *ops: Op, status: Status = "ok", at: tuple[int, int] = (0, 1000), session: int | None = None,
        freshness: Freshness = "newest",
    ) -> Story:  # fmt: skip
        made = len(self.history.transactions)
        session = made if session is None else session
        self.history.transactions.append(
            Transaction(made, session, ops, status, at[0], at[1], freshness=freshness)
        )  # fmt: skip
        return self

    def final(self, *ops: Op) -> Story:
        self.add(*ops, at=(10_000, 10_001))
        self.history.final = len(self.history.transactions) - 1
        return self


ANOMALIES = {
    "dirty write": (
        Story().add(append(X, 1), append(Y, 1)).add(append(X, 2), append(Y, 2)).final(read(X, (1, 2)), read(Y, (2, 1))),
        {names.G0},
    ),
    "dirty write of registers": (
        Story().add(Op("write", R, 1), Op("write", Q, 1)).add(Op("write", R, 2), Op("write", Q, 2))
        .final(read(R, Register(2, 1)), read(Q, Register(1, 2))),
        {names.G0},
    ),
    "aborted read": (Story().add(append(X, 1), status="fail").add(read(X, (1,))), {names.G1A}),
    "aborted insert seen": (Story().add(insert(S, 1), status="fail").add(read(S, frozenset({1}))), {names.G1A}),
    "aborted write seen": (Story().add(Op("write", R, 1), status="fail").add(read(R, Register(1, 0))), {names.G1A}),
    "taken back, and seen": (
        Story().add(Op("savepoint", value="a"), append(X, 1), Op("rollback_to", value="a"), append(Y, 1))
        .final(read(X, (1,)), read(Y, (1,))),
        {names.G1A},
    ),
    "intermediate read": (
        Story().add(append(X, 1), append(X, 2)).add(read(X, (1,))).final(read(X, (1, 2))),
        {names.G1B, names.G_SINGLE},
    ),
    "intermediate register": (
        Story().add(Op("write", R, 1), Op("write", R, 2)).add(read(R, Register(1, 0))), {names.G1B, names.G_SINGLE},
    ),
    "circular flow": (
        Story().add(append(X, 1), read(Y, (1,))).add(append(Y, 1), read(X, (1,))), {names.G1C},
    ),
    "circular flow of sets": (
        Story().add(insert(S, 1), read(U, frozenset({1}))).add(insert(U, 1), read(S, frozenset({1}))), {names.G1C},
    ),
    "read skew": (
        Story().add(append(X, 1), append(Y, 1)).add(read(X, ()), read(Y, (1,))), {names.G_SINGLE},
    ),
    "read skew of counters": (
        Story().add(plus(1), append(X, 1)).add(read(C, 0), read(X, (1,))), {names.G_SINGLE},
    ),
    "read skew of registers": (
        Story().add(Op("write", R, 1), Op("write", Q, 1)).add(read(R, Register(1, 0)), read(Q, Register(0))),
        {names.G_SINGLE},
    ),
    "lost update of a list": (
        Story().add(read(X, ()), append(X, 1)).add(read(X, ()), append(X, 2)).final(read(X, (1, 2))),
        {names.LOST_UPDATE},
    ),
    "lost update of a register": (
        Story().add(read(R, Register(0)), Op("write", R, 1)).add(read(R, Register(0)), Op("write", R, 2)),
        {names.LOST_UPDATE},
    ),
    "lost update told by what was replaced": (
        Story().add(Op("write", R, 1)).add(Op("write", R, 2)).add(read(R, Register(1, 0))).add(read(R, Register(2, 0))),
        {names.LOST_UPDATE},
    ),
    "lost update of a counter": (Story().add(plus(1)).add(plus(1)), {names.LOST_UPDATE}),
    "long fork": (
        Story().add(append(X, 1)).add(append(Y, 1)).add(read(X, (1,)), read(Y, ())).add(read(X, ()), read(Y, (1,))),
        {names.G_NONADJACENT},
    ),
    "write skew": (
        Story().add(read(X, ()), append(Y, 1)).add(read(Y, ()), append(X, 1)).final(read(X, (1,)), read(Y, (1,))),
        {names.G2_ITEM},
    ),
    "write skew over a predicate": (
        Story().add(read(S, frozenset()), insert(U, 1)).add(read(U, frozenset()), insert(S, 1)), {names.G2},
    ),
    "own append not seen": (Story().add(append(X, 1), read(X, ())), {names.NO_OWN_WRITES}),
    "own insert not seen": (Story().add(insert(S, 1), read(S, frozenset())), {names.NO_OWN_WRITES}),
    "own write not seen": (Story().add(Op("write", R, 1), read(R, Register(0))), {names.NO_OWN_WRITES}),
    "taken back, and seen by itself": (
        Story().add(Op("savepoint", value="a"), append(X, 1), Op("rollback_to", value="a"), read(X, (1,))),
        {names.G1A},
    ),
    "non-repeatable read": (
        Story().add(append(X, 1)).add(read(X, ()), read(X, (1,))), {names.NON_REPEATABLE, names.G_SINGLE},
    ),
    "fractured across a view": (
        Story().add(append(X, 1)).add(read(X, ()), read(X, (1,), "lists_view")), {names.FRACTURED, names.G_SINGLE},
    ),
    "half a transfer": (
        Story().add(Op("transfer", B, (1, 0, 1, 5))).add(read(B, Bank({0: 95, 1: 100}, {0: -5, 1: 5}))),
        {names.FRACTURED},
    ),
    "a value from nowhere": (Story().add(read(X, (7,))), {names.GARBAGE}),
    "a doubled row": (Story().add(read(X, Broken("2 rows"))), {names.BROKEN}),
    "two orders": (
        Story().add(append(X, 1)).add(append(X, 2)).add(read(X, (1, 2))).add(read(X, (2,))), {names.INCOMPATIBLE},
    ),
    "applied twice": (Story().add(append(X, 1)).add(read(X, (1, 1))), {names.DUPLICATED}),
    "counted twice": (Story().add(plus(None)).add(read(C, 2)), {names.DUPLICATED}),
    "lost append": (
        Story().add(append(X, 1)).final(read(X, ())), {names.LOST_WRITE},
    ),
    "lost insert": (Story().add(insert(S, 1)).final(read(S, frozenset())), {names.LOST_WRITE}),
    "lost increment": (Story().add(plus(None)).final(read(C, 0)), {names.LOST_WRITE}),
    "lost transfer": (
        Story().add(Op("transfer", B, (1, 0, 1, 5))).final(read(B, Bank({0: 100, 1: 100}, {}, frozenset()))),
        {names.LOST_WRITE},
    ),
    "half of it without an answer": (
        Story().add(append(X, 1), append(Y, 1), status="unknown").final(read(X, (1,)), read(Y, ())),
        {names.TORN, names.G_SINGLE},
    ),
    "a session goes back": (
        Story().add(append(X, 1), at=(0, 9000)).add(read(X, (1,)), at=(10, 20), session=7)
        .add(read(X, ()), at=(30, 40), session=7),
        {names.NON_MONOTONIC},
    ),
    "a session misses its commit": (
        Story().add(append(X, 1), at=(0, 1), session=7).add(read(X, ()), at=(2, 3), session=7),
        {names.OWN_COMMIT_UNSEEN},
    ),
    "versions in a circle": (
        Story().add(Op("write", R, 1)).add(Op("write", R, 2))
        .add(read(R, Register(1, 2))).add(read(R, Register(2, 1))),
        {names.CYCLIC_VERSIONS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANOMALIES)
def test_each_anomaly_has_its_name(name: str) -> None:
    story, wanted = ANOMALIES[name]
    found = {n for n in names_of(anomalies_of(story.history)) if not n.endswith((names.BY_TIME, names.BY_SESSION))}
    assert wanted <= found
    assert found <= wanted | {names.G_SINGLE, names.LOST_UPDATE, names.G2_ITEM}  # the same fault as a cycle
    assert names_of(check(story.history, names.STRICT_SERIALIZABLE)) >= wanted


SOUND = {
    "one after the other": Story().add(read(X, ()), append(X, 1)).add(read(X, (1,)), append(X, 2))
    .final(read(X, (1, 2))),
    "own writes seen": Story().add(append(X, 1), read(X, (1,)), append(X, 2), read(X, (1, 2)), insert(S, 1),
                                   read(S, frozenset({1})), Op("write", R, 5), read(R, Register(5, 0)), plus(1),
                                   read(C, 1), plus(2)).final(read(X, (1, 2)), read(C, 2)),
    "taken back": Story().add(append(X, 1), Op("savepoint", value="a"), append(X, 2), read(X, (1, 2)),
                              Op("rollback_to", value="a"), read(X, (1,)), append(X, 3)).final(read(X, (1, 3))),
    "no answer, and nothing there": Story().add(append(X, 1), append(Y, 1), status="unknown")
    .final(read(X, ()), read(Y, ())),
    "no answer, and all there": Story().add(append(X, 1), append(Y, 1), status="unknown")
    .final(read(X, (1,)), read(Y, (1,))),
    "no answer, and counted or not": Story().add(plus(None), status="unknown").add(plus(None)).final(read(C, 2)),
    "failed, and nothing there": Story().add(append(X, 1), status="fail").final(read(X, ())),
    "a whole transfer": Story().add(Op("transfer", B, (1, 0, 1, 5)))
    .final(read(B, Bank({0: 95, 1: 105}, {0: -5, 1: 5}, frozenset({1})))),
    "a view that knows nothing of what is not committed": Story().add(append(X, 1), read(X, (), "lists_view"))
    .final(read(X, (1,))),
    "blind writes": Story().add(Op("write", R, 1)).add(Op("write", R, 2)).final(read(R, Register(1))),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name: str) -> None:
    assert anomalies_of(SOUND[name].history) == []


def test_a_read_that_is_behind_breaks_only_the_order_of_time() -> None:
    story = Story().add(append(X, 1), at=(0, 1)).add(read(X, ()), at=(5, 6))
    assert check(story.history, names.SERIALIZABLE) == []
    assert check(story.history, names.SESSION_SERIALIZABLE) == []
    assert names_of(check(story.history, names.STRICT_SERIALIZABLE)) == {names.G_SINGLE + names.BY_TIME}


def test_a_session_that_forgets_breaks_the_order_of_the_session() -> None:
    story = Story().add(Op("write", R, 1), at=(0, 1), session=3).add(read(R, Register(0)), at=(5, 6), session=3)
    assert check(story.history, names.SERIALIZABLE) == []
    found = names_of(check(story.history, names.SESSION_SERIALIZABLE))
    assert found == {names.G_SINGLE + names.BY_SESSION}


def test_reads_of_views_may_be_behind_but_not_go_back() -> None:
    behind = Story().add(append(X, 1), at=(0, 1)).add(read(X, (), "v"), at=(5, 6), freshness="any")
    assert check(behind.history, names.STRICT_SERIALIZABLE) == []
    back = Story().add(append(X, 1), at=(0, 1)).add(read(X, (1,), "v"), at=(2, 3), freshness="any")
    back.add(read(X, (), "v"), at=(5, 6), freshness="any")
    assert names_of(check(back.history, names.STRICT_SERIALIZABLE)) == {names.G_SINGLE + names.BY_TIME}
    other = Story().add(append(X, 1), at=(0, 1)).add(read(X, (1,), "v"), at=(2, 3), freshness="any")
    other.add(read(X, (), "w"), at=(5, 6), freshness="any")
    assert check(other.history, names.STRICT_SERIALIZABLE) == []


def test_a_restart_forgets_the_epoch_that_was_shown_and_not_what() -> None:
    """A relation that has not changed may be shown at an earlier epoch then, beside a view that is behind."""

    def story(*kills_ns: int, seen: Register) -> History:
        told = Story().add(Op("write", R, 1), at=(0, 1)).add(append(X, 1), at=(2, 3), session=1)
        told.add(read(R, Register(1, 0)), at=(4, 5), session=1)
        told.add(read(X, (), "v"), read(R, seen), at=(8, 9), freshness="any")
        told.history.kills_ns += kills_ns
        return told.history

    by_time = {names.G_SINGLE + names.BY_TIME}
    assert names_of(check(story(seen=Register(1, 0)), names.STRICT_SERIALIZABLE)) == by_time
    assert names_of(check(story(7, 10, seen=Register(1, 0)), names.STRICT_SERIALIZABLE)) == set()
    assert names_of(check(story(2, 10, seen=Register(1, 0)), names.STRICT_SERIALIZABLE)) == by_time
    assert names_of(check(story(7, seen=Register(0)), names.STRICT_SERIALIZABLE)) == by_time


def test_a_session_waits_for_what_it_has_written_and_for_nothing_else() -> None:
    """Its reads of views may be behind what it has only seen; a write that it took back is none."""

    def session(*taken_back: Op) -> Story:
        story = Story().add(Op("write", R, 1), at=(0, 1), session=1)
        seen = read(R, Register(1, 0))
        story.add(Op("savepoint", value="a"), append(X, 2), *taken_back, seen, at=(5, 6), session=3)
        return story.add(read(R, Register(0), "v"), at=(7, 8), session=3, freshness="session")

    assert check(session(Op("rollback_to", value="a")).history, names.STRICT_SERIALIZABLE) == []
    found = names_of(check(session().history, names.STRICT_SERIALIZABLE))
    assert found == {names.G_SINGLE + names.BY_SESSION}


def test_the_weaker_levels_allow_what_they_are_known_for() -> None:
    skew, lost = ANOMALIES["write skew"][0], ANOMALIES["lost update of a register"][0]
    fork = ANOMALIES["long fork"][0]
    assert check(skew.history, names.SNAPSHOT_ISOLATION) == []
    assert check(lost.history, names.READ_COMMITTED) == []
    assert names_of(check(lost.history, names.SNAPSHOT_ISOLATION)) == {names.LOST_UPDATE}
    assert names_of(check(fork.history, names.SNAPSHOT_ISOLATION)) == {names.G_NONADJACENT}


def test_a_history_is_the_same_after_it_was_written_down(tmp_path: Path) -> None:
    for number, story in enumerate([*SOUND.values(), *(s for s, _ in ANOMALIES.values())]):
        save(story.history, tmp_path / f"{number}.jsonl")
        assert load(tmp_path / f"{number}.jsonl") == story.history


def test_a_history_that_was_written_down_can_be_looked_at_again(tmp_path: Path) -> None:
    save(ANOMALIES["write skew"][0].history, tmp_path / "h.jsonl")
    text = report(load(tmp_path / "h.jsonl"), set())
    assert names.G2_ITEM in text and "append list 2 1 plain" in text and "T0 session 0 ok" in text
