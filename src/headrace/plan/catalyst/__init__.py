"""The seam around Catalyst: the only place that calls Spark's Java process.

typed_nodes.py   what nodes and expressions are: typed, frozen, asked of Java once; Scala's collections
expressions.py   Catalyst's expressions: columns, constants, and what any expression is asked
kinds.py         calls of aggregate, window and Python functions, and other kinds of which more is asked
nodes.py         the nodes of logical plans, by kind
making.py        expressions that are made
made_nodes.py    nodes that are made
bridge.py        one session: from queries to plans, from plans to what runs, plans as text
marked_names.py  names of Python functions by which nodes of ours are known again
physical.py      physical plans: their stages, the rows that they compute
kept.py          physical plans of queries that run again and again, each time as a copy
answers.py       errors of calls: what Java raised, and whether anybody answered at all
process.py       the Java process: started, left behind, ended
java_calls.py    what runs there beside plans: jobs to cancel, rows to fetch, functions to register, what is still held
"""
