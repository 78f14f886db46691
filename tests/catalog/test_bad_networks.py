"""A catalog behind a network that swallows packets, cuts lines and loses answers: no endless wait, nothing twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from backends import new_database
from http_faults import FAULTS, faulty
from proxy import Proxy, proxy
from sqlalchemy.exc import SQLAlchemyError

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.catalog.moving import Places, move
from headrace.catalog.places import PlaceOptions, canonical
from headrace.errors import Fenced, HeadraceError, StorageError
from object_server import S3Server
from postgres import Postgres, postgres_server

IMPATIENT = PlaceOptions(full_sync=False, connect_timeout_ms=2000, timeout_ms=1500, lease_ms=0)
LONG_S = 60.0
"""Far more than all time-outs together, and less than for ever."""

Place = tuple[str, Proxy, PlaceOptions]


@pytest.fixture(params=["postgres", "s3"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """An empty catalog behind a network."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        with proxy(server.port) as network:
            yield new_database(server, network.port), network, IMPATIENT
        return
    s3: S3Server = request.getfixturevalue("s3")
    with proxy(urlsplit(s3.endpoint).port or 0) as network:
        options = {"endpoint": f"http://127.0.0.1:{network.port}", "allow_http": "true", "region": "us-east-1"}
        made = PlaceOptions(timeout_ms=1500, lease_ms=0, object_options=options)
        yield f"s3://{s3.bucket}/{uuid.uuid4().hex}", network, made


def opened(place: Place) -> Catalog:
    return Catalog.open(place[0], options=place[2])


def write(catalog: Catalog, name: str) -> None:
    catalog.transact([AddEvent("k", None, name)])


def written(catalog: Catalog) -> list[str]:
    return [e.message for e in reversed(catalog.state.newest_events(100))]


def patiently(step: Callable[[], object]) -> None:
    """Do it again and again until the catalog answers: what was in doubt is then known."""
    until_s = time.monotonic() + LONG_S
    while True:
        try:
            step()
            return
        except Fenced:
            raise
        except HeadraceError:
            assert time.monotonic() < until_s


def test_nothing_waits_for_a_network_that_swallows(place: Place) -> None:
    """Each call ends with an error in bounded time, and all goes on when the network is back."""
    catalog, network = opened(place), place[1]
    write(catalog, "a")
    network.swallow()
    since_s = time.monotonic()
    for step in (lambda: write(catalog, "b"), lambda: catalog.state, lambda: opened(place)):
        with pytest.raises(StorageError):
            step()
    assert time.monotonic() - since_s < LONG_S
    network.forward()
    network.cut()
    patiently(lambda: written(catalog))
    assert written(catalog) == ["a"]
    write(catalog, "c")
    with opened(place) as again:
        assert written(again) == ["a", "c"]
    with pytest.raises(Fenced):
        write(catalog, "late")


def test_a_commit_whose_answer_is_lost_is_there_once(place: Place) -> None:
    """I10."""
    catalog, network = opened(place), place[1]
    write(catalog, "a")
    for name in ("b", "c"):
        network.lose_answers.set()
        told = True
        try:
            write(catalog, name)
        except StorageError:
            told = False
        assert not told
        network.lose_answers.clear()
        network.cut()
        patiently(lambda: written(catalog))
    seen = written(catalog)
    assert len(set(seen)) == len(seen)
    write(catalog, "d")
    with opened(place) as again:
        assert written(again) == [*seen, "d"]


def test_lines_that_are_cut_between_two_commits_cost_nothing(place: Place) -> None:
    catalog, network = opened(place), place[1]
    for name in ("a", "b", "c"):
        network.cut()
        write(catalog, name)
        network.cut()
        assert written(catalog)[-1] == name
    with opened(place) as again:
        assert written(again) == ["a", "b", "c"]


def test_a_server_that_is_ended_and_started_again() -> None:
    """A crash of PostgreSQL between two commits: nothing that was acknowledged is lost."""
    with postgres_server() as server:
        url = new_database(server)
        catalog = Catalog.open(url, options=IMPATIENT)
        for round_ in range(3):
            write(catalog, f"{round_}")
            server.kill()
            with pytest.raises(StorageError):
                catalog.state
            server.start()
            patiently(lambda: written(catalog))
            assert written(catalog) == [f"{n}" for n in range(round_ + 1)]
        with Catalog.open(url, options=IMPATIENT) as again:
            assert written(again) == ["0", "1", "2"]


