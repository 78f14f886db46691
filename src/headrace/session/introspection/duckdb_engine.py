"""DuckDB over the system relations: one connection for each session, which sees nothing but what is put there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa

from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import (
    HeadraceError,
    InvalidText,
    NotSupported,
    QueryCanceled,
    StatementError,
    TooManyRows,
    UndefinedColumn,
    UndefinedFunction,
)
from headrace.session.context import Context
from headrace.session.introspection import hidden
from headrace.session.introspection.macros import MACROS, macro_name, table_name
from headrace.session.introspection.output_types import output_types, parameter_types
from headrace.session.introspection.rewriting import SCHEMAS, VECTORS, Rewriter, asks_catalog
from headrace.session.names import names_of
from headrace.session.result import ResultColumn
from headrace.session.system.asking_functions import setting_or_null, version_text
from headrace.session.system.system_lookup import system_relation
from headrace.session.system.system_relations import SystemRelation
from headrace.sql.catalog_types import CATALOG_TYPES, held_as
from headrace.sql.postgres import parse_statement
from headrace.sql.query import Query
from headrace.sql.text_values import parse_text

_MEMORY: Final = "256MB"
_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "threads": 1, "memory_limit": _MEMORY, "temp_directory": "", "enable_external_access": False,
    "default_null_order": "nulls_last_on_asc_first_on_desc", "integer_division": True,
    "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    "python_enable_replacements": False,
}  # fmt: skip
_POLL_S: Final = 0.1
_BATCH_ROWS: Final = 10_000
_RESULT_BYTES: Final = 64 << 20
"""Bytes that an answer may have: it is held whole."""


@dataclass(frozen=True)
class CatalogAnswer:
    """The answer to a query over the system catalogs."""

    columns: list[ResultColumn]
    rows: pa.Table


def asked(context: Context, query: Query, *, described: bool = False) -> CatalogAnswer | None:
    """The answer to a query that reads system catalogs and nothing else; None for any other.

    One that is only to be `described` has no rows.

    Raises `NotSupported` and the like for what is not understood.
    """
    if not _is_asked(context, query):
        return None
    rewriter = Rewriter(
        parse_statement(query.text), partial(_value, context),
        lambda kind, text: hidden.object_id(context, kind, text), hidden.condition, context.rights.superuser,
        lambda schema, name: schema in SCHEMAS and system_relation(schema, name) is not None,
    )  # fmt: skip
    try:
        text = rewriter.text()
    except HeadraceError as error:
        if error.position is not None and query.offset:
            error.position += query.offset
        raise
    connection = _lookups().cursor()
    try:
        _provide(context, connection, rewriter)
        with _stopped_with(context, connection.interrupt):
            found = _run(context, connection, text, described)
    finally:
        connection.close()
    return _typed(found, output_types(rewriter.parsed.tree, _columns_of))


def parameter_types_of(context: Context, query: Query) -> dict[int, str]:
    """The types of parameters that stand beside what has a type of the catalogs, in a query over those alone."""
    if not _is_asked(context, query):
        return {}
    return parameter_types(parse_statement(query.text).tree, _columns_of)


def _columns_of(schema: str | None, name: str) -> list[tuple[str, str | None]] | None:
    """The columns of a system relation with the types that PostgreSQL says they have."""
    relation = system_relation(schema, name)
    if relation is None:
        return None
    return [(c.name, relation.types.get(c.name, c.type)) for c in relation.columns if not c.name.startswith("__")]


def _is_asked(context: Context, query: Query) -> bool:
    """Whether a query reads system relations of the catalogs, and nothing else."""
    tables = query.tables()
    if not tables:
        return asks_catalog(query.text)
    if any(t.schema not in (None, *SCHEMAS) for t in tables):
        return False
    names = names_of(context)
    if any(t.schema is None and system_relation(None, t.name) is None for t in tables):
        return False
    found = [names.target(t) for t in sorted(tables, key=str)]
    return all(isinstance(f, SystemRelation) and f.schema in SCHEMAS for f in found)


@cache
def _lookups() -> Any:
    """The database whose connections answer: it is empty, and cannot reach out of the process."""
    import duckdb

    opened = duckdb.connect(":memory:")
    for name, value in _SETTINGS.items():  # in this order: what may reach out is set before it may not
        opened.execute(f"SET GLOBAL {name} = {value!r}")
    opened.execute("SET lock_configuration = true")
    return opened


def _provide(context: Context, connection: Any, rewriter: Rewriter) -> None:
    """Put what a query reads, and the macros that it calls, into a connection."""
    for schema, name in sorted(rewriter.tables):
        rows = _rows(context, schema, name, rewriter.roles)
        if rewriter.asks_for_tables:
            oid = hidden.CATALOGS.get(name, 0)
            rows = rows.append_column("tableoid", pa.array([oid] * rows.num_rows, pa.int64()))
        connection.register(table_name(schema, name), rows)
    for name in sorted(rewriter.macros):
        connection.execute(MACROS[name].text(macro_name(name)))


def _rows(context: Context, schema: str, name: str, roles: Collection[str]) -> pa.Table:
    relation = hidden.relation(name, roles) if schema == hidden.SCHEMA else system_relation(schema, name)
    assert relation is not None
    columns = [c for c in relation.columns if not c.name.startswith("__")]
    rows = list(relation.rows(context))
    arrays = [
        _array([row.get(c.name, relation.defaults.get(c.name)) for row in rows], arrow_type(c.type)) for c in columns
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema([Column(c.name, c.type) for c in columns]))


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    if any(isinstance(v, str) for v in values) and not pa.types.is_string(kind):
        return pa.array(values, pa.string()).cast(kind)  # a moment, say
    return pa.array(values, kind)


def _run(context: Context, connection: Any, text: str, described: bool) -> pa.Table:
    """All rows, as long as they are not too many. Raises `TooManyRows`."""
    import duckdb

    most_rows, rows, size = context.settings.max_result_rows, 0, 0
    batches: list[pa.RecordBatch] = []
    try:
        relation = connection.sql(text)
        reader = (relation.limit(0) if described else relation).to_arrow_reader(_BATCH_ROWS)
        for batch in reader:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if (most_rows and rows > most_rows) or size > _RESULT_BYTES:
                raise TooManyRows("the query over the system catalogs returns too much", hint="Ask for less.")
            batches.append(batch)
        # A limit would have given columns of one name different ones.
        return pa.Table.from_batches(batches, reader.schema).rename_columns(relation.columns)
    except duckdb.Error as error:
        raise _error(error) from error


def _error(error: Exception) -> HeadraceError:
    """An error of DuckDB's in PostgreSQL's terms."""
    message = str(error).split("\n")[0]
    message = message.split(": ", 1)[-1].rstrip("!")
    kind = type(error).__name__
    if kind == "BinderException" and "column" in message.lower():
        return UndefinedColumn(message[0].lower() + message[1:])
    if kind == "BinderException" and "function" in message.lower():
        return UndefinedFunction(message[0].lower() + message[1:])
    if kind == "ConversionException":
        return InvalidText(message[0].lower() + message[1:])
    if kind == "InterruptException":
        return QueryCanceled("canceling statement due to user request")
    if kind == "OutOfMemoryException":
        return TooManyRows("the query over the system catalogs takes too much memory", hint="Ask for less.")
    if kind == "InvalidInputException" and "More than one row" in message:
        return StatementError("more than one row returned by a subquery used as an expression", sqlstate="21000")
    return NotSupported(f"this query over the system catalogs is not supported: {message}")


@contextmanager
def _stopped_with(context: Context, interrupt: Callable[[], None]) -> Iterator[None]:
    """Interrupt what runs inside when the statement is cancelled or its time is up."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            try:
                context.check()
            except QueryCanceled:
                interrupt()

    watcher = threading.Thread(target=watch, name="headrace-lookup", daemon=True)
    watcher.start()
    try:
        yield
    except QueryCanceled:
        context.check()  # which says why
        raise
    finally:
        done.set()
        watcher.join()


