"""Settings that the coordinator's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.common.faults import disarm_all


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No fault point stays armed after a test."""
    yield
    disarm_all()
