"""Epochs, barriers, checkpoint groups, writes, reads and recovery: what keeps a database running.

Decisions are functions over the graph and the catalog's content, without threads, clocks, disks or Spark; what runs
them is apart from them. `tests/coordinator/test_simulation.py` plays random histories of the same functions against a
model.

Decide: pure functions:

graph.py            relations, jobs, what depends on what, how far each is
into.py             sinks into tables: what feeds what
machine.py          what a lane does next: which epoch, who joins, who is created
targets.py          epochs, parallelism, admission and retries of a group
steps.py            how a large epoch is cut into bounded steps
together.py         which steps share one Spark job
job.py              a job: what it reads, one frozen state for each thing that changes of it, all that may happen to it
life.py             which status a job has, and what makes another one of it; what keeps it from getting on
membership.py       whether a job moves in step with its group, and what changes that
standing.py         how far a job is: status, checkpoint, position
pace.py             when a job may run, where it has to stop, how much it takes in at once
under_way.py        what a job has begun, and how far it is with its inputs' content
commit.py           what a step reads, and the edits of each transaction
exact.py            at which epochs a relation is exact
query_epochs.py     at which epochs a read sees its relations
watermarks.py       what the catalog says of watermarks at an epoch
automatic.py        which indexes the system makes for a group
lease.py            what the active server's lease says, and when it has run out
options.py          options of a job, as `WITH` and `ALTER ... SET` give them

Run: threads, Spark, the catalog:

coordinator.py      `Coordinator`: the face of this part
operation.py        starts and stops the parts, moves them to another Spark, takes over from another server
start_times.py      how long the steps of a start take
spark_work.py       what Spark does for the coordinator: epochs' steps, merges
arrival.py          waiting for jobs: to be created, to have reached an epoch
core.py             what the parts share: relations, jobs, epochs, the lock
epochs.py           who may still write at which epoch, and which epoch is complete
ticker.py           allocates an epoch at each tick and binds the sources
lanes.py            the threads of lanes
driver.py           one lane's thread: waits, runs steps, commits, retries
lane_failures.py    what becomes of a lane's jobs when an epoch fails
attempt.py          one step of a job as Spark runs it
committer.py        commits a lane's epochs in order, beside the next one's run
waiting.py          who waits for the coordinator to get on, and who wakes whom
guard.py            keeps background work going: failures are told, counted, tried again

Create, alter, drop, start:

lifecycle.py        relations and jobs are created, altered, dropped
planning.py         what the catalog holds is taken up at a start, and planned in the Spark that runs
recovered.py        relations and jobs as the catalog has them
grouping.py         which checkpoint group a job may be in
undecided.py        DDL of which nobody knows yet whether it is durable
place.py            opens the catalog where the settings say, or moves it there first
location.py         where the state lies, as the catalog remembers it
secrets.py          `Vault`: secrets, decrypted when a connector is opened

Read and write:

reads.py            snapshots: which epoch a read sees, and what it pins
pins.py             epochs and objects that are in use
writes/             rows into tables
subscriptions.py    following changes, and the subscriptions that keep their history

Observe:

status.py           the coordinator's state as system relations show it
progress.py         what tasks report of attempts that are under way
progress_server.py  the TCP listener for these reports
watchdog.py         what each barrier waits for
logs.py             how large unread logs are, and what a limit does
history.py          newest checkpoints, rows read over edges, time paused
metrics.py          counters as named numbers
sparing.py          bounds how many events tell of one thing
inspection.py       what a database's state consists of, and whether it is sound

Upkeep:

maintenance.py      the background thread: compaction all the time, vacuum now and then
compaction.py       raises safe epochs, merges runs, drops bindings nobody can read
retention.py        how far back a relation's history is needed
vacuum.py           deletes objects that nothing refers to
owner.py            whose state it is: without its mark nothing there is deleted

Standby:

lease_keeper.py     renews the active server's lease
standby.py          follows the catalog, serves reads, watches the lease
mirror.py           relations and jobs, made of a catalog that another server writes

*Lanes.* Jobs that share a checkpoint group step, commit and fail together. A *lane* is what steps together: the jobs
of a group that have joined it, or one job that has not. A lane has one thread, one target epoch, one commit. Each of
its jobs runs after those it reads, and gets the runs that these have just written, which nobody else sees before the
commit. If one fails, the epoch is abandoned for all. A job that is created into a group of others, or moved to one,
is a lane of its own until it has caught up; then the group's next epoch takes it along from wherever it is, and
commits it at the same epoch (`joined` in its record keeps that). The global checkpoint is the case of one group;
there is no other code for it. Groups must not read one another in a circle, since each waits for the other's frontier
(`Graph.cycle_of`).

*New views.* A new view reads its inputs' content at one epoch, in steps; its position keeps that epoch readable. Then
it takes in the changes since, and becomes readable when it is within `backfill_caught_up_ticks` of its inputs.

*Commits.* A commit takes along the idle inputs of its jobs (`CarryAlong`), so that at any version of the catalog no
view is at a later checkpoint than what it is built on. That costs an idle view two records and no job.

*Background work.* Whatever runs in the background runs under `guard.py`. A *chore* may fail without keeping the next
one from its turn; a thread's loop is begun again after growing pauses; both are told and counted. `Several` does the
same for the pieces of one chore. `Lanes.revive` starts lanes whose threads could not be started.

Stories with reasons: docs/design/0005 (steps, epochs in flight, barriers that are no checkpoints), 0006 (the log
between views), 0007 (which epoch a read sees), 0014 (who owns the state), 0015 (standby).
"""

from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.reads import Snapshot, SnapshotTable
from headrace.coordinator.status import JobStatus
from headrace.coordinator.writes.requests import WriteResult
from headrace.state.changes import TableChange

__all__ = ["Coordinator", "JobStatus", "Snapshot", "SnapshotTable", "TableChange", "WriteResult"]
