"""TRUNCATE; and VACUUM, ANALYZE, REINDEX and CLUSTER, which ask for what is done anyway."""

from __future__ import annotations

from typing import Final

from headrace.catalog.contents import IndexContent
from headrace.errors import WrongObjectType
from headrace.session.context import Context
from headrace.session.execution.dml import batches_of, delete_rows, refuse_append_only
from headrace.session.execution.handler import Handler, InScript, Needs, Server
from headrace.session.execution.in_transaction import Written, run_writing
from headrace.session.execution.kernel_queries import all_rows
from headrace.session.execution.write_targets import writable_table
from headrace.session.names import names_of
from headrace.session.result import Result
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.state.table_changes import TableChange


def truncate(context: Context, statement: st.TruncateTables) -> Result:
    """TRUNCATE: all rows are taken back in one transaction, so what is built on the tables takes them back, too."""
    tables = [(name, writable_table(context, name, statement.verb, statement.privileges)) for name in statement.tables]
    for _, record in tables:
        refuse_append_only(record, "TRUNCATE")

    def run(transaction: Transaction) -> tuple[Result, Written | None]:
        for name, record in tables:
            rows = all_rows(context, record)
            if rows is None:
                delete_rows(context, transaction, record, st.Delete(name, None, None))
                continue
            for batch in batches_of(rows):
                transaction.work.change(record.id, TableChange(deletes=batch))
        return Result(statement.tag), None

    return run_writing(context, run)


def maintain(context: Context, statement: st.Maintain) -> Result:
    """VACUUM, ANALYZE, REINDEX, CLUSTER: runs are compacted and counted all the time; there is nothing to do now.

    Raises what PostgreSQL does for what is not there, is no table, or belongs to somebody else.
    """
    for name in statement.names:
        record = names_of(context).get(name)
        is_index = statement.verb == "REINDEX" and isinstance(record.content, IndexContent)
        if not record.content.keeps_rows and not is_index:
            raise WrongObjectType(f'"{name}" is a {record.kind_name}: it has no rows to look after')
        context.rights.require_owner(record)
    return Result(statement.tag)


HANDLERS: Final = (
    Handler(st.TruncateTables, truncate, asks=Server.ACTIVE, script=InScript.OPENS, needs=Needs.WRITE),
    Handler(st.Maintain, maintain, outside=lambda s: s.verb if s.verb == "VACUUM" else None, needs=Needs.OWNER),
)
