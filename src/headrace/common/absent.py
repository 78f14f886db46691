"""Modules that are left out of a process that could load them, and does not need them.

Some packages look for others when they are loaded, or first used, and load what they find: structlog loads rich for
tracebacks, pyarrow loads pandas before it makes its first array. They do without where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Absent:
    """Says of some packages that they are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises `ModuleNotFoundError` for theirs; leaves all others to who is asked next."""
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Let packages be missing while the block runs, for all of the process; what is loaded already stays so."""
    finder = _Absent(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
