"""How rows come into tables: transactions on one snapshot, committed in groups, checked for conflicts.

layout.py        a table's rows as Python tuples, and in the layout of its state
written_rows.py  net changes of rows by key, and the operations on single rows that make them
history.py       which keys changed when: what a transaction's reads are checked against
transaction.py   what one transaction has read and wants to write, statement by statement
handing.py       what sinks have for tables, as changes of the table in the sink's transaction
requests.py      what writers hand over to be committed
outcome.py       what becomes of a request: a result or an error, told to whoever asked
holds.py         what a transaction holds until its end
group.py         what one group commit makes of the tables that it touches. Pure, apart from look-ups
stored.py        rows as they were before a group: newest runs, pinned, and look-ups in them
row_cache.py     the newest rows by primary key, as far as they were looked up or written lately
turn_taking.py   waits for a turn, before a transaction, where the one before was refused
gates.py         tables that a statement keeps for itself until it has committed
table_rows.py    layouts, the newest rows by key, and what has changed when
writer.py        takes what waits, in groups; gates; who leads
group_commit.py  applies a group's requests, writes one run for each table, commits all at one epoch
small_runs.py    one growing object for many small runs of a table
settling.py      forces small runs to the disk after the commit, and lets the catalog go of its copies

All rows come in through one place, the `Writer`. What a statement or transaction wants to change is a *request*. All
requests that wait are committed as one *group*: planned one after another in memory, written as one run for each
table, put into the catalog by one transaction, at one epoch. A change that leaves all rows as they are makes no
epoch.

- `RowWrite`: an operation on single rows: a function of the rows that it looks up by key, run when its turn comes;
  the group looks up the keys of all its operations in one go, or has them in `row_cache.py`. Read set: none: it sees
  the newest rows.
- `TableWrite`: inserts and deletes, planned against what is there then (`state/table_changes.py`). Read set: none.
- `TransactionCommit`: what the statements of a transaction come to, as parts: rows by key, rows with weights, runs
  that Spark's tasks wrote, changes to be planned at the commit. Read set: whole tables, and keys.

docs/design/0008 says why, and what that costs and saves.
"""
