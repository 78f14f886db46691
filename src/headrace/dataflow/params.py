"""What a task must know of the epoch it works for: one JSON text, sent as a local property of the Spark job."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from headrace.catalog.sealing import Identity, Keys, key_id, seal, unseal
from headrace.common.lazy_dataclass import dataclass
from headrace.state.schema import RunRef
from headrace.state.stores import Root, StoreRoot, root_from_json, root_to_json

LOWEST_KEY = -(1 << 63)
"""The smallest `__k`."""
END_OF_KEYS = 1 << 63
"""Above the largest `__k`."""


AGAIN = "again"
"""What the name of an attempt ends with whose step is run once more at once, with Spark's own expressions."""


def property_of(view: int) -> str:
    """The local property of a Spark job with a view's parameters: those of several views may run as one job."""
    return f"headrace.epoch.{view}"


def secrets_property_of(view: int) -> str:
    """The one with the values of secrets; see `EpochParams.encode_secrets`."""
    return f"headrace.secret.{view}"


@dataclass(frozen=True)
class TableInput:
    """A table or view to read: its change in (from, to], or its content at `to` when there was nothing before."""

    refs: tuple[RunRef, ...]
    keys: tuple[int, int] | None = None
    """Only rows with `__k` in this range [low, high): a step of an epoch that is not taken in at one go."""


class ReadPart(NamedTuple):
    """A source's read task, and the event time below which its rows are late: Unix microseconds, None if none is."""

    task: dict[str, object]
    below_us: int | None = None


@dataclass(frozen=True)
class SourceInput:
    """A source to read: the tasks that together cover its offset range of this epoch."""

    tasks: tuple[dict[str, object], ...]
    options: dict[str, str]
    columns: tuple[tuple[str, str, bool], ...]
    """(name, Spark type, may it be NULL) of every column the source declares."""
    below_us: tuple[int | None, ...] = ()
    """By task: event time below which its rows are late, Unix microseconds; None where none is. Empty: nowhere."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Option -> the value of the secret that it was given; sent apart from all else."""


@dataclass(frozen=True)
class StateInput:
    """The runs of one state table as of the last committed epoch."""

    table_id: int
    refs: tuple[RunRef, ...]
    watermark: int | None = None
    """Event time, Unix microseconds, below which its rows have expired."""


