"""The threads of lanes: one for each group, and one for each job that has not joined its group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from headrace.coordinator.run.core import Core, Job
from headrace.coordinator.run.driver import Driver
from headrace.errors import JobFailed

STOP_WAIT_S = 30.0
"""Seconds that a running epoch is given to end by itself before it is cancelled."""


class Lanes:
    """Owns the threads of all lanes: starts one where jobs have work, stops it where jobs leave. Thread-safe.

    The core's lock guards which lanes have one.
    """

    def __init__(self, core: Core, compact: Callable[[], None]) -> None:
        self._core = core
        self._compact = compact
        self._threads: dict[tuple[str, int | None], threading.Thread] = {}

    def launch(self, job: Job) -> None:
        """See to it that the lane of a job has a thread."""
        core = self._core
        key = (job.group, None if job.joined else job.id)
        with core.changed:
            if job.runner is not None and not core.stopping and key not in self._threads:
                driver = Driver(
                    core, *key, compact=self._compact, launch=self.launch, retire=lambda: self._retire(key, thread)
                )
                name = f"headrace-group-{job.group}" if job.joined else f"headrace-job-{job.id}"
                thread = threading.Thread(target=driver.run, name=name, daemon=True)
                self._threads[key] = thread
                # Where the process has no thread left the entry stays, for `revive`.
                with suppress(RuntimeError):
                    thread.start()
            core.changed.notify_all()

    def revive(self) -> None:
        """Start what should run and does not. Raises `JobFailed`, with the lanes that could not be started now."""
        core = self._core
        with core.changed:
            for key in [k for k, thread in self._threads.items() if not thread.is_alive()]:
                del self._threads[key]
                group, alone = key
                job = core.graph.jobs.get(alone) if alone is not None else next(iter(core.graph.lane(group)), None)
                if job is not None and not job.activity.withdrawn:
                    self.launch(job)
            dead = [thread.name for thread in self._threads.values() if not thread.is_alive()]
        if dead:
            raise JobFailed(f"no thread could be started for {', '.join(sorted(dead))}")

    def _retire(self, key: tuple[str, int | None], thread: threading.Thread) -> None:
        """The thread of a lane ends: the next job in it gets another one."""
        with self._core.lock:
            if self._threads.get(key) is thread:
                del self._threads[key]

    def halt_all(self, wait_s: float) -> None:
        """End all threads: epochs that run may finish within `wait_s`, then they are cancelled and do not commit."""
        core = self._core
        core.notify()
        with core.lock:
            threads = [thread for thread in self._threads.values() if thread.is_alive()]
        deadline_s = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self.withdraw(list(core.graph.jobs.values()))
        for thread in threads:
            thread.join(1.0)

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Take jobs out of their lanes: nothing of them commits any more, what they run is cancelled."""
        core = self._core
        jobs = list(jobs)
        with core.changed:
            for job in jobs:
                job.withdraw()
        core.notify()
        for _ in range(10):
            with core.changed:
                if not any(j.activity.epochs for j in jobs):
                    return
                running = [(j.runner, j.activity.attempt) for j in self._of_lanes(jobs) if j.runner is not None]
            for runner, attempt in running:
                if attempt is not None:
                    with suppress(Exception):
                        runner.cancel(attempt)
            with core.changed:
                core.changed.wait_for(lambda: not any(j.activity.epochs for j in jobs), 1.0)

    def _of_lanes(self, jobs: Iterable[Job]) -> list[Job]:
        """Jobs that take part in an epoch with one of these."""
        lanes = {(j.group, None if j.joined else j.id) for j in jobs if j.activity.epochs}
        return [
            j
            for j in self._core.graph.jobs.values()
            if (j.group, None if j.joined else j.id) in lanes and j.activity.epochs
        ]
