"""Epochs, barriers, checkpoint groups, writes, reads and recovery: what keeps a database running.

Decisions are functions over the graph and the catalog's content, without threads, clocks, disks or Spark; what runs
them is apart from them. `tests/coordinator/test_simulation.py` plays random histories of the same functions against a
model.

coordinator.py    `Coordinator`: the face of this part
assembly.py       makes the parts and connects them
decide/           pure functions: what a lane does next, what a commit changes, what becomes of a job
run/              threads, Spark, the catalog: ticks, lanes, commits; start, stop, standby
ddl/              relations and jobs are created, altered, dropped, and taken up at a start
reads.py          snapshots: which epoch a read sees, and what it pins
subscriptions.py  following changes, and the subscriptions that keep their history
writes/           rows into tables
observe/          what people and system relations are told
upkeep/           compaction, logs that outgrow their limits, vacuum, whose state it is

`decide` imports no other room: whatever runs its decisions, the simulation too, is above it.

*Parts.* `Core` (`run/core.py`) makes what they share, and each is given by its constructor those pieces that it works
with: `LiveState` (relations, jobs and epochs in memory, and the lock that guards them), `Storage` (what is durable, and
who holds it), `Runtime` (settings, clock, whether it goes on), `Locks` (those held over I/O, and the order of all),
`Application` (the Spark that epochs run in), `Capacity` (tasks and memory), or single ones such as `Guard` and `Vault`.
Only what runs a lane and what starts and stops everything get all of it. `Assembly` makes the parts and connects them.

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
from headrace.coordinator.observe.status import JobStatus
from headrace.coordinator.reads import Snapshot, SnapshotTable
from headrace.coordinator.writes.requests import WriteResult
from headrace.state.table_changes import TableChange

__all__ = ["Coordinator", "JobStatus", "Snapshot", "SnapshotTable", "TableChange", "WriteResult"]
