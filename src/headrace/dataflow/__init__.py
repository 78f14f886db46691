"""One epoch of a group as one Spark job, and the operators that run inside its tasks.

From the tree to Spark's plan:

build.py              the epoch's DataFrame, operator by operator
lowering.py           what the module of an operator declares: its stage, its chain, its flow
flow.py               rows between operators, and the pieces that all operators are built from
chains.py             operators that follow one another in one worker
inputs.py             plans of leaves: relations, constant rows
rowwise.py            plans of operators that work row by row
unions.py             the plan of UNION ALL
joins.py              plans of joins: the stage that joins, and those that count matches
lookups.py            the plan of temporal joins
aggregates.py         plans of grouped aggregates
accumulator_input.py  what rows send to accumulators, as Spark's expressions
recompute.py          plans of group recompute
sessions.py           the plan of session windows
temporal.py           the plan of filters by the current time
closing.py            the plan of EMIT ON WINDOW CLOSE
python.py             plan nodes that call Python functions over many rows
vectors.py            Catalyst's expressions as Arrow kernels, where these do exactly the same
queries.py            queries over one relation or none as Arrow kernels
failures.py           rows on which an expression fails: which are noted, what the message says
spark_kernels.py      makes the kernels of our own types known to Spark

Running it:

runner.py            runs epochs of a view: planned once for each parallelism
epoch_result.py      what tasks have acknowledged, put together and checked
kept_plans.py        what is kept of plans for the next start
kept_runner.py       runs epochs by what is kept, before Spark is there
stage_process.py     a process in which their stages run
params.py            what a task must know of its epoch: one JSON text
acknowledgements.py  how what tasks have written reaches the driver
merging.py           large merges as Spark jobs
operators/           what runs inside Spark's Python workers

Spark itself:

spark.py          the Spark session that headrace starts for itself
daemon.py         the daemon that forks Python workers with their modules loaded
class_archive.py  Spark's Java classes in an archive that later JVMs map
executors.py      whether tasks run on other hosts, and what is settled with these first

What must hold. The closures of the stages are constant. What changes from epoch to epoch (epochs, inputs, runs of the
state) is one JSON text in a local property of the Spark job (`params.py`). A stage looks up keys in all runs of its
state tables: state is not partitioned on disk, so any epoch may have any parallelism, and nothing moves when it
changes. docs/design/0003 and 0004 say why, and what else was tried.
"""
