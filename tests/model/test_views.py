"""The law: for any history of the inputs, split into epochs in any way, the view is the batch answer at each epoch."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as hypothesis_seed
from model_cases import Case, cases, run_case
from model_queries import POOL
from pyspark.sql import SparkSession

PER_QUERY = 1
COMPOSED, QUICK_COMPOSED = 100, 12
"""How many compositions there are, and how many of them are not left to `make test-all`."""

_QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]
# Shrinking takes many runs; `python -m tests.model.fuzz` does it.
_FIXED = settings(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=_QUIET)


def substantial(case: Case) -> bool:
    """Whether the history is long enough to say something."""
    return sum(len(delta) for e in case.epochs for _, delta in e.changes) >= 10


@pytest.mark.parametrize("name", sorted(POOL))
def test_every_operator(spark: SparkSession, name: str) -> None:
    @hypothesis_seed(zlib.crc32(name.encode()))
    @settings(_FIXED, max_examples=PER_QUERY)
    @given(cases(POOL[name], max_epochs=4))
    def law(case: Case) -> None:
        assume(substantial(case))
        run_case(spark, case)

    law()


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.soak] if n >= QUICK_COMPOSED else []) for n in range(COMPOSED)]
)
def test_compositions(spark: SparkSession, seed: int) -> None:
    @hypothesis_seed(seed)
    @settings(_FIXED, max_examples=1)
    @given(cases(max_epochs=4))
    def law(case: Case) -> None:
        assume(substantial(case))
        run_case(spark, case)

    law()
