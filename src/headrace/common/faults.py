"""Named fault points: places between two durable actions that tests can make crash, fail, hang or wait.

Armed by the environment variable `HEADRACE_FAULTS`, for instance
`catalog.commit.before=kill@3,task.after_upload=delay:50`, or by `arm`. The grammar is
`name=action[@nth][,...]` with the actions

    kill      SIGKILL to the own process
    fail      raise `StorageError` that names the point
    full      raise `DiskFull` that names the point
    delay:ms  wait that many milliseconds
    hang      wait until disarmed

`@nth` fires on the n-th passage of this process only (counted from 1); without it every passage fires.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import DiskFull, InvalidParameter, StorageError

ENV_VAR: Final = "HEADRACE_FAULTS"
"""Environment variable that arms fault points in a process and its children."""

KNOWN: Final[Mapping[str, str]] = {
    "catalog.fence.before": "opening: the new fencing token is written and not yet committed",
    "catalog.fence.after": "opening: the new fencing token is durable, nothing else has happened",
    "catalog.initialize.before": "opening: an empty catalog is about to be initialised",
    "catalog.migrate.step": "opening: one format migration is written and not yet committed",
    "catalog.commit.before": "the edits are written and not yet committed",
    "catalog.commit.after": "the edits are durable and nobody has been told",
    "catalog.replace.before": "moving: the target's content is about to be replaced",
    "catalog.replace.after": "moving: the target has the content, the source still is the truth",
    "catalog.move.opened": "moving: the source is fenced, the target is not",
    "catalog.move.copied": "moving: the target is a copy, the source still is the truth",
    "catalog.move.decided": "moving: the target is the truth, which it does not know by itself yet",
    "catalog.rollup.before": "a rollup of the catalog's log is about to be written",
    "catalog.rollup.after": "a rollup of the catalog's log is durable, nothing has been deleted",
    "barrier.bind.after": "the tick's epoch is bound to source offsets, no barrier is injected",
    "task.spool.before": "a task is about to spool rows on its local disk",
    "task.before_upload": "a task is about to upload its checkpoint object",
    "task.after_upload": "a task has uploaded its checkpoint object and not yet acknowledged",
    "commit.acked": "the last acknowledgement of a group's epoch is in, the commit has not begun",
    "commit.before": "a group's commit transaction is about to start",
    "commit.after": "a group's commit is durable, readers and downstream groups have not been told",
    "commit.notified": "a group's commit is durable and has been told",
    "table.commit.before": "a table's rows are written, the commit transaction is about to start",
    "table.commit.after": "a write to a table is durable, views have not been told",
    "compaction.merge.after": "merged runs are uploaded, the version edit is not committed",
    "compaction.commit.after": "a compaction's version edit is committed",
    "vacuum.delete.after": "vacuum has deleted an unreferenced object",
    "vacuum.delete.before": "vacuum is about to delete an unreferenced object",
    "backfill.slice.before": "a backfill slice is about to be read",
    "backfill.slice.after": "a backfill slice is computed and not yet committed",
    "backfill.done.before": "a job has caught up and is about to be marked created",
    "table.fed.after": "the hidden source of a table with a connector is there, the table is not",
    "source.dropped.after": "a source is dropped, and has not let go of what it holds where it reads",
    "table.undo.before": "a table with a connector has come to nothing, its hidden source is still there",
    "columns.commit.before": "a table with more columns is filled, the one before still has the name",
    "columns.commit.after": "a table with more columns has the name, nobody has been told",
    "columns.slot.after": "the slot of a table is one of several, the table that is to have more columns is not there",
    "columns.wider.after": "a source has more columns, the table that is to have them is not there",
    "rename.before": "a relation is to have another name, nothing says so yet",
    "rename.after": "a relation has another name, nobody has been told",
    "copy.commit.before": "the files of a COPY are written, its folder is not there yet",
    "sink.bind.after": "which epoch a sink delivers next is durable, nothing of it has left",
    "sink.commit.before": "a sink is about to make an epoch visible in its target",
    "lake.compact.before": "a lake's table has an epoch, its small files are about to be put together",
    "lake.compact.written": "small files of an Iceberg table are put together, no commit says so",
    "lake.compact.after": "a lake's table has fewer files, nobody has been told",
    "sink.commit.after": "a sink's target has the epoch, its position is not committed",
}
"""Every fault point there is, and where it stands."""

_ACTIONS: Final = ("kill", "fail", "full", "delay", "hang")


@dataclass
class _Fault:
    action: str
    delay_ms: int
    nth: int | None
    passages: int = 0
    released: threading.Event = field(default_factory=threading.Event)


_armed: dict[str, _Fault] = {}
_lock = threading.Lock()


def fault_point(name: str) -> None:
    """Do what the point is armed to do; costs one dictionary test when nothing is armed.

    Raises `StorageError` where the action is `fail`, `DiskFull` where it is `full`.
    """
    if _armed:
        _pass(name)


def arm(name: str, action: str, *, nth: int | None = None) -> None:
    """Arm one point; `action` and `nth` as in `HEADRACE_FAULTS`. Raises `InvalidParameter` for nonsense."""
    verb, _, argument = action.partition(":")
    if name not in KNOWN:
        raise InvalidParameter(f'unknown fault point "{name}"', hint=f"one of: {', '.join(sorted(KNOWN))}")
    if verb not in _ACTIONS or (verb == "delay") != argument.isdecimal() or (nth is not None and nth < 1):
        raise InvalidParameter(f'unknown fault "{action}" for "{name}"', hint="kill, fail, full, hang or delay:<ms>")
    with _lock:
        _armed[name] = _Fault(verb, int(argument or 0), nth)


def passages(name: str) -> int:
    """How often an armed point has been passed, those who hang in it included; 0 for one that is not armed."""
    with _lock:
        return _armed[name].passages if name in _armed else 0


def release(name: str) -> None:
    """Let those go on that hang in a point; it stays armed."""
    with _lock:
        fault = _armed.get(name)
    if fault is not None:
        fault.released.set()


def disarm_all() -> None:
    """Disarm every point and release the threads that hang in one."""
    with _lock:
        faults = list(_armed.values())
        _armed.clear()
    for fault in faults:
        fault.released.set()


def arm_from_text(text: str) -> None:
    """Arm what `HEADRACE_FAULTS` spells; raises `InvalidParameter` on anything that is not understood."""
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, action = part.partition("=")
        verb, at, nth = action.partition("@")
        if not equals or (at and not nth.isdecimal()):
            raise InvalidParameter(f'cannot read "{part}" in {ENV_VAR}', hint="name=action[@nth][,...]")
        arm(name.strip(), verb.strip(), nth=int(nth) if at else None)


def _pass(name: str) -> None:
    with _lock:
        fault = _armed.get(name)
        if fault is None:
            return
        fault.passages += 1
        if fault.nth is not None and fault.passages != fault.nth:
            return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "fail":
        raise StorageError(f"fault point {name} is armed to fail")
    elif fault.action == "full":
        raise DiskFull(f"fault point {name} is armed to find no space left")
    elif fault.action == "delay":
        time.sleep(fault.delay_ms / 1000)
    else:
        fault.released.wait()


arm_from_text(os.environ.get(ENV_VAR, ""))
