"""System parameters that SQL sets: they are kept in the catalog, and hold over restarts.

What `ALTER SYSTEM` has set stands in the place of the process's settings, for all sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Delete, Edit, Put
from headrace.catalog.records import SettingRecord
from headrace.common.loggers import get_logger
from headrace.config import Settings, apply_parameters, is_parameter, require_parameter
from headrace.errors import HeadraceError


class Parameters:
    """The settings of a database: those of the process, and what `ALTER SYSTEM SET` has put in their place."""

    def __init__(self, given: Settings, catalog: Catalog):
        self._given = given
        self._catalog = catalog
        self._lock = threading.Lock()
        self._set = self._stored()
        self.settings = apply_parameters(given, self._set)

    def _stored(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, record in self._catalog.state.settings.items():
            if is_parameter(name):
                try:
                    apply_parameters(self._given, {name: record.value})
                    found[name] = record.value
                except HeadraceError as error:  # of another version
                    get_logger("headrace").warning("a stored parameter is not used", name=name, error=error.message)
        return found

    def renew(self, use: Callable[[Settings], None]) -> None:
        """Take up what another server has set."""
        with self._lock:
            found = self._stored()
            if found != self._set:
                self._set, self.settings = found, apply_parameters(self._given, found)
                use(self.settings)

    def alter(self, name: str | None, value: str | None, use: Callable[[Settings], None]) -> None:
        """Set a parameter; without a value put it back to what the process was given; without a name put all back.

        `use` is called with the new settings once they are durable. Raises `UndefinedObject`, `InvalidParameter`.
        """
        with self._lock:
            if value is None and name is not None:
                require_parameter(name)
            wanted = {} if name is None else {k: v for k, v in self._set.items() if k != name}
            if name is not None and value is not None:
                wanted[name] = value
            settings = apply_parameters(self._given, wanted)
            edits: list[Edit] = [Delete("setting", n) for n in self._set if n not in wanted]
            edits += [Put(SettingRecord(n, v)) for n, v in wanted.items() if self._set.get(n) != v]
            if edits:
                self._catalog.transact(edits)
            self._set, self.settings = wanted, settings
            use(settings)
