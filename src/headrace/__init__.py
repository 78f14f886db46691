"""headrace: a streaming SQL database whose pipelines run on Apache Spark.

The parts, from the top; each imports only what stands below it (`tests/test_imports.py`). Every package says in its
own docstring what each of its files owns, and `tests/test_package_maps.py` holds these maps to the files that exist.
How the parts work together is in docs/ARCHITECTURE.md, what the words mean in docs/GLOSSARY.md.

What people start:

cli.py   the `headrace` command: its subcommands and their options
shell/   the interactive shell, and what the subcommands print
demo/    the demonstration: a year of flights, a crash, the proof that all is exact
server/  PostgreSQL's wire protocol over asyncio
web/     HTTP requests that put rows into tables

What they talk to:

session/  statements in, rows out; the database as Python programs use it

What keeps the database running:

coordinator/  epochs, checkpoint groups, commits, reads, writes, recovery
dataflow/     one epoch as one Spark job, and the operators in its tasks
plan/         a query, planned by Catalyst, becomes a tree of incremental operators
sql/          text becomes statements, PostgreSQL's meaning becomes Spark SQL
connectors/   sources, read by offset range; sinks, written by epoch

What it stands on:

state/    sorted runs, arrangements, and the stores that hold them
catalog/  the durable catalog: transactions, fence, backends
common/   epochs, clocks, columns, fault points: nothing that depends on headrace

Used by all parts:

config.py          every setting: type, default, unit, meaning
errors.py          every error that reaches a user, with its SQLSTATE
typed_settings.py  what a class of settings is: typed fields, read from arguments, environment variables and texts
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.session.database import Database, connect
    from headrace.session.pipelines.definitions import Pipeline

__version__ = "0.1.0"

__all__ = ["Database", "Pipeline", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    # Spark's Python workers import headrace.dataflow through this package: they must not pay for the server side.
    if name in ("connect", "Database"):
        collecting = gc.isenabled()
        gc.disable()  # what is loaded stays: looking for garbage among it takes a tenth of the time
        try:
            from headrace.common.absent import skip_pandas

            skip_pandas()
            from headrace.session import database
        finally:
            if collecting:
                gc.enable()
        return getattr(database, name)
    if name == "Pipeline":
        from headrace.session.pipelines import definitions

        return definitions.Pipeline
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
