"""Functions and operators: their types, and what Spark has to compute for each.

The catalogue itself:

entries.py   what an entry is, and how it is written down
listing.py   the catalogue as a list
examples.py  examples for each name, which a test runs here and by PostgreSQL

Entries:

operators.py            operators
functions.py            functions of single rows
aggregate_functions.py  aggregates and window functions
numbers.py              numerics and their digits
times.py                dates and timestamps
clock_times.py          times of the day
spans.py                intervals
documents.py            `jsonb`
lists.py                arrays
encodings.py            texts as bytes
bounded_values.py       values that grow out of a number, their size checked before

Texts that say what to do:

likes.py      patterns of LIKE and ILIKE
patterns.py   regular expressions
templates.py  templates of `to_char`, `to_date`, `to_timestamp`

An entry is a line: argument types, result type, and the Spark expression that computes it exactly. `examples.py` has
examples for each name, `tests/sql/test_catalogue.py` more for each overload; both run here and by PostgreSQL.
"""
