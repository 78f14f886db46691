"""What becomes of an attempt at a step: what its tasks have acknowledged, put together and checked.

What counts is what the acknowledgements say. Each stage reports how many rows it wrote, and the last stage of a task
the runs. Both must agree; a stage that reports twice for one slice makes the whole attempt void.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import RowError
from headrace.dataflow.acknowledgements import Acknowledgement, NotedFailure
from headrace.dataflow.failures import FailedExpression
from headrace.dataflow.operators import deliver, materialize
from headrace.dataflow.operators.inputs import ERROR_SAMPLES
from headrace.dataflow.params import EpochParams
from headrace.errors import JobFailed
from headrace.state.schema import RunRef


@dataclass
class EpochResult:
    """What a step has written and counted."""

    runs: list[RunRef] = field(default_factory=list)
    rows_in: int = 0
    """Rows that the leaves took in."""
    rows_by_input: dict[int, int] = field(default_factory=dict)
    """The same by relation; one that the query names twice is read twice."""
    rows_out: int = 0
    """Rows that the view's own delta has, as written, or that a sink took."""
    row_errors: list[FailedExpression | RowError] = field(default_factory=list)
    row_error_count: int = 0
    late_rows: int = 0
    """Rows of sources that were not taken in because the watermark had passed them."""
    newest_us: dict[int, dict[str, int]] = field(default_factory=dict)
    """By source: the highest event time that was read, Unix microseconds."""
    read_of_sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By source: rows that were read, late ones among them, and how many bytes these were."""
    task_count: int = 0
    spilled_bytes: int = 0
    """Input of operators that went to local disk and back for want of memory."""
    due_us: int | None = None
    """Nothing of its state is due before this time, Unix microseconds; None if nothing ever is."""
    undelivered: bool = False
    """A sink has delivered nothing, but told of rows to be left out: the step is not done."""
    remark: str = ""
    """What a sink has left undone that it does besides delivering, for people."""
    io: Counter[str] = field(default_factory=Counter)
    """What its tasks have read and written, by the names of the fields of `IoMetrics`."""


def result_of(
    params: EpochParams, acknowledgements: Sequence[Acknowledgement], inputs: Mapping[str, int | None],
    described: Callable[[NotedFailure], FailedExpression],
) -> EpochResult:  # fmt: skip
    """The result of an attempt; `inputs` are its leaves, as `ViewPlan.leaves`, and `described` makes notes readable.

    Acknowledgements of other attempts do not count. Raises `JobFailed` where they contradict each other.
    """
    result = EpochResult()
    seen: set[tuple[str, int]] = set()
    written = 0
    for ack in acknowledgements:
        if ack.attempt != params.attempt:
            continue
        # Every task of the epoch counts once: state must not mix two attempts at one slice. That a stage's rows
        # travel in the object of a later one makes no difference. What Spark runs again after it has lost a
        # shuffle's files has seen the same rows: of one that writes nothing the first word counts.
        slot = (ack.stage, ack.partition)
        if slot in seen:
            if not ack.rows_written and not ack.refs:
                continue
            raise JobFailed(
                f"stage {slot[0]} ran twice for slice {slot[1]} of epoch {params.to_epoch}",
                hint="the epoch is run again from the last checkpoint",
            )
        seen.add(slot)
        written += ack.rows_written
        room = max(ERROR_SAMPLES - len(result.row_errors), 0)
        result.row_errors += [described(e) if isinstance(e, NotedFailure) else e for e in ack.row_errors[:room]]
        _count(result, ack, inputs)
    if (stored := sum(r.rows for r in result.runs)) != written:
        raise JobFailed(f"the stages of epoch {params.to_epoch} wrote {written} rows, its objects hold {stored}")
    return result


def _count(result: EpochResult, ack: Acknowledgement, inputs: Mapping[str, int | None]) -> None:
    """Add what one task has written and counted."""
    result.runs += ack.refs
    result.spilled_bytes += ack.spilled_bytes
    result.io.update(ack.io)
    if ack.due_us is not None:
        result.due_us = ack.due_us if result.due_us is None else min(ack.due_us, result.due_us)
    result.task_count += 1
    result.row_error_count += ack.row_error_count
    result.late_rows += ack.late_rows
    if ack.stage in inputs:
        result.rows_in += ack.rows_out
        relation = inputs[ack.stage]
        if relation is not None:
            result.rows_by_input[relation] = result.rows_by_input.get(relation, 0) + ack.rows_out
            if ack.rows_read:
                rows, size = result.read_of_sources.get(relation, (0, 0))
                result.read_of_sources[relation] = rows + ack.rows_read, size + ack.bytes_read
            times = result.newest_us.setdefault(relation, {}) if ack.newest_us else {}
            for split, newest_us in ack.newest_us.items():
                times[split] = max(newest_us, times.get(split, newest_us))
    if ack.stage in (materialize.OPERATOR, materialize.INTO):
        result.rows_out += ack.rows_written
    elif ack.stage == deliver.OPERATOR:
        result.rows_out += ack.rows_out
        result.undelivered = result.undelivered or ack.undelivered
        result.remark = result.remark or ack.remark
