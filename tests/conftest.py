"""Fixtures that all tests share: one Spark session for the whole run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


# A busy machine is no reason for a test to fail.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from headrace.dataflow.spark import local_session

    session = local_session()
    yield session
    session.stop()
