"""Commits to Iceberg tables that its Python package cannot make: by Iceberg's own Java library, as a process."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

import registries

PROGRAM = Path(__file__).parent / "connectors" / "LakeWriter.java"
_numbers = itertools.count()
_POSITIONS = pa.schema([
    pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
    pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
])  # fmt: skip


class Writer:
    """A process that commits to tables of a REST catalog."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _commit(self, table: Table, **command: Any) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"table": ".".join(table.name()[-2:]), **command}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "it has committed"

    def append(self, table: Table, rows: pa.Table, partition: str = "") -> str:
        """One file of rows of one partition, such as `p=x`; its path."""
        return self.replace(table, [], rows, partition)

    def replace(self, table: Table, paths: Sequence[str], rows: pa.Table, partition: str = "") -> str:
        """Data files by one that has the same rows, which counts as no change; its path."""
        added = _written(table, rows)
        self._commit(table, remove=list(paths), add={**added, "partition": partition})
        return str(added["path"])

    def delete(self, table: Table, *deletes: Mapping[str, Any]) -> None:
        """By delete files, all in one commit."""
        self._commit(table, deletes=list(deletes))

    def upsert(self, table: Table, deletes: Sequence[Mapping[str, Any]], rows: pa.Table, partition: str = "") -> str:
        """By delete files and a file of rows, in one commit; the path of that."""
        added = _written(table, rows)
        self._commit(table, deletes=list(deletes), add={**added, "partition": partition})
        return str(added["path"])


def _place(table: Table) -> str:
    return f"{table.location()}/data/written-{next(_numbers)}.parquet"


def _stored(path: str, rows: pa.Table) -> dict[str, Any]:
    plain = Path(path.removeprefix("file://"))
    plain.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(rows, plain)
    return {"path": path, "rows": rows.num_rows, "size": plain.stat().st_size}


def _written(table: Table, rows: pa.Table) -> dict[str, Any]:
    schema = schema_to_pyarrow(table.schema())
    return _stored(_place(table), pa.table([rows.column(f.name).cast(f.type) for f in schema], schema=schema))


def positions(table: Table, found: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A file of positions, by data files, which are of one partition."""
    rows = [(path, place) for path, places in sorted(found.items()) for place in sorted(places)]
    deletes = pa.table([pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows])], schema=_POSITIONS)
    return {"kind": "positions", "data": next(iter(found)), **_stored(_place(table), deletes)}


def equality(table: Table, data: str, rows: pa.Table) -> dict[str, Any]:
    """A file of rows that are deleted where its columns equal; of the partition of a data file."""
    schema = schema_to_pyarrow(table.schema().select(*rows.column_names))
    found = pa.table([rows.column(f.name).cast(f.type) for f in schema], schema=schema)
    ids = [table.schema().find_field(f.name).field_id for f in schema]
    return {"kind": "equality", "data": data, "ids": ids, **_stored(_place(table), found)}


def vector(data: str, places: Sequence[int]) -> dict[str, Any]:
    """A deletion vector, in place of the one that there is."""
    return {"kind": "vector", "data": data, "positions": list(places)}


@contextmanager
def writer(uri: str) -> Iterator[Writer]:
    """Start one for the REST catalog there."""
    jars = registries.jars(*registries.ICEBERG_REST)
    process = subprocess.Popen(
        ["java", "-Xmx256m", "-cp", f"{jars}/*", str(PROGRAM), uri], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Writer(process)
    finally:
        process.kill()
        process.wait()
