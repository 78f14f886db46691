"""Queries of clients that look into the system catalogs only, answered by DuckDB in this process.

Such queries use all of PostgreSQL: correlated subqueries, arrays of subqueries, records, series in SELECT lists. DuckDB
runs that as it is written, needs no Spark, and answers in milliseconds. Only what `rewriting` understands gets there.
"""

from headrace.session.introspection.engine import Asked, asked
from headrace.session.introspection.rewriting import is_catalog_function

__all__ = ["Asked", "asked", "is_catalog_function"]
