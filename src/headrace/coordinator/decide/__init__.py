"""Decisions over the graph and the catalog's content: pure, without threads, clocks, disks or Spark.

graph.py         what depends on what, and how far each relation and job is
relation.py      a relation: what is stored of it, when it has changed
job.py           a job: what it reads, one frozen state for each thing that changes of it, all that may happen to it
life.py          which status a job has, and what makes another one of it; what keeps it from getting on
membership.py    whether a job moves in step with its group, and what changes that
settlement.py    who of a group moves in step, as a transaction that may fail
standing.py      how far a job is: status, checkpoint, position
pace.py          when a job may run, where it has to stop, how much it takes in at once
under_way.py     what a job has begun, and how far it is with its inputs' content
into.py          sinks into tables: what feeds what
machine.py       what a lane does next: which epoch, who joins, who is created
targets.py       epochs, parallelism, admission and retries of a group
row_sizes.py     how wide rows are, as far as is known; how much is taken in at one go
steps.py         how a large epoch is cut into bounded steps
together.py      which steps share one Spark job
group_epoch.py   an epoch of a group: who takes part, how far each is, what it has written
source_ranges.py  what is left of sources' ranges, cut where the watermark has risen, as read tasks
work.py          what a step reads of an epoch, and what it leaves
commit.py        the edits of each transaction of an epoch
exact.py         at which epochs a relation is exact
query_epochs.py  at which epochs a read sees its relations
watermarks.py    what the catalog says of watermarks at an epoch
split_times.py   how far the times of a source are, split by split
allowance.py      how many rows the rate of a source lets in
automatic.py     which indexes the system makes for a group
former.py        tables that got columns: what goes on for those that read the one before
widths.py        sources that get columns: who reads them in which width
unused.py        what the system looks after, and lets go of once nothing uses it
retry_turns.py  whose turn it is of transactions that were refused over the same tables
lease.py         what the active server's lease says, and when it has run out
view_options.py  options of a job, as `WITH` and `ALTER ... SET` give them
"""
