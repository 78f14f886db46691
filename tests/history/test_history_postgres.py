"""The checker over PostgreSQL, whose levels are known: it passes what they promise, and finds what they do not."""

from __future__ import annotations

from pathlib import Path

import anomalies as names
import pytest
from anomalies import Level
from campaign import Campaign
from checker import anomalies_of, names_of, told
from events import History
from statements import set_up
from wire import Round

from postgres import Postgres
from support import eventually

SESSIONS = 6
ENOUGH = 600
"""Transactions of a round."""
ROUNDS = 5
"""As many at most, until an anomaly has been seen that a level allows."""

BASES = {"read committed": 10, "repeatable read": 20, "serializable": 30}
"""Where the numbers of a level's rounds begin."""


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Postgres:
    made = postgres.new_database("histories")
    made.execute(*set_up(materialized=False))
    return made


def settings(isolation: str) -> list[str]:
    return [f"SET default_transaction_isolation = '{isolation}'", "SET deadlock_timeout = '20ms'"]


def history_at(database: Postgres, isolation: str, number: int) -> History:
    """A round at a level, of so many transactions."""
    made = Round(database, seed=11, number=number, settings=lambda _: settings(isolation))
    made.start(SESSIONS)
    eventually(lambda: len(made.history.transactions) >= ENOUGH, f"{ENOUGH} transactions")
    made.end()
    history = made.read_all(lambda: None)
    assert history.count("ok") > ENOUGH / 5, [t.error for t in history.transactions if t.error][:20]
    return history


@pytest.mark.parametrize("isolation, level, allowed", [
    ("read committed", names.READ_COMMITTED, {names.LOST_UPDATE, names.G_SINGLE, names.NON_REPEATABLE}),
    ("repeatable read", names.STRONG_SNAPSHOT_ISOLATION, {names.G2_ITEM, names.G2}),
    ("serializable", names.STRICT_SERIALIZABLE, set()),
])  # fmt: skip
def test_each_level_keeps_what_it_promises_and_no_more(
    database: Postgres, isolation: str, level: Level, allowed: set[str]
) -> None:
    seen: set[str] = set()
    for number in range(ROUNDS):
        found = anomalies_of(history_at(database, isolation, BASES[isolation] + number))
        forbidden = [each for each in found if level.forbids(each)]
        assert not forbidden, told(forbidden)
        seen |= names_of(found)
        if allowed <= seen:
            return
    raise AssertionError(f"{isolation} showed only {seen}")


def test_commits_without_an_answer_are_there_or_not(database: Postgres, tmp_path: Path) -> None:
    campaign = Campaign(
        database, names.STRICT_SERIALIZABLE, tmp_path, seed=12, sessions=SESSIONS,
        settings=lambda _: settings("serializable"), fresh_views=lambda: None, kill_share=1.0, number=100,
    )  # fmt: skip
    campaign.run(1.0, lambda done: done.kills > 1 and done.counts["unknown"] > 0)
    print(campaign.told())
