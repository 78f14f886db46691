"""The state store: sorted runs, arrangements over them, and the kernels that work on both.

Runs and tables:

run.py      how a section of an object is laid out, written, opened and checked
schema.py   what a state table looks like, and where its runs are
kernels/    vectorised pieces: equality, order, combination
inspect.py  reads a run through and says whether it is sound

Reading:

arrangement.py  the runs of a table, read by key, by range, or as a log
gather.py       look-up and gathering over all batches of a run at once
run_cursor.py   walks several runs side by side, bounded
changelog.py    changes in the order of their epochs, piece by piece
watermark.py    rows below a table's watermark, which nobody sees any more. Pure

Writing:

table_changes.py  inserts and deletes become rows with weights. Pure
accumulators/     how sums, counts and the like are kept
merge.py          which runs to merge, and the merge
spool.py          what the stages of a task leave for its last one
memory.py         counts bytes in use, and decides who waits and who spills

Where objects lie:

stores.py     a directory or a prefix in an object store, behind one interface
objects.py    objects on the local disk: written, synced, named, mapped
remote.py     sections in an object store, packed and unpacked
cache.py      unpacked sections on this host
iopool.py     threads, bounds and repeats of requests
transport.py  plain requests over obstore; the only module that knows it
proof.py      proves that other hosts use the same store

A *run* is one section of an object: rows in Arrow IPC format sorted by `__k` (64-bit hash of the key), `__h` (hash of
the whole row where there are value columns, or an order code) and epoch. Rows of a run with only one epoch do not
store it. Objects never change. The newest runs of a table *are* its change log: every row keeps its epoch until the
table's *safe epoch* has passed it. docs/design/0013 says how runs, objects and stores came to be what they are.

A table's rows and a view's own rows are hashed by `kernels/hashing.py`; the keys of operators are hashed by Spark
(`xxhash64`), because they are needed before the shuffle. The two never meet: a table's hash is a sort order of that
table and nothing else.
"""
