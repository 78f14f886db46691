"""Tables of shared sources: what of their definition is the source's, and what the table's."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog.records import ObjectRecord
from headrace.connectors.base import SHARED_BY
from headrace.connectors.job_options import of_view
from headrace.connectors.sources import infer_columns
from headrace.errors import InvalidParameter, SyntaxFault
from headrace.session.context import Context
from headrace.session.execution import fed
from headrace.session.execution.connections import Resolved
from headrace.sql import statements as st


def resolved(origin: ObjectRecord, statement: st.CreateTable) -> Resolved:
    """The options of a table's source: those of the shared one, and what tells the table."""
    more = {n: v for n, v in statement.options.items() if n not in of_view(statement.options)}
    other = sorted({*more, *statement.secrets} - {"on_error"})
    if other or statement.connection is not None:
        first = other[0] if other else "connection"
        what = f"INCLUDE {first[8:]}" if first.startswith("include.") else f"option {first}"
        raise InvalidParameter(
            f"{what} of a table FROM a source",
            hint="such a table has on_error and the options of views only; how it is read, its source says",
        )
    options = {**origin.options, **more, "table.name": statement.upstream, SHARED_BY: str(origin.id)}
    schema, dot, table = statement.upstream.rpartition(".")
    if dot:
        options |= {"schema.name": schema, "table.name": table}
    options.setdefault("schema.name", "public")
    if not options["table.name"] or not options["schema.name"] or "." in options["schema.name"]:
        raise InvalidParameter(f"the table {statement.upstream!r} is not written as 'schema.table'")
    options |= {f"include.{part}": name for part, name in fed.COLUMNS.items()}
    return Resolved(options, dict(origin.secrets), (origin.id, *dict.fromkeys(origin.secrets.values())))


def columns_of(
    context: Context, statement: st.CreateTable, given: Resolved
) -> tuple[Sequence[st.ColumnDef], Sequence[str]]:
    """The columns and the primary key of a table: as declared, or if nothing is, as they are there."""
    if statement.columns:
        if not statement.primary_key:
            raise SyntaxFault(
                "a table FROM a source needs its primary key declared", hint="or write (*): the columns of there"
            )
        return statement.columns, statement.primary_key
    found = infer_columns(given.options, context.coordinator.secrets(given.secrets))
    columns = [st.ColumnDef(c.name, c.type, not c.nullable) for c in found]
    return columns, statement.primary_key or [c.name for c in found if not c.nullable]