# ---- values


_ARGUMENTS: Final = {"current_setting": (1, 2), "current_schemas": (1,)}
"""How many arguments those may have that have any."""


def _is_true(given: str | int | bool) -> bool:
    return given if isinstance(given, bool) else parse_text(str(given), "boolean") is True


def _value(context: Context, name: str, *given: str | int | bool) -> str | int | bool | list[str] | None:
    if len(given) not in _ARGUMENTS.get(name, (0,)):
        raise UndefinedFunction(f"there is no function {name} of {len(given)} arguments")
    if name == "current_setting":
        return setting_or_null(context, str(given[0]), missing_ok=len(given) == 2 and _is_true(given[1]))
    implicit = ["pg_catalog"] if name == "current_schemas" and given and _is_true(given[0]) else []
    found: dict[str, Callable[[], str | int | bool | list[str]]] = {
        **dict.fromkeys(("current_user", "user", "current_role"), lambda: context.role),
        "session_user": lambda: context.user,
        **dict.fromkeys(("current_catalog", "current_database"), lambda: "dev"),
        "current_schema": lambda: names_of(context).schema,
        "current_schemas": lambda: [*implicit, *context.variables.search_path()],
        "version": version_text, "pg_backend_pid": lambda: context.number,
        "pg_is_in_recovery": lambda: context.on_standby,
    }  # fmt: skip
    return found[name]()


