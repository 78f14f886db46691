"""The columns of files that were declared without any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from headrace.common.columns import Column
from headrace.connectors.files.file_listing import FileState, format_of, list_files
from headrace.connectors.files.formats import TextOptions, opened_avro, opened_parquet
from headrace.connectors.files.lines import open_text, record_chunks
from headrace.connectors.files.store_access import FileStore
from headrace.connectors.kafka.avro import columns_of
from headrace.errors import InvalidParameter, SourceError

SAMPLE_BYTES = 16 << 20
_INTEGERS = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
}
_SIMPLE = {
    **_INTEGERS,
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.date64(): "date",
}


def infer_file_columns(
    store: FileStore, paths: Sequence[str], declared: str | None, text: TextOptions
) -> list[Column]:  # fmt: skip
    """The columns of the first file: of a Parquet or Avro file its schema, of others the first 16 MB looked at.

    Raises `SourceError` if there is no file or it cannot be understood.
    """
    files = list_files(paths, declared, store=store)
    if not files:
        hint = "declare the columns, or put a first file in place"
        raise SourceError(f"no file at {', '.join(paths)} to take the columns from", hint=hint)
    return _columns_of(files[0], declared, text)


def columns_of_newest(
    store: FileStore, paths: Sequence[str], declared: str | None, text: TextOptions
) -> list[Column]:  # fmt: skip
    """The same of the file that was written last, where they may be NULL; none where there is no file."""
    files = list_files(paths, declared, store=store)
    newest = max(files, key=lambda file: (file.mtime_ns, file.path), default=None)
    found = [] if newest is None else _columns_of(newest, declared, text)
    return [Column(c.name, c.type) for c in found]


def _columns_of(state: FileState, declared: str | None, text: TextOptions) -> list[Column]:
    kind = format_of(state.path, declared)
    if kind is None:
        raise InvalidParameter(f"option format is required: {state.path} has none of the known extensions")
    if kind == "avro":
        with opened_avro(state) as avro:
            return columns_of(avro.schema)
    if kind == "parquet":
        with opened_parquet(state) as file:
            schema = file.schema_arrow
    else:
        schema = _text_schema(state, kind, text)
    return [Column(field.name, spark_type(field.type), field.nullable) for field in schema]


def spark_type(kind: pa.DataType) -> str:
    """Spark's type string for an Arrow type; text for what has no counterpart."""
    t = pa.types
    if t.is_dictionary(kind):
        return spark_type(kind.value_type)
    if t.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if t.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "binary"
    if t.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in fields)}>"
    return _SIMPLE.get(kind, "string")


def _text_schema(state: FileState, kind: str, text: TextOptions) -> pa.Schema:
    data = _head(state, kind == "csv" and text.multiline)
    if not data.strip():
        raise SourceError(f"file {state.path} is empty: it has no columns", hint="declare the columns")
    try:
        if kind == "json":
            return pajson.read_json(pa.BufferReader(data), pajson.ReadOptions(block_size=len(data) + 1)).schema
        read = pacsv.ReadOptions(autogenerate_column_names=not text.header, block_size=len(data) + 1)
        parse = pacsv.ParseOptions(
            delimiter=text.delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip"
        )
        null = sorted({"", text.null_string})
        convert = pacsv.ConvertOptions(null_values=null, strings_can_be_null=True)
        schema = pacsv.read_csv(pa.BufferReader(data), read, parse, convert).schema
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise SourceError(
            f"the columns of file {state.path} cannot be inferred: {error}", hint="declare the columns"
        ) from error
    if text.header:
        return schema
    return pa.schema([pa.field(f"c{i}", field.type) for i, field in enumerate(schema)])


def _head(state: FileState, multiline: bool) -> bytes:
    parts: list[bytes] = []
    with open_text(state, 0) as stream:
        for data, ends in record_chunks(stream, None, multiline):
            parts.append(data[: int(ends[np.searchsorted(ends, SAMPLE_BYTES)])] if len(data) > SAMPLE_BYTES else data)
            if sum(map(len, parts)) >= SAMPLE_BYTES:
                break
    return b"".join(parts)
