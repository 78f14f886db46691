"""The backends that the conformance tests run on; each test gets an empty one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from headrace.common.faults import disarm_all

POSTGRES_URL = os.environ.get("HEADRACE_TEST_POSTGRES_URL")
"""A database that the tests may empty, for instance postgresql+psycopg://localhost/headrace_test."""


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(not POSTGRES_URL, reason="no URL"))]
)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty catalog is."""
    if request.param == "sqlite":
        return str(tmp_path / "data" / "catalog.db")
    assert POSTGRES_URL is not None
    engine = sa.create_engine(POSTGRES_URL)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS config, record"))
    engine.dispose()
    return POSTGRES_URL


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No fault point stays armed after a test."""
    yield
    disarm_all()
