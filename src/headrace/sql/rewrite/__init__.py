"""Rules of the older translation that give a query PostgreSQL's meaning on Spark.

scalars.py          numbers, casts, text and arrays
time_rules.py       dates, timestamps and series
aggregate_rules.py  aggregates
tree_building.py    short ways to build syntax trees of Spark expressions
"""
