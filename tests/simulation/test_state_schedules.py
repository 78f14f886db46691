"""The state store under thousands of schedules of failures, crashes and interleavings, each one a seed."""

from __future__ import annotations

import os

import pytest
from state_schedule import run_schedule

SEEDS = int(os.environ.get("HEADRACE_SIMULATION_SEEDS", "1000"))
BLOCKS, QUICK_BLOCKS = 10, 4
"""Into how many tests the seeds are dealt, and how many of these are not left to `make test-all`."""


@pytest.mark.parametrize(
    "block", [pytest.param(n, marks=[pytest.mark.soak] if n >= QUICK_BLOCKS else []) for n in range(BLOCKS)]
)
def test_every_schedule_holds(block: int) -> None:
    """PC-5, PC-7, PC-8, PC-16, PC-17, PC-18, CK-10, CK-12, FS-10 to FS-15, XC-5: all versions stay what they were."""
    for seed in range(block, SEEDS, BLOCKS):
        run_schedule(seed, actions=20)


def test_a_seed_does_the_same_again() -> None:
    first = [run_schedule(seed) for seed in range(20)]
    assert [run_schedule(seed) for seed in range(20)] == first
    assert any("crash" in line for story in first for line in story)
    assert any("power failure" in line for story in first for line in story)
    assert any("failure at" in line for story in first for line in story)


@pytest.mark.soak
def test_long_schedules_hold() -> None:
    for seed in range(100_000, 103_000):
        run_schedule(seed, actions=150)
