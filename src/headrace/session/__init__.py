"""Sessions: statements in, results out; and the database as Python programs use it."""
