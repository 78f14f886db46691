"""headrace under concurrent transactions over the wire, killed now and then: it keeps the level that it promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anomalies as names
import pytest
from campaign import Campaign
from statements import set_up
from wire import waits_for_own_writes

from server import Server

LEVEL = names.STRICT_SERIALIZABLE
"""What is promised. Reads of views may be behind what others have written; the sessions say so."""
SESSIONS = 6
SECONDS = float(os.environ.get("HEADRACE_HISTORY_S", "5"))
MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES", "60"))
HISTORIES = os.environ.get("HEADRACE_HISTORY_DIR")
"""Where a history with anomalies is kept; by default in the test's scratch directory."""
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))


def settings(session: int) -> list[str]:
    """What a session sets; whatever ends a statement early would hide that it hangs."""
    return ["SET read_your_writes = on"] if waits_for_own_writes(session) else []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        made.start()
        made.execute(*set_up(materialized=True))
        yield made
    finally:
        made.close()


def campaign(server: Server, folder: Path, seed: int, kill_share: float) -> Campaign:
    return Campaign(
        server, LEVEL, Path(HISTORIES or folder), seed, SESSIONS, settings, server.flush, kill_share
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_transactions_are_serializable(server: Server, tmp_path: Path) -> None:
    """Some seconds, with one kill at least."""
    made = campaign(server, tmp_path, seed=20_221, kill_share=0.5)
    made.run(SECONDS, lambda done: done.kills > 0 and done.counts["ok"] >= 100)
    print(made.told())
    assert made.counts["ok"] > made.counts["fail"], made.told()


@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_transactions_are_serializable_for_an_hour(server: Server, tmp_path: Path) -> None:
    """As long as HEADRACE_SOAK_MINUTES says, with a kill in every third round."""
    made = campaign(server, tmp_path, seed=SEED, kill_share=0.33)
    made.run(60 * MINUTES, lambda done: done.kills > 0)
    print(made.told())
    assert made.counts["ok"] > made.counts["fail"], made.told()
