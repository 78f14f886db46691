"""The backends that the conformance tests run on; each test gets an empty one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "state"))

from backends import empty_place

from headrace.common.faults import disarm_all
from object_server import S3Server, s3_server
from postgres import NoPostgres, Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for all tests of this process."""
    try:
        with postgres_server({"fsync": "off", "synchronous_commit": "off"}) as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for all tests of this process."""
    pytest.importorskip("moto", reason="the S3 server is moto's, of the dev extra")
    with s3_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres", "directory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where an empty catalog is."""
    return empty_place(request.param, request, tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No fault point stays armed after a test."""
    yield
    disarm_all()
