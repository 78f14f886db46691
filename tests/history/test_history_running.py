"""What is made of answers and of their absence; what rows say; that programs depend on nothing but the seed."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from events import Bank, Broken, Key, Op, Register, Status
from programs import ACCOUNTS, Program, Programs
from running import Lost, Refused, perform_at_once
from statements import Statement, shown

X = Key("list", 0)
BEGIN, COMMIT, ROLLBACK = "begin", "commit", "rollback"


class Fake:
    """A client that fails at one of its calls."""

    def __init__(self, at: str = "", error: Exception | None = None):
        self.calls: list[str] = []
        self._at, self._error = at, error

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._at and self._error is not None:
            raise self._error

    def begin(self) -> None:
        self._call(BEGIN)

    def commit(self) -> None:
        self._call(COMMIT)

    def rollback(self) -> None:
        self._call(ROLLBACK)

    def commit_after_error(self) -> None:
        self._call("commit after error")

    def run(self, op: Op, alone: bool) -> Any:
        self._call(op.kind)


APPEND, ERROR = Op("append", X, 1), Op("error")
CASES: dict[str, tuple[Program, Fake, Status, list[str]]] = {
    "committed": (Program((APPEND,)), Fake(), "ok", [BEGIN, "append", COMMIT]),
    "alone": (Program((APPEND,), alone=True), Fake(), "ok", ["append"]),
    "rolled back": (Program((APPEND,), commits=False), Fake(), "fail", [BEGIN, "append", ROLLBACK]),
    "refused": (Program((APPEND,)), Fake("append", Refused("40001")), "fail", [BEGIN, "append"]),
    "refused at the end": (Program((APPEND,)), Fake(COMMIT, Refused("40001")), "fail", [BEGIN, "append", COMMIT]),
    "refused alone": (Program((APPEND,), alone=True), Fake("append", Refused("40001")), "fail", ["append"]),
    "lost before the commit": (Program((APPEND,)), Fake("append", Lost()), "fail", [BEGIN, "append"]),
    "lost at the commit": (Program((APPEND,)), Fake(COMMIT, Lost()), "unknown", [BEGIN, "append", COMMIT]),
    "lost alone": (Program((APPEND,), alone=True), Fake("append", Lost()), "unknown", ["append"]),
    "lost in a rollback": (
        Program((APPEND,), commits=False), Fake(ROLLBACK, Lost()), "fail", [BEGIN, "append", ROLLBACK],
    ),
    "an error in it": (Program((ERROR, APPEND)), Fake(), "fail", [BEGIN, "error", "commit after error"]),
    "an error taken back": (
        Program((Op("savepoint", value="a"), ERROR, Op("rollback_to", value="a"), APPEND)), Fake(), "ok",
        [BEGIN, "savepoint", "error", "rollback_to", "append", COMMIT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_an_answer_means(name: str) -> None:
    program, client, status, calls = CASES[name]
    ticks = count(1)
    made = perform_at_once(client, program, 7, 3, lambda: next(ticks), "newest")
    assert (made.status, client.calls) == (status, calls)
    assert (made.id, made.session, made.began_ns, made.ended_ns) == (7, 3, 1, 2)
    # What may have been written is known in any case: should it be seen, it has a writer.
    assert (APPEND in made.ops) == ("append" in calls)


def test_what_rows_say() -> None:
    lists, sets, bank = Op("read", X), Op("read", Key("set", 0)), Op("read", Key("bank", 0))
    assert shown(lists, [(",5,6",)]) == (5, 6) and shown(lists, [("",)]) == ()
    assert isinstance(shown(lists, []), Broken) and isinstance(shown(lists, [("",), ("",)]), Broken)
    assert shown(Op("read", X, via="lists_view"), []) == ()
    assert shown(sets, [(1, 1), (2, 1)]) == frozenset({1, 2})
    assert isinstance(shown(sets, [(1, 1), (1, 1)]), Broken) and isinstance(shown(sets, [(1, 2)]), Broken)
    assert shown(Op("read", Key("register", 0)), [(4, -1)]) == Register(4, None)
    accounts = [(0, a, 100, 0, 0) for a in range(ACCOUNTS)]
    found = shown(bank, [*accounts, (1, 9, 0, 1, 30)])
    assert found == Bank(dict.fromkeys(range(ACCOUNTS), 100), {0: -30, 1: 30, 2: 0, 3: 0}, frozenset({9}))
    assert isinstance(shown(bank, [*accounts, accounts[0]]), Broken)
    assert isinstance(shown(bank, accounts[:2]), Broken) and isinstance(shown(bank, []), Broken)
    assert shown(Op("read", Key("bank", 0), via="bank_view"), []) == Bank({}, {})


def test_a_statement_with_its_values_in_it() -> None:
    assert Statement("UPDATE t SET a = a || %s WHERE id = %s", (",5", 3)).literal() == (
        "UPDATE t SET a = a || ',5' WHERE id = 3"
    )


def test_programs_come_from_the_seed_and_write_no_value_twice() -> None:
    def some(seed: int, number: int, session: int) -> list[Program]:
        made = Programs(seed, number, session)
        return [made.next() for _ in range(200)]

    assert some(1, 1, 0) == some(1, 1, 0) != some(2, 1, 0)
    written = [
        (op.key, op.value) for session in range(3) for program in some(1, 1, session) for op in program.ops
        if op.kind in ("append", "insert", "write")
    ]  # fmt: skip
    assert len(written) == len(set(written)) > 100
    kinds = {op.kind for op in (op for program in some(1, 1, 0) for op in program.ops)}
    assert kinds == {
        "append", "insert", "write", "increment", "transfer", "read", "savepoint", "rollback_to", "error",
    }  # fmt: skip
