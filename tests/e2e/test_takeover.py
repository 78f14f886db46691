"""Two real servers on one catalog in PostgreSQL: whatever happens to the active one, the other goes on for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from failover import DEFINITIONS, Load, Pair, check, cut_off, freezes, happens, object_store

from headrace.errors import FENCED_EXIT_CODE
from postgres import Postgres
from server import HOST, Server, differences
from support import eventually

QUICK = {"HEADRACE_LEASE_MS": "2000"}


def catalog_in(postgres: Postgres) -> str:
    name = f"t{uuid.uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name}")
    return f"postgresql://root@{HOST}:{postgres.port}/{name}"


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("takeover")
    found = Pair(folder, catalog_in(postgres), str(folder / "state"), QUICK)
    try:
        yield found.start()
    finally:
        found.close()


def psql(pair: Pair, attributes: str) -> str:
    """Which port psql comes to with both addresses."""
    ports = ",".join(str(s.fixed_port) for s in pair.servers)
    target = f"host={HOST},{HOST} port={ports} user=root dbname=dev target_session_attrs={attributes}"
    command = ["psql", "-X", "-A", "-t", "-c", "\\echo :PORT", target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def expected(pair: Pair) -> dict[str, Server]:
    return {
        "read-write": pair.active, "primary": pair.active, "read-only": pair.standby, "standby": pair.standby,
        "prefer-standby": pair.standby,
    }  # fmt: skip


def test_clients_find_the_server_that_they_ask_for(pair: Pair) -> None:
    for attributes, server in expected(pair).items():
        with pair.connect(attributes) as connection:
            assert connection.info.port == server.fixed_port, attributes
    for attributes, server in expected(pair).items() if shutil.which("psql") else ():
        assert psql(pair, attributes) == str(server.fixed_port), attributes


def test_a_standby_serves_reads_and_refuses_writes(pair: Pair) -> None:
    pair.active.execute("INSERT INTO entries VALUES (-1, -1, 5)", "FLUSH")
    notices: list[str] = []

    def there() -> bool:
        return pair.standby.rows("SELECT n, total FROM by_client WHERE client = -1") == [(1, 5)]

    eventually(there, "the standby to show it")
    with pair.connect("standby") as connection:
        connection.add_notice_handler(lambda found: notices.append(str(found.message_primary)))
        assert connection.info.parameter_status("in_hot_standby") == "on"
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
            connection.execute("INSERT INTO entries VALUES (-2, -2, 5)")
        assert f"{HOST}:{pair.active.fixed_port}" in str(caught.value.diag.message_detail)
        role: tuple[Any, ...] | None = connection.execute(
            "SELECT role, address, lease_ms, staleness_ms < 100000 FROM headrace_catalog.server"
        ).fetchone()
        assert role == ("standby", f"{HOST}:{pair.active.fixed_port}", 2000, True)


def test_killed_under_load(pair: Pair) -> None:
    with pair.connect("standby") as idle, Load(pair) as load:
        happens(pair, pair.active.kill, load)
        assert idle.execute("SELECT count(*) > 0 FROM entries").fetchall() == [(True,)]
        assert idle.info.parameter_status("in_hot_standby") == "off"
    assert all(c.connections >= 2 for c in load.clients)
    check(pair, load.acknowledged)
    assert "its lease has run out" in pair.why()


def test_stopped_and_woken_as_a_zombie(pair: Pair) -> None:
    """CM-2, CM-30: what it had under way changes nothing, and its clients are told who has taken over."""
    pair.restart()
    with Load(pair, first=100_000) as load:
        zombie = freezes(pair, load)
        assert zombie.wait_exit() == FENCED_EXIT_CODE
        assert "taken over by" in zombie.log_text()
    check(pair, load.acknowledged)


def test_handed_over_in_order(pair: Pair) -> None:
    pair.restart()
    with Load(pair, first=200_000) as load:
        happens(pair, pair.active.terminate, load)
        assert pair.standby.wait_exit() == 0
    check(pair, load.acknowledged)
    assert "it has stopped" in pair.why()


@pytest.mark.soak
def test_told_to_take_over(pair: Pair) -> None:
    pair.restart()

    def tell() -> None:
        words = ["catalog", "takeover", "--host", HOST, "--port", str(pair.standby.fixed_port)]
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "it was told to" in done.stdout

    with Load(pair, first=300_000) as load:
        happens(pair, tell, load)
        assert pair.standby.wait_exit() == FENCED_EXIT_CODE
    check(pair, load.acknowledged)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_cut_off_from_the_catalog(postgres: Postgres, tmp_path: Path) -> None:
    """The network swallows what the active server says to the catalog: its clients are sent to the other one."""
    sys.path.append(str(Path(__file__).parents[1] / "catalog"))
    from proxy import proxy

    direct = catalog_in(postgres)
    with proxy(postgres.port) as one, proxy(postgres.port) as two:
        ways = [direct.replace(f":{postgres.port}/", f":{p.port}/") for p in (one, two)]
        settings = {**QUICK, "HEADRACE_CATALOG_TIMEOUT_MS": "2000"}
        pair = Pair(tmp_path, ways, str(tmp_path / "state"), settings)
        try:
            pair.start()
            with Load(pair) as load:
                lonely = cut_off(pair, load, one.swallow, one.forward)
                assert lonely.wait_exit() == FENCED_EXIT_CODE
                pair.restart()
                lonely = cut_off(pair, load, two.swallow, two.forward)
                assert lonely.wait_exit() == FENCED_EXIT_CODE
            check(pair, load.acknowledged)
        finally:
            pair.close()


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_one_take_over_after_another(postgres: Postgres, tmp_path: Path) -> None:
    """HEADRACE_TAKEOVERS of them (100), for HEADRACE_TAKEOVER_MINUTES (60) at most, with the state in an S3 server.

    The active server is killed, stopped and woken, ended in order, or shut out by a standby that is told to take over.
    """
    pytest.importorskip("moto", reason="the S3 server is moto's, of the dev extra")
    from object_server import s3_server

    rounds = int(os.environ.get("HEADRACE_TAKEOVERS", "100"))
    until_s = time.monotonic() + 60 * float(os.environ.get("HEADRACE_TAKEOVER_MINUTES", "60"))
    with s3_server() as store:
        settings = {"HEADRACE_LEASE_MS": "5000", **object_store(store.endpoint)}
        pair = Pair(tmp_path, catalog_in(postgres), f"s3://{store.bucket}/{uuid.uuid4().hex}", settings)
        try:
            pair.start()
            with Load(pair) as load:
                for number in range(rounds):
                    if time.monotonic() > until_s:
                        break
                    one_round(pair, load, number)
            check(pair, load.acknowledged)
        finally:
            pair.close()


def told(standby: Server) -> None:
    """Tell it to take over, unless it has just done so by itself: a machine may be too busy to renew a lease."""
    with suppress(psycopg.errors.ObjectNotInPrerequisiteState):
        assert standby.rows("SELECT pg_promote()") == [(True,)], standby.log_text()


def one_round(pair: Pair, load: Load, number: int) -> None:
    kind = ("killed", "stopped", "handed over", "told")[number % 4]
    active = pair.active
    if kind == "killed":
        happens(pair, active.kill, load)
    elif kind == "stopped":
        freezes(pair, load)
        assert active.wait_exit() == FENCED_EXIT_CODE
    elif kind == "handed over":
        happens(pair, active.terminate, load)
        assert active.wait_exit() == 0
    else:
        happens(pair, lambda: told(pair.standby), load)
        assert active.wait_exit() == FENCED_EXIT_CODE
    # Rows go on being written meanwhile: only what was acknowledged before is asked for.
    before = load.acknowledged
    found = {row[0] for row in pair.active.rows("SELECT id FROM entries")}
    assert before <= found, f"round {number} ({kind}) has lost {sorted(before - found)[:10]}"
    if number % 10 == 9:
        for name, definition in DEFINITIONS.items():
            assert differences(pair.active, name, definition) is None, f"round {number} ({kind})"
    print(f"round {number} ({kind}): {len(before)} rows", flush=True)
    pair.restart()
