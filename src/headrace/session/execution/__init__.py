"""How each kind of statement is carried out.

handler.py        `Handler`: what there is to know of one kind; each module below has those that it carries out
value_results.py  results that are made of Python values

Queries:

query_statement.py  a query as a statement: plan, parameters, columns, EXPLAIN
select.py           SELECT: from a resolved query to a result
spark_queries.py    queries on Spark: DataFrames over a snapshot, plans that are kept
snapshots.py        what a query reads, pinned for as long as it reads
as_of.py            FOR SYSTEM_TIME AS OF: which epoch a query asks for
points.py           rows by a key, through a primary key or an index
kernel_queries.py   queries that Spark plans and Arrow's kernels compute here
simple.py           queries of literals, and defaults of columns
cursors.py          DECLARE, FETCH, MOVE, CLOSE
show.py             SHOW, DESCRIBE, EXPLAIN

The session and the server:

transacting.py     BEGIN, COMMIT, ROLLBACK, savepoints
in_transaction.py  how a transaction is opened and ended, and what writes runs in one
setting.py         SET, RESET, DISCARD, ALTER SYSTEM
preparing.py       PREPARE, EXECUTE, DEALLOCATE
operating.py       FLUSH, WAIT, pg_promote
kill.py            KILL: cancels what another session runs
idling.py          statements that do nothing

Changes of rows:

defaults.py       values of columns that are left out
dml.py            INSERT, UPDATE, DELETE
write_targets.py  the table that a statement writes to, and the rules of its rows
assignment.py     casts of values on their way into columns
upkeep.py         TRUNCATE, VACUUM, ANALYZE
upserts.py        INSERT ... ON CONFLICT
row_writes.py     single rows by primary key: no Spark, no scan
large_writes.py   writes of any size, computed by Spark's tasks
copying.py        COPY, both ways
copying_files.py  COPY to and from files, on Spark

Definitions:

ddl.py                 CREATE of tables, sources, indexes, schemas; creating what a job keeps up to date
views.py               CREATE of views, materialized views and sinks, and EXPLAIN of these
altering.py            ALTER of what jobs keep up to date
source_options.py      ALTER ... SET of how sources are read: their pace, and `on_error`
renaming.py            ALTER ... RENAME TO
dropping.py            DROP: what goes together, and what is in its way
existing.py            what is there already, or is not there
owning.py              whose a new object is, and what its maker grants by default
connections.py         CREATE CONNECTION, and the options of what names one
into.py                CREATE SINK ... INTO table: the query as rows of the table
primary_keys.py        ALTER TABLE ... ADD PRIMARY KEY
table_columns.py       ALTER TABLE ... ADD COLUMN of tables that statements write to
replacing_tables.py    tables that get a key or columns: another one takes their place
refreshing.py          REFRESH SCHEMA and ADD COLUMN of tables that follow one outside
widening.py            the same of sources that find columns by name, and of the tables that they feed
refilling.py           tables that are filled beside others whose place they take
dead_letters.py        the table that a sink names for the rows which its target refuses
fed.py                 tables that a connector feeds
webhooks.py            tables whose rows come in HTTP requests
shared_tables.py       tables of shared sources: what of their definition is whose
arrangement_choice.py  what the joins of a new view look up instead of keeping
unaligned.py           views whose joins are jobs of their own
subscriptions.py       subscriptions, their cursors, COPY (SUBSCRIBE ...)
routines.py            functions and aggregates of users
secrets.py             secrets, and the options that name them
roles.py               roles
comments.py            COMMENT ON
grants.py              rights: GRANT, REVOKE, ownership, SET ROLE

*UPDATE, DELETE and the values of an INSERT* that are more than row operations are queries, which `kernel_queries.py`
tries first: Catalyst analyses and optimizes the query over an empty leaf, `dataflow/queries.py` makes kernels of the
plan (projections and filters over the table or one row, and their UNION ALL), and these compute over the table's rows
in the transaction's snapshot. If anything has no exact twin, or a kernel is in doubt about a value, Spark runs the same
query. Plans are kept by their Spark SQL and the table's columns, unless the current time has become a constant in them.
A condition that gives the primary key looks its row up, and only the key is noted as read.

*COPY* stands in three rooms: `sql/copying.py` reads the statement and its options, `copying.py` here has the rows as
Arrow batches (a sink that sets them aside, and writes them when it is finished), the server's `copy_*.py` have the
formats.
"""
