"""headrace: a streaming SQL database whose pipelines run on Apache Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.session.database import Database, connect
    from headrace.session.pipelines.definitions import Pipeline

__version__ = "0.1.0"

__all__ = ["Database", "Pipeline", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    # Spark's Python workers import headrace.dataflow through this package: they must not pay for the server side.
    if name in ("connect", "Database"):
        from headrace.session import database

        return getattr(database, name)
    if name == "Pipeline":
        from headrace.session.pipelines import definitions

        return definitions.Pipeline
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
