"""PySpark's daemon, which forks Python workers, with all that they need imported once.

A worker that imports numpy, pyarrow, pandas and the operators by itself starts a second later. Run by Spark as
`python -m headrace.dataflow.daemon pyspark.worker` (its setting `spark.python.daemon.module`).

PySpark imports nothing before the fork, so that no thread is lost in it. What is imported here starts none that the
forked process misses: with `OMP_NUM_THREADS`, which Spark sets, numpy starts none, and pyarrow's jemalloc, which
knows of forks, is not the one that allocates.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark.daemon import manager

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.worker",
    "headrace.dataflow.acknowledgements",
    "headrace.dataflow.operators.aggregate",
    "headrace.dataflow.operators.calls",
    "headrace.dataflow.operators.deliver",
    "headrace.dataflow.operators.inputs",
    "headrace.dataflow.operators.join",
    "headrace.dataflow.operators.materialize",
    "headrace.dataflow.operators.preserve",
    "headrace.dataflow.operators.recompute",
    "headrace.dataflow.operators.task",
)


def preload() -> None:
    """Import what workers use."""
    for name in PRELOADED:
        importlib.import_module(name)
    # Python's own random numbers are seeded again in every child, numpy's are not.
    os.register_at_fork(after_in_child=importlib.import_module("numpy.random").seed)
    # What is there now is never looked at again, so that forked workers share its memory.
    gc.freeze()


if __name__ == "__main__":
    preload()
    manager()
