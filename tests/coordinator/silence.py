"""A catalog whose answers are lost, so that nobody knows what a commit has come to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_database import Database

from headrace.common.faults import arm, disarm_all
from headrace.errors import StorageError

POINTS = ["catalog.commit.before", "catalog.commit.after"]


@contextmanager
def silent(db: Database, point: str, nth: int = 1) -> Iterator[None]:
    """The catalog takes the n-th transaction from now on, or not, and gives no answer from then on."""

    store = db.catalog._store

    def no_answer() -> int:
        broken.setattr(store, "verify", no_answer)
        raise StorageError("no answer")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(store, "sequence", no_answer)
        arm(point, "fail", nth=nth)
        yield
    disarm_all()
