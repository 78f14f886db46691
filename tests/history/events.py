"""A history: what transactions did, what they were told, and when; and its form as lines of JSON.

Keys name the things that transactions share. Each kind of key tells the checker something else about the order in which
transactions came:

list      values are appended, a read shows all of them in order; `list` is a text in a row that an `UPDATE` grows
set       values are inserted as rows of their own, a read shows which there are, in no order
register  a write replaces the value by one that is written nowhere else, and may keep the value that it replaced
counter   an increment adds one, and may be told the new value
bank      a transfer changes two balances and adds a row that says so, by three statements
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

KeyKind = Literal["list", "set", "register", "counter", "bank"]
OpKind = Literal["append", "insert", "write", "increment", "transfer", "read", "savepoint", "rollback_to", "error"]
Status = Literal["ok", "fail", "unknown"]
Freshness = Literal["newest", "session", "any"]
WRITES = ("append", "insert", "write", "increment", "transfer")


class Key(NamedTuple):
    """One list, set, register, counter or bank."""

    kind: KeyKind
    id: int

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True)
class Register:
    """What a register shows: its value, and the one before if the write has kept it."""

    value: int | None
    before: int | None = None


@dataclass(frozen=True)
class Bank:
    """What a bank shows: balances, what the transfers add up to, both by account, and which transfers there are."""

    balances: Mapping[int, int]
    flows: Mapping[int, int]
    transfers: frozenset[int] | None = None


@dataclass(frozen=True)
class Broken:
    """A read that showed something that no history of writes can give, such as two rows for one key."""

    why: str


@dataclass(frozen=True)
class Op:
    """One step of a transaction; `result` is what it was told, None if nothing (yet)."""

    kind: OpKind
    key: Key | None = None
    value: Any = None
    """Of a write what it adds, of a savepoint its name, of a transfer (id, from, to, amount)."""
    via: str = "table"
    """The relation that a read goes through: the table, or the view that shows the same."""
    form: str = "plain"
    """Which of the equivalent statements does it."""
    result: Any = None

    @property
    def writes(self) -> bool:
        return self.kind in WRITES


@dataclass(frozen=True)
class Transaction:
    """A transaction with what came of it; times in nanoseconds of one clock."""

    id: int
    session: int
    ops: tuple[Op, ...]
    status: Status
    began_ns: int
    ended_ns: int
    alone: bool = False
    """A single statement without BEGIN and COMMIT."""
    freshness: Freshness = "newest"
    """What it may rely on: every transaction that ended before, those of its session, or none."""
    error: str = ""

    def __str__(self) -> str:
        return f"T{self.id}"

    def __hash__(self) -> int:
        return self.id

    def reads(self) -> Iterable[Op]:
        return (op for op in self.ops if op.kind == "read" and op.result is not None)

    def undone(self) -> frozenset[int]:
        """The places of the steps that a ROLLBACK TO took back."""
        gone: set[int] = set()
        savepoints: dict[Any, int] = {}
        for place, op in enumerate(self.ops):
            if op.kind == "savepoint":
                savepoints[op.value] = place
            elif op.kind == "rollback_to":
                gone.update(range(savepoints[op.value] + 1, place))
        return frozenset(gone)

    def lasting(self) -> Iterable[Op]:
        """The writes that a commit makes last."""
        gone = self.undone()
        return (op for place, op in enumerate(self.ops) if op.writes and place not in gone)

    @property
    def read_only(self) -> bool:
        return not any(op.writes for op in self.ops)


@dataclass
class History:
    """Transactions, in any order; and what was there before the first."""

    transactions: list[Transaction] = field(default_factory=list)
    balance: int = 0
    """Of each account of each bank at the start."""
    final: int | None = None
    """The id of a transaction that read every key after all others had ended."""
    kills_ns: list[int] = field(default_factory=list)
    """When the server was killed, in order."""

    def count(self, status: Status) -> int:
        return sum(t.status == status for t in self.transactions)


# ---- as text


def _plain(value: Any) -> Any:
    match value:
        case Register(v, before):
            return {"register": [v, before]}
        case Bank(balances, flows, transfers):
            moves = None if transfers is None else sorted(transfers)
            return {"bank": [sorted(balances.items()), sorted(flows.items()), moves]}
        case Broken(why):
            return {"broken": why}
        case frozenset():
            return {"set": sorted(value)}
        case tuple():
            return {"tuple": list(value)}
        case _:
            return value


def _rich(value: Any) -> Any:
    match value:
        case {"register": [v, before]}:
            return Register(v, before)
        case {"bank": [balances, flows, transfers]}:
            return Bank(dict(balances), dict(flows), None if transfers is None else frozenset(transfers))
        case {"broken": why}:
            return Broken(why)
        case {"set": members}:
            return frozenset(members)
        case {"tuple": members}:
            return tuple(members)
        case _:
            return value


def save(history: History, path: Path) -> None:
    """Write a history down, one transaction a line, so that what failed can be looked at again."""
    lines = [json.dumps({"balance": history.balance, "final": history.final, "kills_ns": history.kills_ns})]
    for t in sorted(history.transactions, key=lambda t: t.began_ns):
        ops = [{**op.__dict__, "value": _plain(op.value), "result": _plain(op.result)} for op in t.ops]
        lines.append(json.dumps({**asdict(t), "ops": ops}))
    path.write_text("\n".join(lines) + "\n")


def load(path: Path) -> History:
    """Read what `save` has written."""
    head, *lines = path.read_text().splitlines()
    made = History(**json.loads(head))
    for line in lines:
        fields = json.loads(line)
        fields["ops"] = tuple(_op(each) for each in fields["ops"])
        made.transactions.append(Transaction(**fields))
    return made


def _op(fields: dict[str, Any]) -> Op:
    key = fields.pop("key")
    values = {name: _rich(fields.pop(name)) for name in ("value", "result")}
    return Op(key=None if key is None else Key(*key), **values, **fields)
