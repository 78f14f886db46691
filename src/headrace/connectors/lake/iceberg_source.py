"""The `iceberg` source: an Iceberg table as what is in it, and then what each snapshot changes.

Manifests say which data files a snapshot has, and which delete files; which of these apply to which data file is the
specification's (`applying`), as is what they delete (`deletes.py`). Data files are read by the package, which finds
columns by their field ids: so columns may be renamed, and files be older than the schema.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as papq

from headrace.common.columns import Column, arrow_type
from headrace.common.last_used import LastUsed
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import ReadTask
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.lake.changes import Commit, Content, LakeFile
from headrace.connectors.lake.deletes import DeleteFiles
from headrace.connectors.lake.iceberg import CATALOG, Place
from headrace.connectors.lake.rows import changed_part
from headrace.connectors.lake.source import (
    AGAIN,
    FOLLOWING,
    LakeField,
    LakeSource,
    LakeTable,
)
from headrace.connectors.lake.tables import STORE, holds
from headrace.errors import NotSupported, SourceError

SOURCE: Final = DeclaredOptions(
    (
        *CATALOG,
        Option("database.name", "The namespace of the table.", required=True),
        Option("table.name", "The table.", required=True),
        *FOLLOWING,
        *STORE,
    )
)
_DATA, _POSITIONS, _EQUALITY = 0, 1, 2
"""What a file of a manifest holds."""
_FORMATS: Final = {_DATA: ("PARQUET", "ORC"), _POSITIONS: ("PARQUET", "PUFFIN"), _EQUALITY: ("PARQUET",)}
_REFERENCED: Final = 17
"""The place in an entry of version 3, for which the package has no name, of the data file of a deletion vector."""
_PATH_ID: Final = 2147483546
"""The field id of the path in a file of position deletes."""
_MANIFESTS_KEPT: Final = 4096
_NEWEST_FORMAT: Final = 3


class IcebergSource(LakeSource):
    """See the module."""

    declared = SOURCE

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._place = Place.of(self.values)
        self.name = self._place.name
        self._entries = Entries()
        self._loaded: tuple[Any, DeleteFiles] | None = None

    def _look(self) -> LakeTable:
        missing = needed_module("pyiceberg.exceptions", "iceberg").NoSuchTableError
        try:
            table = self._place.catalog().load_table(self._place.table)
        except missing as error:
            raise SourceError(f"there is no {self.name}") from error
        return IcebergSnapshots(self.name, table, self._entries)

    def _task(self, fields: Mapping[str, Any], at: int | None) -> dict[str, Any]:
        return {"fields": dict(fields), "at": at}

    def _rows(self, task: ReadTask, piece: Mapping[str, Any], names: Sequence[str]) -> Iterator[Any]:
        table, deletes = self._opened()
        if str(table.metadata.table_uuid) != task["table"]:
            raise self.made_again()
        wanted = [int(task["fields"][name]) for name in names]
        keys = deletes.columns(piece["was"], piece["now"])
        reading = FileReading(table, task["at"], [*wanted, *(k for k in keys if k not in wanted)])
        for column in self.columns:
            if column.name in names and not holds(arrow_type(column.type), reading.kind(task["fields"][column.name])):
                raise SourceError(
                    f'the column "{column.name}" of the {self.name} has become of another type since it was bound',
                    hint=AGAIN,
                )
        was, now = (
            None if piece[when] is None else deletes.kept(piece, piece[when], reading) for when in ("was", "now")
        )
        places = [reading.places[i] for i in wanted]
        position = 0
        for batch in reading.batches(piece):
            # Columns may be asked for twice by one id, and come once.
            shown = pa.RecordBatch.from_arrays(
                [*(batch.column(p) for p in places), *batch.columns],
                names=[str(i) for i in range(len(places) + batch.num_columns)],
            )
            part = changed_part(shown, position, was, now, len(places))
            position += batch.num_rows
            if part is not None:
                yield part

    def _opened(self) -> tuple[Any, DeleteFiles]:
        """The table and its delete files, loaded once by each reader."""
        if self._loaded is None:
            table = self._place.catalog().load_table(self._place.table)
            self._loaded = table, DeleteFiles(table)
        return self._loaded


class Entries:
    """What manifests say, each read once: a manifest never changes."""

    def __init__(self) -> None:
        self._known = LastUsed[str, list[Any]](_MANIFESTS_KEPT)

    def of(self, manifest: Any, io: Any) -> list[Any]:
        """The live entries of a manifest."""
        return self._known.of(manifest.manifest_path, lambda: _read(manifest, io))


def _read(manifest: Any, io: Any) -> list[Any]:
    """The live entries of a manifest, with the columns of version 3, which the package leaves out."""
    package = needed_module("pyiceberg.manifest", "iceberg")
    files = needed_module("pyiceberg.avro.file", "iceberg")
    enums = {0: package.ManifestEntryStatus, 101: package.FileFormat, 134: package.DataFileContent}
    types = {-1: package.ManifestEntry, 2: package.DataFile}
    source = io.new_input(manifest.manifest_path)
    with files.AvroFile(source, package.MANIFEST_ENTRY_SCHEMAS[3], read_types=types, read_enums=enums) as entries:
        found = [_inherited(entry, manifest) for entry in entries]
    return [entry for entry in found if entry.status != package.ManifestEntryStatus.DELETED]


def _inherited(entry: Any, manifest: Any) -> Any:
    """An entry with what it has from its manifest."""
    added = entry.status == 1
    if entry.snapshot_id is None:
        entry.snapshot_id = manifest.added_snapshot_id
    if entry.sequence_number is None and (manifest.sequence_number == 0 or added):
        entry.sequence_number = manifest.sequence_number
    entry.data_file.spec_id = manifest.partition_spec_id
    return entry


@dataclass(frozen=True)
class _Applying:
    """Delete files of a snapshot by what they may apply to."""

    by_path: Mapping[str, list[Any]]
    vectors: Mapping[str, Any]
    by_partition: Mapping[tuple[int, str], list[Any]]
    everywhere: list[Any]

    @classmethod
    def of(cls, entries: Iterable[Any], unpartitioned: frozenset[int]) -> _Applying:
        by_path, by_partition = defaultdict(list), defaultdict(list)
        vectors, everywhere = {}, []
        for entry in entries:
            file = entry.data_file
            referenced = file._data[_REFERENCED]
            if _format(file) == "PUFFIN":
                vectors[referenced] = entry
            elif file.content == _EQUALITY and file.spec_id in unpartitioned:
                everywhere.append(entry)
            elif file.content == _POSITIONS and (path := referenced or _only_path(file)):
                by_path[path].append(entry)
            else:
                by_partition[file.spec_id, _partition_key(file)].append(entry)
        return cls(by_path, vectors, by_partition, everywhere)

    def to(self, entry: Any) -> list[Any]:
        """What is deleted of a data file, by delete files that are not older than it; see the specification."""
        file, number = entry.data_file, entry.sequence_number or 0
        near = self.by_partition.get((file.spec_id, _partition_key(file)), [])
        vector = self.vectors.get(file.file_path)
        found = []
        if vector is not None and (vector.sequence_number or 0) >= number:
            found.append(["vector", vector.data_file.file_path])
        else:  # with a vector, files of positions count no more
            found += [
                ["positions", e.data_file.file_path, _format(e.data_file)]
                for e in (*near, *self.by_path.get(file.file_path, []))
                if e.data_file.content == _POSITIONS and (e.sequence_number or 0) >= number
            ]
        found += [
            ["equality", e.data_file.file_path, _format(e.data_file), sorted(e.data_file.equality_ids or []),
             e.data_file.record_count]
            for e in (*near, *self.everywhere)
            if e.data_file.content == _EQUALITY and (e.sequence_number or 0) > number
        ]  # fmt: skip
        return sorted(found, key=str)


def _format(file: Any) -> str:
    return str(file.file_format.value).upper()


def _partition_key(file: Any) -> str:
    return repr(list(file.partition._data)) if file.partition is not None else "[]"


def _only_path(file: Any) -> str | None:
    """The one data file that a file of positions is about, if its bounds say so."""
    low, high = ((bounds or {}).get(_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    return bytes(low).decode() if low is not None and low == high else None


class IcebergSnapshots(LakeTable):
    """An Iceberg table as of its newest snapshot."""

    def __init__(self, name: str, table: Any, entries: Entries):
        self.name, self._table, self._entries = name, table, entries
        current = table.current_snapshot()
        self.newest = None if current is None else int(current.snapshot_id)
        self.identity = str(table.metadata.table_uuid)

    def has(self, at: int) -> bool:
        """See `LakeTable`."""
        return self._table.snapshot_by_id(at) is not None

    def commits(self, after: int | None) -> list[Commit] | None:
        """See `LakeTable`."""
        found: list[Commit] = []
        at = self.newest
        while at != after:
            snapshot = None if at is None else self._table.snapshot_by_id(at)
            if snapshot is None:
                return None
            summary = snapshot.summary
            counts = summary.additional_properties if summary is not None else {}
            names = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
            replaces = summary is not None and summary.operation.value == "replace"
            found.append(Commit(int(snapshot.snapshot_id), sum(int(counts.get(n, 0)) for n in names), replaces))
            at = snapshot.parent_snapshot_id
        return found[::-1]

    def content(self, at: int) -> Content:
        """See `LakeTable`."""
        snapshot, io = self._table.snapshot_by_id(at), self._table.io
        entries = [e for manifest in snapshot.manifests(io) for e in self._entries.of(manifest, io)]
        specs = self._table.metadata.specs()
        unpartitioned = frozenset(i for i, spec in specs.items() if is_unpartitioned(f.transform for f in spec.fields))
        applying = _Applying.of((e for e in entries if e.data_file.content != _DATA), unpartitioned)
        found = {}
        for entry in entries:
            file = entry.data_file
            check_file(file, self._table.metadata.schemas, self.name)
            if file.content == _DATA:
                if file.file_path in found:
                    raise SourceError(f"snapshot {at} of the {self.name} has the file {file.file_path} twice")
                detail = {"format": _format(file), "spec": file.spec_id, "partition": self._partition(file)}
                age, deletes = entry.sequence_number or 0, applying.to(entry)
                found[file.file_path] = LakeFile(
                    file.file_path, int(file.record_count), int(file.file_size_in_bytes), age, deletes, detail
                )
        return found

    def _partition(self, file: Any) -> list[Any]:
        """The values of a file's partition, as JSON."""
        to_json = needed_module("pyiceberg.conversions", "iceberg").to_json
        metadata = self._table.metadata
        kinds = metadata.specs()[file.spec_id].partition_type(metadata.schema()).fields
        dropped = needed_module("pyiceberg.types", "iceberg").UnknownType
        return [
            None if value is None or isinstance(field.field_type, dropped) else to_json(field.field_type, value)
            for field, value in zip(kinds, file.partition._data)
        ]

    def fields(self, at: int | None) -> Sequence[LakeField]:
        """See `LakeTable`."""
        schema = schema_at(self._table, at)
        arrow = schema.as_arrow()
        found = [
            LakeField(field.name, field.field_id, kind.type, field.optional)
            for field, kind in zip(schema.fields, arrow, strict=True)
        ]
        version = int(self._table.metadata.format_version)
        if version > _NEWEST_FORMAT:
            raise NotSupported(f"version {version} of Iceberg's format, which the {self.name} has")
        return found


