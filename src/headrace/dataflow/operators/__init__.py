"""What runs inside Spark's Python workers: numpy and Arrow only, no import of the server side.

What every task does:

task.py           learns of its epoch, reads and writes state, acknowledges
task_progress.py  tells the coordinator how far the task is
spill.py          runs a stage in bounded memory, slice after slice
pairs.py          matches rows by key: hashes first, then the real columns
spark_hash.py     Spark's `xxhash64` over Arrow columns

Leaves and ends:

inputs.py       leaves: a table's change, a source's new rows, constants, a snapshot
held_rows.py    what a table that a source feeds has of some keys
materialize.py  the end of a view's job: its own rows
deliver.py      the end of a sink's job: hands the changes to the sink
copy_write.py   COPY TO files: each task writes a file of its own
table_write.py  large writes: rows of a query become runs of a table

Joins:

join.py          the inner part of a join
preserve.py      the outer part: which rows of a preserved side have a match
shared_sides.py  a side that is looked up in a relation's own rows
lookups.py       temporal joins

Groups:

combine.py        combines rows by key in the worker that made them
aggregate.py      grouped sums: one look-up for each changed group
group_changes.py  what values that count once add to groups, before the sums
kept_values.py    what an aggregate keeps of values: those counted once, those of which it wants the first
first_rows.py     the first rows of each changed group, before and after
leading.py        the first rows of each partition, over input that only grows
recompute.py      group recompute: old and new rows of changed partitions
sessions.py       session windows

Time:

timed.py  filters by the current time
close.py  EMIT ON WINDOW CLOSE

Expressions and functions:

compute.py             filters and projections, computed in the worker
kernel_expressions.py  expressions over the columns of a batch, by Arrow's kernels
exactness.py           for which types these compute exactly what Spark does
failures.py            notes the rows on which an expression fails
python_calls.py        functions that users have created
calls.py               user functions over many rows at once
"""
