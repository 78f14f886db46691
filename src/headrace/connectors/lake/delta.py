"""The `deltalake` sink: an epoch is one commit of a Delta table, which notes the epoch as an application's transaction.

That is what such transactions are there for: Delta keeps the newest version that each application has committed, and
lets a commit fail beside which another one has noted a version for the same application.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.columns import Column, arrow_schema
from headrace.common.identifiers import quoted_name
from headrace.connectors import netting
from headrace.connectors.declared import DeclaredOptions, Option, needed_module
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.lake.delta_constraints import breaking, constraints
from headrace.connectors.lake.small_files import COMPACT, Table, compact_delta
from headrace.connectors.lake.tables import CREATE, STORE, LakeSink, absent, check_columns, fitted, told
from headrace.connectors.sinks import SinkPosition, already_delivered
from headrace.errors import InvalidParameter

SINK: Final = DeclaredOptions(
    (
        Option("location", "Where the table is: `s3://bucket/path`, or an absolute path.", required=True),
        CREATE,
        COMPACT,
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
            if already_delivered(position, self._noted(position, table), self._name):
                return 0
        with self._held(batches) as held, told(self._name):
            schema = self._schema(table)
            with HeldChanges.of(self._leaving(held, schema), self.scratch) as leaving:
                if not leaving.rows:
                    return 0
                self._commit(table, position, leaving)
            if not already_delivered(position, self._noted(position, self._table()), self._name):
                return 0  # a merge that finds nothing to do commits nothing
            if self._compacted_from:
                self._put_together(lambda: compact_delta(self._table(), self._compacted_from))
            return held.rows

    @staticmethod
    def _noted(position: SinkPosition, table: Table) -> int:
        """The newest epoch of a sink that a table has."""
        return int(table.transaction_version(position.delivery) or 0)

    def _package(self) -> Any:
        return needed_module("deltalake", "deltalake")

    def _table(self) -> Table:
        return self._package().DeltaTable(self._location, storage_options=self._store)

    @staticmethod
    def _schema(table: Table) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())

    def _leaving(self, held: HeldChanges, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows that come, as the table has them, and those that go, of which there are the keys, marked so."""
        for net in self._net(held):
            rows = self._fitted(net.rows, schema)
            parts = [_marked(rows, False)]
            if net.keys is not None:
                gone = fitted(netting.without(net.keys, net.rows.select(net.keys.column_names)), schema)
                parts.append(_marked(gone, True))
            whole = pa.concat_tables(parts, promote_options="default").combine_chunks()
            yield from whole.to_batches()

    def _commit(self, table: Table, position: SinkPosition, leaving: HeldChanges) -> None:
        """Commit it, together with its epoch. Who has committed that meanwhile lets it fail."""
        delta = self._package()
        properties = delta.CommitProperties(
            custom_metadata={"headrace": json.dumps({"delivery": position.delivery, "epoch": position.epoch})},
            app_transactions=[delta.Transaction(position.delivery, position.epoch, None)],
        )
        try:
            if not self._upserts or not table.file_uris():
                delta.write_deltalake(table, _coming(leaving), mode="append", commit_properties=properties)
            else:
                self._merge(table, leaving, properties)
        except delta.exceptions.DeltaError:
            if constraints(table):
                self._tell_refused(table, leaving)
            raise

    def _tell_refused(self, table: Table, leaving: HeldChanges) -> None:
        """Raise `RowsRefused` for rows that break constraints of the table, if there are any."""
        for batch in _coming(leaving):
            rows = pa.Table.from_batches([batch])
            self._refuse(rows, dict(breaking(table, rows, self._most_refused)))

    def _merge(self, table: Table, leaving: HeldChanges, properties: Any) -> None:
        source = _stream(leaving)
        values = {quoted_name(c.name): f"s.{quoted_name(c.name)}" for c in self.columns}
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


def _marked(rows: pa.Table, gone: bool) -> pa.Table:
    return rows.append_column(_GONE, pa.array([gone] * rows.num_rows, pa.bool_()))


def _stream(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Batches, of which there is at least one, as a stream."""
    coming = iter(batches)
    first = next(coming)
    return pa.RecordBatchReader.from_batches(first.schema, chain([first], coming))


def _coming(leaving: HeldChanges) -> pa.RecordBatchReader:
    """The rows that come, of those that leave."""
    return _stream(batch.filter(pc.invert(batch.column(_GONE))).drop_columns([_GONE]) for batch in leaving)
