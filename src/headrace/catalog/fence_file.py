"""A look at the fence of a catalog that is in a file, by a process that has not opened it.

Who reads on behalf of an opener asks here, before each read, whether that one still owns the catalog.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from headrace.catalog.edits import FENCING_KEY

_TOKEN: Final = f"SELECT value FROM config WHERE key = '{FENCING_KEY}'"


class FenceFile:
    """The fence of one opener, who has this token. One thread at a time."""

    def __init__(self, file: str, token: int) -> None:
        """Raises `sqlite3.Error` where the file cannot be opened."""
        self.token = token
        uri = Path(file).absolute().as_uri() + "?mode=ro"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0.0, cached_statements=8)

    def holds(self) -> bool:
        """Whether nobody has opened the catalog since; False as well where that cannot be told at once."""
        try:
            found = self._connection.execute(_TOKEN).fetchall()
        except sqlite3.Error:
            return False
        return bool(found) and found[0][0] == self.token

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
