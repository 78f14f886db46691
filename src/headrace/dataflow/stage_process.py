"""A process that runs stages of kept plans without Spark: `python -m headrace.dataflow.stage_process`.

It is given one attempt after the other on its standard input, and answers each on its standard output with what the
tasks have acknowledged, or with why they failed; pickled, by the one process that has started it. It ends with its
input: when that process is gone, nobody waits for what it does. It does what a Python worker of Spark's does with the
very same stages (`operators.task.work`), so what it writes is what that would have written.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from headrace.common.absent import absent, skip_pandas
from headrace.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from headrace.dataflow.acknowledgements import Acknowledgement
    from headrace.dataflow.kept_plans import Stages
    from headrace.dataflow.params import EpochParams


@dataclass(frozen=True)
class StageWork:
    """An attempt at a step, as such a process is given it."""

    params: EpochParams
    """With the values of secrets."""
    stages: Stages
    parallelism: int
    """How many tasks it has; they run one after the other."""


def acknowledged(work: StageWork) -> list[Acknowledgement]:
    """Run all tasks of an attempt; what they acknowledge. Raises what a stage does."""
    import pyarrow as pa

    from headrace.dataflow.operators import task

    found: list[Acknowledgement] = []
    for partition in range(work.parallelism):
        # An attempt has a name of its own, and each of its tasks is tried once.
        worker = task.TaskWorker(work.params, partition, 0)
        numbers = pa.RecordBatch.from_arrays([pa.array([partition], pa.int64())], names=["id"])
        for _ in task.work(worker, work.stages, found.extend, iter([numbers])):
            pass
    return found


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the end of what is asked."""
    while True:
        try:
            work = pickle.load(asked)
        except EOFError:
            return
        answer: Sequence[Acknowledgement] | str
        try:
            answer = acknowledged(work)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


def main() -> None:
    """The process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who has started it decides when it ends
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no answer
    gc.disable()  # until it is loaded
    skip_pandas()
    with absent("pandas"):
        from headrace.dataflow.operators import aggregate, deliver, inputs, join, materialize, recompute  # noqa: F401
    gc.freeze()
    gc.enable()
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
