"""PostgreSQL, and what speaks its protocol: a sink that writes tables, and a source of the changes of a table.

options.py   the options of the connector, and connections made by them
tables.py    what PostgreSQL's catalogs say of a table
cdc.py       the `postgres-cdc` source: a table's content, then its changes
fetching.py  rows of PostgreSQL, many at once; a table's content as columns of texts
pgoutput.py  logical replication messages as changes of one table. No I/O
sink.py      the `postgres` sink: an epoch is one transaction of the target
rows.py      Arrow rows as the CSV that COPY reads
"""