def test_who_is_cut_off_within_a_transaction_does_not_hold_up_the_next_opener(postgres: Postgres) -> None:
    """Its lock goes when it has been silent for a while, though its server does not know that it has gone."""
    with proxy(postgres.port) as network:
        url = new_database(postgres, network.port)
        catalog = Catalog.open(url, options=IMPATIENT)
        store: Any = catalog._store
        direct = url.replace(str(network.port), str(postgres.port))
        with suppress(SQLAlchemyError), store._transaction(write=True) as connection:
            store._compare(connection)
            network.swallow()
            with Catalog.open(direct, options=PlaceOptions(timeout_ms=20_000)) as other:
                write(other, "taken over")
                assert written(other) == ["taken over"]
            network.cut()


POINTS = ("catalog.commit.before", "catalog.fence.before", "catalog.initialize.before", "catalog.replace.before")


def once_at(monkeypatch: pytest.MonkeyPatch, point: str, step: Callable[[], None]) -> list[str]:
    """Let something happen the first time that the database backend passes a point; what has happened so far."""
    happened: list[str] = []

    def passing(name: str) -> None:
        if name == point and not happened:
            happened.append(name)
            step()

    for module in ("stash", "stash_server"):
        monkeypatch.setattr(f"headrace.catalog.{module}.fault_point", passing)
    return happened


@pytest.mark.parametrize("point", POINTS)
def test_connections_that_the_server_ends_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, point: str, postgres: Postgres
) -> None:
    """Within an open, a commit or a move: nothing is lost or doubled."""
    urls = new_database(postgres), new_database(postgres)

    def end() -> None:
        for url in urls:
            postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url[-33:]}'")

    interrupted(monkeypatch, point, *urls, end)


def test_a_server_that_is_restarted_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL crashes and comes back within a commit, then within a move."""
    with postgres_server() as server:

        def restart() -> None:
            server.kill()
            server.start()

        for point in ("catalog.commit.before", "catalog.replace.before"):
            with monkeypatch.context() as patched:
                interrupted(patched, point, new_database(server), new_database(server), restart)


def interrupted(
    monkeypatch: pytest.MonkeyPatch, point: str, url: str, there: str, interrupt: Callable[[], None]
) -> None:
    """A write, then a move, one of which is interrupted."""
    with Catalog.open(url, options=IMPATIENT) as catalog:
        write(catalog, "a")
        happened = once_at(monkeypatch, point, interrupt)
        with suppress(StorageError):
            write(catalog, "b")
        seen = patient_result(lambda: written(catalog))
        assert seen in (["a"], ["a", "b"])
    places = Places(IMPATIENT)
    patiently(lambda: move(canonical(url), canonical(there), places))
    with Catalog.find(canonical(url), places) as catalog:
        assert catalog.location == canonical(there) and written(catalog) == seen
        write(catalog, "c")
        assert written(catalog) == [*seen, "c"]
    assert happened == [point]


def patient_result(step: Callable[[], list[str]]) -> list[str]:
    found: list[list[str]] = []
    patiently(lambda: found.append(step()))
    return found[-1]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_an_object_store_that_throttles_and_loses_answers(s3: S3Server, seed: int) -> None:
    """I10: whatever becomes of requests to a real server, each transaction is there once or never."""
    random = Random(seed)
    quiet = [True]

    def choose(method: str) -> str:
        return "" if quiet[0] else random.choices(FAULTS, (3, 2, 1, 2, 12))[0]

    with faulty(s3.endpoint, choose) as (endpoint, faults):
        options = {"endpoint": endpoint, "allow_http": "true", "region": "us-east-1"}
        made = PlaceOptions(timeout_ms=3000, lease_ms=0, object_options=options)
        url = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
        catalog = Catalog.open(url, options=made)
        quiet[0] = False
        acknowledged, given_up = [], []
        for n in range(25):
            try:
                write(catalog, f"{n}")
                acknowledged.append(f"{n}")
            except HeadraceError:
                given_up.append(f"{n}")
        quiet[0] = True
        seen = patient_result(lambda: written(catalog))
        assert len(seen) == len(set(seen)) and set(acknowledged) <= set(seen) <= {*acknowledged, *given_up}
        assert sum(faults.seen.values()) > 25 and all(faults.seen[f] for f in ("throttled", "lost"))
        quiet[0] = False
        patiently(lambda: Catalog.open(url, options=made).close())
        quiet[0] = True
        with Catalog.open(url, options=made) as again:
            assert written(again) == seen
