"""What the sessions of a history do: random transactions, the same ones for the same seed.

A *program* is a transaction before it has run. It does not depend on what it is shown, so that it can be made anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from events import Freshness, Key, KeyKind, Op, Transaction

ACCOUNTS = 4
"""Of each bank."""
BALANCE = 1000
"""Of each account at the start."""
PER_KIND = {"list": 4, "set": 2, "register": 4, "counter": 2, "bank": 1}
"""Keys of a round. Few, so that transactions meet; of lists half lie in a table that has no primary key."""
FORMS = {
    "append": ("plain", "by view", "from"),
    "insert": ("plain", "select", "from"),
    "write": ("keep", "keep", "blind", "replace"),
    "increment": ("told", "told", "plain"),
    "transfer": ("plain",),
}
"""Statements that do the same: the update by key and one that looks in a view for it, for instance."""
WRITE_OF: dict[KeyKind, str] = {
    "list": "append", "set": "insert", "register": "write", "counter": "increment", "bank": "transfer",
}  # fmt: skip
VIEWS: dict[KeyKind, str] = {
    "list": "lists_view", "set": "members_view", "counter": "counters_view", "bank": "bank_view",
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A transaction to be run."""

    ops: tuple[Op, ...]
    alone: bool = False
    commits: bool = True
    """It ends with COMMIT; otherwise with ROLLBACK."""

    def freshness(self, own: bool) -> Freshness:
        """What it may rely on, in a session that waits for its own writes or does not."""
        if all(op.via == "table" for op in self.ops) and (self._lasting() or not self._writes_by_view()):
            return "newest"
        return "session" if own else "any"

    def _writes_by_view(self) -> bool:
        return any(op.form == "by view" for op in self.ops)

    def _lasting(self) -> bool:
        """Whether a commit makes any write last: then all that it has read was the newest, views and all."""
        return any(True for _ in Transaction(0, 0, self.ops, "ok", 0, 0).lasting())


def keys_of_round(number: int) -> list[Key]:
    """The keys of a round, which no other round has."""
    return [Key(kind, 100 * number + place) for kind, count in PER_KIND.items() for place in range(count)]  # type: ignore[arg-type]


class Programs:
    """The programs of one session in one round."""

    def __init__(self, seed: int, number: int, session: int, views: bool = True):
        self._random = random.Random(f"{seed}/{number}/{session}")
        self._keys = keys_of_round(number)
        self._views = views
        # Values are never used again: by round, session and count.
        self._values = self._numbers(number, session)
        self._savepoints = 0

    @staticmethod
    def _numbers(number: int, session: int) -> Iterator[int]:
        value = (number * 100 + session) * 10_000
        while True:
            value += 1
            yield value

    def next(self) -> Program:
        """The next one."""
        pick = self._random.random()
        if pick < 0.25:
            return Program((self._op(set()),), alone=True)
        if pick < 0.35:
            return self._look_around()
        if pick < 0.5:
            return self._change_what_was_read()
        return self._mixed()

    # ---- kinds of programs

    def _look_around(self) -> Program:
        """Reads several keys, each perhaps by its table and its view."""
        keys = self._random.sample(self._keys, 4)
        ops = [self._read(key, set()) for key in keys]
        return Program((*ops, self._read(keys[0], set())))

    def _change_what_was_read(self) -> Program:
        """Reads some keys and writes one of them, or another: a lost update or a skew, if nobody looks out."""
        kind = self._random.choice(("set", "list", "register", None))
        keys = self._random.sample([key for key in self._keys if kind in (key.kind, None)], 2)
        written = self._random.choice(keys)
        return Program((*(Op("read", key) for key in keys), self._write(written), Op("read", written)))

    def _mixed(self) -> Program:
        ops: list[Op] = []
        written: set[Key] = set()
        for _ in range(self._random.randint(1, 4)):
            if self._random.random() < 0.12:
                ops += self._taken_back(written)
            else:
                self._add(ops, written)
        if self._random.random() < 0.06:
            ops.append(Op("error", form=self._random.choice(("missing", "null"))))
        return Program(tuple(ops), commits=self._random.random() >= 0.05)

    def _taken_back(self, written: set[Key]) -> list[Op]:
        """A savepoint, some steps, perhaps an error, and back to it; or no way back."""
        self._savepoints += 1
        name = f"s{self._savepoints}"
        ops = [Op("savepoint", value=name)]
        for _ in range(self._random.randint(1, 2)):
            self._add(ops, written)
        if self._random.random() < 0.4:
            ops.append(Op("error", form=self._random.choice(("missing", "null"))))
        elif self._random.random() < 0.3:
            return ops
        return [*ops, Op("rollback_to", value=name)]

    # ---- steps

    def _add(self, ops: list[Op], written: set[Key]) -> None:
        op = self._op(written)
        ops.append(op)
        if op.writes and op.key is not None:
            written.add(op.key)

    def _op(self, written: set[Key]) -> Op:
        key = self._random.choice(self._keys)
        return self._write(key) if self._random.random() < 0.55 else self._read(key, written)

    def _read(self, key: Key, written: set[Key]) -> Op:
        by_view = self._views and key.kind in VIEWS and key not in written and self._random.random() < 0.3
        return Op("read", key, via=VIEWS[key.kind] if by_view else "table")

    def _write(self, key: Key) -> Op:
        kind, value = WRITE_OF[key.kind], next(self._values)
        form = self._random.choice(FORMS[kind])
        if kind == "transfer":
            giver, taker = self._random.sample(range(ACCOUNTS), 2)
            return Op("transfer", key, (value, giver, taker, self._random.randint(1, 50)), form=form)
        return Op(kind, key, 1 if kind == "increment" else value, form=form)  # type: ignore[arg-type]


def final_program(number: int) -> Program:
    """Reads all keys of a round."""
    return Program(tuple(Op("read", key) for key in keys_of_round(number)))
