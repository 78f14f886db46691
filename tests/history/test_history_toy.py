"""The checker over a small store: it finds each fault that the store is given, and nothing in the store without one."""

from __future__ import annotations

import anomalies as names
import pytest
from checker import anomalies_of, check, names_of, told
from toy_store import FAULTS, toy_history

EXPECTED = {
    "lost update": {names.LOST_UPDATE},
    "dirty read": {names.G1A},
    "aborted write kept": {names.G1A},
    "read skew": {names.G_SINGLE, names.NON_REPEATABLE},
    "write skew": {names.G2_ITEM, names.G2},
    "lost acknowledgement": {names.LOST_WRITE},
    "applied twice": {names.DUPLICATED},
    "own writes hidden": {names.NO_OWN_WRITES},
    "change by change": {names.G_SINGLE},
    "view at an epoch of its own": {names.FRACTURED, names.NON_MONOTONIC},
    "savepoint kept": {names.G1A},
    "half a commit": {names.TORN},
    "old reads": {names.G_SINGLE + names.BY_TIME},
    "dirty write": {names.G0},
    "phantoms": {names.G2},
}
SEEDS = range(6)


@pytest.mark.parametrize("seed", range(8))
def test_the_sound_store_passes(seed: int) -> None:
    history = toy_history(seed)
    assert history.count("ok") > 150 and history.count("fail") > 10 and history.count("unknown") > 0
    found = anomalies_of(history)
    assert found == [], told(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_its_name(fault: str) -> None:
    found = [names_of(check(toy_history(seed, fault=fault), names.STRICT_SERIALIZABLE)) for seed in SEEDS]
    assert EXPECTED[fault] <= set.union(*found), found


def test_weaker_levels_pass_the_faults_that_they_allow() -> None:
    for seed in SEEDS:
        assert check(toy_history(seed, fault="write skew"), names.STRONG_SNAPSHOT_ISOLATION) == []
        assert check(toy_history(seed, fault="old reads"), names.SERIALIZABLE) == []
