"""Tables of a data lake, Iceberg's and Delta's.

tables.py  what all lake tables share: where they are, which columns they take, which types hold others

Sinks, where an epoch is one commit of the table, which also records its number:

iceberg.py  the `iceberg` sink, and where such a table is
delta.py    the `deltalake` sink, and where such a table is
small_files.py  small files put together
delta_constraints.py  which rows break the constraints of a Delta table

Sources, where an offset is a snapshot of the table:

changes.py         what changes between two contents, file by file
rows.py            which rows of a file come or go
source.py          what both sources share: binding, the difference between two offsets, rows with their weights
iceberg_source.py  the `iceberg` source
deletes.py         what Iceberg's delete files delete
delta_source.py    the `deltalake` source

What must hold: a snapshot never changes, so whatever lies between two snapshots can be read again by whoever asks, as
long as both of them are kept. Nothing that is not understood is read: features, types and file formats are looked at
when an offset is bound.
"""
