"""What PostgreSQL means by a statement: from its syntax tree to a typed tree, and on to text for Spark."""
