"""Large merges as Spark jobs: a task for each range of keys, in the pool for maintenance.

A merge of less than `compaction_spark_mb` happens in the maintenance thread. A larger one is cut into ranges of keys
of about equal size, by the sparse indexes of its runs, and each task writes a run of its own; one such job runs at a
time. One edit replaces the old runs by all of them. A key is in only one of them, so they count as one run for the
choice of merges and for back-pressure (`levels`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.catalyst.java_calls import set_property
from headrace.plan.failures import translate
from headrace.state.merge import MergePart
from headrace.state.proof import confirm
from headrace.state.schema import RunRef
from headrace.state.stores import store_root

POOL = "maintenance"
"""The scheduler's pool, of low weight: epochs and queries go first."""
_numbers = itertools.count(1)


class SparkMerger:
    """Runs the parts of one merge after another's; never two Spark jobs at once."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._running = threading.Lock()
        self._group: str | None = None

    def __call__(self, parts: Sequence[MergePart]) -> list[RunRef | None]:
        """The new runs, in the order of the parts. Raises the error of the part that failed; then none counts."""
        with self._running:
            context = self._context
            try:
                context.setLocalProperty("spark.scheduler.pool", POOL)
                self._group = f"headrace-merge-{next(_numbers)}"
                context.setJobGroup(self._group, f"merge of table {parts[0].refs[0].table_id}", True)
                made: list[RunRef | None] = context.parallelize(list(parts), len(parts)).map(MergePart.run).collect()
            except Exception as error:
                raise translate(error) from error
            finally:
                self._group = None
                with suppress(*UNANSWERED):
                    set_property(context, "spark.scheduler.pool", None)
                    set_property(context, "spark.jobGroup.id", None)
            if store_root(parts[0].root).proof:
                confirm(parts[0].root, [ref for ref in made if ref is not None])
            return made

    def cancel(self) -> None:
        """End the merge that runs, if any: its parts fail."""
        group = self._group
        if group is not None:
            with suppress(*UNANSWERED):
                self._context.cancelJobGroup(group)
