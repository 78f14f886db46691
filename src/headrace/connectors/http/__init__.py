"""HTTP: changes of a query as requests."""
