"""Where all lies that is durable: the catalog, the objects of the state, and what keeps these from deletion."""

from __future__ import annotations

import os
from dataclasses import replace

from headrace.catalog.catalog import Catalog
from headrace.config import Settings
from headrace.coordinator.run.pins import Pins
from headrace.errors import Fenced, HeadraceError, InvalidParameter
from headrace.state.stores import StoreRoot, store_of


def state_root(settings: Settings) -> StoreRoot:
    """Where a database with these settings keeps its state. Raises `InvalidParameter`."""
    # Whoever runs Spark's tasks may have another working directory.
    url = settings.state_url or str((settings.data_dir / "state").absolute())
    url = url if "://" in url or url.startswith("memory:") else os.path.abspath(url)
    if url.startswith("memory:"):
        raise InvalidParameter("state in memory is not seen by Spark's workers", hint="give a directory for state_url")
    return StoreRoot(
        url=url,
        options=tuple(sorted(settings.state_options.items())),
        cache_dir=str((settings.cache_dir or settings.data_dir / "cache").absolute()),
        cache_bytes=settings.cache_mb << 20,
        concurrency=settings.io_concurrency,
        timeout_ms=settings.io_timeout_ms,
    )


class Storage:
    """A database's catalog and the objects that it refers to; who reads these pins them."""

    def __init__(self, catalog: Catalog, root: StoreRoot) -> None:
        """`root` is where Spark's tasks find the objects, too."""
        self.catalog = catalog
        self.root = root
        self.store = store_of(replace(root, proof=""))
        self.pins = Pins()

    @property
    def answers_at_once(self) -> bool:
        """Whether what is durable is in this process or on its disks, and known in full."""
        return self.catalog.is_near and self.catalog.settled and self.root.is_local

    def check_fence(self) -> None:
        """Raises `Fenced` if the catalog has been opened by another process; other errors of it count for nothing."""
        try:
            _ = self.catalog.state
        except Fenced:
            raise
        except HeadraceError:
            return
