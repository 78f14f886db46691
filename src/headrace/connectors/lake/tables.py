"""What all tables of a lake have in common: where they are, and which columns of a sink they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from headrace.common.columns import Column, arrow_type
from headrace.connectors.connection_options import Connects
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.held_changes import HeldChanges
from headrace.connectors.lake.small_files import COMPACT, least_files
from headrace.connectors.netting import NetChanges, taken
from headrace.connectors.refusals import MOST_AT_ONCE, Refusal, RowsRefused, collects, texts
from headrace.connectors.sinks import SINK_OPTIONS, Sink, key_of
from headrace.errors import HeadraceError, InvalidParameter, NotSupported, SinkError

STORE: Final = (
    Option("s3.endpoint", "Where an S3 server is that is not Amazon's."),
    Option("s3.region", "The region of the bucket."),
    Option("s3.access.key", "The access key; by default what the environment of Spark's workers says.", secret=True),
    Option("s3.secret.key", "The secret key.", secret=True),
)
"""The options of an object store."""
CONNECTION: Final = Connects(DeclaredOptions(STORE), {"deltalake": {}, "iceberg": {}})
CREATE: Final = Option(
    "create_table_if_not_exists", "Make the table, with the sink's columns, where there is none.", "boolean",
    default="false",
)  # fmt: skip


class LakeSink(Sink):
    """What the sinks into tables of any format have in common."""

    declared: ClassVar[DeclaredOptions]
    refuses = True
    _name: str
    """The table, for people."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        super().__init__(options, columns)
        self._values = self.declared.read(options, SINK_OPTIONS)
        self._creates: bool = self._values[CREATE.name]
        self._upserts = options.get("type", "upsert") == "upsert"
        self._key = key_of(options, columns)
        self._compacted_from = least_files(self._values[COMPACT.name])
        self._most_refused = MOST_AT_ONCE if collects(options) else 1
        check_key(columns, self._key)

    def _put_together(self, compact: Callable[[], None]) -> None:
        """Put small files together. The target has the epoch: it does not fail, whatever does here."""
        try:
            compact()
        except Exception as error:
            why = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            self.undone = SinkError(f"small files of {self._name} are not put together: {why}")

    def _held(self, batches: Iterable[pa.RecordBatch]) -> HeldChanges:
        """The changes of an epoch, all of a key in one piece."""
        return HeldChanges.of(batches, self.scratch, self._key if self._upserts else ())

    def _net(self, held: HeldChanges) -> Iterator[NetChanges]:
        """What an epoch comes to, piece by piece; none of them is empty."""
        for piece in held.pieces():
            found = taken(piece, len(self.columns), self._key if self._upserts else None)
            if not found.is_empty:
                yield found

    def _fitted(self, rows: pa.Table, table: pa.Schema) -> pa.Table:
        """Rows with the types of a table's columns. Raises `RowsRefused` for a NULL where the table takes none."""
        places: dict[int, str] = {}
        for column in rows.column_names:
            if not table.field(column).nullable:
                for place in np.flatnonzero(rows.column(column).is_null())[: self._most_refused]:
                    places[int(place)] = f'it has no value for the column "{column}", which the table needs'
        self._refuse(rows, places)
        return fitted(rows, table)

    def _refuse(self, rows: pa.Table, places: Mapping[int, str]) -> None:
        """Raise `RowsRefused` for rows by place, with the reasons, if there are any."""
        if places:
            some = sorted(places)[: self._most_refused]
            (batch,) = rows.take(pa.array(some)).combine_chunks().to_batches()
            told = zip(texts(batch), some, strict=True)
            raise RowsRefused(self._name, [Refusal("insert", row, places[place]) for row, place in told])


def absent(name: str) -> InvalidParameter:
    """What is said where there is no table, and none is to be made."""
    return InvalidParameter(f"there is no {name}", hint=f"create it there first, or set {CREATE.name} = true")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What the table's package, and all that it uses, raise inside the block as errors of the sink."""
    try:
        yield
    except (HeadraceError, RowsRefused, AssertionError):
        raise
    except Exception as error:
        raise SinkError(f"{name}: {type(error).__name__}: {error}") from error


def check_key(columns: Sequence[Column], key: Sequence[str]) -> None:
    """Refuse a key by which rows are not found exactly. Raises `NotSupported`."""
    for column in columns:
        kind = arrow_type(column.type)
        if column.name in key and (pa.types.is_nested(kind) or pa.types.is_floating(kind)):
            raise NotSupported(f'the column "{column.name}" of type {column.type} in the primary_key of this sink')


def check_columns(columns: Sequence[Column], table: pa.Schema, name: str) -> None:
    """Whether a table takes rows with such columns. Raises `InvalidParameter` where it does not."""
    for column in columns:
        at = table.get_field_index(column.name)
        if at < 0:
            raise InvalidParameter(f'the table {name} has no column "{column.name}"')
        if not holds(table.field(at).type, arrow_type(column.type)):
            raise InvalidParameter(
                f'the column "{column.name}" of the table {name} is of type {table.field(at).type}, which does not '
                f"hold every {column.type}"
            )
    given = {column.name for column in columns}
    left_out = next((f.name for f in table if not f.nullable and f.name not in given), None)
    if left_out is not None:
        raise InvalidParameter(f'the column "{left_out}" of the table {name} must have a value, and the sink has none')


def holds(theirs: pa.DataType, ours: pa.DataType) -> bool:
    """Whether every value of one type is a value of another, the same in what it means."""
    t = pa.types
    if t.is_integer(ours) and t.is_signed_integer(theirs):
        return bool(theirs.bit_width >= ours.bit_width)
    if t.is_floating(ours) and t.is_floating(theirs):
        return bool(theirs.bit_width >= ours.bit_width)
    if t.is_decimal(ours) and t.is_decimal(theirs):
        before = theirs.precision - theirs.scale, ours.precision - ours.scale
        return bool(theirs.scale >= ours.scale and before[0] >= before[1])
    if t.is_timestamp(ours) and t.is_timestamp(theirs):
        return (ours.tz is None) == (theirs.tz is None) and (
            theirs.unit == "ns" or (theirs.unit == "us" and ours.unit != "ns")
        )
    for alike in (_is_text, _is_binary):
        if alike(ours):
            return alike(theirs)
    if _is_list(ours) and _is_list(theirs):
        return holds(theirs.value_type, ours.value_type)
    if t.is_struct(ours) and t.is_struct(theirs):
        fields = {theirs.field(i).name: theirs.field(i).type for i in range(theirs.num_fields)}
        mine = [ours.field(i) for i in range(ours.num_fields)]
        return [f.name for f in mine] == [*fields] and all(holds(fields[f.name], f.type) for f in mine)
    if t.is_map(ours) and t.is_map(theirs):
        return holds(theirs.key_type, ours.key_type) and holds(theirs.item_type, ours.item_type)
    return bool(ours == theirs)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def fitted(rows: pa.Table, table: pa.Schema) -> pa.Table:
    """Rows with the types of a table's columns."""
    fields = [table.field(column) for column in rows.column_names]
    arrays = [column.cast(field.type) for field, column in zip(fields, rows.columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
