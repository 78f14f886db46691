"""The law for longer: random cases for some minutes, as `python -m tests.model.fuzz` does."""

from __future__ import annotations

import os
import time

import pytest
from fuzz import campaign
from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_random_cases(spark: SparkSession) -> None:
    minutes = float(os.environ.get("HEADRACE_SOAK_MINUTES", "10"))
    rounds, _ = campaign(spark, time.monotonic() + 60 * minutes, seed=int(os.environ.get("HEADRACE_SOAK_SEED", "1")))
    assert rounds
