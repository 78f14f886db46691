"""The spool: what the stages of one Spark task have written in an epoch, until its last stage makes one object of it.

It is the epoch's shared buffer: rows that are not committed, seen by nobody but the attempt that wrote them. A stage
that is not the last of its task leaves one file for each state table in a folder of the task, and a stage whose rows
outgrow the memory budget does too. Nothing here is forced to the disk: an attempt that ends takes its folder along, and
one that dies leaves a folder that is never read again.

    <spool>/<attempt>/<task>/<stage>.open            the stage has begun and not ended
    <spool>/<attempt>/<task>/<stage>-<table>.rows    Arrow IPC stream; its schema tells the table's layout

All stages of a task but the last leave their sections here. An earlier stage has come to its end before the last one
sees the end of its input, so the last one collects the sections and writes the object. Which stages are followed by
another one in the same task is read from the executed plan (`Bridge.python_stages`). A stage marks its beginning and
its end: one whose consumer stopped early would make the attempt void rather than lose rows. Later operators of the
epoch see what earlier ones changed as their input, and each state table has one operator that reads it, so no
operator needs another one's uncommitted section.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.common.faults import fault_point
from headrace.errors import JobFailed
from headrace.state.objects import storage_errors
from headrace.state.run import Section
from headrace.state.schema import TableSchema

_LAYOUT = b"headrace"
_OPEN, _ROWS = ".open", ".rows"


class RowsFile:
    """A file that batches are appended to, in Arrow's stream format. Raises `DiskFull`, `StorageError`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        with storage_errors("spooling", path.name):
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pa.ipc.new_stream(self._sink, schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        fault_point("task.spool.before")
        with storage_errors("spooling", self._path.name):
            self._writer.write_batch(batch)

    def close(self) -> None:
        """End the stream; harmless when repeated."""
        with storage_errors("spooling", self._path.name):
            self._writer.close()
            self._sink.close()


def read_rows(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file that is closed, mapped and not copied."""
    with storage_errors("reading", path.name), pa.memory_map(str(path)) as source:
        yield from pa.ipc.open_stream(source)


class TaskSpool:
    """The folder of one Spark task in one attempt; all Python workers of the task share it."""

    def __init__(self, root: str | os.PathLike[str], attempt: str, task_id: int) -> None:
        self.folder = Path(root) / attempt / str(task_id)
        self._files: dict[tuple[str, int], RowsFile] = {}
        self._made = False

    def prepare(self) -> Path:
        """Make the folder."""
        if not self._made:
            with storage_errors("spooling", self.folder.name):
                self.folder.mkdir(parents=True, exist_ok=True)
            self._made = True
        return self.folder

    def begin(self, stage: str) -> None:
        """A stage that another one collects has begun."""
        with storage_errors("spooling", stage):
            (self.prepare() / f"{stage}{_OPEN}").touch()

    def append(self, stage: str, table_id: int, schema: TableSchema, batch: pa.RecordBatch) -> None:
        """Add rows of a state table, which must come after those that the stage has added before."""
        file = self._files.get((stage, table_id))
        if file is None:
            path = self.prepare() / f"{stage}-{table_id}{_ROWS}"
            if path.exists():
                raise JobFailed(f"stage {stage} wrote table {table_id} twice in one task")
            file = self._files[stage, table_id] = RowsFile(path, _described(table_id, schema))
        file.append(batch)

    def end(self, stage: str) -> None:
        """The stage has seen all its input, and written all it has to write."""
        self.close()
        with storage_errors("spooling", stage):
            (self.folder / f"{stage}{_OPEN}").unlink()

    def close(self) -> None:
        """End the files written so far."""
        while self._files:
            self._files.popitem()[1].close()

    def sections(self, epoch: int) -> list[Section]:
        """What all stages of the task have spooled, by name of the file.

        Raises `JobFailed` if one has not come to its end: then what it has to write is not all there.
        """
        self.close()
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        left = [n.removesuffix(_OPEN) for n in names if n.endswith(_OPEN)]
        if left:
            raise JobFailed(f"the input of stage {left[0]} was not read to its end", hint="the epoch is run again")
        return [_section(self.folder / n, epoch) for n in names if n.endswith(_ROWS)]

    def remove(self) -> None:
        """Delete the folder, if there is one."""
        self._made = False
        with suppress(OSError):
            for name in os.listdir(self.folder):
                os.unlink(self.folder / name)
            os.rmdir(self.folder)
            return
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)


def _described(table_id: int, schema: TableSchema) -> pa.Schema:
    """The stored schema, with what is needed to make the `TableSchema` of it again."""
    layout = {
        "table": table_id,
        "key": len(schema.key),
        "value": len(schema.value),
        "how": [h for _, h in schema.diffs],
        "expires": schema.expires,
    }
    return schema.arrow().with_metadata({_LAYOUT: json.dumps(layout).encode()})


def _section(path: Path, epoch: int) -> Section:
    with storage_errors("reading", path.name), pa.memory_map(str(path)) as source:
        stored = pa.ipc.open_stream(source).schema
    layout: dict[str, Any] = json.loads(stored.metadata[_LAYOUT])
    fields = list(stored.remove_metadata())
    start = 2 if layout["value"] else 1
    middle, end = start + layout["key"], start + layout["key"] + layout["value"]
    diffs = tuple(zip(fields[end:], layout["how"], strict=True))
    schema = TableSchema(tuple(fields[start:middle]), tuple(fields[middle:end]), diffs, layout["expires"])
    return Section(layout["table"], schema, read_rows(path), epoch)


def forget_attempt(root: str | os.PathLike[str], attempt: str) -> None:
    """Delete what an attempt that has ended may have left."""
    folder = Path(root) / attempt
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def forget_earlier(root: str | os.PathLike[str], attempt: str) -> None:
    """Delete what earlier attempts of the same job have left on this host: of one job never two are under way."""
    job = attempt.partition("-")[0] + "-"
    with suppress(OSError):
        for name in os.listdir(root):
            if name != attempt and name.startswith(job):
                shutil.rmtree(Path(root) / name, ignore_errors=True)


def forget_leftovers(root: str | os.PathLike[str], alive: Collection[str] = (), *, older_than_s: float = 0.0) -> int:
    """Delete the folders of attempts that are not under way and have not changed for a while; returns their number."""
    removed = 0
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(root)):
            with suppress(OSError):
                if entry.name not in alive and time.time() - entry.stat().st_mtime >= older_than_s:
                    shutil.rmtree(entry.path)
                    removed += 1
    return removed
