"""Relations as leaves of Spark queries: what the workers run, under names by which a plan can be recognised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

import pyarrow as pa

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.sources import open_source
from headrace.dataflow.operators.inputs import SnapshotScan, slice_numbers
from headrace.dataflow.operators.task import OUTPUT_ROWS, leaving_a_task
from headrace.plan.catalyst.marked_names import snapshot_name
from headrace.state.arrangement import Arrangement, slice_bounds
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import Root


@dataclass
class RelationFunction:
    """A snapshot of a table or view, as a function for `mapInArrow`."""

    scan: SnapshotScan
    relation: int

    def __post_init__(self) -> None:
        self.__name__ = snapshot_name(self.relation)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """This task's slice."""
        yield from self.scan(batches)


TOLD: Final = "headrace.snapshot"
"""The local property of a Spark job that says what its leaves read."""


@dataclass
class ToldFunction:
    """A relation in the snapshot that the Spark job tells of, as a function for `mapInArrow`: the same for all."""

    scan: SnapshotScan
    """Without runs and epoch."""
    relation: int

    def __post_init__(self) -> None:
        self.__name__ = snapshot_name(self.relation)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """This task's slice."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        text = context.getLocalProperty(TOLD)
        assert text is not None, "who runs a plan that is kept tells what its leaves read"
        as_of, refs = json.loads(text)[str(self.relation)]
        found = replace(self.scan, as_of=as_of, refs=tuple(RunRef.from_json(ref) for ref in refs))
        yield from found(batches)


def blank(scan: SnapshotScan) -> SnapshotScan:
    """How a relation is read, without the snapshot: that is told."""
    return replace(scan, as_of=0, refs=())


def told_runs(scans: Mapping[int, SnapshotScan]) -> str:
    """What relations are to be read as, for tasks."""
    return json.dumps({i: [scan.as_of, [ref.to_json() for ref in scan.refs]] for i, scan in scans.items()})


@dataclass
class StateFunction:
    """Reads a state table's stored rows, as a function for `mapInArrow`."""

    schema: TableSchema
    refs: tuple[RunRef, ...]
    root: Root
    as_of: int
    watermark: int | None
    names: tuple[str, ...]
    parallelism: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of this task's slices of the key space, combined over the runs."""
        table = Arrangement(self.schema, self.refs, self.root, as_of=self.as_of, watermark=self.watermark)
        for i in slice_numbers(batches):
            for rows in table.scan(*slice_bounds(i, self.parallelism)):
                for start in range(0, rows.num_rows, OUTPUT_ROWS):
                    yield rows.select(list(self.names)).slice(start, OUTPUT_ROWS)


@dataclass
class SourceFunction:
    """The rows of a source up to some offsets, as a function for `mapInArrow`."""

    options: dict[str, str]
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    tasks: tuple[dict[str, object], ...]
    parallelism: int
    relation: int
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Option -> the value of the secret that it was given."""

    def __post_init__(self) -> None:
        self.__name__ = snapshot_name(self.relation)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """This task's share."""
        from pyspark import TaskContext

        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        with leaving_a_task():
            yield from self.share(int(context.partitionId()))

    def share(self, i: int) -> Iterator[pa.RecordBatch]:
        """The rows of share `i`; rows that cannot be understood are left out."""
        reader = open_source(self.options, list(self.columns), (lambda: self.secrets) if self.secrets else None)
        for task in self.tasks[i :: self.parallelism]:
            for found in reader.read(task):
                if found.batch.num_rows:
                    yield found.batch.select(list(self.names))
