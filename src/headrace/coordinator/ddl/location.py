"""Where a database keeps its state, as its catalog remembers it: another place is refused before anything is touched.

With the wrong place every object would be missing, and vacuum would take whatever lies there for unreferenced.

The catalog remembers where the objects are; a server that is told another place refuses before it reads or deletes
anything there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.catalog.records import SettingRecord
from headrace.catalog.state import CatalogState
from headrace.config import ENV_PREFIX, Settings
from headrace.coordinator.run.storage import state_root
from headrace.errors import InvalidParameter

LOCATION: Final = "state_url"
"""The name of the catalog's setting record that holds the location."""


def state_location(settings: Settings) -> str:
    """Where the state lives, in one spelling for each place. Raises `InvalidParameter`.

    A directory within the data directory is relative to it, so that both can be moved together, unless the catalog is
    elsewhere; any other one is absolute. The URL of an object store comes without credentials, options and a slash at
    its end: endpoints have several names, and may change them.
    """
    root = state_root(settings)
    if not root.is_local:
        url = urlsplit(root.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}"
    # As it is spelled first: a link within the data directory moves along with it.
    for settled in (os.path.abspath, os.path.realpath):
        path, base = Path(settled(root)), Path(settled(settings.data_dir))
        if settings.catalog_url is None and path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return str(path)


def location_edits(settings: Settings, state: CatalogState) -> list[Edit]:
    """What the catalog has to learn of the state's location, nothing in most cases.

    Raises `InvalidParameter` if it knows another one and the settings do not say that the objects have been moved.
    """
    now, known = state_location(settings), state.settings.get(LOCATION)
    if known is not None and known.value == now:
        return []
    edits: list[Edit] = [Put(SettingRecord(LOCATION, now))]
    if known is None:
        return edits
    before, after = shown_location(settings, known.value), shown_location(settings, now)
    if before == after:  # the catalog has moved, and with it what a path is relative to
        return edits
    if not settings.state_moved:
        raise InvalidParameter(
            f"the state of this database is in {before}, not in {after}",
            hint=f"give that as {LOCATION}, or --state; if all objects have been moved, start once with "
            f"{ENV_PREFIX}STATE_MOVED=true",
        )
    return [*edits, AddEvent("state_moved", None, f"the state is now in {after}, before in {before}")]


def shown_location(settings: Settings, location: str) -> str:
    """A location as the catalog remembers it, in full."""
    return location if "://" in location else str(settings.data_dir.absolute() / location)
