from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_session import Database

from headrace.server import ServerThread, run_server_in_thread


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def server(database: Database) -> Iterator[ServerThread]:
    with run_server_in_thread(database.session) as running:
        yield running
