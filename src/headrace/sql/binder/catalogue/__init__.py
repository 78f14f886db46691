"""Functions and operators: their types, and what Spark has to compute for each."""