@dataclass(frozen=True)
class EpochParams:
    """One attempt at one step of a job in an epoch of its group."""

    attempt: str
    """Unique over all attempts; names every object that the attempt writes."""
    from_epoch: int
    to_epoch: int
    first: bool
    """The job's very first step: operators put out the rows that are there without any input."""
    root: Root
    """Root of the state store."""
    prefix: str
    """Folder, relative to the root, for the objects of this attempt."""
    sync: bool = True
    """Whether objects are forced to the disk before they are acknowledged."""
    spool: str = ""
    """Local folder for what does not fit in memory or waits for the end of its task; empty for one of the system's."""
    memory_bytes: int = 0
    """What one task may hold in memory before it spills; 0 for no bound."""
    budget_bytes: int = 0
    """What must not be exceeded even by rows that cannot be spilled."""
    inner: tuple[str, ...] = ()
    """Stages that another Python stage follows in the same Spark task. The runner fills this in from its plan."""
    last: tuple[str, ...] = ()
    """Stages that run in the tasks of the last stage of the Spark job. The runner fills this in, too."""
    partitions_before: int = 0
    """Partitions that other views have in that stage, before those of this one."""
    tables: dict[int, TableInput] = field(default_factory=dict)
    sources: dict[int, SourceInput] = field(default_factory=dict)
    state: dict[str, StateInput] = field(default_factory=dict)
    lookups: dict[int, tuple[RunRef, ...]] = field(default_factory=dict)
    """The runs of relations in which rows are looked up, by relation."""
    taken: dict[int, int] = field(default_factory=dict)
    """By relation: of the change in (from, to] what has a smaller `__k` has been taken in by earlier steps."""
    closed_us: int | None = None
    """Event time, Unix microseconds, that the watermark has reached: what waits below it comes out. None: nothing."""
    progress: str = ""
    """Where tasks report their progress, as `host:port/token`; empty if nobody listens."""
    delivery: str = ""
    """By which a sink's target knows whose epochs it takes: of the database and the sink, unlike all others."""
    delivered: int = 0
    """The newest epoch of which the catalog knows that it is at the sink's target; 0 for none."""
    sink_name: str = ""
    """The sink's name, for the table of the rows that its target refuses."""
    sink_secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """As `SourceInput.secrets`, of the sink that takes the changes."""

    @property
    def known_as(self) -> str:
        """The name by which the coordinator knows the attempt, whichever of its runs this is."""
        return self.attempt.removesuffix(AGAIN)

    @property
    def on_other_hosts(self) -> bool:
        """Whether tasks may run on other hosts than the server."""
        return isinstance(self.root, StoreRoot) and bool(self.root.proof)

    @property
    def spool_root(self) -> Path:
        """The folder for the spools of all attempts."""
        if self.spool:
            return Path(self.spool)
        if self.on_other_hosts and (local := os.environ.get("SPARK_LOCAL_DIRS")):
            # Removed by Spark with the executor: nobody else tidies a host that the server does not run on.
            return Path(local.split(",")[0]) / "headrace-spool"
        return Path(tempfile.gettempdir()) / f"headrace-spool-{zlib.crc32(str(self.root).encode()):08x}"

    @property
    def snapshot(self) -> bool:
        """Whether inputs are read as their content at `to_epoch`: the job has no checkpoint yet."""
        return self.from_epoch == 0

    def partition_of(self, stage: str, partition: int) -> int:
        """Which task of a stage a partition of the Spark job is: views that come before it have partitions, too."""
        return partition - self.partitions_before if stage in self.last else partition

    def taken_until(self, relation: int) -> int | None:
        """The smallest `__k` of which a relation's change is not taken in by earlier steps; None if all of it is.

        Of what is looked up and not read, all counts as taken in with the snapshot.
        """
        until = self.taken.get(relation, LOWEST_KEY)
        return None if self.snapshot or until >= END_OF_KEYS else until

    def encode(self) -> str:
        """As JSON text."""
        return json.dumps(
            {
                "attempt": self.attempt,
                "epochs": [self.from_epoch, self.to_epoch, self.first],
                "out": [root_to_json(self.root), self.prefix, self.sync],
                "bounds": [self.spool, self.memory_bytes, self.budget_bytes],
                "stages": [self.inner, self.last, self.partitions_before],
                "tables": {i: [[r.to_json() for r in t.refs], t.keys] for i, t in self.tables.items()},
                "sources": {i: [s.tasks, s.options, s.columns, s.below_us] for i, s in self.sources.items()},
                "state": {n: [s.table_id, [r.to_json() for r in s.refs], s.watermark] for n, s in self.state.items()},
                "lookups": {i: [r.to_json() for r in refs] for i, refs in self.lookups.items()},
                "taken": self.taken,
                "closed": self.closed_us,
                "progress": self.progress,
                "delivery": [self.delivery, self.delivered],
                "sink": self.sink_name,
            }
        )

    def encode_secrets(self, key: bytes) -> str | None:
        """The values of secrets, encrypted by a key; None if there are none.

        Properties of Spark's jobs are in its event log, and told to all listeners; the key goes with the stages.
        """
        sources = {i: s.secrets for i, s in self.sources.items() if s.secrets}
        if not sources and not self.sink_secrets:
            return None
        return json.dumps(seal(json.dumps([sources, self.sink_secrets]), self._identity, _only(key)))

    def with_secrets(self, text: str | None, key: bytes) -> EpochParams:
        """The parameters with what `encode_secrets` has left out."""
        if not text:
            return self
        sources, sink = json.loads(unseal(json.loads(text), self._identity, _only(key)))
        found = {i: replace(s, secrets=sources.get(str(i), {})) for i, s in self.sources.items()}
        return replace(self, sources=found, sink_secrets=sink)

    @property
    def _identity(self) -> Identity:
        return Identity(0, 0, "attempt", self.attempt)


def _only(key: bytes) -> Keys:
    return Keys({key_id(key): key})


def _refs(items: list[dict[str, object]]) -> tuple[RunRef, ...]:
    return tuple(RunRef.from_json(i) for i in items)


@lru_cache(maxsize=32)
def decode(text: str) -> EpochParams:
    """The inverse of `EpochParams.encode`; a worker that serves several stages of one epoch parses it once."""
    data = json.loads(text)
    from_epoch, to_epoch, first = data["epochs"]
    root, prefix, sync = data["out"]
    spool, memory_bytes, budget_bytes = data["bounds"]
    delivery, delivered = data.get("delivery", ("", 0))
    inner, last, partitions_before = data["stages"]
    return EpochParams(
        attempt=data["attempt"],
        from_epoch=from_epoch,
        to_epoch=to_epoch,
        first=first,
        root=root_from_json(root),
        prefix=prefix,
        sync=sync,
        spool=spool,
        memory_bytes=memory_bytes,
        budget_bytes=budget_bytes,
        inner=tuple(inner),
        last=tuple(last),
        partitions_before=partitions_before,
        tables={
            int(i): TableInput(_refs(refs), None if keys is None else (keys[0], keys[1]))
            for i, (refs, keys) in data["tables"].items()
        },
        sources={
            int(i): SourceInput(tuple(tasks), options, tuple((c[0], c[1], c[2]) for c in columns), tuple(below_us))
            for i, (tasks, options, columns, below_us) in data["sources"].items()
        },
        state={n: StateInput(i, _refs(refs), watermark) for n, (i, refs, watermark) in data["state"].items()},
        lookups={int(i): _refs(refs) for i, refs in data["lookups"].items()},
        taken={int(i): until for i, until in data["taken"].items()},
        closed_us=data["closed"],
        progress=data.get("progress", ""),
        delivery=delivery,
        delivered=delivered,
        sink_name=data.get("sink", ""),
    )