# ---- types


def _typed(found: pa.Table, types: Sequence[str | None]) -> CatalogAnswer:
    """The rows with the types that results have; `types` are those that PostgreSQL gives them, where that is known."""
    found = pa.Table.from_arrays(
        [_spelled(f.name, column) for f, column in zip(found.schema, found.columns)], names=found.column_names
    )
    told = types if len(types) == found.num_columns else [None] * found.num_columns
    columns = [_column(f.name, _type(f.type), kind) for f, kind in zip(found.schema, told)]
    try:
        arrays = [_cast(column, arrow_type(c.type)) for c, column in zip(columns, found.columns)]
    except pa.ArrowException as error:
        raise NotSupported(f"a result of this type over the system catalogs is not supported: {error}") from error
    schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])
    return CatalogAnswer(columns, pa.Table.from_arrays(arrays, schema=schema))


def _column(name: str, computed: str, told: str | None) -> ResultColumn:
    """The column of a result: `computed` is the type of what was computed, `told` the one that PostgreSQL gives it."""
    if told is None or told == computed:
        return ResultColumn(name, computed)
    if told in CATALOG_TYPES:
        held = "string" if told in _SPELLED else held_as(told)
        return ResultColumn(name, held, catalog_type=told) if _fits(computed, held) else ResultColumn(name, computed)
    return ResultColumn(name, told if _fits(computed, told) else computed)


def _fits(computed: str, told: str) -> bool:
    """Whether what was computed can be told as of that type: both are numbers without a fraction, or texts."""
    whole = ("smallint", "int", "bigint")
    inner = [kind.removeprefix("array<").rstrip(">") for kind in (computed, told)]
    same = computed.startswith("array<") == told.startswith("array<")
    return same and (inner[0] == inner[1] or (inner[0] in whole and inner[1] in whole))


_SPELLED: Final = ("int2vector", "oidvector")
"""Types whose values come out as text, the elements with blanks between them."""


def _spelled(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A vector as it is sent, its elements with blanks between them; any other column as it is."""
    if name not in VECTORS or not pa.types.is_list(column.type):
        return column
    texts = [None if value is None else " ".join(map(str, value)) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_struct(column.type):  # a record; as a document, since no type says what its fields are
        texts = [None if value is None else json.dumps(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, wanted)])
    return column.cast(wanted)


@cache
def _type(kind: pa.DataType) -> str:
    """The type of a result's column by what DuckDB gives."""
    if pa.types.is_list(kind):
        return f"array<{_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    for test, name in _KINDS:
        if test(kind):
            return name
    return "string"


_KINDS: Final = (
    (pa.types.is_boolean, "boolean"), (pa.types.is_int8, "smallint"), (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "int"), (pa.types.is_integer, "bigint"), (pa.types.is_float32, "float"),
    (pa.types.is_floating, "double"), (pa.types.is_date, "date"), (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_binary, "binary"),
)  # fmt: skip
