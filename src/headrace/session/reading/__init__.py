"""Reads that the server process answers itself, without Spark: what is understood of them, and how they are run."""
