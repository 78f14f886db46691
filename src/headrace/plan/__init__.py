"""From a query, planned by Catalyst, to a tree of incremental operators.

The way:

planner.py       `Planner`: a view's query in, its incremental plan out
catalyst/        the seam around Catalyst: nothing else calls Spark's Java process
derive.py        walks the optimized plan and builds the tree
tree.py          what an operator is, and the tree of them: ids, state tables, fingerprint
border_types.py  types at the border between Catalyst and Arrow
alike.py         which of Catalyst's expressions do the same
failures.py      Spark's errors as headrace's
guards.py        guards: expressions that give NULL where they would fail
stored_plans.py  analyzed plans of DataFrames as text
cuts.py          where a plan is cut so that its joins become jobs of their own

Operators, each with its node and the rule that makes it of Catalyst's plan:

inputs.py      leaves: relations, rows that the query itself states
rowwise.py     projections, filters and whatever else is done row by row
unions.py      UNION ALL
joins.py       joins
lookups.py     temporal joins
aggregates.py  grouping
recompute.py   group recompute
sessions.py    session windows, found by their structure
temporal.py    `now()` in conditions
closing.py     EMIT ON WINDOW CLOSE
python.py      nodes that call Python functions

More rules:

sharing.py      sides of joins that are looked up in a relation's own rows
accumulable.py  which aggregate functions accumulate, and by which accumulator
distinct.py     DISTINCT aggregates, hidden from Spark's own rewriting
windows.py      window functions, and filters on a rank
limits.py       LIMIT and OFFSET
tolerance.py    `on_error` 'null' and 'skip': expressions that may fail, guarded

Event time:

event_time.py       which watermarks count in a plan: asks its operators
mark_rules.py       what Catalyst's expressions make of marks
watermark_rules.py  marks as they move through a plan. Pure

`catalyst/bridge.py` plans a query over *empty but not known to be empty* leaves, one for each relation. `derive.py`
makes operators of the optimized plan:

- a relation's leaf: `Input`; state: none.
- rows that the query itself states: `Constant`; state: none.
- Project, Filter, Expand, Generate, Python UDFs and table functions, `mapInPandas` and `mapInArrow`: `Projection`,
  `Selection`, `Expansion`, `Generation`, `Extension`, `TableFunction`, `PythonRows`; state: none, weights pass through.
- Union: `Union`; state: none.
- Join of any type: `Join`; state: both sides by join key, but for one that is shared; for outer, semi, anti and
  existence joins also the match count of every row of a preserved side.
- Aggregate of count, sum, avg, min, max, also with DISTINCT, bool_and, count_if, bit_and, bit_or, bit_xor; DISTINCT:
  `Aggregate`; state: sums by group; for min and max over input that can change the values of each group in order
  (`ordered<i>`); for DISTINCT aggregates how often each group has each value, in all and for each filter
  (`distinct<i>`).
- any other Aggregate (of pandas and Arrow, too): `Regrouped`; Window: `Windowed`; `applyInPandas`, `applyInArrow`:
  `Applied`; OFFSET: `TopN`; state: the rows by partition key.
- LIMIT: `TopN`; Window below a filter that bounds a rank: `Windowed`, of the first rows; state: the rows by partition
  key, in order; of input that only grows the first ones.
- the window functions that `SESSION` stands for: `Session`; state: the rows by session key, in the order of their
  times.
- Filter that compares with `now()`: `TemporalFilter`; state: the rows by the time at which they enter or leave.
- Join with a leaf read `AS OF PROCTIME()`: `Lookup`; state: none.
- `EMIT ON WINDOW CLOSE`, over all of the query: `WindowClose`; state: the rows that wait.
- scalar subquery: a left join with its one row; state: as a join.
- Sort without LIMIT: nothing: the order of a view is up to its readers.

What has no rule is refused at `CREATE` with SQLSTATE 0A000.

*Ids and fingerprint.* Operator ids are positions in the tree (`0`, `0.0`, `0.1`, ...); state tables are called
`<operator>/<name>`, the view's own rows `view/rows`. The *fingerprint* of a tree (kinds, ids, keys, state layouts,
shared sides, guards, expressions with their ids renumbered) is stored with the view. After a restart the view is
planned again and must have the same one; otherwise it is quarantined: readable as it was, but never fed by operators
that did not write its state. A plan carries its planner's `generation`: `CREATE` refuses a plan that was made before
Spark was replaced.

*Session windows.* What does not match the structure that `sessions.py` looks for (a gap of months, a function written
by hand, a plan that was optimized before, as of a part of a join that runs apart) stays with the rules for window
functions, which are right, too.

*Shared sides.* A preserved side is never shared, since its rows come out whether they meet any or not. Where an index
serves, the plan's input is the index and no longer its relation. The fingerprint has the shared sides; the job's
record has what they are looked up in (`arrangements`), and planning again is given just these: neither a later index
nor a setting changes a view.

*Indexes.* An index is a view of some columns whose own rows lie by the first of them: its `__k` is the hash of its
key instead of the whole row. The planner knows it as one more path to its relation (`Path`). A temporal join takes
the first path of which the join gives all columns; other joins take one whose key is theirs.

*Event time.* A mark is a least of chains, each the watermark of a relation's column put through monotone steps (shifts,
windows, calendar units). `mark_rules.py` reads them off Catalyst's expressions, and each operator says what becomes of
those of its input: projections, `Expand` (HOP), unions, grouping and partition keys, and joins whose conditions bound
the difference of two times pass them on. A plan in which nothing needs a mark (no `WindowClose`, no such join) has
nothing to do with event time and leaves out no row. Otherwise every state table with a marked key or column gets
`TableSchema.expires`. The end of a session has the mark of the rows' time: whatever comes later is at the watermark or
above, so it can prolong only what ends after it.

*Rows on which an expression fails* (`tolerance.py`) are the subject of docs/design/0011.

*Plans that a restart does not make.* What `dataflow/kept_plans.py` keeps of a plan was made of one with this
fingerprint, by the same programs and of the same definitions, so it needs no look at Catalyst's plan. When more of the
plan is needed it is made, and must have the fingerprint then.

*Stored plans.* Nodes that Java cannot write are stored as a projection that stands in for them; Python functions are
given the new process's accumulator and interpreter when the plan is read.
"""
