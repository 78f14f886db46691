"""One epoch of a group as one Spark job, and the operators that run inside its tasks.

From the tree to Spark's plan:

build.py             the epoch's DataFrame, operator by operator
flow.py              rows between operators, and the pieces that all operators are built from
joins.py             plans of joins: the stage that joins, and those that count matches
aggregates.py        plans of grouped aggregates
wire.py              what rows send to accumulators, as Spark's expressions
recompute.py         plans of group recompute
sessions.py          the plan of session windows
waiting.py           plans of operators whose rows wait for a time
python.py            plan nodes that call Python functions over many rows
chains.py            operators that follow one another in one worker
vectors.py           Catalyst's expressions as Arrow kernels, where these do exactly the same
queries.py           queries over one relation or none as Arrow kernels
failures.py          rows on which an expression fails: which are noted, what the message says
kernels.py           makes the kernels of our own types known to Spark

Running it:

runner.py            runs epochs of a view: planned once for each parallelism
params.py            what a task must know of its epoch: one JSON text
acknowledgements.py  how what tasks have written reaches the driver
merging.py           large merges as Spark jobs
operators/           what runs inside Spark's Python workers

Spark itself:

spark.py             the Spark session that headrace starts for itself
daemon.py            the daemon that forks Python workers with their modules loaded
class_archive.py     Spark's Java classes in an archive that later JVMs map
executors.py         whether tasks run on other hosts, and what is settled with these first

What must hold. The closures of the stages are constant. What changes from epoch to epoch (epochs, inputs, runs of the
state) is one JSON text in a local property of the Spark job (`params.py`). A stage looks up keys in all runs of its
state tables: state is not partitioned on disk, so any epoch may have any parallelism, and nothing moves when it
changes. docs/design/0003 and 0004 say why, and what else was tried.
"""
