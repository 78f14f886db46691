"""`jsonb`: documents, what PostgreSQL's functions make of them, and these as kernels over Arrow's columns."""
