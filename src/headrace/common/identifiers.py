"""Names as they stand in PostgreSQL's SQL."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*")


def quoted_name(*parts: str) -> str:
    """A name, with its schema before it if that is given, in quotes."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def shown_name(name: str) -> str:
    """A name in quotes where it needs them, as PostgreSQL shows it."""
    return name if _PLAIN.fullmatch(name) else quoted_name(name)
