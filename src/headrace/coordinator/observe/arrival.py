"""Waiting for jobs to arrive: a new view to be readable, all views to have reached an epoch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.decide.exact import newest
from headrace.coordinator.decide.graph import Graph, GraphIndex
from headrace.coordinator.run.core import Core, Job, LiveRelation
from headrace.errors import JobFailed, QueryCanceled, UndefinedObject


def wait_created(core: Core, job_id: int, timeout_s: float | None, check: Callable[[], None] | None) -> None:
    """See `Coordinator.wait_created`."""
    with core.changed:
        job = _job(core.graph, job_id)

        def settled() -> bool:
            return bool(job.created or job.error or core.stopping or job_id not in core.graph.jobs)

        done = core.changed.wait_until(settled, timeout_s, check)
        if job.created:
            return
        core.check()
        _job(core.graph, job_id)
        if job.error is not None:
            raise _job_failed(job)
        assert not done
        raise QueryCanceled(
            f'materialized view "{job.name}" is still being created', detail=job.catching_up.text or None,
            hint="it goes on in the background; SHOW JOBS shows its progress",
        )  # fmt: skip


def wait_all(core: Core, epoch: int, timeout_s: float | None, check: Callable[[], None] | None) -> int:
    """Wait until all created jobs that can have reached an epoch; returns it. See `Coordinator.flush`."""
    with core.changed:
        out = core.graph.jobs_below(j.id for j in core.graph.jobs.values() if j.creating)
        out |= core.graph.held_up(j.id for j in core.graph.jobs.values() if j.paused or j.quarantined)
        jobs = [j for j in core.graph.jobs.values() if j.id not in out]
        before = {j.id: j.trouble.failed_total for j in jobs}
        stale = {j.id for j in jobs if j.activity.epochs}
        for job in jobs:
            # A job that is failing is tried once more, at once.
            job.hurry(epoch)
            job.retry(0.0)
        core.changed.notify_all()

        def waiting() -> list[Job]:
            # Not the frontier: a view whose input has taken in several epochs at once will not change before the
            # last of them, and has none of their rows.
            known, here = GraphIndex(), [j for j in jobs if j.id in core.graph.jobs and j.life.serves]
            return [j for j in here if (newest(core.graph.exact(j.id, known)) or 0) < epoch]

        def failed(left: list[Job]) -> list[Job]:
            return [j for j in left if j.trouble.failed_total > before[j.id] and j.error is not None]

        def settled() -> bool:
            left = waiting()
            for job in [j for j in failed(left) if j.id in stale]:
                stale.discard(job.id)
                before[job.id] = job.trouble.failed_total
                job.retry(0.0)
                core.changed.notify_all()
            # A failing job holds up only its group and those built on it; all others are waited for.
            return core.stopping or {j.id for j in left} <= core.graph.held_up(j.id for j in failed(left))

        core.changed.wait_until(settled, timeout_s, check)
        left = waiting()
        if not left:
            return epoch
        core.check()
        for job in failed(left):
            raise _job_failed(job)
        names = ", ".join(f'"{j.name}"' for j in left)
        raise QueryCanceled(f"FLUSH was given up: not yet at epoch {epoch} are {names}")


def _job(graph: Graph[LiveRelation, Job], job_id: int) -> Job:
    job = graph.jobs.get(job_id)
    if job is None:
        raise UndefinedObject(f"there is no job {job_id}")
    return job


def _job_failed(job: Job) -> JobFailed:
    assert job.error is not None
    return JobFailed(
        f'job "{job.name}" is failing: {job.error.message}',
        detail=job.error.detail,
        hint=job.error.hint,
        sqlstate=job.error.sqlstate,
    )
