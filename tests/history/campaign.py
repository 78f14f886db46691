"""Round after round of a server under load, killed now and then; each round is checked when it has ended."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
from anomalies import Level
from checker import check, told
from events import History, Transaction, save
from wire import Round

from support import POLL_S

ROUND_S = (3.0, 12.0)
"""How long a round lasts, at least and at most."""
ROUND_TRANSACTIONS = 1200
"""A round ends earlier when there are so many: what a transaction is shown grows with them."""
KEPT_ROUNDS = 200
"""What so many of the rounds held is read again at the end."""


class Killable(Protocol):
    """A server that can be killed and started again."""

    def connect(self, **options: Any) -> psycopg.Connection[Any]: ...
    def kill(self) -> None: ...
    def start(self) -> object: ...


@dataclass
class Campaign:
    """What is run, and what it came to."""

    server: Killable
    level: Level
    folder: Path
    """Where the history of a round that fails is written down."""
    seed: int
    sessions: int
    settings: Callable[[int], Sequence[str]]
    fresh_views: Callable[[], None]
    """Waits until views have taken in everything."""
    kill_share: float
    """Of the rounds in which the server is killed."""
    kills: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    rounds: list[tuple[Round, Transaction]] = field(default_factory=list)
    number: int = 0

    def run(self, seconds: float, enough: Callable[[Campaign], bool] = lambda _: True) -> None:
        """Run for so long, and on until there was enough; raises AssertionError for any anomaly."""
        pick = random.Random(self.seed)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or not enough(self):
            self.number += 1
            left_s = until_s - time.monotonic()
            self._check(self._one_round(pick, min(pick.uniform(*ROUND_S), max(left_s, ROUND_S[0]))))
        self._check_all_again()

    def _one_round(self, pick: random.Random, seconds: float) -> History:
        one = Round(self.server, self.seed, self.number, self.settings)
        kills = pick.random() < self.kill_share
        one.start(self.sessions, self.fresh_views)
        if kills:
            self._load(one, pick.uniform(0.2, seconds), pick.randint(20, ROUND_TRANSACTIONS))
            self.server.kill()
            one.history.kills_ns.append(time.monotonic_ns())
            self.kills += 1
            self.server.start()
        self._load(one, seconds, ROUND_TRANSACTIONS // (2 if kills else 1))
        one.end()
        history = one.read_all(self.fresh_views)
        self.rounds = [*self.rounds, (one, self._final(history))][-KEPT_ROUNDS:]
        return history

    @staticmethod
    def _load(one: Round, seconds: float, transactions: int) -> None:
        """Let the sessions work for so long or so many transactions, whatever is less."""
        until_s, most = time.monotonic() + seconds, len(one.history.transactions) + transactions
        while time.monotonic() < until_s and len(one.history.transactions) < most:
            time.sleep(POLL_S)

    @staticmethod
    def _final(history: History) -> Transaction:
        return next(t for t in history.transactions if t.id == history.final)

    def _check(self, history: History) -> None:
        for t in history.transactions:
            self.counts[t.status] += 1
            self.errors[t.error[:60]] += 1
        found = check(history, self.level)
        if found:
            path = self.folder / f"round-{self.number}.jsonl"
            save(history, path)
            raise AssertionError(f"round {self.number} of seed {self.seed}, written to {path}: {told(found)}")
        history.transactions.clear()  # an hour of them is too much to keep

    def _check_all_again(self) -> None:
        """What the rounds held when they ended they hold still."""
        for one, before in self.rounds:
            again = self._final(one.read_all(lambda: None))
            for old, new in zip(before.ops, again.ops):
                assert old.result == new.result, f"{old.key} was {old.result}, and is {new.result} later"

    def told(self) -> str:
        """What there was of it, for the log."""
        errors = {text: n for text, n in self.errors.most_common(12) if text}
        return f"{self.number} rounds, {self.kills} kills, {dict(self.counts)}, of the others: {errors}"
