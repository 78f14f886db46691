"""What is kept of the plans of views beyond the life of a server, so that a restart need not ask Java for it again.

Most of what a view's small epochs run is stages of one Python worker, of which nothing is Java's (`chains.py`): once
they are made they can be written to a file and read by the next server, which then runs the view without any question
to Catalyst. What has another form (a shuffle, expressions of Spark's) is planned when an epoch first needs it.

A file is only ever a shortcut. It is used where everything that its plan followed from is as it was when it was made
(`identity`), by the very same programs (`programs`) in a Spark with the same `properties`, and whole; otherwise the
view is planned as if there was none. So it needs no durability: it is written beside and moved into its place, and what
was torn is found out by its digest. What is read is unpickled, so a file that others may write to counts for nothing.

Before Spark runs nobody can tell its properties; what they come from is among what `programs` looks at, and that has to
do for the epochs that run until then (`kept_runner.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyspark

import headrace
from headrace.common.java import find_java
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.common.private_files import read_private, write_private
from headrace.dataflow.params import EpochParams
from headrace.plan.planner import ViewPlan
from headrace.plan.watermark_rules import EventTime

Form: TypeAlias = tuple[int, frozenset[int] | None]
"""What an epoch's plan is made for: the parallelism, and the inputs that have changed (None: any may have)."""
Stages: TypeAlias = tuple[Any, ...]
"""Stages of one Python worker that are all of an epoch's plan."""
FORMS_AT_MOST = 8
"""Forms that are kept of one view."""
_SUFFIX = ".plan"
_CONFIGURING = (
    "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
)  # fmt: skip
"""Variables of the environment by which Spark or its Java are given properties."""


@dataclass(frozen=True)
class Outline:
    """What running a view takes of its plan, beside how its rows are computed."""

    leaves: Mapping[str, int | None]
    """See `ViewPlan.leaves`, as all that follows."""
    upstreams: tuple[int, ...]
    event_time: EventTime
    temporal: bool
    changes_only: frozenset[int]
    lookups: frozenset[int]
    arrangements: frozenset[int]

    @classmethod
    def of(cls, plan: ViewPlan) -> Outline:
        """The outline of a plan."""
        return cls(
            dict(plan.leaves), plan.upstreams, plan.event_time, plan.temporal, plan.changes_only, plan.lookups,
            plan.arrangements,
        )  # fmt: skip

    def active(self, params: EpochParams) -> frozenset[int] | None:
        """The inputs that have changed in an epoch; None for the first one, and where all have."""
        found = {i for i, t in params.tables.items() if t.refs} | {i for i, s in params.sources.items() if s.tasks}
        return None if params.first or found == set(self.leaves.values()) - {None} else frozenset(found)


@dataclass(frozen=True)
class Kept:
    """What is written of one view."""

    outline: Outline
    forms: Mapping[Form, Stages]


