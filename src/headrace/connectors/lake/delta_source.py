"""The `deltalake` source: a Delta table as what is in it, and then what each version changes.

Which files a version has, and which of their rows are deleted, the package says. Files are read here, row group by
row group, with the columns as they are called in files: so columns may be renamed. Commits in the log say by
`dataChange` whether they only lay rows out anew.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as papq

from headrace.common.columns import Column
from headrace.common.last_used import LastUsed
from headrace.connectors.base import ReadTask
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.files.row_groups import read_rows, row_group_ends
from headrace.connectors.lake.changes import Commit, Content, Deletes, LakeFile
from headrace.connectors.lake.delta import located
from headrace.connectors.lake.rows import Kept, changed_part
from headrace.connectors.lake.source import (
    AGAIN,
    FOLLOWING,
    LakeField,
    LakeSource,
    LakeTable,
)
from headrace.connectors.lake.tables import STORE
from headrace.connectors.parsed_values import cast_array
from headrace.errors import NotSupported, SourceError

SOURCE: Final = DeclaredOptions(
    (Option("location", "Where the table is: `s3://bucket/path`, or an absolute path.", required=True), *FOLLOWING,
     *STORE)
)  # fmt: skip
_UNDERSTOOD: Final = {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType",
    "variantType-preview",
}  # fmt: skip
"""Features of readers that are understood; columns of variants are not, and cannot be declared."""
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_MODE: Final = "delta.columnMapping.mode"
_VECTORS: Final = "deletionVectors"
_ROW_BYTES: Final = 64
"""Of a file of which nobody says how many rows it has."""
_VERSIONS_KEPT: Final = 4
_FOOTERS_KEPT: Final = 256
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")


class DeltaSource(LakeSource):
    """See the module."""

    declared = SOURCE

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._location, self._store = located(self.values)
        self.name = f"Delta table {self._location}"
        self._row_groups = LastUsed[str, tuple[int, ...]](_FOOTERS_KEPT)

    def _look(self) -> LakeTable:
        delta = needed_module("deltalake", "deltalake")
        if not delta.DeltaTable.is_deltatable(self._location, self._store):
            raise SourceError(f"there is no {self.name}")
        return DeltaLog(self.name, self._location, self._store)

    def _task(self, fields: Mapping[str, Any], at: int | None) -> dict[str, Any]:
        return {"fields": dict(fields)}

    def _ends(self, file: LakeFile) -> Sequence[int]:
        def look() -> tuple[int, ...]:
            with self._opened(file.path) as opened:
                return row_group_ends(opened)

        return self._row_groups.of(file.path, look)

    @contextmanager
    def _opened(self, path: str) -> Iterator[papq.ParquetFile]:
        files = file_system(self._location, self._store)
        with (
            files.open_input_file(unquote(path)) as raw,
            papq.ParquetFile(raw, coerce_int96_timestamp_unit="us") as file,
        ):
            yield file

    def _rows(self, task: ReadTask, piece: Mapping[str, Any], names: Sequence[str]) -> Iterator[Any]:
        columns = {c.name: c for c in self.columns}
        kinds = [self.schema.field(name).type for name in names]
        stored = [task["fields"][columns[name].name] for name in names]
        was, now = (None if piece[when] is None else kept_of(piece[when]) for when in ("was", "now"))
        with self._opened(piece["path"]) as file:
            there = set(file.schema_arrow.names)  # a file lacks the columns that are younger than it is
            wanted = [name for name in stored if name in there]
            for position, batch in read_rows(file, wanted, piece["start"], piece["stop"]):
                arrays = [_column(batch, name, piece["values"], kind) for name, kind in zip(stored, kinds)]
                made = pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])
                part = changed_part(made, position, was, now, len(arrays))
                if part is not None:
                    yield part


class DeltaLog(LakeTable):
    """A Delta table as of its newest version."""

    def __init__(self, name: str, location: str, store: Mapping[str, str]):
        self.name, self._location, self._store = name, location, dict(store)
        self._versions = LastUsed[int, Any](_VERSIONS_KEPT)
        newest = self._open(None)
        self.newest = int(newest.version())
        self.identity = str(newest.metadata().id)
        self._versions.of(self.newest, lambda: newest)
        self._files = file_system(location, store)
        self._stamp = _stamp(self._files, self.newest)

    def _open(self, version: int | None) -> Any:
        delta = needed_module("deltalake", "deltalake")
        return delta.DeltaTable(self._location, version=version, storage_options=self._store)

    def _at(self, version: int | None) -> Any:
        assert self.newest is not None
        at = self.newest if version is None else version
        found = self._versions.of(at, lambda: self._open(at))
        _check_features(found, self.name)
        return found

    def has(self, at: int) -> bool:
        """See `LakeTable`."""
        assert self.newest is not None
        if at > self.newest:
            return False
        failed = needed_module("deltalake.exceptions", "deltalake").DeltaError
        try:
            self._at(at)
        except failed:
            if _stamp(self._files, at) is not None:
                raise  # it is there, and something else is wrong
            return False
        return True

    def is_current(self) -> bool:
        """See `LakeTable`."""
        assert self.newest is not None
        return _stamp(self._files, self.newest + 1) is None and _stamp(self._files, self.newest) == self._stamp

    def commits(self, after: int | None) -> list[Commit] | None:
        """See `LakeTable`."""
        assert self.newest is not None
        found = []
        for version in range(0 if after is None else after + 1, self.newest + 1):
            try:
                with self._files.open_input_file(_log_path(version)) as raw:
                    found.append(commit_of(version, raw.read()))
            except FileNotFoundError:
                return None
        return found

    def content(self, at: int) -> Content:
        """See `LakeTable`."""
        table = self._at(at)
        actions = pa.table(table.get_add_actions())
        stored = {f.name: str(f.id) for f in self.fields(at)}
        values = _texts(actions.column("partition"), stored) if "partition" in actions.column_names else None
        deleted = _deleted(table) if _VECTORS in (table.protocol().reader_features or ()) else {}
        found = {}
        for i, row in enumerate(actions.select(["path", "size_bytes", "modification_time", "num_records"]).to_pylist()):
            path, size = row["path"], int(row["size_bytes"])
            if _ABSOLUTE.match(path):
                raise SourceError(f"the {self.name} has files elsewhere, as {path}, which is not supported")
            rows = size // _ROW_BYTES + 1 if row["num_records"] is None else int(row["num_records"])
            detail = {"values": {} if values is None else values[i]}
            deletes = deleted.pop(unquote(path), [])
            found[path] = LakeFile(path, rows, size, int(row["modification_time"]), deletes, detail)
        if deleted:
            raise SourceError(f"the {self.name} has deletion vectors of files that it does not have: {min(deleted)}")
        return found

    def fields(self, at: int | None) -> Sequence[LakeField]:
        """See `LakeTable`."""
        table = self._at(at)
        mapped = table.metadata().configuration.get(_MODE, "none") != "none"
        arrow = pa.schema(table.schema().to_arrow())
        found = []
        for field, kind in zip(table.schema().fields, arrow, strict=True):
            if mapped and pa.types.is_nested(kind.type) and _has_struct(kind.type):
                continue  # the fields in it have other names in files, too
            if "variant" in str(field.type):
                continue
            name = field.metadata[_PHYSICAL] if mapped else field.name
            found.append(LakeField(field.name, name, kind.type, field.nullable))
        return found


def file_system(location: str, store: Mapping[str, str]) -> pa.fs.PyFileSystem:
    """The files of a table by their paths within it."""
    handler = needed_module("deltalake.fs", "deltalake").DeltaStorageHandler
    return pa.fs.PyFileSystem(handler(location, dict(store)))


def _log_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _stamp(files: pa.fs.FileSystem, version: int) -> tuple[int, Any] | None:
    """What tells a commit's file from another one in its place; None where there is none."""
    info = files.get_file_info(_log_path(version))
    return None if info.type == pa.fs.FileType.NotFound else (int(info.size or 0), info.mtime)


