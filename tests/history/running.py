"""Runs programs on a client and writes down what came of it: over the wire as fast as may be, or step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Protocol

from events import Freshness, Op, Status, Transaction
from programs import Program


class Refused(Exception):
    """The transaction has failed: nothing of it has happened."""


class Lost(Exception):
    """The connection has broken, or the answer says that nobody knows; what was under way may have happened."""


class Client(Protocol):
    """A session of a database. All raise Refused or Lost."""

    def begin(self) -> None: ...
    def run(self, op: Op, alone: bool) -> Any:
        """One step; what it was told."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def commit_after_error(self) -> None:
        """COMMIT of a transaction in which a statement has failed."""


class _Run:
    """One program on one client."""

    def __init__(self, client: Client, program: Program):
        self.client, self.program = client, program
        self.ops: list[Op] = []

    def steps(self) -> Generator[None, None, tuple[Status, str]]:
        deciding = False
        try:
            if not self.program.alone:
                self.client.begin()
            for place, op in enumerate(self.program.ops):
                yield
                deciding = self.program.alone
                self.ops.append(op)
                self.ops[-1] = replace(op, result=self.client.run(op, self.program.alone))
                if op.kind == "error" and not self._goes_back(place):
                    self.client.commit_after_error()
                    return "fail", "meant to fail"
            yield
            if self.program.commits:
                deciding = True
                if not self.program.alone:
                    self.client.commit()
                return "ok", ""
            self.client.rollback()
            return "fail", "meant to be rolled back"
        except Refused as error:
            return "fail", str(error)
        except Lost as error:
            return ("unknown" if deciding else "fail"), str(error)

    def _goes_back(self, place: int) -> bool:
        following = self.program.ops[place + 1 : place + 2]
        return bool(following) and following[0].kind == "rollback_to"


def perform(
    client: Client, program: Program, number: int, session: int, clock_ns: Callable[[], int], freshness: Freshness
) -> Generator[None, None, Transaction]:
    """Run a program; yields before each of its steps, and returns what came of it."""
    run = _Run(client, program)
    began_ns = clock_ns()
    status, error = yield from run.steps()
    return Transaction(
        number, session, tuple(run.ops), status, began_ns, clock_ns(), program.alone, freshness, error
    )  # fmt: skip


def perform_at_once(
    client: Client, program: Program, number: int, session: int, clock_ns: Callable[[], int], freshness: Freshness
) -> Transaction:
    """The same without a pause."""
    steps = perform(client, program, number, session, clock_ns, freshness)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Transaction = end.value
            return result
