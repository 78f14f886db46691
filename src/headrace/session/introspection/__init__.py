"""Queries of clients that look into the system catalogs only, answered by DuckDB in this process.

Such queries use all of PostgreSQL: correlated subqueries, arrays of subqueries, records, series in SELECT lists.
DuckDB runs them as they are written, needs no Spark, and answers in milliseconds; planning them with Spark took
longer than the rest of a client's work, and Spark knows half of what they use. Only what `rewriting` understands gets
here.

rewriting.py      PostgreSQL's syntax tree becomes DuckDB's SQL
syntax_nodes.py   looks into nodes of that tree, and makes new ones
macros.py         functions that such queries may call: DuckDB's by name, and macros
hidden.py         what these functions look up, and nobody reads by name
output_types.py   PostgreSQL's types of what such a query returns and compares
duckdb_engine.py  DuckDB over the system relations, one connection for each session

What must hold. Relations get names that only `rewriting.py` gives. The connection has nothing but the rows put there,
as the session sees them at this moment, and cannot reach out of the process.
"""

from headrace.session.introspection.duckdb_engine import CatalogAnswer, asked, parameter_types_of
from headrace.session.introspection.rewriting import is_catalog_function

__all__ = ["CatalogAnswer", "asked", "parameter_types_of", "is_catalog_function"]
