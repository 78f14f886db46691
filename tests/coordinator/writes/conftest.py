from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from write_world import Tables

from headrace.common.faults import disarm_all


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path)
    yield made
    disarm_all()
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """For random cases, each in tables of its own."""
    made = Tables(tmp_path_factory.mktemp("shared"))
    yield made
    made.close()
