"""The `blackhole` sink: a query is run with all its state and checkpoints, and its rows are dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.common.columns import Column
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.sinks import SINK_OPTIONS, Sink, SinkPosition


class BlackholeSink(Sink):
    """See the module. It has no options of its own."""

    only_counts = True
    delivers = False

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        OptionReader(options).refuse_unknown(SINK_OPTIONS)

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """Count the changes."""
        return sum(batch.num_rows for batch in batches)
