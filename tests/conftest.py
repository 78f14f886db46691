"""Fixtures that all tests share: one Spark session for the whole run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from support import BRIEF_JAVA

if TYPE_CHECKING:
    from kafka import Kafka
    from object_server import S3Server
    from postgres import Postgres

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("HEADRACE_CLASS_ARCHIVE", "off")  # `make test` has it made before


# A busy machine is no reason for a test to fail, and neither is the draw of the day: the same examples are tried in
# every run, so that what fails can be laid at the door of a change. `make test-all` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exploring", _PATIENT)
settings.register_profile("repeatable", _PATIENT, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from headrace.dataflow.spark import local_session

    # It lives as long as all tests: a collector of garbage that works beside it would take an eighth of its time. The
    # servers of tests do without this, since they start later with it.
    options = {name: f"{value} -XX:+UseSerialGC" for name, value in BRIEF_JAVA.items()}
    session = local_session(further=options)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server to compare with; a test makes a database of its own there. Skips if none is installed."""
    from postgres import NoPostgres, postgres_server

    with contextlib.ExitStack() as ends:
        try:
            server = ends.enter_context(postgres_server({"fsync": "off"}))
        except NoPostgres as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A Kafka broker; tests make topics of their own there. Skips if its jars are not there."""
    from kafka import NoKafka, kafka_server

    pytest.importorskip("confluent_kafka")
    with contextlib.ExitStack() as ends:
        try:
            server = ends.enter_context(kafka_server())
        except NoKafka as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server, whose credentials are in the environment meanwhile."""
    pytest.importorskip("moto", reason="the S3 server is moto's, of the dev extra")
    from object_server import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog() -> Iterator[str]:
    """Where a REST catalog of Iceberg's listens, which keeps its tables in memory. Skips if its jars are not there."""
    from iceberg_rest import NoCatalog, rest_catalog

    with contextlib.ExitStack() as ends:
        try:
            uri = ends.enter_context(rest_catalog())
        except NoCatalog as error:
            pytest.skip(str(error))
        yield uri


@pytest.fixture(scope="module")
def logical() -> Iterator[Postgres]:
    """A PostgreSQL server with logical replication. Skips if none is installed."""
    from postgres import NoPostgres, postgres_server

    try:
        with postgres_server({"wal_level": "logical", "fsync": "off"}) as found:
            yield found
    except NoPostgres as error:
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With `HEADRACE_BINDER_COUNTS` set: how many queries of this run were bound, and why others were not."""
    if os.environ.get("HEADRACE_BINDER_COUNTS"):
        from headrace.sql.binder.way import COUNTS

        for reason, number in COUNTS.most_common():
            terminalreporter.write_line(f"{number:6} {reason}")


LONG = (
    "test_s3_cluster", "test_read_processes", "test_errors", "test_history_server", "test_views", "test_on_error",
    "test_crash", "test_takeover", "test_shared_source_crash", "test_sink_law", "test_time_zones",
    "test_refreshing_crash", "test_lake_sources", "test_delivery_crash", "test_sink_into_crash", "test_lake_crash",
    "test_shared_source", "test_refreshing_tables", "test_kept_queries", "test_two_urls", "test_simulation",
    "test_state_schedules", "test_model", "test_differential", "test_iceberg_deletes", "test_kafka_security",
)  # fmt: skip
"""The files that take longest (`--durations`), which `pytest_collection_modifyitems` looks at."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first: at the end one of the two processes would wait for the other."""
    items.sort(key=lambda item: item.path.stem not in LONG)
