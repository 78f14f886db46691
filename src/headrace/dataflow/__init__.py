"""One epoch of a group as one Spark job, and the operators that run inside its tasks."""
