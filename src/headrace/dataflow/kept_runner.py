"""Runs epochs before Spark is there: what is kept of a view's plan is stages of one Python worker, which need no Java.

After a start Java takes seconds before it runs the first job, and a view that has rows to take in would wait for that.
What an earlier server has kept of its plan (`kept_plans.py`) are the stages themselves, as Spark hands them to a Python
worker; they run in processes of this server's instead (`stage_process.py`), in the same way, and acknowledge the same.

Whatever cannot be done so (a form that is not kept, a value that is left to Spark's expressions, a process that has
ended) is an error here: its epoch is given up, nothing of it is used, and it is run by Spark once that is there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from headrace.dataflow.acknowledgements import Acknowledgement, NotedFailure
from headrace.dataflow.epoch_result import EpochResult, result_of
from headrace.dataflow.kept_plans import Kept, Stages
from headrace.dataflow.params import EpochParams
from headrace.dataflow.stage_process import StageWork
from headrace.errors import JobFailed
from headrace.state.spool import forget_attempt

_MODULE: Final = "headrace.dataflow.stage_process"
_ALONE: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""In the environment: each of the processes is to keep one core busy."""
_END_S: Final = 5.0


class _StageProcess:
    """One process, for one attempt at a time."""

    def __init__(self) -> None:
        self._killed = False
        command = [sys.executable, "-m", _MODULE]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **_ALONE}
        )

    def run(self, work: StageWork) -> list[Acknowledgement]:
        """What the tasks of an attempt acknowledge. Raises `JobFailed` where one fails, or the process has ended."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        try:
            pickle.dump(work, asked)
            asked.flush()
            answer = pickle.load(answers)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            self.kill()
            raise JobFailed("a process that ran stages has ended") from error
        if isinstance(answer, str):
            raise JobFailed(answer)
        found: list[Acknowledgement] = answer
        return found

    @property
    def ended(self) -> bool:
        """Whether it runs nothing any more."""
        return self._killed or self._process.poll() is not None

    def kill(self) -> None:
        """End it at once; whoever waits for its answer gets none."""
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """End it, and wait for that. Nobody uses it any more."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class StageProcesses:
    """At most so many processes that run stages, each started when it is first needed. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._idle: list[_StageProcess] = []
        self._busy: dict[str, _StageProcess] = {}
        """By the attempt that runs there."""
        self._starting = 0
        self._closed = False

    def run(self, work: StageWork) -> list[Acknowledgement]:
        """Run an attempt as soon as there is a process for it. Raises `JobFailed`, and where none can be started."""
        name = work.params.known_as
        process = self._taken()
        with self._changed:
            self._busy[name] = process
            closed = self._closed
        try:
            if closed:
                raise JobFailed("no stages are run here any more")
            return process.run(work)
        finally:
            with self._changed:
                del self._busy[name]
                kept = not self._closed and not process.ended
                if kept:
                    self._idle.append(process)
                self._changed.notify()
            if not kept:
                process.end()

    def _taken(self) -> _StageProcess:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._busy) + self._starting < self._most)
            if self._closed:
                raise JobFailed("no stages are run here any more")
            if self._idle:
                return self._idle.pop()
            self._starting += 1
        try:
            return _StageProcess()
        except OSError as error:
            raise JobFailed(f"no process could be started: {error.strerror}") from error
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify()

    def cancel(self, attempt: str) -> None:
        """Stop an attempt that runs."""
        with self._changed:
            process = self._busy.get(attempt)
            if process is not None:
                process.kill()

    def close(self) -> None:
        """Run nothing any more, and end all processes; what runs fails. Harmless when repeated."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy.values():
                process.kill()
            self._changed.notify_all()
        for process in idle:
            process.end()


class KeptRunner:
    """Runs epochs of one view by what is kept of its plan. See `Runner`."""

    def __init__(self, kept: Kept, processes: StageProcesses) -> None:
        self._kept = kept
        self._processes = processes

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        """Run one attempt. Raises `JobFailed` for whatever is to be left to Spark."""
        stages = self._stages(params, parallelism)
        try:
            found = self._processes.run(StageWork(params, stages, parallelism))
        finally:
            forget_attempt(params.spool_root, params.attempt)
        heard = {(ack.stage, ack.partition) for ack in found}
        if heard != {(stage.label, i) for stage in stages for i in range(parallelism)}:
            raise JobFailed("stages were not heard of at their end")
        return result_of(params, found, self._kept.outline.leaves, _undescribed)

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[KeptRunner, EpochParams, int]]
    ) -> list[EpochResult]:
        """Run one attempt, and one of each of other runners like this one; the results in that order."""
        return [self.run(params, parallelism), *(runner.run(own, tasks) for runner, own, tasks in others)]

    def cancel(self, attempt: str) -> None:
        """Stop an attempt that runs in another thread."""
        self._processes.cancel(attempt)

    def _stages(self, params: EpochParams, parallelism: int) -> Stages:
        forms, active = self._kept.forms, self._kept.outline.active(params)
        stages = forms.get((parallelism, active)) or forms.get((parallelism, None))
        if stages is None:
            raise JobFailed("what is kept of the plan has no stages for this epoch")
        return stages


def _undescribed(noted: NotedFailure) -> NoReturn:
    """Plans with stages that note failures are not kept: Catalyst has to say what they are."""
    raise JobFailed(f"a failure in {noted.stage} is left to Spark")
