"""Text to typed statements, PostgreSQL's types, and PostgreSQL's meaning over Spark SQL.

Text to statements:

parser.py        text becomes statements; bind, the types of parameters
starts.py        which reader a text goes to, by its first words
postgres.py      PostgreSQL's own parser, and headrace's additions cut out
lexemes.py       where strings, comments, quoted names and parameters lie
token_cursor.py  a cursor over a statement's tokens
statements.py    one frozen record for each kind of statement
dialect.py       sqlglot's dialect, with errors that point at a token

Readers of kinds of statements:

control.py        SHOW, SET, transactions, and other short ones
ddl.py            CREATE, DROP, ALTER
with_options.py   options in brackets, and what they name
dml.py            INSERT, UPDATE, DELETE
conflicts.py      ON CONFLICT of an INSERT
repeated_rows.py  INSERT of many rows that differ in their parameters alone
copying.py        COPY and its options
copying_files.py  COPY's own options for files
connections.py    CREATE CONNECTION
webhooks.py       VALIDATE SECRET ... AS, of tables that take requests
cursors.py        DECLARE, FETCH, MOVE
subscriptions.py  subscriptions, and where a reader of changes begins
routines.py       CREATE FUNCTION and CREATE AGGREGATE
roles.py          roles: statements whose text is shown to nobody
secrets.py        secrets: statements whose text is shown to nobody
comments.py       COMMENT ON
renaming.py       texts in which relations have other names
upkeep.py         TRUNCATE, VACUUM, ANALYZE
grants.py         GRANT, REVOKE, ownership, SET ROLE

Queries:

query.py   `Query`: what it reads, and its text for Spark
binder/    what PostgreSQL means by a query, as a typed tree, and on to Spark
scalar.py  scalar expressions that Python computes exactly as Spark does

The older translation, for system catalogs and old views:

normalize.py         a parsed query in one shape
handled.py           kinds of nodes, and which arguments of each, are translated
law.py               refuses what the translation would drop
function_calls.py    calls of functions that users have created
transpile.py         from a normalised query to Spark SQL
rewrite/             rules that give it PostgreSQL's meaning
builtin.py           names of functions that are translated
date_patterns.py     PostgreSQL's patterns of dates and numbers as Spark's
intervals.py         interval literals
sort_comparators.py  how `array_sort` is told an order

Types and values:

catalog_types.py types that PostgreSQL's system catalogs alone have
not_offered.py   statements that there are not, and what to do instead
type_names.py    PostgreSQL's types: names, OIDs, and Spark's for them
datatypes.py     the text of a type as Spark's type string
text_values.py   PostgreSQL's text input of values
text_columns.py  the same for whole columns
render.py        PostgreSQL's text output of values

`binder/` translates every query of a user: what it does not know is an error with its place, there is no other way.
The older translation, sqlglot's tree, is left with what reads PostgreSQL's catalog, whose columns have not all the
types that they have there, and with views from before there was a binder. A materialized view keeps Spark's text in
the catalog, and a plain view whether it was bound (`typed`): neither changes its meaning when the binder learns more.
docs/design/0012 says why there are two.
"""
