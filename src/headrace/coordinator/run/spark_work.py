"""What the coordinator lets Spark do, in the application that the planner is in: run epochs, merge runs; and what it
lets processes of its own do before there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.coordinator.run.live_state import Runner
from headrace.dataflow.executors import prove
from headrace.dataflow.kept_plans import Kept, LastingPlan
from headrace.dataflow.kept_runner import KeptRunner, StageProcesses
from headrace.dataflow.merging import SparkMerger
from headrace.dataflow.runner import EpochRunner
from headrace.plan.planner import Planner, ViewPlan
from headrace.state.merge import MergePart
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot


class SparkWork:
    """Makes what runs on Spark. A merge belongs to one application: after `moved` another one is made. Thread-safe.

    `slots` is how many attempts run at once.
    """

    def __init__(self, planner: Planner, root: StoreRoot, slots: int) -> None:
        self._processes = StageProcesses(slots)
        self._planner = planner
        self._root = root
        self._merger: SparkMerger | None = None

    def runner(self, plan: ViewPlan | LastingPlan, relations: Mapping[int, TableSchema | None]) -> Runner:
        """See `RunnerFactory`."""
        return EpochRunner(self._planner.bridge, plan, relations)

    def kept_runner(self, kept: Kept) -> Runner:
        """A runner by what is kept of a plan, for as long as Spark has not started."""
        return KeptRunner(kept, self._processes)

    def merge(self, parts: Sequence[MergePart]) -> list[RunRef | None]:
        """See `MergeRunner`."""
        merger = self._merger
        if merger is None:
            merger = self._merger = SparkMerger(self._planner.bridge.spark)
        return merger(parts)

    def prove(self) -> None:
        """Make sure that tasks on other hosts, if there are any, use the same store."""
        if self._root.proof:
            prove(self._planner.bridge.spark, self._root)

    def moved(self) -> None:
        """The planner is in another application. Raises as `prove` does."""
        self.prove()
        self._merger = None

    def end_processes(self) -> None:
        """Nothing runs without Spark any more. Harmless when repeated."""
        self._processes.close()

    def cancel(self) -> None:
        """Stop a merge that runs, in whichever thread."""
        merger = self._merger
        if merger is not None:
            merger.cancel()
