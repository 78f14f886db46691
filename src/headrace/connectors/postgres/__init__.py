"""PostgreSQL, and what speaks its protocol: a sink that writes tables, and sources of the changes of its tables.

options.py        the options of the connector, and connections made by them
tables.py         what PostgreSQL's catalogs say of a table
cdc.py            the `postgres-cdc` source of one table with a slot of its own: what it is bound to
table_reading.py  how rows of a table are read by tasks, with a slot of its own or not: its content, then its changes
slot.py           the `postgres-cdc` source of several tables: one slot and publication, bound together
slot_table.py     a table of such a source: its content and its changes
slot_sharing.py   when a table of a shared slot begins, what it is bound to, how far the slot may be moved on. No I/O
stretch.py        a stretch of the log, looked through once for all tables of a slot. No I/O
slots.py          what is asked of replication slots and of the log
variants.py       which of these the connector is, by its options
fetching.py       rows of PostgreSQL, many at once; a table's content as columns of texts
shapes.py         what has become of a table's columns since it began to be followed
content_parts.py  a table's content in parts
value_texts.py    PostgreSQL's texts as values of Arrow's types. No I/O
pgoutput.py       logical replication messages as changes of one table. No I/O
row_chains.py     which changes of a range are of one row, whatever keys it had. No I/O
rows_there.py     rows of a table as they are now, by their keys
unchanged.py      values that an update leaves out, for they are stored out of line and have not changed
sink.py           the `postgres` sink: an epoch is one transaction of the target
array_texts.py    arrays as PostgreSQL writes them, as Arrow's. No I/O
rows.py           Arrow rows as the CSV that COPY reads
"""
