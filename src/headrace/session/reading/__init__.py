"""Reads that the server process answers itself, without Spark: what is understood of them, and how they are run.

read_planning.py  which queries are answered here; asks, runs, or leaves them to Spark
read_plans.py     what is understood of a query over one relation or none
twins.py          typed expressions as Arrow kernels that do exactly the same
read_steps.py     runs a plan over a snapshot
surroundings.py   what plans are run with: a session, or a reading process
at_once.py        answers on the event loop, where nothing may be waited for
read_order.py     the order of rows
read_totals.py    groups of rows, and aggregates
explaining.py     what EXPLAIN says of such a read

`twins.py` makes kernels of the binder's tree. Its rules go by the form that the catalogue writes for Spark, so one form
has one meaning; what has no rule, or other types than a rule knows, is Spark's. `read_plans.py` decides once what a
query over one relation is (a point, equalities that a key or an index may find, the rest of the condition, order,
bounds), with its parameters open. `read_planning.py` leaves a query to Spark when a kernel raises on its values, before
a row is handed out. `read_steps.py` computes over the stored rows of the very snapshot that any other query gets.

`at_once.py` answers values over no relation, and the row of a table by its primary key. It reads at the newest
complete epoch, where tables are always exact: `Reads.rows_now` verifies the fence, takes the table's runs and the
epoch at a moment at which the catalog has just these runs (`Versions.hold_now`), looks the key up in the writers'
cache of newest rows or in the runs unless it has changed since that epoch, and raises the floors. Questions to a
relation whose content is kept in memory (`session/shared_reads.py`) are answered there, too, if little is to be
computed: `Reads.shows_now` finds that a snapshot would have the very same runs, and nothing to tell. Where the catalog
or the state is across a network it says `LATER`, and the connection's thread reads.

A plan of a prepared statement holds as long as the catalog's objects (roles and grants among them) and the session's
settings are the same objects; else it is made again, with the rights of then. A text whose numbers are lifted out
stands for the one that was written only if both bind to the same tree.
"""
