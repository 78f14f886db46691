"""Runs epochs of one view: the Spark plan is made once for each parallelism and used for every epoch.

A plan for one task has no shuffle, and its RDD is simply run again; a plan with shuffles is cloned for each epoch.
The parameters travel in a local property that is one for each view: so the RDDs of several views can stand side by
side in a union and run as one job (`run_with`), each with an attempt and acknowledgements of its own, as if it ran
alone. Only its tasks in the job's last stage have other partition numbers; which stages those are, and how many
partitions lie before, is among its parameters.

What counts is what the acknowledgements say (`epoch_result.py`). Every task of every stage must be heard of, as far as
the plan tells how many there are: Spark also takes a task as done whose update of an accumulator it has lost. Results
of tasks that failed are never reported.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from pyspark import Accumulator, SparkContext

from headrace.common.loggers import get_logger
from headrace.dataflow.acknowledgements import Acknowledgement, Acknowledgements
from headrace.dataflow.build import EpochPlan
from headrace.dataflow.epoch_result import EpochResult, result_of
from headrace.dataflow.failures import NotedChecks, described
from headrace.dataflow.kept_plans import LastingPlan
from headrace.dataflow.params import AGAIN, EpochParams, property_of, secrets_property_of
from headrace.errors import JobFailed, NotVectorized
from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.java_calls import set_property
from headrace.plan.catalyst.physical import JavaRows, Physical
from headrace.plan.failures import translate
from headrace.plan.planner import ViewPlan
from headrace.state.proof import confirm
from headrace.state.schema import TableSchema
from headrace.state.spool import forget_attempt

_NUMBERS = itertools.count(1)
_log = get_logger("headrace")
PLANS_AT_MOST = 32
"""Physical plans that are kept of one view, for different parallelisms and different sets of changed inputs."""


class _PhysicalPlan:
    """A planned epoch. Planning, and mostly also generating code, is paid for once."""

    def __init__(self, executed: Physical, counts: bool, failures: Mapping[str, NotedChecks]):
        self._executed = executed
        self.failures = failures
        """Which of its stages note on what rows expressions fail."""
        self.counts = counts
        """Whether its rows are what a sink took."""
        self.stages = executed.stages()
        # Without a shuffle the very same RDD can run again and again. With one, Spark would take the last epoch's
        # shuffle files for the next one's: so the plan is cloned, which makes new shuffles.
        self._rows = None if executed.shuffles else executed.rows()

    def rows(self) -> JavaRows:
        """The rows of an epoch; nothing runs yet."""
        return self._rows if self._rows is not None else self._executed.cloned().rows()


class EpochRunner:
    """The dataflow of one view on Spark. One epoch at a time."""

    def __init__(
        self,
        bridge: Bridge,
        plan: ViewPlan | LastingPlan,
        relations: Mapping[int, TableSchema | None],
        *,
        pool: str = "streaming",
        weak_hash: int | None = None,
        vectorize: bool = True,
    ):
        self._bridge = bridge
        self._plan = plan if isinstance(plan, LastingPlan) else LastingPlan.of(plan)
        self._relations = dict(relations)
        self._pool = pool
        self._weak_hash = weak_hash
        self.vectorize = vectorize
        """Whether expressions are computed by Arrow's kernels where these are sure to do what Spark does."""
        self._context: SparkContext = bridge.spark.sparkContext
        self._acknowledged: Accumulator[list[Acknowledgement]] = self._context.accumulator([], Acknowledgements())
        self._physical: dict[tuple[int, frozenset[int] | None], _PhysicalPlan] = {}
        self._running = threading.Lock()
        self._preparing = threading.RLock()
        self._number = next(_NUMBERS)
        """What its stages in Spark are told apart by from those of other views."""
        self._key = secrets.token_bytes(32)
        """What the values of secrets are encrypted by on their way to tasks: known to its stages alone."""
        self._failures: Mapping[str, NotedChecks] = {}
        """Of the plan that runs."""
        self._tasks: Mapping[str, int] = {}
        """How many tasks the stages of the plan that runs have."""
        self._under_way = "", ""
        """The attempt that runs, and the group of Spark's job."""
        self._inputs = self._plan.outline.leaves

    def prepare(self, parallelism: int, active: frozenset[int] | None = None) -> _PhysicalPlan:
        """The physical plan for a parallelism and the inputs that have changed; made when it is first asked for."""
        key = (parallelism, active)
        physical = self._physical.get(key)
        if physical is not None:
            return physical  # without the lock: an epoch must not wait for what is planned for others
        with self._preparing:
            physical = self._physical.get(key)
            if physical is None:
                if active is not None and len(self._physical) >= PLANS_AT_MOST:
                    return self.prepare(parallelism)
                physical = self._physical[key] = self._made(parallelism, active)
            return physical

    def _made(self, parallelism: int, active: frozenset[int] | None) -> _PhysicalPlan:
        """A physical plan: of the stages that are kept of it if there are any, else of all of the view's plan."""
        builder = EpochPlan(
            self._bridge, parallelism, self._acknowledged, self._relations, self._weak_hash, active, self._number,
            self._key, vectorize=self.vectorize,
        )  # fmt: skip
        form = parallelism, active
        kept = self._plan.stages(form) if self.vectorize else None
        if kept is not None:
            frame, counts = builder.build_only(kept), False
        else:
            frame, counts = builder.build(self._plan.whole())
        executed = self._bridge.executed(frame, parallelism)
        if kept is None and builder.only is not None and self.vectorize and not builder.failures:
            self._plan.add(form, builder.only)
        return _PhysicalPlan(executed, counts, builder.failures)

    def run(self, params: EpochParams, parallelism: int) -> EpochResult:
        """Run one attempt at an epoch; what it wrote counts only once the caller has committed it.

        Raises the error of the operator or expression that failed; then nothing of the attempt may be used.
        """
        return self.run_with(params, parallelism, [])[0]

    def run_with(
        self, params: EpochParams, parallelism: int, others: Sequence[tuple[EpochRunner, EpochParams, int]]
    ) -> list[EpochResult]:
        """Run an attempt at an epoch, and one of each of other views, as one Spark job; the results in that order.

        Raises the error of the first that failed; then nothing of any of them may be used. Of several none may be a
        sink that counts: of the job's rows it is not known whose they are. A single one of which a value needs Spark's
        own expressions runs again with these; of several one has to find out whose the value is (`NotVectorized`).
        """
        try:
            return self._run([(self, params, parallelism), *others])
        except NotVectorized as error:
            if others:  # each by itself, it shows whose values they are
                raise
            self._leave_to_spark(str(error))
            return self._run([(self, _again(params), parallelism)])

    def _run(self, attempts: Sequence[tuple[EpochRunner, EpochParams, int]]) -> list[EpochResult]:
        _, params, _ = attempts[0]
        job_group = f"headrace-{params.attempt}"
        with ExitStack() as held:
            for runner in sorted((r for r, _, _ in attempts), key=lambda r: r._number):
                held.enter_context(runner._running)
            try:
                self._bridge.activate()
                self._context.setLocalProperty("spark.scheduler.pool", self._pool)
                self._context.setJobGroup(job_group, f"epoch {params.to_epoch}", True)
                planned: list[JavaRows] = []
                before, counts = 0, False
                for runner, own, tasks in attempts:
                    physical, own_rows = runner._begin(own, tasks, job_group, before)
                    before += own_rows.partitions
                    counts = counts or physical.counts
                    planned.append(own_rows)
                assert not (counts and len(attempts) > 1), "the rows of one view only can be counted"
                rows = self._bridge.count_rows(planned)
            except Exception as error:
                raise translate(error) from error
            finally:
                for runner, own, _ in attempts:
                    runner._end(own)
            for runner, own, _ in attempts:
                runner._check_told(own)
            results = [runner._result(own, runner._acknowledged.value) for runner, own, _ in attempts]
            if params.on_other_hosts:
                confirm(params.root, [ref for result in results for ref in result.runs])
            results[0].rows_out += rows if counts else 0
            return results

    def _begin(
        self, params: EpochParams, parallelism: int, job_group: str, partitions_before: int
    ) -> tuple[_PhysicalPlan, JavaRows]:
        """Make all ready for an attempt in a Spark job; returns its rows."""
        physical = self.prepare(parallelism, self._plan.outline.active(params))
        rows, self._failures, self._tasks = physical.rows(), physical.failures, physical.stages.tasks
        told = replace(
            params, inner=physical.stages.inner, last=physical.stages.last, partitions_before=partitions_before
        )
        self._acknowledged.value = []
        self._under_way = params.known_as, job_group
        self._context.setLocalProperty(property_of(self._number), told.encode())
        set_property(self._context, secrets_property_of(self._number), told.encode_secrets(self._key))
        return physical, rows

    def _leave_to_spark(self, why: str) -> None:
        """From now on all expressions are Spark's."""
        _log.info("expressions are left to Spark", why=why)
        with self._preparing:
            self.vectorize = False
            self._physical.clear()

    def _end(self, params: EpochParams) -> None:
        forget_attempt(params.spool_root, params.attempt)
        with suppress(*UNANSWERED):  # Spark may have ended; that is told by the error of the job
            set_property(self._context, property_of(self._number), None)
            set_property(self._context, secrets_property_of(self._number), None)

    def cancel(self, attempt: str) -> None:
        """Stop an attempt that runs in another thread, and with it those that run in the same Spark job."""
        under_way, job_group = self._under_way
        if under_way == attempt:
            self._context.cancelJobGroup(job_group)

    def _check_told(self, params: EpochParams) -> None:
        """Raise `JobFailed` if a task has come to its end of which nothing was told here.

        Where Spark cannot hand on what a task has added to an accumulator, it logs a line and counts the task as done;
        and the connection that failed stays the one for all accumulators, so none would ever be heard of again.
        """
        told: dict[str, set[int]] = {stage: set() for stage in self._tasks}
        for ack in self._acknowledged.value:
            if ack.attempt == params.attempt and ack.stage in told:
                told[ack.stage].add(ack.partition)
        for stage, tasks in self._tasks.items():
            if len(told[stage]) < tasks:
                self._bridge.reconnect_accumulators()
                raise JobFailed(
                    f"{tasks - len(told[stage])} of {tasks} tasks of stage {stage} were not heard of at their end",
                    hint="the epoch is run again from the last checkpoint",
                )

    def _result(self, params: EpochParams, acknowledgements: Sequence[Acknowledgement]) -> EpochResult:
        return result_of(params, acknowledgements, self._inputs, partial(described, self._bridge, self._failures))


def _again(params: EpochParams) -> EpochParams:
    """The parameters for another try at the same step: tasks of the first may still be at work."""
    return replace(params, attempt=params.attempt + AGAIN, prefix=f"{params.prefix}/{AGAIN}")
