"""Tables of a data lake, Iceberg's and Delta's: an epoch is one commit of the table, which also records its number.

tables.py   what all lake tables share: where they are, which columns they take
iceberg.py  the `iceberg` sink
delta.py    the `deltalake` sink
"""
