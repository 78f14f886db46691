"""What the transactions of a history saw of the writes of others, with their own writes taken out.

An *external read* is what a transaction saw of a key as others had left it. Its own writes are checked on the way and
taken off; steps that it took back by a savepoint count as its own until then, and as nobody's afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import anomalies as names
from anomalies import Anomaly
from events import Bank, Broken, History, Key, Op, Register, Transaction


@dataclass(frozen=True)
class External:
    """What a transaction saw of a key, without what it had written itself.

    `version` is a tuple (list), a frozenset (set, transfers of a bank), a value (register) or a number (counter).
    """

    transaction: Transaction
    key: Key
    version: Any
    via: str = "table"
    before_write: bool = False
    """The transaction wrote the key afterwards, by what it had seen or not."""
    before: int | None = None
    """Of a register: the value that was replaced by the one seen; None if that is not known."""


@dataclass
class Observations:
    """A history, looked through once."""

    history: History
    committed: list[Transaction] = field(default_factory=list)
    """Those that were acknowledged, and those without an answer of which something was seen."""
    writers: dict[tuple[Key, int], tuple[Transaction, Op]] = field(default_factory=dict)
    """Who wrote a value of a list, set, register or bank, committed or not, taken back or not."""
    lasting: dict[Key, dict[int, Transaction]] = field(default_factory=lambda: defaultdict(dict))
    """The values that committed transactions have made last, by key."""
    externals: list[External] = field(default_factory=list)
    found: list[Anomaly] = field(default_factory=list)
    final: Transaction | None = None

    def report(self, name: str, text: str, *transactions: Transaction) -> None:
        self.found.append(Anomaly(name, tuple(t.id for t in transactions), text))


def written_value(op: Op) -> int:
    """What identifies a write among all of its key."""
    return op.value[0] if op.kind == "transfer" else op.value


def seen_values(op: Op) -> Iterator[int]:
    """The values of a read that name their writers."""
    match op.result:
        case tuple() | frozenset():
            yield from op.result
        case Register(value) if value:
            yield value
        case Bank(transfers=frozenset() as transfers):
            yield from transfers


def observe(history: History) -> Observations:
    """Look through a history: who wrote what, which transactions count, and what each saw of the others."""
    seen = Observations(history)
    for t in history.transactions:
        for op in t.ops:
            if op.writes and op.kind != "increment":
                assert op.key is not None
                seen.writers[op.key, written_value(op)] = (t, op)
    seen.committed = _committed(seen)
    for t in seen.committed:
        for op in t.lasting():
            if op.kind != "increment":
                assert op.key is not None
                seen.lasting[op.key][written_value(op)] = t
    for t in seen.committed:
        _Walk(seen, t).run()
    seen.final = next((t for t in seen.committed if t.id == history.final), None)
    return seen


def _committed(seen: Observations) -> list[Transaction]:
    """Those acknowledged, and those without an answer that one of these, or of the latter, has seen something of."""
    taken = {t.id: t for t in seen.history.transactions if t.status == "ok"}
    unknown = {t.id for t in seen.history.transactions if t.status == "unknown"}
    ahead = list(taken.values())
    while ahead:
        for op in ahead.pop().reads():
            for value in seen_values(op):
                writer = seen.writers.get((op.key, value)) if op.key else None
                if writer and writer[0].id in unknown and writer[0].id not in taken:
                    taken[writer[0].id] = writer[0]
                    ahead.append(writer[0])
    return list(taken.values())


@dataclass
class _Own:
    """What a transaction has written to each key so far and not taken back; a savepoint is a copy."""

    values: dict[Key, list[int]] = field(default_factory=dict)
    counts: Counter[Key] = field(default_factory=Counter)

    def copy(self) -> _Own:
        return _Own({k: list(v) for k, v in self.values.items()}, Counter(self.counts))


class _Walk:
    """One transaction, step by step."""

    def __init__(self, seen: Observations, transaction: Transaction):
        self.seen, self.transaction = seen, transaction
        self.own = _Own()
        self.savepoints: dict[Any, _Own] = {}
        self.first: dict[Key, tuple[Any, str]] = {}
        self.written: set[Key] = set()

    def run(self) -> None:
        start = len(self.seen.externals)
        for op in self.transaction.ops:
            if op.kind == "savepoint":
                self.savepoints[op.value] = self.own.copy()
            elif op.kind == "rollback_to":
                self.own = self.savepoints[op.value].copy()
            elif op.writes:
                self._write(op)
            elif op.kind == "read" and op.key is not None and op.result is not None:
                self._read(op, op.key)
        lasting = {op.key for op in self.transaction.lasting()}
        for place in range(start, len(self.seen.externals)):
            each = self.seen.externals[place]
            self.seen.externals[place] = replace(each, before_write=each.before_write and each.key in lasting)

    def _write(self, op: Op) -> None:
        assert op.key is not None
        if isinstance(op.result, Broken):
            text = f"{self.transaction} wrote {op.key}: {op.result.why}"
            self.seen.report(names.BROKEN, text, self.transaction)
        if op.kind == "increment":
            if isinstance(op.result, int):
                self._external(op.key, op.result - 1 - self.own.counts[op.key], "table")
            self.own.counts[op.key] += 1
        else:
            self.own.values.setdefault(op.key, []).append(written_value(op))
        self.written.add(op.key)

    def _external(self, key: Key, version: Any, via: str, before: int | None = None) -> None:
        fresh = key not in self.written
        self.seen.externals.append(External(self.transaction, key, version, via, fresh, before))
        old, old_via = self.first.setdefault(key, (version, via))
        if old != version:
            name = names.NON_REPEATABLE if old_via == via else names.FRACTURED
            text = f"{self.transaction} saw {_short(old)} of {key} in {old_via}, then {_short(version)} in {via}"
            self.seen.report(name, text, self.transaction)

    def _read(self, op: Op, key: Key) -> None:
        # A view shows what is committed: of a transaction's own writes it knows nothing yet.
        own = self.own.values.get(key, []) if op.via == "table" else []
        match op.result:
            case Broken(why):
                self.seen.report(names.BROKEN, f"{self.transaction} read {key}: {why}", self.transaction)
            case tuple() as shown:
                self._read_list(op, key, shown, own)
            case frozenset() as members:
                self._read_members(key, members, own, op.via)
            case Register(value, before):
                if own and value != own[-1]:
                    self._own_unseen(key, own[-1], value)
                elif not own:
                    self._external(key, value, op.via, before)
            case Bank() as bank:
                self._read_bank(key, bank, own, op.via)
            case int() as count:
                self._external(key, count - (self.own.counts[key] if op.via == "table" else 0), op.via)

    def _read_list(self, op: Op, key: Key, shown: tuple[int, ...], own: list[int]) -> None:
        for value, times in Counter(shown).items():
            if times > 1:
                self.seen.report(names.DUPLICATED, f"{self.transaction} saw {value} {times} times in {key}",
                                 self.transaction)  # fmt: skip
        before = shown[: len(shown) - len(own)]
        if own and list(shown[len(before) :]) != own:
            self._own_unseen(key, own, shown)
            before = tuple(value for value in shown if value not in own)
        self._external(key, before, op.via)

    def _read_members(self, key: Key, members: frozenset[int], own: list[int], via: str) -> None:
        if not set(own) <= members:
            self._own_unseen(key, own, members)
        self._external(key, members - set(own), via)

    def _read_bank(self, key: Key, bank: Bank, own: list[int], via: str) -> None:
        start = self.seen.history.balance
        off = {a: (b, start + bank.flows.get(a, 0)) for a, b in bank.balances.items()}
        if any(b != wanted for b, wanted in off.values()):
            text = f"{self.transaction} saw balances of {key} that its transfers do not give, in {via}: {off}"
            self.seen.report(names.FRACTURED, text, self.transaction)
        if bank.transfers is not None:
            self._read_members(key, bank.transfers, own, via)

    def _own_unseen(self, key: Key, own: object, shown: object) -> None:
        text = f"{self.transaction} wrote {_short(own)} to {key} and saw {_short(shown)}"
        self.seen.report(names.NO_OWN_WRITES, text, self.transaction)


def _short(value: object) -> str:
    """A value as text, of long ones the end."""
    text = str(sorted(value) if isinstance(value, frozenset) else value)
    return text if len(text) <= 120 else f"... {text[-110:]}"
