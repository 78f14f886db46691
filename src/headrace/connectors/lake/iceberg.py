"""The `iceberg` sink: an epoch is one commit of an Iceberg table, which notes the epoch in the table's properties.

A commit names the snapshot that it builds on, and fails where the table has another one by then: so of two who deliver
the same epoch one commits, and the other one finds the epoch in the properties when it looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column, arrow_schema
from headrace.connectors import netting
from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.lake.tables import CREATE, STORE, LakeSink, absent, check_columns, fitted, told
from headrace.connectors.sinks import SinkPosition, already_delivered
from headrace.errors import InvalidParameter

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
        found = self._taken(batches)
        with told(self._name):
            return self._deliver(catalog, table, position, found)

    def _deliver(self, catalog: Any, table: Any, position: SinkPosition, found: netting.NetChanges) -> int:
        failed = needed_module("pyiceberg.exceptions", "iceberg").CommitFailedException
        for attempt in range(1, _TRIES + 1):
            try:
                self._commit(table, position, found)
                break
            except failed:
                table = catalog.load_table(self._table_name)
                if self._has(table, position):
                    return 0
                if attempt == _TRIES:
                    raise
        return found.count

    def _catalog(self) -> Any:
        return self._place.catalog()

    @staticmethod
    def _schema(table: Any) -> pa.Schema:
        schema: pa.Schema = table.schema().as_arrow()
        return schema

    def _has(self, table: Any, position: SinkPosition) -> bool:
        noted = table.properties.get(_noted(position), "0")
        return already_delivered(position, int(noted), self._name)

    def _commit(self, table: Any, position: SinkPosition, found: netting.NetChanges) -> None:
        """Commit it, together with its epoch, on top of the table as it was loaded, or not at all."""
        if found.is_empty:
            return
        # The package would put what fails on top of what is there by then, without a look at the epoch.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        summary = {"headrace.delivery": position.delivery, "headrace.epoch": str(position.epoch)}
        rows = fitted(found.rows, self._schema(table), self._name)
        with table.transaction() as transaction:
            if found.keys is None:
                transaction.append(rows, snapshot_properties=summary)
            else:
                self._replace(table, transaction, found.keys, rows, summary)
            if transaction.table_metadata.current_snapshot_id != table.metadata.current_snapshot_id:
                transaction.set_properties({_noted(position): str(position.epoch)})

    def _replace(
        self, table: Any, transaction: Any, keys: pa.Table, rows: pa.Table, summary: Mapping[str, str]
    ) -> None:
        """Put rows in the place of those with these keys, in one snapshot.

        The package's own `delete` and `append` make one each, and who follows the table, or reads it as of then, would
        see what never was.
        """
        files = needed_module("pyiceberg.io.pyarrow", "iceberg")
        metadata = transaction.table_metadata
        gone, added = [], []
        for file, left in self._touched(table, keys):
            gone.append(file)
            if left.num_rows:
                added += files._dataframe_to_data_files(metadata, left, table.io)
        if rows.num_rows:
            added += files._dataframe_to_data_files(metadata, rows, table.io)
        if gone or added:
            with transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite() as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file)
                for file in added:
                    snapshot.append_data_file(file)

    def _touched(self, table: Any, keys: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        """The files of data that have rows with these keys, each with its other rows.

        Statistics of files are asked for each column by itself: what they find is looked at row by row.
        """
        expressions = needed_module("pyiceberg.expressions", "iceberg")
        files = needed_module("pyiceberg.io.pyarrow", "iceberg")
        wanted = reduce(
            expressions.And,
            [expressions.In(name, pc.unique(keys.column(name)).drop_null().to_pylist()) for name in self._key],
        )
        schema = self._schema(table)
        keys = fitted(keys, schema, self._name)
        scan = files.ArrowScan(table.metadata, table.io, table.schema(), expressions.AlwaysTrue())
        for task in table.scan(row_filter=wanted).plan_files():
            there = fitted(scan.to_table([task]), schema, self._name)
            left = netting.without(there, keys)
            if left.num_rows < there.num_rows:
                yield task.file, left


def _noted(position: SinkPosition) -> str:
    """The property in which the newest epoch of a sink is noted."""
    return f"headrace.delivered.{position.delivery}"
