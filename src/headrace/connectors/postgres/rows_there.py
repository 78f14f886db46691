"""Rows of a table of PostgreSQL as they are now, asked for by their keys, one by one: there are few such questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

import pyarrow as pa

from headrace.common.identifiers import quoted_name
from headrace.connectors.postgres.fetching import content
from headrace.connectors.postgres.slots import Connection


class RowsThere:
    """Asks over one connection, which is opened with the first question."""

    def __init__(
        self, connect: Callable[[], AbstractContextManager[Connection]], table: Callable[[Connection], str],
        names: Sequence[str], key: Sequence[str],
    ) -> None:  # fmt: skip
        self._connect, self._table, self._names, self._key = connect, table, names, key
        self._held = ExitStack()
        self._connection: Connection | None = None

    def close(self) -> None:
        """Let go of the connection."""
        self._held.close()

    def texts(self, key: Sequence[str]) -> dict[str, pa.Array] | None:
        """The columns of the row with a key, as texts; None where there is none. Raises what the connection does.

        The key is as PostgreSQL writes it: a text is taken for a value of the column's type, whatever that is here.
        """
        if self._connection is None:
            self._connection = self._held.enter_context(self._connect())
        c = self._connection
        table = _literal(self._table(c))
        same = " AND ".join(f"{_literal(quoted_name(name))} = %s" for name in self._key)
        found = [*content(c, table, [_literal(quoted_name(name)) for name in self._names], same, key)]
        c.rollback()  # the next question is about another moment
        return dict(zip(self._names, found[0])) if found else None


def _literal(text: str) -> str:
    """A text in a query with parameters."""
    return text.replace("%", "%%")
