"""headrace: a streaming SQL database whose pipelines run on Apache Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.session.database import Database, connect

__version__ = "0.1.0"

__all__ = ["Database", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    # Spark's Python workers import headrace.dataflow through this package: they must not pay for the server side.
    if name in ("connect", "Database"):
        from headrace.session import database

        return getattr(database, name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
