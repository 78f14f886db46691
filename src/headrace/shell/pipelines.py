"""`headrace run`: shows the graph of a pipeline, creates it, and follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.observe.status import JobStatus
from headrace.session.database import Database
from headrace.session.pipelines.apply import ApplyStep, Plan
from headrace.session.pipelines.definitions import Pipeline

_EVERY_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_COLOURS: Final = {"create": "green", "unchanged": "dim", "changed": "yellow", "replace": "yellow", "inline": "dim"}


def graph_table(plan: Plan) -> Table:
    """What a pipeline defines, what it reads, and what becomes of it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("name", "kind", "reads", ""):
        table.add_column(head)
    for step in plan.steps:
        state = Text(step.state, style=_COLOURS[step.state])
        table.add_row(step.node.name, step.node.definition.kind, ", ".join(step.node.reads), state)
    return table


def jobs_table(jobs: list[JobStatus]) -> Table:
    """How the views are doing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("view")
    for head in ("status", "rows in", "rows out", "epochs", "lag"):
        table.add_column(head, justify="left" if head == "status" else "right")
    for job in jobs:
        status = Text(job.status, style="red" if job.error is not None else "green")
        table.add_row(
            job.name, status, f"{job.rows_in:,}", f"{job.rows_out:,}", str(job.epochs), f"{job.lag_ms / 1000:.1f} s"
        )
        if job.error is not None:
            table.add_row("", Text(job.error.message, style="red", overflow="ellipsis"))
    return table


def run_pipeline(
    database: Database,
    pipeline: Pipeline,
    stop: threading.Event,
    *,
    once: bool,
    replace: bool,
    out: Console | None = None,
) -> None:
    """Create what is missing; then follow the views until `stop`, or with `once` until all input is taken in."""
    console = out or Console(highlight=False)
    plan = database.plan_pipeline(pipeline)
    console.print(graph_table(plan))
    console.print()
    try:
        plan.run(replace=replace, progress=_progress(console, stop))
    except _Stopped:
        console.print("stopped; run it again to go on")
        return
    own = {step.node.name for step in plan.steps}
    if once:
        drain(database, stop)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while not stop.wait(_EVERY_S):
                live.update(jobs_table(_jobs(database, own)), refresh=True)
    else:
        while not stop.wait(_LINE_EVERY_S):
            console.print(jobs_table(_jobs(database, own)))
    if database.coordinator.failure is None:
        console.print(jobs_table(_jobs(database, own)))


def _jobs(database: Database, names: set[str]) -> list[JobStatus]:
    return [job for job in database.coordinator.jobs() if job.name in names]


class _Stopped(Exception):
    """Told to stop before everything was created."""


def _progress(console: Console, stop: threading.Event) -> Callable[[ApplyStep, bool], None]:
    started: dict[str, float] = {}

    def tell(step: ApplyStep, done: bool) -> None:
        name = step.node.name
        if not done:
            if stop.is_set():
                raise _Stopped
            started[name] = time.monotonic()
            return
        took_s = time.monotonic() - started[name]
        verb = "created" if step.state == "create" else "replaced"
        console.print(f"{verb} {step.node.definition.kind} [bold]{name}[/bold] in {took_s:.1f} s")

    return tell


def _endless(source: ObjectRecord) -> bool:
    return source.options.get("connector") == "datagen" and "number_of_rows" not in source.options


def drain(database: Database, stop: threading.Event) -> None:
    """Wait until all that the sources hold now has been taken in: what one epoch takes in is limited.

    Sources of generated rows that never end are not waited for.
    """
    before = None
    state = database.catalog.state
    while not stop.is_set():
        database.flush()
        newest = [state.newest_remap(source.id) for source in state.objects_of(SourceContent) if not _endless(source)]
        bound = [binding.offsets for binding in newest if binding is not None]
        if bound == before:
            return
        before = bound
