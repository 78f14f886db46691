"""Which checkpoint group a job may be in: groups must not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from headrace.config import Settings
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.decide.view_options import own_group
from headrace.coordinator.run.live_state import Job, LiveRelation
from headrace.errors import InvalidParameter, StatementError


class Grouping:
    """Answers which group a job gets, and whether it can be there. `lock` guards the graph."""

    def __init__(
        self,
        graph: Graph[LiveRelation, Job],
        lock: AbstractContextManager[object],
        settings: Callable[[], Settings],
    ) -> None:
        self._graph = graph
        self._lock = lock
        self._settings = settings

    def may_read(self, group: str, relation_id: int) -> bool:
        """See `Coordinator.may_read`."""
        group = self.group_named(group)
        with self._lock:
            return group == "own" or self._graph.cycle_of(0, group, (relation_id,)) is None

    def group_named(self, wanted: str | None) -> str:
        """See `Coordinator.group_named`."""
        return wanted or self._settings().default_checkpoint_group

    def group_of(self, job_id: int, name: str, upstreams: Iterable[int], wanted: str | None) -> str:
        """The checkpoint group of a job. Raises `InvalidParameter` where groups would wait for each other."""
        group = self.group_named(wanted)
        if group == "own":
            group = own_group(job_id)
        with self._lock:
            circle = self._graph.cycle_of(job_id, group, upstreams)
        if circle is not None:
            shown = " -> ".join(f'"{g}"' for g in circle)
            raise InvalidParameter(
                f'"{name}" cannot be in checkpoint group "{group}": groups would wait for each other',
                detail=f"a group steps as a whole, but these would read one another: {shown}",
                hint="put the views in between into the same group, or this one into another",
            )
        return group

    def check_move(self, job: Job, group: str) -> None:
        """Raises `StatementError` (55006) where a job of the group is still being created over this one."""
        with self._lock:
            reader = None if group == job.group else self._graph.filling(job.id, group)
        if reader is not None:
            raise StatementError(
                f'"{job.name}" cannot move to checkpoint group "{group}" now: "{reader.name}" is being created over it',
                sqlstate="55006", hint="try again when that is there, or drop it",
            )  # fmt: skip
