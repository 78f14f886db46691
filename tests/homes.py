"""What sessions and contexts need of a database, over a coordinator and without Spark: what needs that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from headrace.catalog.catalog import Catalog
from headrace.config import Settings
from headrace.session.context import Context, ReaderStatus, Services
from headrace.session.session import Session
from headrace.session.turns import Turns


class Home:
    """See `headrace.session.session.Home`; it is the system of its sessions, too."""

    audit = None

    def __init__(self, coordinator: Any, catalog: Catalog, settings: Settings) -> None:
        absent: Any = None
        keeper: Any = SimpleNamespace(
            session=None,
            explained=lambda error, spark: error,
            wait_ready=lambda check, tell, unless: None,
        )
        parameters: Any = SimpleNamespace(settings=settings)
        clock: Any = SimpleNamespace(now_ms=lambda: 0)
        self.services = Services(
            catalog, coordinator, parameters, clock, keeper, absent, absent, absent, Turns(4), self
        )
        self.altered: list[tuple[str | None, str | None]] = []
        self.others: list[Context] = []

    def check(self) -> None:
        """Nothing has stopped it."""

    def forget(self, session: Session) -> None:
        """It keeps no list of sessions."""

    def alter_system(self, name: str | None, value: str | None) -> None:
        self.altered.append((name, value))

    def contexts(self) -> list[Context]:
        return self.others

    @property
    def reading_processes(self) -> Callable[[], Sequence[ReaderStatus]]:
        return tuple