def commit_of(version: int, data: bytes) -> Commit:
    """What a commit of the log says. One that changes no file replaces nothing: it has no rows."""
    rows, moved, changed = 0, False, False
    for line in data.splitlines():
        action = json.loads(line) if line.strip() else {}
        for kind in ("add", "remove"):
            if kind in action:
                changes = bool(action[kind].get("dataChange", True))
                changed, moved = changed or changes, moved or not changes
                rows += _rows_of(action[kind]) if changes else 0
    return Commit(version, rows, moved and not changed)


def _rows_of(action: Mapping[str, Any]) -> int:
    try:
        return int(json.loads(action["stats"])["numRecords"])
    except (KeyError, TypeError, ValueError):
        return int(action.get("size") or 0) // _ROW_BYTES + 1


def _check_features(table: Any, name: str) -> None:
    """Refuse what would be read wrongly. Raises `NotSupported`."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    strange = sorted(features - _UNDERSTOOD)
    if strange:
        raise NotSupported(f"feature {', '.join(strange)} of the {name}", hint=AGAIN + ", without it")
    mapped = table.metadata().configuration.get(_MODE, "none")
    if mapped not in ("none", "name"):
        raise NotSupported(
            f"column mapping by {mapped} of the {name}", hint="delta.columnMapping.mode = 'name' is read"
        )


def _has_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return True
    return any(_has_struct(kind.field(i).type) for i in range(kind.num_fields))


def _texts(partitions: pa.ChunkedArray, stored: Mapping[str, str]) -> list[dict[str, str | None]]:
    """The partition values of files as texts, which casts take back to what they were, by columns as `stored`."""
    array = partitions.combine_chunks() if partitions.num_chunks != 1 else partitions.chunk(0)
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    columns = []
    for name in names:
        values = pc.struct_field(array, name)
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            raise NotSupported(f'the column "{name}" of binary values, by which a Delta table is partitioned')
        columns.append(values.cast(pa.string()).to_pylist())
    keys = [stored[name] for name in names]
    return [dict(zip(keys, row)) for row in zip(*columns)] if columns else [{}] * len(array)


def _deleted(table: Any) -> dict[str, Deletes]:
    """What deletion vectors delete, by the paths of files."""
    root = unquote(str(table.table_uri)).rstrip("/") + "/"
    found = {}
    for batch in table.deletion_vectors():
        rows = pa.record_batch(batch)
        for path, kept in zip(rows.column("filepath").to_pylist(), rows.column("selection_vector")):
            bits = np.asarray(kept.values.to_numpy(zero_copy_only=False), bool)
            if not unquote(path).startswith(root):
                raise SourceError(f"a deletion vector is of the file {path}, which is not below {root}")
            found[unquote(path).removeprefix(root)] = deletes_of(~bits)
    return found


def deletes_of(deleted: np.ndarray[Any, Any]) -> Deletes:
    """The rows that are deleted of a file, as JSON."""
    places = np.flatnonzero(deleted)
    if not len(places):
        return []
    bits = np.packbits(deleted[: places[-1] + 1])
    return [base64.b64encode(zlib.compress(bits.tobytes())).decode()]


def kept_of(deletes: Deletes) -> Kept:
    """The inverse: which rows are kept."""
    if not deletes:
        return lambda batch, position: np.ones(batch.num_rows, np.int64)
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(deletes[0])), np.uint8))

    def kept(batch: pa.RecordBatch, position: int) -> np.ndarray[Any, Any]:
        found = np.ones(batch.num_rows, np.int64)
        gone = bits[position : position + batch.num_rows]
        found[: len(gone)] -= gone
        return found

    return kept


def _column(
    batch: pa.RecordBatch, name: str, values: Mapping[str, str | None], kind: pa.DataType
) -> pa.Array:  # fmt: skip
    """A column: from the file, from the partition's values, or NULL where the file is older than the column."""
    if name in values:
        text = pa.array([values[name]], pa.string())
        made, bad = cast_array(text, kind)
        if bad:
            raise SourceError(f"the partition value {values[name]!r} of column {name}: {bad[0][1]}")
        return pa.repeat(made[0], batch.num_rows)
    at = batch.schema.get_field_index(name)
    return pa.nulls(batch.num_rows, kind) if at < 0 else batch.column(at)