def programs(further: Mapping[str, str]) -> str:
    """A digest of all programs that have a part in a plan, of Spark's `further` properties, and of where others come
    from.

    Of headrace's own the files count, not the version: it does not change with each of their changes; and what they
    hold, not their times, which some images have all alike. To be asked at the start: files may be exchanged under a
    server that goes on with what it has loaded. Raises `OSError` where they cannot be found.
    """
    root = Path(headrace.__file__).parent
    files = sorted((str(p.relative_to(root)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in root.rglob("*.py"))
    if not files:
        raise FileNotFoundError(root)
    spark = Path(pyspark.__file__)
    java = os.path.realpath(find_java() or os.devnull)
    told = [
        files, str(spark), pyspark.__version__, spark.stat().st_mtime_ns, pa.__version__, np.__version__,
        platform.python_version(), java, os.stat(java).st_mtime_ns, sorted(further.items()),
        _configuration(spark.parent),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _configuration(spark: Path) -> list[object]:
    """What Spark takes properties from that nobody has handed to headrace: its folder of settings, the environment."""
    told = {name: os.environ.get(name, "") for name in _CONFIGURING}
    folder = Path(told["SPARK_CONF_DIR"] or Path(told["SPARK_HOME"] or spark) / "conf")
    held = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("spark-*")}
    return [sorted(told.items()), sorted(held.items())]


class PlanFiles:
    """The files of one database's plans on this host, one for each view. Thread-safe.

    Nothing here raises: who finds no plan makes one. `made_by` gives what `programs` tells; where it raises, as where
    programs cannot be found, nothing is kept.
    """

    def __init__(self, folder: Path, made_by: Callable[[], str]) -> None:
        self._folder = folder
        self._made_by = made_by
        self._writing = threading.Lock()

    def find(self, view: int, identity: str, properties: str | None) -> Kept | None:
        """What was kept of a view's plan with this identity, in a Spark with these properties (None: with any).

        None where there is nothing that can be used.
        """
        try:
            head, _, body = read_private(self._path(view)).partition(b"\n")
            _, _, noted, _ = head.decode().split(" ")
            if head != self._head(identity, noted if properties is None else properties, body):
                return None
            found = pickle.loads(body)
        except Exception:  # whatever a file may hold that nobody has written so
            return None
        return found if isinstance(found, Kept) else None

    def keep(self, view: int, identity: str, properties: str, kept: Kept) -> None:
        """Keep this of a view's plan, in place of what was kept of it."""
        path = self._path(view)
        try:
            body = pickle.dumps(kept)
            with self._writing:
                beside = path.with_suffix(".new")
                write_private(beside, self._head(identity, properties, body) + b"\n" + body)
                os.replace(beside, path)
        except Exception as error:  # a stage that cannot be written, a full disk: it is planned again next time
            get_logger("headrace").info("the plan of a view is not kept", view=view, error=str(error))

    def forget(self, view: int) -> None:
        """Keep nothing of a view."""
        with suppress(OSError):
            self._path(view).unlink()

    def tidy(self, views: Collection[int]) -> None:
        """Forget what is kept of any other views than these."""
        kept = {f"{view}{_SUFFIX}" for view in views}
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in kept:
                    with suppress(OSError):
                        path.unlink()

    def _path(self, view: int) -> Path:
        return self._folder / f"{view}{_SUFFIX}"

    def _head(self, identity: str, properties: str, body: bytes) -> bytes:
        told = f"{self._made_by()} {identity} {properties} ".encode()
        return told + hashlib.sha256(told + body).hexdigest().encode()


class LastingPlan:
    """A view's plan for as long as a runner uses it: its outline, what is kept of it, and all of it where that is
    needed. Thread-safe.
    """

    def __init__(
        self, outline: Outline, make: Callable[[], ViewPlan], forms: Mapping[Form, Stages] | None = None,
        keep: Callable[[Kept], None] = lambda kept: None,
    ) -> None:  # fmt: skip
        """`make` gives all of the plan, which may take a while; `keep` is told of each form that is made.

        `forms` are those that an earlier server has made.
        """
        self.outline = outline
        self._make = make
        self._keep = keep
        self._lock = threading.Lock()
        self._kept = Kept(outline, dict(forms or {}))
        self._plan: ViewPlan | None = None

    @classmethod
    def of(cls, plan: ViewPlan, keep: Callable[[Kept], None] = lambda kept: None) -> LastingPlan:
        """That of a plan that has just been made."""
        return cls(Outline.of(plan), lambda: plan, keep=keep)

    def whole(self) -> ViewPlan:
        """All of the plan. Raises what making it does."""
        with self._lock:
            if self._plan is None:
                self._plan = self._make()
            return self._plan

    def stages(self, form: Form) -> Stages | None:
        """The stages of a form, if they are known."""
        return self._kept.forms.get(form)

    def add(self, form: Form, stages: Stages) -> None:
        """Another form was made, of stages of one worker."""
        with self._lock:
            if form in self._kept.forms or len(self._kept.forms) >= FORMS_AT_MOST:
                return
            self._kept = replace(self._kept, forms={**self._kept.forms, form: stages})
            kept = self._kept
        self._keep(kept)
