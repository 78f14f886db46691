"""Sessions: statements in, results out; and the database as Python programs use it.

The database:

database.py      `Database` and `connect`: the public Python API
query_result.py  what `Database.sql` returns
instance.py      `Instance`: a database in this process, as it is put together, and what servers need of it
keeper.py        keeps Spark running, and puts another application in its place when it has ended
rehearsal.py     a first life of Spark that only fills the archive of its classes
log_output.py    what the commands log

A session:

session.py       `Session`: one statement after another, as servers ask for them
context.py       `Context`: all that a statement may use, and what a session keeps from one to the next
coordination.py  what statements ask of the coordinator
handlers.py      finds the handler of a statement: what it may do, what it gives, how it runs
interrupts.py    what stops a statement before its end: a cancel, its time limit
read_epochs.py   which epoch the reads of a session see; snapshots
locating.py      errors in PostgreSQL's words, with their place in the text
result.py        what a statement returns
transactions.py  what a transaction has read and wants to write
open_cursors.py  cursors that are open
scripts.py       several statements in one text
audit.py         who came, what was defined, granted and denied, in a file
startup.py       settings that a client sends when it connects
variables.py     settings of a session: SET and SHOW
parameters.py    settings of the system: ALTER SYSTEM
idle.py          limits of idle sessions and of transactions
turns.py         queries that run at once, and those that wait their turn

Statements known before they run:

prepared.py       statements with parameters
named.py          prepared statements by the name that a client chose
literal_texts.py  texts that differ in whole numbers only share a plan

What names mean:

names.py              relations of the catalog, system relations, views in place of their names
defined.py            how objects were defined: in which time zone, and what was altered since
leaves.py             relations as leaves of Spark queries
scans.py              scans of stored relations, sliced by how much there is to read
created_functions.py  functions that users create
hidden_views.py       hidden views: the joins that a view was cut at
renamed.py            what another name of an object changes: itself, what is hidden behind it, texts

Who may do what:

access.py        who may connect from where, and how they prove it. No I/O
stored_roles.py  roles and their memberships, as objects of the catalog
rights.py        what a role may do to an object

Queries and streams:

engine.py        queries on Spark
kept_queries.py  plans of queries on Spark that are asked again
kernel_plans.py  plans by which kernels compute queries over one table
frame_views.py   views from DataFrames and from Spark SQL
shared_plans.py  plans of reads, for all sessions to which a text means the same
shared_reads.py  small relations in memory, answers to equal questions, turns to compute
held.py          snapshots that DataFrames read, held as long as a DataFrame lives
subscribing.py   `Database.subscribe`

Rooms of their own:

execution/      how each kind of statement is carried out
reading/        reads that need no Spark
introspection/  queries that look into the system catalogs only
system/         system relations and functions
pipelines/      relations defined by functions of a Python file

*Who knows whom.* What carries statements out (`execution/`, `reading/`, `introspection/`, `system/`) gets a `Context`
and nothing else. Below that are the catalog, the coordinator and what answers queries; above it are `Session`, which
has one and runs statements with it, and `Instance`, which has the sessions. Nothing below knows what is above it, not
even by its type; `tests/test_imports.py` holds it to that. What has to reach up goes through two ports of `context.py`:
`Statements` (for a statement in a statement, and one that goes on after its handler's call) and `System` (for the few
that are about the whole server).

*Kinds of statements.* Each class of statements says whether it `writes`; a class that does not say so cannot be
defined. The module of `execution/` that carries a kind out declares one `Handler` for it: how it runs, which columns it
gives, what it does in a transaction, in a failed one and in a script, which server it needs, how it is explained and
prepared. Nothing else asks for the class of a statement.
`tests/session/test_settings.py` fails for a setting or a session variable without a reader.

*Spark comes and goes.* What can be served without Spark is served before it is there. `Instance` opens the catalog
and takes up relations and jobs without plans. Then `SparkStart` starts Java on a thread, with `spark_start =
on_demand` once somebody waits for it or `Coordinator.needs_spark`, and `SparkKeeper` takes the
session when it comes, the same way as after a loss of Spark (`Coordinator.expect_spark`, `renew`): one place waits
(`SparkKeeper.wait_ready`), one tries again, one fails what waits. Jobs are `starting` until then: without a runner no
lane begins an epoch, and all of their inputs' bindings are kept that they might need (`Graph.bindings_for`).
`Lifecycle.define` tells the planner of all relations, from which moment on queries are let go; then `Lifecycle.plan`
plans group by group, those with a backlog first, and lets each run. What an earlier server has kept of a plan
(`dataflow/kept_plans.py`) takes the place of planning, if all that the plan follows from is the same
(`coordinator/ddl/lasting.py`). Where it is kept for all of a group, its lanes need not even wait for Spark: they run by
it in processes of their own (`Planning.take_kept`, `dataflow/kept_runner.py`). What fails there, for whatever reason,
is no failure of the view: it is `starting` again and waits for Spark (`Application.holds`). When Spark comes, `define`
takes these runners away, and what they have under way commits nothing. Who needs to know of all views what became of
them waits for that (`Context.wait_for_views`), as does whatever plans another view; FLUSH waits until it is known of
each whether it runs (`wait_for_running`), since a view that cannot be planned holds up those built on it.

A call that Spark's JVM does not answer becomes `SparkLost`, upon which the keeper looks at once whether the JVM still
runs. If not, the coordinator is suspended (no lane begins an epoch; what fails counts as no failure), PySpark's
singletons are cleared and another application starts (`dataflow/spark.py`, `successor`). Planner and query engine
move there, functions are registered, all views are planned again under the same check of fingerprints as at a start.
Jobs get new runners and a new `version`, so attempts of the old application commit nothing.

The command loads its modules before Java starts, which takes all cores; `tests/test_start_imports.py` says what must
not be among them. `headrace prepare` lets Java keep Spark's classes in an archive.

*Pins end.* A pin keeps history from being merged, so each has an end: that of the client's transaction or result,
which `idle.py` and the server's `Peer` bound in time; and for `Database.table` that of the last DataFrame over it.
"""
