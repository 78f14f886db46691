"""Rules of the older translation that give a query PostgreSQL's meaning on Spark.

scalars.py     numbers, casts, text and arrays
times.py       dates, timestamps and series
aggregates.py  aggregates
build.py       short ways to build syntax trees of Spark expressions
"""
