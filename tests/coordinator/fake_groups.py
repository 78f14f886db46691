"""The database of fakes with views in checkpoint groups, logs that are bounded, and epochs that are held in flight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from fake_database import Database

from headrace.catalog.contents import MaterializedViewContent
from headrace.catalog.records import ObjectRecord, RunRecord
from headrace.catalog.state import Change
from headrace.common import faults
from headrace.common.faults import arm
from headrace.state.arrangement import Arrangement
from headrace.state.schema import RunRef
from support import WAIT_S


class Groups(Database):
    """The fakes, with views in named groups, and a look at the catalog after each transaction."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.seen: list[Change] = []
        apply = self.catalog._apply

        def watched(change: Change, number: int) -> None:
            apply(change, number)
            self.seen.append(change)
            check_catalog(self)

        self.catalog._apply = watched  # type: ignore[method-assign]

    def grouped(self, name: str, group: str, *inputs: int, wait: bool = True, **options: str) -> int:
        sql = ",".join(map(str, inputs))
        record = ObjectRecord(
            0, MaterializedViewContent(spark_sql=sql), "public", name,
            options={"checkpoint_group": group, **options},
        )  # fmt: skip
        made = self.c.create_view(record, self.planner.plan(sql))  # type: ignore[arg-type]
        if wait:
            self.c.wait_created(made, WAIT_S)
        return made

    def committed(self, *views: int) -> list[int]:
        return [self.catalog.state.jobs[v].committed_epoch for v in views]

    def commits_of(self, view: int) -> list[set[int]]:
        """For each transaction that moved a view's checkpoint: the jobs that it moved."""
        return [
            {r.id for r in c.puts if r.COLLECTION == "job"} for c in self.seen
            if any(r.COLLECTION == "state_table" and r.job_id == view for r in c.puts)
        ]  # fmt: skip


def check_catalog(db: Database) -> None:
    """PC-16, PC-47: along each edge the input's checkpoint is the later one; a job's tables have one epoch."""
    state = db.catalog.image
    for record in state.jobs.values():
        for upstream in record.plan.upstreams or ():
            if upstream in state.jobs and record.committed_epoch:
                assert state.jobs[upstream].committed_epoch >= record.committed_epoch
        assert len({t.committed_epoch for t in state.tables_of(record.id)} | {record.committed_epoch}) <= 1


class Logs(Groups):
    """No history is kept but what someone needs, two runs are merged, and a MiB is the limit."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        given = {"retention_ms": 0, "compaction_trigger_runs": 2, "log_limit_mb": 1, "group_retry_initial_ms": 1}
        super().__init__(folder, **{**given, **settings})

    def refs(self, relation: int) -> list[RunRef]:
        return [r.ref for r in self.catalog.state.runs_of(self.core.live.graph.relations[relation].state_table)]

    def durable_safe(self, relation: int) -> int:
        return self.catalog.state.state_tables[self.core.live.graph.relations[relation].state_table].safe_epoch

    def log(self, relation: int, after: int, up_to: int) -> Counter[int]:
        """The changes of a relation, summed."""
        found: Counter[int] = Counter()
        arrangement = Arrangement(
            self.core.live.graph.relations[relation].schema, tuple(self.refs(relation)), self.core.storage.root
        )
        for batch in arrangement.log(after, up_to):
            for n, weight in zip(batch.column("n").to_pylist(), np.asarray(batch.column("__w")).tolist()):
                found[n] += weight
        return Counter({n: weight for n, weight in found.items() if weight})

    def edge(self, upstream: int, downstream: int) -> Any:
        return next(
            e for e in self.c.log_stores() if (e.upstream_id, e.downstream_id) == (upstream, downstream)
        )  # fmt: skip

    def settled(self) -> None:
        """Compact until nothing is left to do."""
        while self.c.compact():
            pass


class InFlight(Database):
    """A table with a view of which one epoch has been run and hangs just before its commit."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, group_retry_initial_ms=1, group_retry_max_ms=5, progress_host="", **settings)
        self.t = self.table()
        self.insert(self.t, 0)
        self.v = self.view("v", self.t)
        self.job = self.core.live.graph.jobs[self.v]
        self.run = self.runner_of(self.v)
        self.c.flush(WAIT_S)
        self.before = self.job.committed
        arm("commit.acked", "hang", nth=1)
        self.first = self.insert(self.t, 1)
        self.until(lambda: faults.passages("commit.acked") == 1)
        assert self.job.activity.epochs == len(self.calls) == 1

    @property
    def calls(self) -> list[Any]:
        """What was run since then."""
        return [p for p in self.run.calls if p.from_epoch >= self.before]

    def release(self) -> None:
        """Let the commit go on."""
        faults.release("commit.acked")

    def log(self) -> list[tuple[int, int]]:
        """(Epoch, rows) of the runs of the view that are committed after the first one."""
        table = self.core.live.graph.relations[self.v].state_table
        runs = [r.ref for r in self.catalog.state.runs_of(table) if isinstance(r, RunRecord)]
        return sorted((r.epoch_lo, r.rows) for r in runs if r.epoch_lo > self.before)