def is_unpartitioned(transforms: Iterable[object]) -> bool:
    """Whether all rows are in one partition: in version 1, fields that were removed stay as void ones."""
    void = needed_module("pyiceberg.transforms", "iceberg").VoidTransform
    return all(isinstance(transform, void) for transform in transforms)


def schema_at(table: Any, at: int | None) -> Any:
    """The schema of a table as of a snapshot; the newest one, if that is the newest."""
    current = table.current_snapshot()
    snapshot = None if at is None else table.snapshot_by_id(at)
    if snapshot is None or snapshot.schema_id is None or (current is not None and current.snapshot_id == at):
        return table.schema()
    return next((s for s in table.metadata.schemas if s.schema_id == snapshot.schema_id), table.schema())


def check_file(file: Any, schemas: Iterable[Any], name: str) -> None:
    """Refuse what would not be read, or be read wrongly. Raises `NotSupported`."""
    if file.key_metadata:
        raise NotSupported(f"encrypted files of the {name}")
    if _format(file) not in _FORMATS[file.content]:
        raise NotSupported(f"a file of the format {_format(file)} of the {name}: {file.file_path}")
    if file.content == _EQUALITY:
        types = needed_module("pyiceberg.types", "iceberg")
        for field in (FileReading.field(schemas, i) for i in file.equality_ids or ()):
            kind = field.field_type
            if isinstance(kind, (types.FloatType, types.DoubleType)) or not isinstance(kind, types.PrimitiveType):
                raise NotSupported(f"equality deletes of the {name} by a column of type {kind}")


