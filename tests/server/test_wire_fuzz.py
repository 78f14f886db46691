"""A short part of the fuzzer of the wire; `wire_fuzz.py` goes on for as long as it is told to."""

from __future__ import annotations

from itertools import count

import pytest
from wire_fuzz import alone, sockets


def test_the_state_machine_takes_whatever_comes() -> None:
    for seed in range(1500):
        alone(seed)


def test_a_served_port_takes_whatever_comes() -> None:
    pytest.importorskip("cryptography")
    assert sockets(iter(count(1)), 1500) >= 1500


@pytest.mark.soak
def test_the_state_machine_takes_whatever_comes_for_long() -> None:
    done, seed = 0, 10_000
    while done < 1_000_000:
        done += alone(seed)
        seed += 1
