"""Rules that give a query PostgreSQL's meaning on Spark."""
