"""From a query, planned by Catalyst, to a tree of incremental operators."""
