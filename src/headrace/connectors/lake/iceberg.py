"""The `iceberg` sink: an epoch is one commit of an Iceberg table, which notes the epoch in the table's properties.

A commit names the snapshot that it builds on, and fails where the table has another one by then: so of two who deliver
the same epoch one commits, and the other one finds the epoch in the properties when it looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column, arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import netting
from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.lake.small_files import COMPACT, Table, compact_iceberg, delete_files
from headrace.connectors.lake.tables import CREATE, STORE, LakeSink, absent, check_columns, fitted, told
from headrace.connectors.sinks import SinkPosition, already_delivered
from headrace.errors import InvalidParameter

DataFile: TypeAlias = Any
"""A file of the package's."""
CATALOG: Final = (
    Option("catalog.type", "What the catalog is: a database, or a server of Iceberg's REST protocol.",
           required=True, choices=("sql", "rest")),
    Option("catalog.uri", "Where it is: `postgresql+psycopg://...` (a secret, with a password in it), "
           "`sqlite:////path` or `https://...`.", required=True, secret=True),
    Option("catalog.name", "Its name.", default="default"),
    Option("catalog.credential", "`client:secret`, of a REST catalog.", secret=True),
    Option("catalog.token", "A bearer token, of a REST catalog.", secret=True),
    Option("warehouse.path", "Where the tables are that are made: `s3://bucket/path`, `file:///path`, or the name "
           "by which a REST catalog knows it."),
)  # fmt: skip
CONNECTION: Final = Connects(DeclaredOptions((*CATALOG, *STORE)), {"iceberg": {}})
SINK: Final = DeclaredOptions(
    (
        *CATALOG,
        Option("database.name", "The namespace of the table.", required=True),
        Option("table.name", "The table.", required=True),
        CREATE,
        COMPACT,
        *STORE,
    )
)
_PROPERTIES: Final = {
    "catalog.type": "type", "catalog.uri": "uri", "catalog.credential": "credential", "catalog.token": "token",
    "warehouse.path": "warehouse", "s3.endpoint": "s3.endpoint", "s3.region": "s3.region",
    "s3.access.key": "s3.access-key-id", "s3.secret.key": "s3.secret-access-key",
}  # fmt: skip
_SCHEMES: Final = {"sql": ("postgresql", "sqlite:"), "rest": ("http://", "https://")}
_MADE: Final = {"write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a table that is made: else each epoch leaves a file of metadata for ever."""
_NAMED: Final = 200
"""Keys by which files are looked for, at most: the package compares no more of them with statistics."""
_TRIES: Final = 5
"""Commits of one epoch, where others commit to the table meanwhile."""


@dataclass(frozen=True)
class Place:
    """Where a table is."""

    catalog_name: str
    properties: Mapping[str, str] = field(repr=False)
    table: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Place:
        """What options say. Raises `InvalidParameter`."""
        schemes = _SCHEMES[values["catalog.type"]]
        if not values["catalog.uri"].startswith(schemes):
            raise InvalidParameter(f"option catalog.uri must begin with {' or '.join(schemes)}")
        properties = {name: values[option] for option, name in _PROPERTIES.items() if values[option]}
        return cls(values["catalog.name"], properties, (*values["database.name"].split("."), values["table.name"]))

    @property
    def name(self) -> str:
        """For people."""
        return f"Iceberg table {'.'.join(self.table)}"

    def catalog(self) -> Any:
        """The catalog, connected to."""
        package = needed_module("pyiceberg.catalog", "iceberg")
        return package.load_catalog(self.catalog_name, **self.properties)


class IcebergSink(LakeSink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._place = Place.of(self._values)
        self._table_name = self._place.table
        self._name = self._place.name

    def reach(self) -> None:
        """See `Sink`."""
        with told(self._name):
            catalog = self._catalog()
            if not catalog.table_exists(self._table_name):
                if not self._creates:
                    raise absent(self._name)
                catalog.create_namespace_if_not_exists(self._table_name[:-1])
                schema = arrow_schema(self.columns)
                catalog.create_table_if_not_exists(self._table_name, schema, properties=_MADE)
            check_columns(self.columns, self._schema(catalog.load_table(self._table_name)), self._name)

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        with told(self._name):
            catalog = self._catalog()
            table = catalog.load_table(self._table_name)
            if self._has(table, position):
                return 0
        with self._held(batches) as held, told(self._name):
            changes = self._deliver(catalog, table, position, held)
            if changes and self._compacted_from:
                least = self._compacted_from
                self._put_together(lambda: compact_iceberg(catalog.load_table(self._table_name), least))
        return changes

    def _deliver(self, catalog: Any, table: Table, position: SinkPosition, held: HeldChanges) -> int:
        failed = needed_module("pyiceberg.exceptions", "iceberg").CommitFailedException
        for attempt in range(1, _TRIES + 1):
            try:
                return held.rows if self._commit(table, position, held) else 0
            except failed:
                table = catalog.load_table(self._table_name)
                if self._has(table, position):
                    return 0
                if attempt == _TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _catalog(self) -> Any:
        return self._place.catalog()

    @staticmethod
    def _schema(table: Table) -> pa.Schema:
        schema: pa.Schema = table.schema().as_arrow()
        return schema

    def _has(self, table: Table, position: SinkPosition) -> bool:
        noted = table.properties.get(_noted(position), "0")
        return already_delivered(position, int(noted), self._name)

    def _commit(self, table: Table, position: SinkPosition, held: HeldChanges) -> bool:
        """Commit it, together with its epoch, on top of the table as it was loaded, or not at all.

        Returns whether there was anything to commit.
        """
        # The package would put what fails on top of what is there by then, without a look at the epoch.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        gone: list[DataFile] = []
        added: list[DataFile] = []
        try:
            with HeldChanges.of(self._written(table, held, added), self.scratch) as keys:
                for file, left in self._touched(table, keys):
                    gone.append(file)
                    added += self._data_files(table, left)
        except BaseException:  # of a row that is refused, say, which comes again and again
            delete_files(table, added)
            raise
        if not gone and not added:
            return False
        try:
            self._put(table, gone, added, position)
        except needed_module("pyiceberg.exceptions", "iceberg").CommitFailedException:
            delete_files(table, added)
            raise
        return True

    def _put(
        self, table: Table, gone: Iterable[DataFile], added: Iterable[DataFile], position: SinkPosition
    ) -> None:  # fmt: skip
        summary = {"headrace.delivery": position.delivery, "headrace.epoch": str(position.epoch)}
        with table.transaction() as transaction:
            if self._upserts:
                self._replace(transaction, gone, added, summary)
            else:
                with transaction._append_snapshot_producer(summary) as snapshot:
                    for file in added:
                        snapshot.append_data_file(file)
            transaction.set_properties({_noted(position): str(position.epoch)})

    def _replace(
        self, transaction: Any, gone: Iterable[DataFile], added: Iterable[DataFile], summary: dict[str, str]
    ) -> None:
        """Put files in the place of others, in one snapshot.

        The package's own `delete` and `append` make one each, and who follows the table, or reads it as of then, would
        see what never was.
        """
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for file in gone:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)

    def _written(self, table: Table, held: HeldChanges, added: list[DataFile]) -> Iterator[pa.RecordBatch]:
        """Write the rows that come to files, which are `added`; the keys of rows that are gone or replaced."""
        schema = self._schema(table)
        for net in self._net(held):
            added += self._data_files(table, self._fitted(net.rows, schema))
            if net.keys is not None:
                yield from fitted(net.keys, schema).combine_chunks().to_batches()

    @staticmethod
    def _data_files(table: Table, rows: pa.Table) -> Iterable[DataFile]:
        files = needed_module("pyiceberg.io.pyarrow", "iceberg")
        return files._dataframe_to_data_files(table.metadata, rows, table.io) if rows.num_rows else ()

    def _touched(self, table: Table, keys: HeldChanges) -> Iterator[tuple[DataFile, pa.Table]]:
        """The files of data that have rows with some keys, each with its other rows.

        Statistics of files are asked for each column by itself: what they find is looked at row by row.
        """
        if not keys.rows:
            return
        expressions = needed_module("pyiceberg.expressions", "iceberg")
        files = needed_module("pyiceberg.io.pyarrow", "iceberg")
        schema = self._schema(table)
        scan = files.ArrowScan(table.metadata, table.io, table.schema(), expressions.AlwaysTrue())
        for task in table.scan(row_filter=self._about(keys)).plan_files():
            left = there = fitted(scan.to_table([task]), schema)
            for piece in keys.pieces():
                left = netting.without(left, pa.Table.from_batches(piece))
            if left.num_rows < there.num_rows:
                yield task.file, left

    def _about(self, keys: HeldChanges) -> Any:
        """A filter that lets all rows with some keys pass: by the keys if they are few, else by where they lie."""
        expressions = needed_module("pyiceberg.expressions", "iceberg")
        if keys.rows <= _NAMED:
            few = pa.Table.from_batches(list(keys))
            parts = [expressions.In(name, pc.unique(few.column(name)).drop_null().to_pylist()) for name in self._key]
            return reduce(expressions.And, parts)
        ends = {name: _ends(keys, name) for name in self._key}
        parts = [
            bound(name, value)
            for name, (least, most) in ends.items()
            if least is not None
            for bound, value in ((expressions.GreaterThanOrEqual, least), (expressions.LessThanOrEqual, most))
        ]
        return reduce(expressions.And, parts, expressions.AlwaysTrue())


def _ends(batches: Iterable[pa.RecordBatch], name: str) -> tuple[object, object]:
    """The least and the greatest value of a column; None if it has none."""
    found = [(batch.schema.field(name).type, pc.min_max(batch.column(name))) for batch in batches]
    ends = [pa.array([end["min"].as_py(), end["max"].as_py()], kind) for kind, end in found]
    both = pc.min_max(pa.chunked_array(ends))
    return both["min"].as_py(), both["max"].as_py()


def _noted(position: SinkPosition) -> str:
    """The property in which the newest epoch of a sink is noted."""
    return f"headrace.delivered.{position.delivery}"
