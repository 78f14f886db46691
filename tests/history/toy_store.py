"""A small database in memory that is strictly serializable, unless it is told which fault to have.

Transactions read the state of the epoch at which they began, and keep their writes for themselves. A commit fails if
anything that the transaction has read or writes has changed since; otherwise everything appears at one new epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from events import Bank, History, Key, Op, Register, Transaction
from programs import ACCOUNTS, BALANCE, Program, Programs, final_program
from running import Lost, Refused, perform

FAULTS = (
    "lost update", "dirty read", "aborted write kept", "read skew", "write skew", "lost acknowledgement",
    "applied twice", "own writes hidden", "change by change", "view at an epoch of its own", "savepoint kept",
    "half a commit", "old reads", "dirty write", "phantoms",
)  # fmt: skip
SELDOM = 0.05


def empty(key: Key) -> Any:
    """The state of a key before the first transaction."""
    match key.kind:
        case "list":
            return ()
        case "set":
            return frozenset()
        case "register":
            return Register(0)
        case "counter":
            return 0
        case "bank":
            return Bank(dict.fromkeys(range(ACCOUNTS), BALANCE), {}, frozenset())


def changed(state: Any, op: Op) -> Any:
    """The state of a key after a write."""
    match op.kind:
        case "append":
            return (*state, op.value)
        case "insert":
            return state | {op.value}
        case "write":
            return Register(op.value, state.value if op.form == "keep" else None)
        case "increment":
            return state + 1
        case _:
            return _moved(state, *op.value)


def _moved(bank: Bank, transfer: int, giver: int, taker: int, amount: int) -> Bank:
    balances, flows = dict(bank.balances), dict(bank.flows)
    for account, by in ((giver, -amount), (taker, amount)):
        balances[account] += by
        flows[account] = flows.get(account, 0) + by
    return Bank(balances, flows, (bank.transfers or frozenset()) | {transfer})


@dataclass
class ToyStore:
    """What is committed, by key and epoch."""

    fault: str = ""
    seed: int = 0
    epoch: int = 0
    states: dict[Key, list[tuple[int, Any]]] = field(default_factory=dict)
    open: list[ToyClient] = field(default_factory=list)
    late: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """Changes that become visible after so many more steps."""

    def __post_init__(self) -> None:
        assert not self.fault or self.fault in FAULTS
        self.random = random.Random(self.seed)

    def at(self, key: Key, epoch: int) -> Any:
        """The state of a key at an epoch."""
        for since, state in reversed(self.states.get(key, [])):
            if since <= epoch:
                return state
        return empty(key)

    def changed_since(self, key: Key, epoch: int) -> bool:
        return bool(self.states.get(key)) and self.states[key][-1][0] > epoch

    def apply(self, ops: Iterable[Op], base: int | None = None) -> None:
        """Make writes visible at one new epoch; on what there is, or on the state of an old epoch."""
        self.epoch += 1
        made: dict[Key, Any] = {}
        for op in ops:
            assert op.key is not None
            state = made.get(op.key, self.at(op.key, self.epoch if base is None else base))
            made[op.key] = changed(state, op)
        for key, state in made.items():
            self.states.setdefault(key, []).append((self.epoch, state))

    def seldom(self) -> bool:
        return self.random.random() < SELDOM

    def tick(self) -> None:
        """A step has been made."""
        self.late = [(left - 1, change) for left, change in self.late]
        due = [change for left, change in self.late if left <= 0]
        self.late = [(left, change) for left, change in self.late if left > 0]
        for change in due:
            change()


class ToyClient:
    """A session of the store."""

    def __init__(self, store: ToyStore):
        self.store = store
        self.log: list[Op] = []

    def begin(self) -> None:
        store = self.store
        old = store.fault == "old reads" and store.random.random() < 0.3
        self.snapshot = max(0, store.epoch - (store.random.randint(1, 5) if old else 0))
        self.read: set[Key] = set()
        self.log = []
        self.savepoints: dict[str, int] = {}
        store.open.append(self)

    def run(self, op: Op, alone: bool) -> Any:
        self.store.tick()
        if alone:
            self.begin()
        result = self._step(op)
        if alone:
            self.commit()
        return result

    def _step(self, op: Op) -> Any:
        if op.kind == "savepoint":
            self.savepoints[op.value] = len(self.log)
        elif op.kind == "rollback_to" and self.store.fault != "savepoint kept":
            del self.log[self.savepoints[op.value] :]
        elif op.writes:
            self.log.append(op)
            assert op.key is not None
            return self._shown(op.key, "table") if op.form == "told" else None
        elif op.kind == "read":
            assert op.key is not None
            return self._shown(op.key, op.via)
        return None

    def _shown(self, key: Key, via: str) -> Any:
        store = self.store
        self.read.add(key)
        epoch = store.epoch if store.fault in ("read skew", "dirty write") else self.snapshot
        if via != "table" and store.fault == "view at an epoch of its own":
            epoch = max(0, epoch - store.random.randint(0, 20))
        state = store.at(key, epoch)
        seen = [self] if via == "table" and store.fault != "own writes hidden" else []
        if store.fault == "dirty read":
            seen = [*(c for c in store.open if c is not self), *seen]
        for client in seen:
            for op in client.log:
                state = changed(state, op) if op.key == key else state
        return state

    def commit(self) -> None:
        store, log = self.store, self.log
        store.tick()
        self._close()
        self._validate()
        if not log:
            return
        answered = not store.seldom()
        if not answered and store.random.random() < 0.5:
            raise Lost("before it was committed")
        if store.fault == "half a commit" and not answered:
            log = log[: max(1, len(log) // 2)]
        self._apply(log)
        if not answered:
            raise Lost("after it was committed")

    def _validate(self) -> None:
        """Nothing that matters has changed since the transaction began."""
        store = self.store
        writes = {op.key for op in self.log if op.key is not None}
        checked: set[Key] = {
            "lost update": set[Key](), "read skew": set[Key](), "dirty write": set[Key](), "write skew": writes,
            "phantoms": writes | {key for key in self.read if key.kind != "set"},
        }.get(store.fault, writes | self.read if writes else set())  # fmt: skip
        if any(store.changed_since(key, self.snapshot) for key in checked):
            raise Refused("40001")

    def _apply(self, log: list[Op]) -> None:
        store = self.store
        if store.fault == "lost acknowledgement" and store.seldom():
            return
        if store.fault == "applied twice" and store.seldom():
            log = [*log, *log]
        if store.fault == "lost update":
            return store.apply(log, base=self.snapshot)
        if store.fault not in ("change by change", "dirty write"):
            return store.apply(log)
        for place, op in enumerate(log):
            delay = store.random.randint(0, 40) if store.fault == "dirty write" else 4 * place
            store.late.append((delay, partial(store.apply, [op])))
        store.late.sort(key=lambda each: each[0])
        store.late, due = [e for e in store.late if e[0] > 0], [e for e in store.late if e[0] <= 0]
        for _, change in due:
            change()

    def rollback(self) -> None:
        self._close()
        if self.store.fault == "aborted write kept" and self.log:
            self.store.apply(self.log)

    def commit_after_error(self) -> None:
        self.rollback()

    def _close(self) -> None:
        self.store.open.remove(self)


def toy_history(seed: int, transactions: int = 300, sessions: int = 5, fault: str = "") -> History:
    """A history of the store: sessions take turns at random, step by step, until so many transactions have begun."""
    store, pick = ToyStore(fault, seed), random.Random(seed)
    history, now = History(balance=BALANCE), 0
    sources = [Programs(seed, 0, session) for session in range(sessions)]
    clients = [ToyClient(store) for _ in range(sessions)]
    running: dict[int, Generator[None, None, Transaction]] = {}
    begun = 0

    def clock_ns() -> int:
        nonlocal now
        now += 1
        return now

    def start(session: int, client: ToyClient, program: Program) -> Generator[None, None, Transaction]:
        return perform(client, program, begun, session, clock_ns, "newest")

    while begun < transactions or running:
        session = pick.randrange(sessions)
        if session not in running and begun < transactions:
            running[session] = start(session, clients[session], sources[session].next())
            begun += 1
        if session in running:
            try:
                next(running[session])
            except StopIteration as end:
                history.transactions.append(end.value)
                del running[session]
    for _ in range(100):
        store.tick()
    store.fault = ""
    last = start(sessions, ToyClient(store), final_program(0))
    history.final = begun
    try:
        while True:
            next(last)
    except StopIteration as end:
        history.transactions.append(end.value)
    return history
