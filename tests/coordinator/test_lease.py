"""The lease: when a standby may take over; alone, and several servers under random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.coordinator.decide.lease import Lease, Sign, Watch, look_interval_s, renewal_interval_s

LENGTH_MS = 3_000


def sign(renewal: int, token: int = 1, *, length_ms: int = LENGTH_MS, released: bool = False) -> Sign:
    return Sign(token, renewal, length_ms, released)


def looks(watch: Watch, found: Sign, *times_s: float) -> None:
    for at_s in times_s:
        watch.looked(found, at_s, at_s)


def test_a_lease_runs_out_when_it_was_seen_unchanged_for_its_length() -> None:
    watch = Watch()
    looks(watch, sign(1), 10.0, 11.0, 12.0, 12.9)
    assert not watch.due
    looks(watch, sign(1), 13.0)
    assert watch.due


def test_a_renewal_begins_it_anew() -> None:
    watch = Watch()
    looks(watch, sign(1), 10.0, 11.0, 12.0)
    looks(watch, sign(2), 13.0, 14.0, 15.0, 15.9)
    assert not watch.due
    looks(watch, sign(2), 16.0)
    assert watch.due


def test_another_owner_begins_it_anew() -> None:
    watch = Watch()
    looks(watch, sign(1), 10.0, 11.0, 12.0)
    looks(watch, sign(1, token=2), 13.0, 14.0)
    assert not watch.due


def test_who_was_stopped_itself_counts_nothing_of_that_time() -> None:
    watch = Watch()
    looks(watch, sign(1), 10.0, 11.0)
    looks(watch, sign(1), 60.0)
    assert not watch.due, "the owner may have been stopped by the same cause, or its renewals not been seen"
    looks(watch, sign(1), 61.0, 62.0, 63.0)
    assert watch.due


def test_who_cannot_reach_the_catalog_counts_nothing_of_that_time() -> None:
    watch = Watch()
    looks(watch, sign(1), 10.0, 11.0, 12.0)
    watch.missed()
    looks(watch, sign(1), 13.0)
    assert not watch.due
    looks(watch, sign(1), 14.0, 15.0, 16.0)
    assert watch.due


def test_a_look_that_takes_long_counts_from_its_end_to_the_next_beginning() -> None:
    watch = Watch()
    watch.looked(sign(1), 10.0, 11.4)
    watch.looked(sign(1), 11.4, 12.8)
    watch.looked(sign(1), 12.8, 14.3)
    assert watch.silent_s == pytest.approx(1.4)
    assert not watch.due


def test_a_released_lease_is_due_at_once() -> None:
    watch = Watch()
    looks(watch, sign(7, released=True), 10.0)
    assert watch.due


def test_without_a_lease_nobody_takes_over_by_himself() -> None:
    watch = Watch()
    looks(watch, sign(0, length_ms=0), *(10.0 + n for n in range(1000)))
    assert not watch.due


def test_an_earlier_owners_release_says_nothing_of_the_present_one() -> None:
    lease = Lease(3, 9, LENGTH_MS, 100, released=True)
    assert Sign.of(3, lease).released
    assert not Sign.of(4, lease).released
    assert Sign.of(4, lease).length_ms == LENGTH_MS, "nobody else's is known"


def test_intervals() -> None:
    assert renewal_interval_s(LENGTH_MS) == 1.0
    assert look_interval_s(LENGTH_MS, 10.0) == 0.25
    assert look_interval_s(LENGTH_MS, 0.1) == 0.1
    assert look_interval_s(0, 0.5) == 0.5


# ---- several servers


@dataclass
class Catalog:
    """What is durable: the fencing token and the lease, and every change of them in order."""

    token: int = 1
    renewal: int = 0
    released: bool = False
    owners: list[str] = field(default_factory=lambda: ["a"])
    written: list[tuple[int, str]] = field(default_factory=list)
    """Token at the time of each write, and who wrote."""

    def sign(self) -> Sign:
        return Sign(self.token, self.renewal, LENGTH_MS, self.released)

    def fence(self, who: str, succeeding: int) -> bool:
        if succeeding != self.token:
            return False
        self.token, self.released = self.token + 1, False
        self.owners.append(who)
        return True


@dataclass
class Server:
    """One server: active, or a standby; `pace` is how fast its clock runs, `offset_s` what it shows at the start."""

    name: str
    catalog: Catalog
    pace: float
    offset_s: float
    active: bool = False
    token: int = 0
    stopped_until_s: float = 0.0
    cut_until_s: float = 0.0
    next_s: float = 0.0
    watch: Watch = field(default_factory=Watch)

    def clock_s(self, now_s: float) -> float:
        return self.offset_s + now_s * self.pace

    def step(self, now_s: float) -> None:
        if now_s < max(self.stopped_until_s, self.next_s):
            return
        if self.active:
            self._own(now_s)
        else:
            self._watch(now_s)

    def _own(self, now_s: float) -> None:
        self.next_s = now_s + renewal_interval_s(LENGTH_MS) / self.pace
        if now_s < self.cut_until_s:
            self.next_s = now_s + 0.1
            return
        if self.token != self.catalog.token:  # fenced: it ends, and is started again as a standby
            self.active, self.watch = False, Watch()
            return
        self.catalog.renewal += 1
        self.catalog.written.append((self.token, self.name))

    def _watch(self, now_s: float) -> None:
        self.next_s = now_s + look_interval_s(LENGTH_MS, 0.5) / self.pace
        at_s = self.clock_s(now_s)
        if now_s < self.cut_until_s:
            self.watch.missed()
            return
        found = self.catalog.sign()
        self.watch.looked(found, at_s, at_s + 0.01)
        if self.watch.due:
            # Between the decision and the fence it may be stopped for any time: the fence names whom it succeeds.
            if self.catalog.fence(self.name, found.token):
                self.active, self.token, self.next_s = True, self.catalog.token, now_s
            else:
                self.watch.missed()


def play(seed: int, names: str, *, skew: bool) -> tuple[Catalog, list[Server]]:
    """A random history: pauses, partitions, crashes. At its end all are well."""
    rng = random.Random(seed)
    catalog = Catalog()
    servers = [
        Server(n, catalog, rng.uniform(0.85, 1.15) if skew else 1.0, rng.uniform(-1e6, 1e6) if skew else 0.0)
        for n in names
    ]
    servers[0].active, servers[0].token = True, 1
    now_s = 0.0
    while now_s < 120.0:
        now_s += 0.05
        for server in rng.sample(servers, len(servers)):
            if now_s < 90.0 and rng.random() < 0.002:
                server.stopped_until_s = now_s + rng.uniform(0.0, 12.0)
            if now_s < 90.0 and rng.random() < 0.002:
                server.cut_until_s = now_s + rng.uniform(0.0, 12.0)
            server.step(now_s)
    return catalog, servers


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("skew", [False, True])
def test_one_server_owns_at_a_time_and_in_the_end_there_is_one(names: str, skew: bool) -> None:
    handovers = 0
    for seed in range(60):
        catalog, servers = play(seed, names, skew=skew)
        tokens = [token for token, _ in catalog.written]
        assert tokens == sorted(tokens), f"seed {seed}: a server that was shut out has written"
        for token in set(tokens):
            assert len({who for t, who in catalog.written if t == token}) == 1, f"seed {seed}: two owners at {token}"
        assert [s.name for s in servers if s.active and s.token == catalog.token] == [catalog.owners[-1]], (
            f"seed {seed}"
        )
        handovers += len(catalog.owners) - 1
    assert handovers > 100, "the histories show nothing"


def test_nobody_is_succeeded_while_all_are_well() -> None:
    """With clocks that run fast and slow by up to a fifth, and show anything."""
    for seed in range(100):
        rng = random.Random(seed)
        catalog = Catalog()
        servers = [Server(n, catalog, rng.uniform(0.8, 1.2), rng.uniform(-1e6, 1e6)) for n in "abc"]
        servers[0].active, servers[0].token = True, 1
        for n in range(2000):
            for server in rng.sample(servers, 3):
                server.step(n * 0.05)
        assert catalog.owners == ["a"], f"seed {seed}"


def test_of_two_that_decide_at_once_one_wins() -> None:
    catalog = Catalog()
    standbys = [Server(n, catalog, 1.0, 0.0) for n in "bc"]
    now_s = 0.0
    while len(catalog.owners) == 1:
        now_s += 0.05
        for server in standbys:
            server.step(now_s)
    for n in range(1000):
        for server in standbys:
            server.step(now_s + n * 0.05)
    assert catalog.owners == ["a", "b"]
    assert [s.active for s in standbys] == [True, False]
