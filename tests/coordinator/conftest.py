"""Settings that the coordinator's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from headrace.common.faults import disarm_all

settings.register_profile("coordinator", deadline=None)
settings.load_profile("coordinator")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No fault point stays armed after a test."""
    yield
    disarm_all()
