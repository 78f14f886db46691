"""What databases tell about themselves: system relations and functions.

system_relations.py  all system relations: their columns, and where their rows come from
system_lookup.py     system relations by their names
pg_catalog.py        `pg_catalog`
without_rows.py      relations of PostgreSQL's that have no rows here, by their columns
dependencies.py      what is built on what: `pg_depend`, `pg_rewrite`
activity.py          who is connected: `pg_stat_activity`
table_rights.py      what is granted on relations, as `information_schema` and `pg_default_acl` show it
information.py       `information_schema` and `rw_catalog`
headrace.py          `headrace_catalog`: what the coordinator does and why
state_relations.py   `headrace_internal`: the state tables of operators
keys.py              primary keys and indexes as PostgreSQL's catalogs show them
asking_functions.py  functions that ask about the session or the catalog
"""
