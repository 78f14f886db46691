"""Spark's daemon for Python workers, which has loaded what they need before it forks them.

A worker whose task has failed is not used again. Without this the next one, whoever's epoch it works for, would first
import half a second's worth of modules, so that a view which fails over and over would slow down all others.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from pkgutil import iter_modules
from zipimport import zipimporter

from pyspark.daemon import manager

_LOADED = (
    "pandas", "pyarrow.compute", "pyarrow.parquet", "pyspark.worker", "pyspark.sql.pandas.serializers",
    "headrace.dataflow.acknowledgements",
    *(f"headrace.dataflow.operators.{name}" for name in (
        "aggregate", "calls", "deliver", "inputs", "join", "materialize", "preserve", "python_calls", "recompute",
    )),
)  # fmt: skip
_LOADED_WHOLE = ("headrace.state.accumulators",)
"""Packages with modules that nothing imports but the stages that a worker is sent."""
_WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What keeps the modules from starting threads when they are imported: only a process with one may fork workers."""


def load() -> None:
    """Import it all; no thread but the caller's runs afterwards."""
    for key, value in _WITHOUT_THREADS.items():
        os.environ.setdefault(key, value)
    for name in _LOADED:
        import_module(name)
    for package in map(import_module, _LOADED_WHOLE):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    # Every worker starts with `importlib.invalidate_caches()`, which reads the directories of PySpark's own archives
    # anew, once for each of its packages: a tenth of a second, for files that do not change.
    zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    # Python's own generator is seeded again in every child, numpy's is not.
    os.register_at_fork(after_in_child=import_module("numpy.random").seed)
    gc.freeze()


if __name__ == "__main__":
    load()
    manager()
