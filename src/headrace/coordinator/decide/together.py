"""Which steps of a group's epoch run next, as one Spark job. Pure decisions.

A small step costs Spark about as much as an empty one, so steps of views that do not read one another share a job.

Steps of one job that fail are run again one by one (`apart`): so the one that is to blame fails under its own name,
with all that follows from a failure, and a task that was lost is no failure of anybody. A sign of life from any of
them is one of all for `epoch_timeout_ms`.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.decide.graph import J
from headrace.coordinator.decide.group_epoch import GroupEpoch, JobPart
from headrace.coordinator.decide.targets import ROWS_PER_TASK
from headrace.coordinator.decide.work import Work
from headrace.state.schema import ROWS

MOST_TOGETHER = 16
"""Steps of one Spark job at most: the parameters of all of them travel to each of its tasks, and all of them are run
again if one fails."""


def next_steps(
    epoch: GroupEpoch[J], work_of: Callable[[JobPart[J]], Work | None], *, apart: bool, most: int = MOST_TOGETHER
) -> list[tuple[JobPart[J], Work]]:
    """What runs next of an epoch: a step of the current part, and those of other parts that share its job.

    At most `most` steps, and only one if they are to run `apart`. Parts of which nothing is left are finished on the
    way; so it may be that none is found, and another call finds some. Passes on what `work_of` raises.
    """
    found: list[tuple[JobPart[J], Work]] = []
    for part in independent(epoch):
        work = work_of(part)
        if work is None:
            part.finished = True
        elif not apart and may_share(part, work):
            found.append((part, work))
            if len(found) == most:
                break
        elif not found:
            return [(part, work)]
    return found


def independent(epoch: GroupEpoch[J]) -> list[JobPart[J]]:
    """The parts that are not finished and read none that is not finished either, in the order of the epoch."""
    left = [p for p in epoch.parts if not p.finished]
    unfinished = {p.job.id for p in left}
    return [p for p in left if unfinished.isdisjoint(p.job.upstreams)]


def may_share(part: JobPart[J], work: Work) -> bool:
    """Whether a step may share a Spark job with others: the whole of a small change, for a view that works.

    By itself runs what takes its time anyway (it would only hold up the others), a view that is being created or has
    just failed, and a sink, since what it has delivered cannot be taken back when another view fails.
    """
    job = part.job
    small = work.step.last and not part.begun and work.step.rows <= ROWS_PER_TASK
    return small and job.created and not (job.whole or job.failures) and ROWS in job.tables
