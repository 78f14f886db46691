"""What databases tell about themselves: system relations and functions.

relations.py    all system relations: their columns, and where their rows come from
lookup.py       system relations by their names
postgres.py     `pg_catalog`
information.py  `information_schema` and `rw_catalog`
headrace.py     `headrace_catalog`: what the coordinator does and why
state.py        `headrace_internal`: the state tables of operators
keys.py         primary keys and indexes as PostgreSQL's catalogs show them
functions.py    functions that ask about the session or the catalog
"""
