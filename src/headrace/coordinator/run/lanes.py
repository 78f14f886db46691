"""The threads of lanes: one for each group, and one for each job that has not joined its group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from headrace.coordinator.run.driver import Driver
from headrace.coordinator.run.live_state import Job, LiveState
from headrace.coordinator.run.runtime import Runtime
from headrace.errors import JobFailed

STOP_WAIT_S = 30.0
"""Seconds that a running epoch is given to end by itself before it is cancelled."""


class DriverFactory(Protocol):
    """Makes what runs a lane: that of a group, or of one job `alone`; `retire` says that the thread ends."""

    def __call__(
        self, group: str, alone: int | None, *, launch: Callable[[Job], None], retire: Callable[[], None]
    ) -> Driver: ...


class Lanes:
    """Owns the threads of all lanes: starts one where jobs have work, stops it where jobs leave. Thread-safe.

    The lock of `LiveState` guards which lanes have one.
    """

    def __init__(self, live: LiveState, runtime: Runtime, make_driver: DriverFactory) -> None:
        self._live = live
        self._runtime = runtime
        self._make_driver = make_driver
        self._threads: dict[tuple[str, int | None], threading.Thread] = {}

    def launch(self, job: Job) -> None:
        """See to it that the lane of a job has a thread."""
        live = self._live
        key = (job.group, None if job.joined else job.id)
        with live.changed:
            if job.runner is not None and not self._runtime.stopping and key not in self._threads:
                driver = self._make_driver(*key, launch=self.launch, retire=lambda: self._retire(key, thread))
                name = f"headrace-group-{job.group}" if job.joined else f"headrace-job-{job.id}"
                thread = threading.Thread(target=driver.run, name=name, daemon=True)
                self._threads[key] = thread
                # Where the process has no thread left the entry stays, for `revive`.
                with suppress(RuntimeError):
                    thread.start()
            live.changed.notify_all()

    def revive(self) -> None:
        """Start what should run and does not. Raises `JobFailed`, with the lanes that could not be started now."""
        live = self._live
        with live.changed:
            for key in [k for k, thread in self._threads.items() if not thread.is_alive()]:
                del self._threads[key]
                group, alone = key
                job = live.graph.jobs.get(alone) if alone is not None else next(iter(live.graph.lane(group)), None)
                if job is not None and not job.activity.withdrawn:
                    self.launch(job)
            dead = [thread.name for thread in self._threads.values() if not thread.is_alive()]
        if dead:
            raise JobFailed(f"no thread could be started for {', '.join(sorted(dead))}")

    def _retire(self, key: tuple[str, int | None], thread: threading.Thread) -> None:
        """The thread of a lane ends: the next job in it gets another one."""
        with self._live.lock:
            if self._threads.get(key) is thread:
                del self._threads[key]

    def halt_all(self, wait_s: float) -> None:
        """End all threads: epochs that run may finish within `wait_s`, then they are cancelled and do not commit."""
        live = self._live
        live.notify()
        with live.lock:
            threads = [thread for thread in self._threads.values() if thread.is_alive()]
        deadline_s = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self.withdraw(list(live.graph.jobs.values()))
        for thread in threads:
            thread.join(1.0)

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Take jobs out of their lanes: nothing of them commits any more, what they run is cancelled."""
        live = self._live
        jobs = list(jobs)
        with live.changed:
            for job in jobs:
                job.withdraw()
        live.notify()
        for _ in range(10):
            with live.changed:
                if not any(j.activity.epochs for j in jobs):
                    return
                running = [(j.runner, j.activity.attempt) for j in self._of_lanes(jobs) if j.runner is not None]
            for runner, attempt in running:
                if attempt is not None:
                    with suppress(Exception):
                        runner.cancel(attempt)
            with live.changed:
                live.changed.wait_for(lambda: not any(j.activity.epochs for j in jobs), 1.0)

    def _of_lanes(self, jobs: Iterable[Job]) -> list[Job]:
        """Jobs that take part in an epoch with one of these."""
        lanes = {(j.group, None if j.joined else j.id) for j in jobs if j.activity.epochs}
        return [
            j
            for j in self._live.graph.jobs.values()
            if (j.group, None if j.joined else j.id) in lanes and j.activity.epochs
        ]
