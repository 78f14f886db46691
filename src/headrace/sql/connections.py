"""CREATE CONNECTION. The words are RisingWave's."""

from __future__ import annotations

from headrace.sql import statements as st
from headrace.sql.ddl import if_not_exists
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor
from headrace.sql.with_options import OptionReferences, options


def create_connection(cursor: Cursor) -> st.Statement:
    """Read a statement after `CREATE CONNECTION`."""
    exists, name, named = if_not_exists(cursor), cursor.table_name(), OptionReferences()
    cursor.expect("WITH")
    found = options(cursor, named)
    cursor.expect_end()
    if named.connection is not None:
        cursor.refuse("a connection in a connection")
    return st.CreateConnection(name, found, named.secrets, exists)


STARTS = (starts(create_connection, "CREATE CONNECTION"),)
