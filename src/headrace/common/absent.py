"""Modules that are left out of a process that could load them, and does not need them.

Some packages look for others when they are loaded, or first used, and load what they find: structlog loads rich for
tracebacks, pyarrow loads pandas before it makes its first array. They do without where there is none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader


class _Absent:
    """Says of some packages that they are not installed, to the thread that wants it said."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises `ModuleNotFoundError` for theirs; leaves all others to who is asked next."""
        if name.partition(".")[0] in self._packages and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Let packages be missing for this thread while the block runs; what is loaded already stays so."""
    finder = _Absent(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Awaited:
    """Calls a function as soon as a package has been loaded; who only asks where it is found is told nothing else."""

    def __init__(self, package: str, then: Callable[[], object]) -> None:
        self._package = package
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package as the others find it, with the call behind it once it is loaded; nothing for all others."""
        if name != self._package:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Loader) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            with suppress(ValueError):  # another thread may have seen to it
                sys.meta_path.remove(self)
            self._then()

        # The loader stays the package's own: it is asked for the package's files later, too.
        setattr(loader, "exec_module", exec_module)  # noqa: B010


def skip_pandas() -> None:
    """Let pyarrow make its first array, for which it would load pandas, and do without until somebody else loads it.

    pandas takes longer than all of SQLAlchemy and pyarrow. pyarrow does not look for it again by itself, and would read
    a program's frames and categories as plain sequences: so it is told as soon as the program has pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    with absent("pandas"):
        pa.array([None])
    if not any(isinstance(finder, _Awaited) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Awaited("pandas", _show_pandas))


def _show_pandas() -> None:
    import pyarrow as pa

    with suppress(Exception):  # one that is too old for pyarrow is still the program's to use
        pa.nulls(0).to_pandas()
