"""Settings that the coordinator's tests share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from headrace.catalog.catalog import Catalog
from headrace.catalog.state import CatalogState
from headrace.common.faults import disarm_all
from headrace.coordinator.run.core import Core


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No fault point stays armed after a test."""
    yield
    disarm_all()


@pytest.fixture(autouse=True)
def locks_in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody asks for the catalog's image while holding the lock of jobs: who holds the image may wait for that one.

    Once in thousands of times two threads meet so, and wait for each other for ever; here every time is told.
    """
    cores: weakref.WeakSet[Core] = weakref.WeakSet()
    wrong: list[str] = []
    made, reading = Core.__init__, Catalog.reading

    def init(core: Core, *given: object, **more: object) -> None:
        made(core, *given, **more)  # type: ignore[arg-type]
        cores.add(core)

    def checked(catalog: Catalog) -> AbstractContextManager[CatalogState]:
        within = catalog._reader == threading.get_ident()
        if not within and any(c.storage.catalog is catalog and c.live.lock._is_owned() for c in list(cores)):  # type: ignore[attr-defined]
            wrong.append(threading.current_thread().name)
            raise AssertionError("catalog.reading() under the lock of jobs")
        return reading(catalog)

    monkeypatch.setattr(Core, "__init__", init)
    monkeypatch.setattr(Catalog, "reading", checked)
    yield
    assert not wrong, f"catalog.reading() under the lock of jobs, in {wrong}"
