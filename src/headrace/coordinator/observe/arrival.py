"""Waiting for jobs to arrive: views to be planned, a new one to be readable, all to have reached an epoch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.decide.exact import newest
from headrace.coordinator.decide.graph import Graph, GraphIndex
from headrace.coordinator.run.application import Application
from headrace.coordinator.run.live_state import Job, LiveRelation, LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.errors import JobFailed, QueryCanceled, UndefinedObject


def wait_created(
    live: LiveState, runtime: Runtime, job_id: int, timeout_s: float | None, check: Callable[[], None] | None
) -> None:
    """See `Coordinator.wait_created`."""
    with live.changed:
        job = _job(live.graph, job_id)

        def settled() -> bool:
            return bool(job.created or job.error or runtime.stopping or job_id not in live.graph.jobs)

        done = live.changed.wait_until(settled, timeout_s, check)
        if job.created:
            return
        runtime.check()
        _job(live.graph, job_id)
        if job.error is not None:
            raise job_failed(job)
        assert not done
        raise QueryCanceled(
            f"{job.in_words} is still being created", detail=job.catching_up.text or None,
            hint="it goes on in the background; SHOW JOBS shows its progress",
        )  # fmt: skip


def wait_all(
    live: LiveState, runtime: Runtime, epoch: int, timeout_s: float | None, check: Callable[[], None] | None
) -> int:
    """Wait until all created jobs that can have reached an epoch; returns it. See `Coordinator.flush`."""
    with live.changed:
        out = live.graph.jobs_below(j.id for j in live.graph.jobs.values() if j.creating)
        out |= live.graph.held_up(j.id for j in live.graph.jobs.values() if j.paused or j.quarantined)
        jobs = [j for j in live.graph.jobs.values() if j.id not in out]
        before = {j.id: j.trouble.failed_total for j in jobs}
        stale = {j.id for j in jobs if j.activity.epochs}
        for job in jobs:
            # A job that is failing is tried once more, at once.
            job.hurry(epoch)
            job.retry(0.0)
        live.changed.notify_all()

        def waiting() -> list[Job]:
            # Not the frontier: a view whose input has taken in several epochs at once will not change before the
            # last of them, and has none of their rows.
            known, here = GraphIndex(), [j for j in jobs if j.id in live.graph.jobs and j.life.serves]
            # What was paused or quarantined meanwhile holds up those built on it, as if it had been so before.
            held = live.graph.held_up(j.id for j in jobs if j.id in live.graph.jobs and not j.life.runs)
            here = [j for j in here if j.id not in held]
            return [j for j in here if (newest(live.graph.exact(j.id, known)) or 0) < epoch]

        def failed(left: list[Job]) -> list[Job]:
            return [j for j in left if j.trouble.failed_total > before[j.id] and j.error is not None]

        def settled() -> bool:
            left = waiting()
            for job in [j for j in failed(left) if j.id in stale]:
                stale.discard(job.id)
                before[job.id] = job.trouble.failed_total
                job.retry(0.0)
                live.changed.notify_all()
            # A failing job holds up only its group and those built on it; all others are waited for.
            return runtime.stopping or {j.id for j in left} <= live.graph.held_up(j.id for j in failed(left))

        live.changed.wait_until(settled, timeout_s, check)
        left = waiting()
        if not left:
            return epoch
        runtime.check()
        for job in failed(left):
            raise job_failed(job)
        names = ", ".join(f'"{j.name}"' for j in left)
        raise QueryCanceled(f"FLUSH was given up: not yet at epoch {epoch} are {names}")


def wait_planned(live: LiveState, runtime: Runtime, application: Application, timeout_s: float) -> bool:
    """Wait until all views are planned in the Spark that runs, or by what was kept of their plans before it does; or
    nobody plans them any more. Whether that is so.
    """

    def settled() -> bool:
        if runtime.stopping:
            return True
        return runs_all(live, application)

    with live.changed:
        return live.changed.wait_until(settled, timeout_s)


def runs_all(live: LiveState, application: Application) -> bool:
    """Whether all views are planned that can be, so that it is known of each whether it runs."""
    with live.lock:
        awaited = any(job.starting for job in live.graph.jobs.values())
        return (application.suspended is None or application.starts) and not awaited


def _job(graph: Graph[LiveRelation, Job], job_id: int) -> Job:
    job = graph.jobs.get(job_id)
    if job is None:
        raise UndefinedObject(f"there is no job {job_id}")
    return job


def job_failed(job: Job) -> JobFailed:
    """What is raised to who waits for a job that fails."""
    assert job.error is not None
    failed = JobFailed(
        f'job "{job.name}" is failing: {job.error.message}',
        detail=job.error.detail,
        hint=job.error.hint,
        sqlstate=job.error.sqlstate,
    )
    failed.job_id, failed.job_name = job.id, job.name
    return failed