class FileReading:
    """Reads data files, with columns by their field ids."""

    def __init__(self, table: Any, at: int | None, ids: Sequence[int]):
        self._table = table
        schema = needed_module("pyiceberg.schema", "iceberg").Schema
        now = schema_at(table, at)
        unique = list(dict.fromkeys(ids))
        # A column of equality deletes may be one that the table has no more.
        olds = (now, *table.metadata.schemas)
        self._schema = schema(*(self.field(olds, i) for i in unique))
        self.places = {i: place for place, i in enumerate(unique)}

    def kind(self, field_id: int) -> pa.DataType:
        """The type of a column."""
        return self._schema.as_arrow().field(self.places[int(field_id)]).type

    @staticmethod
    def field(schemas: Iterable[Any], field_id: int) -> Any:
        """A column that a table has or had, by its field id."""
        for schema in schemas:
            for field in schema.fields:
                if field.field_id == field_id:
                    # Which values must be there is looked at where they are declared.
                    return field.model_copy(update={"required": False, "name": f"c{field_id}"})
        raise SourceError(f"an Iceberg table has no column of the field id {field_id} any more", hint=AGAIN)

    def batches(self, file: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, all of them, in order."""
        if file["format"] == "PARQUET":
            self._check_times(file["path"])
        manifest = needed_module("pyiceberg.manifest", "iceberg")
        reading = needed_module("pyiceberg.io.pyarrow", "iceberg")
        tables = needed_module("pyiceberg.table", "iceberg")
        true = needed_module("pyiceberg.expressions", "iceberg").AlwaysTrue()
        found = manifest.DataFile.from_args(
            content=manifest.DataFileContent.DATA, file_path=file["path"], partition=self._record(file),
            file_format=manifest.FileFormat(file["format"]), record_count=0, file_size_in_bytes=0,
        )  # fmt: skip
        found.spec_id = file["spec"]
        scan = reading.ArrowScan(self._table.metadata, self._table.io, self._schema, true)
        # What is public would hold the whole file in memory.
        yield from scan._record_batches_from_scan_tasks_and_deletes([tables.FileScanTask(found)], {})

    def _check_times(self, path: str) -> None:
        """Refuse INT96, which the package reads as nanoseconds: what they do not reach becomes another time.

        Raises `NotSupported`.
        """
        if "timestamp" not in str(self._schema.as_arrow()):
            return
        with self._table.io.new_input(path).open() as raw, papq.ParquetFile(raw) as parquet:
            for leaf in (parquet.schema.column(i) for i in range(len(parquet.schema))):
                name = leaf.path.split(".")[0]
                stored = parquet.schema_arrow.field(name).metadata or {}
                known = stored.get(b"PARQUET:field_id")
                if leaf.physical_type == "INT96" and (known is None or int(known) in self.places):
                    raise NotSupported(
                        f'timestamps of the type INT96 in the column "{name}" of the file {path}',
                        hint="write the file anew, with timestamps of microseconds; or leave the column out",
                    )

    def _record(self, file: Mapping[str, Any]) -> Any:
        from_json = needed_module("pyiceberg.conversions", "iceberg").from_json
        record = needed_module("pyiceberg.typedef", "iceberg").Record
        metadata = self._table.metadata
        if file["spec"] not in metadata.specs():
            return record()
        kinds = metadata.specs()[file["spec"]].partition_type(metadata.schema()).fields
        values = zip(kinds, file["partition"])
        return record(*(None if value is None else from_json(field.field_type, value) for field, value in values))
