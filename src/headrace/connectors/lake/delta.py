"""The `deltalake` sink: an epoch is one commit of a Delta table, which notes the epoch as an application's transaction.

That is what such transactions are there for: Delta keeps the newest version that each application has committed, and
lets a commit fail beside which another one has noted a version for the same application.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.connectors import netting
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.lake.tables import CREATE, STORE, LakeSink, absent, check_columns, fitted, told
from headrace.connectors.sinks import SinkPosition, already_delivered
from headrace.errors import InvalidParameter

SINK: Final = DeclaredOptions(
    (
        Option("location", "Where the table is: `s3://bucket/path`, or an absolute path.", required=True),
        CREATE,
        *STORE,
    )
)
_STORE: Final = {
    "s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION", "s3.access.key": "AWS_ACCESS_KEY_ID",
    "s3.secret.key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip
_GONE: Final = "__gone"


def located(values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Where a table is, and the options of its store as the package calls them. Raises `InvalidParameter`."""
    location: str = values["location"]
    if not location.startswith(("/", "s3://", "s3a://")):
        raise InvalidParameter("option location must be s3://bucket/path or an absolute path")
    store = {name: values[option] for option, name in _STORE.items() if values[option]}
    if (values["s3.endpoint"] or "").startswith("http://"):
        store["AWS_ALLOW_HTTP"] = "true"
    return location, store


class DeltaSink(LakeSink):
    """See the module."""

    declared = SINK

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._location, self._store = located(self._values)
        self._name = f"Delta table {self._location}"

    def reach(self) -> None:
        """See `Sink`."""
        with told(self._name):
            delta = self._package()
            if not delta.DeltaTable.is_deltatable(self._location, self._store):
                if not self._creates:
                    raise absent(self._name)
                delta.DeltaTable.create(
                    self._location, arrow_schema(self.columns), mode="ignore", storage_options=self._store
                )
            check_columns(self.columns, self._schema(self._table()), self._name)

    def write(self, position: SinkPosition, batches: Iterator[pa.RecordBatch]) -> int:
        """See `Sink`."""
        with told(self._name):
            table = self._table()
            if already_delivered(position, table.transaction_version(position.delivery) or 0, self._name):
                return 0
        found = self._taken(batches)
        with told(self._name):
            if not found.is_empty:
                self._commit(table, position, found)
        return found.count

    def _package(self) -> Any:
        return needed_module("deltalake", "deltalake")

    def _table(self) -> Any:
        return self._package().DeltaTable(self._location, storage_options=self._store)

    @staticmethod
    def _schema(table: Any) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())

    def _commit(self, table: Any, position: SinkPosition, found: netting.NetChanges) -> None:
        """Commit it, together with its epoch. Who has committed that meanwhile lets it fail."""
        delta = self._package()
        properties = delta.CommitProperties(
            custom_metadata={"headrace": json.dumps({"delivery": position.delivery, "epoch": position.epoch})},
            app_transactions=[delta.Transaction(position.delivery, position.epoch, None)],
        )
        rows = fitted(found.rows, self._schema(table), self._name)
        if found.keys is None:
            delta.write_deltalake(table, rows, mode="append", commit_properties=properties)
            return
        self._merge(table, rows, found.keys, properties)

    def _merge(self, table: Any, rows: pa.Table, keys: pa.Table, properties: Any) -> None:
        gone = netting.without(keys, rows.select(keys.column_names))
        gone = fitted(gone, self._schema(table), self._name)
        source = pa.concat_tables(
            [part.append_column(_GONE, pa.array([mark] * part.num_rows, pa.bool_()))
             for part, mark in ((rows, False), (gone, True))], promote_options="default",
        )  # fmt: skip
        values = {quoted_name(name): f"s.{quoted_name(name)}" for name in rows.column_names}
        merger = table.merge(
            source, " AND ".join(f"t.{quoted_name(k)} = s.{quoted_name(k)}" for k in self._key), source_alias="s",
            target_alias="t", commit_properties=properties,
        )  # fmt: skip
        (
            merger.when_matched_delete(predicate=f"s.{_GONE}")
            .when_matched_update(updates=values)
            .when_not_matched_insert(updates=values, predicate=f"NOT s.{_GONE}")
            .execute()
        )
