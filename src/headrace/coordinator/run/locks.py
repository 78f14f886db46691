"""The locks that are held over I/O, and the order in which all locks of the coordinator are taken."""

from __future__ import annotations

import threading
from dataclasses import field

from headrace.common.lazy_dataclass import dataclass


@dataclass
class Locks:
    """The locks of those who change in the catalog what jobs and relations are at, and then in memory.

    They are taken in the order `raising`, `committing`, `catalog.reading()`, `LiveState.lock`; a gate of the writer
    before all of them, and its lead behind `committing`.
    """

    committing: threading.Lock = field(default_factory=threading.Lock)
    """Held over a commit of jobs from its first look at the catalog to the change of what is in memory, so that no two
    of them move the same job."""
    raising: threading.Lock = field(default_factory=threading.Lock)
    """Held by who raises safe epochs, from working one out until what is built on it is durable or given up: so none
    goes back behind what somebody else relies on."""
