"""Reading a piece of a file as rows of the declared columns."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as papq

from headrace.common.columns import Column, arrow_type
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.base import RowError
from headrace.connectors.files.avro_files import AvroFile
from headrace.connectors.files.file_listing import FileState, is_compressed
from headrace.connectors.files.lines import BOM, Ends, open_text, record_chunks, records_before
from headrace.connectors.files.row_groups import read_rows, row_group_ends
from headrace.connectors.json_in import Fault, JsonRecords, nullable_schema, object_rows, one_array, rows_of
from headrace.connectors.kafka.framed import as_json
from headrace.connectors.parsed_values import cast_array, strings_to_array
from headrace.connectors.policy import ParsedRows, sample
from headrace.connectors.spelling import SeveralSpellings, place_of
from headrace.errors import SourceError

_AVRO_BATCH_ROWS = 8192


@dataclass(frozen=True)
class TextOptions:
    """How text is laid out."""

    header: bool = True
    delimiter: str = ","
    null_string: str = ""
    multiline: bool = False


@dataclass(frozen=True)
class FilePiece:
    """A range of one file: bytes [start, stop) of text (stop None: to its end), rows of Parquet and Avro."""

    state: FileState
    format: str
    start: int
    stop: int | None


def read_piece(
    piece: FilePiece, columns: Sequence[Column], text: TextOptions, names: Collection[str] | None = None
) -> Iterator[ParsedRows]:
    """The rows of a piece in order.

    If only the columns `names` are asked for, the rows of a Parquet file lack those of the others that can have no
    fault: which rows a source has must not depend on who reads it.
    Raises `SourceError` if the file is gone, has changed, lacks a column or is not of its format.
    """
    if piece.format == "parquet":
        yield from _read_parquet(piece, columns, names)
        return
    if piece.format == "avro":
        yield from _read_avro(piece, columns)
        return
    parse: _Parser = rows_of if piece.format == "json" else _CsvParser(piece.state, columns, text)
    multiline = text.multiline and piece.format == "csv"
    stop = piece.stop
    if stop is None and not is_compressed(piece.state.path):
        stop = piece.state.size
    length = None if stop is None else stop - piece.start
    seen, first_row = 0, None
    with open_text(piece.state, piece.start) as stream:
        for number, (data, ends) in enumerate(record_chunks(stream, length, multiline)):
            first = number == 0 and piece.start == 0
            content, bounds = _without_prologue(data, ends, first, piece.format == "csv" and text.header)
            blank = _blank(content, bounds)
            kept = np.flatnonzero(~blank)
            starts = np.concatenate(([0], bounds[:-1]))[kept]
            if len(kept):
                batch, errors = parse(JsonRecords(content, starts, bounds[kept]), columns)
                if first_row is None and (errors or _has_missing(batch, columns)):
                    first_row = records_before(piece.state, piece.start, multiline)
                base = (first_row or 0) + seen + len(ends) - len(bounds)
                yield _parsed(piece.state.path, batch, kept + base + 1, errors)
            seen += len(ends)


_Parser = Callable[[JsonRecords, Sequence[Column]], tuple[pa.RecordBatch, list[Fault]]]


def _parsed(split: str, batch: pa.RecordBatch, positions: np.ndarray, faults: Sequence[Fault]) -> ParsedRows:
    errors = [
        (row, RowError(split, int(positions[row]), column, sample(value), message))
        for row, column, value, message in faults
    ]
    return ParsedRows(batch, positions, [split], None, errors)


def _without_prologue(data: bytes, ends: Ends, first: bool, header: bool) -> tuple[bytes, Ends]:
    if not first:
        return data, ends
    cut = len(BOM) if data.startswith(BOM) else 0
    if header:
        cut = int(ends[0])
        ends = ends[1:]
    return data[cut:], ends - cut


def _has_missing(batch: pa.RecordBatch, columns: Sequence[Column]) -> bool:
    return any(not c.nullable and batch.column(i).null_count for i, c in enumerate(columns))


def _blank(data: bytes, ends: Ends) -> np.ndarray:
    octets = np.frombuffer(data, np.uint8)
    length = np.diff(ends, prepend=0)
    last = octets[ends - 1]
    blank: np.ndarray = (length == 1) & ((last == 10) | (last == 13))
    return blank | ((length == 2) & (last == 10) & (octets[ends - 2] == 13))


class _CsvParser:
    """Text with separators; all columns are parsed as text first, so that each value is judged by itself."""

    def __init__(self, state: FileState, columns: Sequence[Column], text: TextOptions):
        self.text = text
        mark = re.escape(text.delimiter)
        field = rf'(?:"(?:[^"]++|"")*+"|[^"{mark}\r\n]*+)'
        self.well_formed = re.compile(rf"(?:{field}(?:{mark}|\r?\n|\r?\Z))*+".encode())
        self.parse_options = {"delimiter": text.delimiter, "newlines_in_values": True}
        if text.header:
            names = csv_header(state, text)
            self.width = len(names)
            self.places = [_place(state, names, column.name) for column in columns]
        else:
            self.width = len(columns)
            self.places = list(range(len(columns)))

    def __call__(self, chunk: JsonRecords, columns: Sequence[Column]) -> tuple[pa.RecordBatch, list[Fault]]:
        faults: list[Fault] = []
        tables = self._tables(chunk, 0, faults)
        table = pa.concat_tables(tables).combine_chunks()
        index = None
        if faults:
            good = np.ones(len(chunk), bool)
            good[[fault[0] for fault in faults]] = False
            index = pa.array(np.cumsum(good) - 1, mask=~good)
        arrays = []
        for column, place in zip(columns, self.places):
            strings = one_array(table.column(place))
            strings = strings if index is None else strings.take(index)
            arrays.append(self._convert(strings, column, faults))
        return pa.RecordBatch.from_arrays(arrays, schema=nullable_schema(columns)), faults

    def _convert(self, strings: pa.Array, column: Column, faults: list[Fault]) -> pa.Array:
        kind = nullable_schema([column]).field(0).type
        if not pa.types.is_string(kind):
            strings = pc.if_else(pc.equal(strings, ""), pa.scalar(None, pa.string()), strings)
        array, bad = strings_to_array(strings, kind)
        faults.extend((row, column.name, strings[row].as_py(), _typed(column, message)) for row, message in bad)
        return array

    def _tables(self, chunk: JsonRecords, base: int, faults: list[Fault]) -> list[pa.Table]:
        """The well-formed records of a chunk; a chunk that does not parse as its lines say is halved."""
        skipped: list[int] = []
        table = self._parse(chunk, skipped)
        if table is not None:
            for row in skipped:
                message = f"expected {self.width} values"
                faults.append((base + row, None, chunk.record(row).decode(errors="replace"), message))
            return [table]
        if len(chunk) == 1:
            text = chunk.record(0)
            message = "unterminated quote" if _decodes(text) else "not UTF-8"
            faults.append((base, None, text.decode(errors="replace"), message))
            return [self._empty()]
        middle = len(chunk) // 2
        left = self._tables(chunk.part(0, middle), base, faults)
        return left + self._tables(chunk.part(middle, len(chunk)), base + middle, faults)

    def _parse(self, chunk: JsonRecords, skipped: list[int]) -> pa.Table | None:
        """None if the records are not what their ends say; a last row of zeros shows an open quote."""
        data = chunk.text()
        if len(chunk) > 1 and not self._regular(data):
            return None
        sentinel = self.text.delimiter.join("0" * self.width).encode()
        data += b"" if data.endswith(b"\n") else b"\n"
        data += sentinel + b"\n"

        def skip(row: Any) -> str:
            skipped.append(row.number - 1)
            return "skip"

        names = [str(i) for i in range(self.width)]
        read = pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1)
        parse = pacsv.ParseOptions(invalid_row_handler=skip, **self.parse_options)
        try:
            table = pacsv.read_csv(pa.BufferReader(data), read, parse, self._convert_options(names))
        except pa.ArrowInvalid:
            return None
        if table.num_rows + len(skipped) != len(chunk) + 1 or (skipped and skipped[-1] == len(chunk)):
            return None
        if any(column[-1].as_py() != "0" for column in table.columns):
            return None
        return table.slice(0, table.num_rows - 1)

    def _regular(self, data: bytes) -> bool:
        """Whether several records can be parsed at once: the parser can only find fewer rows than there are records.

        A lone carriage return ends a row for the parser, as does a line break behind a stray quote.
        """
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return False
        return not self.text.multiline or b'"' not in data or self.well_formed.fullmatch(data) is not None

    def _convert_options(self, names: list[str]) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            strings_can_be_null=True,
            null_values=[self.text.null_string],
            quoted_strings_can_be_null=False,
        )

    def _empty(self) -> pa.Table:
        return pa.table({str(i): pa.array([], pa.string()) for i in range(self.width)})


def csv_header(state: FileState, text: TextOptions) -> list[str]:
    """The column names in the first record of a CSV file, empty for an empty file."""
    with open_text(state, 0) as stream:
        data, ends = next(record_chunks(stream, None, text.multiline), (b"", np.array([], np.int64)))
    line = data[: int(ends[0])].removeprefix(BOM) if len(ends) else b""
    if not line.strip():
        return []
    try:
        return next(csv.reader(io.StringIO(line.decode(), newline=""), delimiter=text.delimiter))
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"file {state.path} has no readable header line: {error}") from error


def _place(state: FileState, names: Sequence[str], wanted: str) -> int:
    try:
        found = place_of(names, wanted)
    except SeveralSpellings as error:
        hint = "names are told apart by capitals only where one is the same"
        raise SourceError(f"file {state.path} has no column {wanted}: {error}", hint=hint) from error
    if found is not None:
        return found
    raise SourceError(
        f"file {state.path} has no column {wanted}",
        detail=f"its header: {', '.join(names)}",
        hint="declare the columns that the file has, or set header to false",
    )


def _read_parquet(piece: FilePiece, columns: Sequence[Column], wanted: Collection[str] | None) -> Iterator[ParsedRows]:
    with opened_parquet(piece.state) as file:
        there = file.schema_arrow
        places = {c: _place(piece.state, there.names, c.name) for c in columns}
        if wanted is not None:
            columns = [c for c in columns if c.name in wanted or not _is_sound(c, there.types[places[c]])]
        names, schema = [there.names[places[c]] for c in columns], nullable_schema(columns)
        for position, batch in read_rows(file, names, piece.start, piece.stop):
            rows, faults = _cast_columns(batch, names, columns, schema)
            positions = np.arange(position, position + batch.num_rows, dtype=np.int64) + 1
            yield _parsed(piece.state.path, rows, positions, faults)


def rows_of_file(state: FileState, format: str) -> int:
    """How many rows a file of `BY_ROWS` has. Raises `SourceError`."""
    if format == "avro":
        with opened_avro(state) as file:
            return file.rows()
    return max(row_groups_of(state), default=0)


def row_groups_of(state: FileState) -> tuple[int, ...]:
    """Return where the row groups of a Parquet file end, in rows. Raises `SourceError`."""
    with opened_parquet(state) as file:
        return row_group_ends(file)


@contextmanager
def opened_avro(state: FileState) -> Iterator[AvroFile]:
    """The Avro file; raises `SourceError`, also at the end of the block, if it is gone, has changed or is none."""
    with open_text(state, 0) as stream:
        yield AvroFile(state.path, stream)


def _read_avro(piece: FilePiece, columns: Sequence[Column]) -> Iterator[ParsedRows]:
    """All columns of its rows: which of them can be at fault is not known before they are decoded."""
    with opened_avro(piece.state) as file:
        there = file.names
        fields = {c: there[_place(piece.state, there, c.name)] for c in columns}
        stop = sys.maxsize if piece.stop is None else piece.stop
        for block in file.blocks(piece.start, stop):
            if block.data is None:
                continue
            records = islice(file.records(block), max(piece.start - block.first, 0), None)
            first, last = max(piece.start, block.first), min(stop, block.first + block.rows)
            for start in range(first, last, _AVRO_BATCH_ROWS):
                count = min(last - start, _AVRO_BATCH_ROWS)
                made = [{c.name: as_json(r[name], c) for c, name in fields.items()} for r in islice(records, count)]
                rows, faults = object_rows(made, columns)
                yield _parsed(piece.state.path, rows, np.arange(start, start + len(made), dtype=np.int64) + 1, faults)


def _is_sound(column: Column, stored: pa.DataType) -> bool:
    """Whether no value in a file can be at fault, whatever it is."""
    return column.nullable and stored == arrow_type(column.type)


def _cast_columns(
    batch: pa.RecordBatch, names: Sequence[str], columns: Sequence[Column], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[Fault]]:
    arrays: list[pa.Array] = []
    faults: list[Fault] = []
    for name, column, field in zip(names, columns, schema):
        source = batch.column(batch.schema.get_field_index(name))
        array, bad = cast_array(source, field.type)
        faults.extend((row, column.name, str(source[row].as_py()), _typed(column, message)) for row, message in bad)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), faults


@contextmanager
def opened_parquet(state: FileState) -> Iterator[papq.ParquetFile]:
    """The Parquet file; raises `SourceError`, also at the end of the block, if it is gone, has changed or is none."""
    with state.opened(in_turn=False) as raw:
        try:
            # Where asking takes long, ranges that lie near each other are asked for at once.
            remote = state.store.remote
            # Nanoseconds, which INT96 is read as by itself, do not reach as far.
            file = papq.ParquetFile(raw if remote else state.path, pre_buffer=remote, coerce_int96_timestamp_unit="us")
        except pa.ArrowInvalid as error:
            raise SourceError(f"file {state.path} is not a Parquet file: {error}") from error
        with file:
            yield file
        if not remote:
            state.verify()  # it was read by its path


def _typed(column: Column, message: str) -> str:
    return f"{message} (column is {column.type})"


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
