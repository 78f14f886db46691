"""What the tests share that talk to a real server; each module has a `server` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server import Server


@pytest.fixture
def connection(server: Server) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as made:
        yield made
