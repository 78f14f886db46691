from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.server import ServerThread, run_server_in_thread
from headrace.session.database import Database, connect


@pytest.fixture(scope="module")
def database(spark: SparkSession) -> Iterator[Database]:
    settings = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200, secret_keys="A" * 43 + "=")
    with connect(spark=spark, settings=settings) as found:
        yield found


@pytest.fixture(scope="module")
def server(database: Database) -> Iterator[ServerThread]:
    with run_server_in_thread(database.instance.client_session) as running:
        yield running
