"""What PostgreSQL means by a statement: from its syntax tree to a typed tree, and on to text for Spark.

The way:

way.py             the way of a query to Spark, and counts of what was refused
bind.py            names and clauses of queries
parse_tree.py      the law: what is set on a node has to be named by a reader
bound_tree.py      the typed tree
spark_text.py      typed trees as Spark SQL that cannot be misread
world.py           what a query may name beside relations
session_values.py  what only the session knows: who asks, where, and when
moments.py         the times that a query asks for
row_changes.py     the queries behind INSERT, UPDATE and DELETE

FROM and names:

scope.py         which names can be seen where
from_clause.py   relations, joins, subqueries, functions in FROM
recursion.py     WITH RECURSIVE
output_names.py  names of outputs that have none

Clauses:

group_by.py          GROUP BY, and what a grouped query may name
total_aggregates.py  the row of the empty grouping set
order_by.py          ORDER BY, LIMIT, OFFSET
distinct_on.py       DISTINCT ON and WITH TIES
window_frames.py     frames of windows
one_row.py           window functions that find one row

Expressions:

expression_binder.py  the syntax tree's expressions, typed
call_binder.py        functions, aggregates, window functions
routines.py           functions that users have created
overloads.py          picks an overload, and casts the arguments to it
resolve.py            PostgreSQL's rules for that choice
casts.py              casts as they are written
coerce.py             which casts there are, and what Spark computes for each
logic.py              AND, OR, NOT, IS
comparisons.py        comparisons with a syntax of their own
sublinks.py           queries in expressions
listed.py             the rows of a query as one list
arrays.py             ARRAY and parts of arrays
structs.py            records as structs
set_functions.py      functions that return sets
json_paths.py         texts inside JSON documents
origins.py            which columns of relations those of a query are

Types:

types.py        PostgreSQL's types, and how Spark holds their values
typenames.py    names of types as statements write them
own.py          types that Spark has not: what computes with and compares them
spans.py        intervals
clock_times.py  times of the day
zone_times.py   moments and what the clocks of the session's time zone show
floats.py       floats whose overflow is an error

What it knows:

catalogue/  functions and operators, one line each

Relations and columns are resolved in scopes as PostgreSQL has them, overloads are chosen by its rules from
`catalogue/`, casts are those of `pg_cast`. The result is a pure function of the text and the columns of what it
reads, and is kept by both. `tests/sql/test_binder_law.py` goes through all classes of nodes and arguments that there
are. `NotBound` is an error for the user, with its place.

`spark_text.py` gives every relation an alias of its own, qualifies every column, quotes every name and gives every
literal its type; CTEs are put in their places, recursive ones get a name that is nobody's. `HEADRACE_BINDER_COUNTS=1`
has a test run print what `way.py` counts. CONTRIBUTING.md says how the binder is compared with a PostgreSQL server.
"""
