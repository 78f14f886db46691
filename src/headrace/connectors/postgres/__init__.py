"""PostgreSQL, and what speaks its protocol: a sink that writes tables."""
