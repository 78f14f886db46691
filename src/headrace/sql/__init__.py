"""Text to typed statements, PostgreSQL's types, and PostgreSQL's meaning over Spark SQL."""
