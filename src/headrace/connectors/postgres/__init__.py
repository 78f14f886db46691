"""PostgreSQL, and what speaks its protocol: a sink that writes tables, and a source of what changes in one."""
