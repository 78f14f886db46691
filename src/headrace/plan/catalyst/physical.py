"""Spark's physical plans: which stages they have, and the rows that they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from py4j.java_gateway import JavaObject

from headrace.plan.catalyst.marked_names import stage_label
from headrace.plan.catalyst.typed_nodes import PartReader


class PythonStages(NamedTuple):
    """Where the stages of a physical plan run, by label."""

    inner: tuple[str, ...]
    """Those whose output goes to another one within the same Spark task."""
    last: tuple[str, ...]
    """Those that no shuffle follows: they run in the tasks of the job's last stage."""
    tasks: Mapping[str, int]
    """How many tasks each has, as far as the plan tells."""


_KEEPING = (
    "WholeStageCodegen", "InputAdapter", "Project", "Filter", "MapInArrow", "Sort", "HashAggregate",
    "ObjectHashAggregate", "SortAggregate", "Generate", "Expand", "Window",
)  # fmt: skip
"""What the names of physical nodes begin with whose output has the partitions of their only input."""


class JavaRows:
    """Rows that a physical plan computes, as an RDD of Java's; nothing runs yet."""

    def __init__(self, java: JavaObject) -> None:
        self.in_java = java

    @property
    def partitions(self) -> int:
        """How many tasks compute them."""
        return int(self.in_java.getNumPartitions())


class Physical:
    """A physical plan."""

    def __init__(self, java: JavaObject) -> None:
        self._java = java

    @property
    def text(self) -> str:
        """As Spark writes it."""
        return str(self._java.toString())

    @property
    def shuffles(self) -> bool:
        """Whether rows go from some tasks to others."""
        return "Exchange" in self.text

    def rows(self) -> JavaRows:
        """What it computes."""
        return JavaRows(self._java.execute())

    def cloned(self) -> Physical:
        """The same, with shuffles of its own."""
        return Physical(self._java.clone())

    def stages(self) -> PythonStages:
        """Its stages: what `mapInArrow` calls under the name of a stage."""
        inner: set[str] = set()
        last: set[str] = set()
        tasks: dict[str, int] = {}

        def visit(node: JavaObject, followed: bool, at_end: bool) -> int | None:
            kind, label = str(node.nodeName()), None
            if "Exchange" in kind:
                followed = at_end = False
            elif kind == "MapInArrow" and (label := stage_label(str(node.func().name()))) is not None:
                if followed:
                    inner.add(label)
                if at_end:
                    last.add(label)
                followed = True
            below = [visit(child, followed, at_end) for child in PartReader.items(node.children())]
            if label is not None and (known := below[0]) is not None:
                tasks[label] = known
            return _partitions(node, kind, below)

        visit(self._java, False, True)
        return PythonStages(tuple(sorted(inner)), tuple(sorted(last)), tasks)


def _partitions(node: JavaObject, kind: str, below: Sequence[int | None]) -> int | None:
    """Of how many partitions the output of a physical node is, given those of its children; None if not known."""
    if "Exchange" in kind or kind == "Range":
        return int(node.outputPartitioning().numPartitions())
    if kind == "Coalesce":
        return 1 if int(node.numPartitions()) == 1 else None
    if kind == "Union":
        # Inputs that are partitioned alike are put together partition by partition.
        apart = str(node.outputPartitioning()).startswith("UnknownPartitioning")
        known = [n for n in below if n is not None]
        return sum(known) if apart and len(known) == len(below) else None
    if kind == "LocalTableScan":
        return 0 if node.rows().isEmpty() else None
    return below[0] if len(below) == 1 and kind.startswith(_KEEPING) else None


__all__ = ["Physical", "PythonStages", "JavaRows"]
