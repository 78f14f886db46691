"""Transactions of DDL of which it is not known whether they are durable, because the catalog stopped answering.

The next statement and every tick look whether the catalog knows by now. A view that was dropped is forgotten, one
that was not goes on; what was said not to be created is deleted; a job becomes as its record is. Until then the job
of a DROP stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Edit
from headrace.catalog.state import CatalogState
from headrace.errors import DiskFull, Fenced, HeadraceError, StorageError


class Undecided:
    """What is to be done for each of them once the catalog answers again. The caller serialises all calls."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._left: list[Callable[[CatalogState], None]] = []

    def __len__(self) -> int:
        return len(self._left)

    def transact(
        self,
        edits: Sequence[Edit],
        happened: Callable[[CatalogState], bool],
        settle: Callable[[CatalogState], None],
    ) -> None:
        """Do it; returns once it is durable, also if the first answer was lost.

        Raises what the catalog does if it is not. If that cannot be learned now it raises too, and `settle` is called
        later, with a content that tells.
        """
        try:
            self._catalog.transact(edits)
        except Fenced:
            raise
        except HeadraceError:
            try:
                state = self._catalog.state
            except Fenced:
                raise
            except HeadraceError:
                self._left.append(settle)
                raise
            if not happened(state):
                raise

    def settle(self) -> Exception | None:
        """Finish what is left. Raises `Fenced`, and `StorageError` or `DiskFull` while the catalog does not answer.

        What fails for another reason is no hindrance to others: it is left for the next call. The first such failure is
        returned.
        """
        first: Exception | None = None
        left = self._left
        for settle in list(left):
            state = self._catalog.state
            try:
                settle(state)
            except (Fenced, StorageError, DiskFull):
                raise
            except Exception as error:
                first = first or error
            else:
                left.remove(settle)
        return first
