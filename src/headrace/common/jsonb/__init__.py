"""`jsonb`: documents, what PostgreSQL's functions make of them, and these functions as kernels over Arrow columns.

document.py        a document read, written, and as a key that sorts as PostgreSQL sorts
operations.py      PostgreSQL's functions and operators over documents
column_kernels.py  the same over Arrow columns, for Spark and for the server

Spark has no such type, nor PostgreSQL's intervals and times of the day. Their values are structs, by which the binder
and the wire recognise them (`span.py`, `time_of_day.py`). Spark's own expressions compute intervals and times;
documents need these kernels, which Spark calls as Arrow functions. A kernel returns an error as a value, so an
expression that nobody looks at fails nobody.
"""
