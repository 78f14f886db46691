"""CREATE, DROP and ALTER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.lazy_dataclass import dataclass
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.connectors.webhook.validation import SECRET
from headrace.errors import NotSupported, StatementError, UndefinedColumn
from headrace.sql import statements as st
from headrace.sql.datatypes import spark_type
from headrace.sql.dialect import parse_expression_tokens, parse_tokens, parse_type_tokens
from headrace.sql.intervals import parse_interval
from headrace.sql.normalize import interval_words
from headrace.sql.postgres import check_grammar
from headrace.sql.query import Query
from headrace.sql.routines import create_function
from headrace.sql.starts import starts
from headrace.sql.token_cursor import Cursor
from headrace.sql.type_names import pg_type_text
from headrace.sql.webhooks import read_validation
from headrace.sql.with_options import OptionReferences, option_value, options

KINDS = ("materialized view", "table", "source", "view", "sink", "index", "schema", "connection", "secret",
         "subscription", "function", "aggregate", "database", "user", "role", "type", "sequence")  # fmt: skip
_COLUMN_STOPS = (
    "PRIMARY KEY", "NOT NULL", "NULL", "DEFAULT", "AS", "CHECK", "UNIQUE", "GENERATED", "REFERENCES", "CONSTRAINT", ",",
)  # fmt: skip
_CONSTRAINTS = (("PRIMARY", "KEY"), ("FOREIGN", "KEY"), ("UNIQUE",), ("CHECK",))


@dataclass
class _Body:
    """The parenthesised part of `CREATE TABLE` and `CREATE SOURCE`."""

    columns: list[st.ColumnDef] = field(default_factory=list)
    primary_key: tuple[str, ...] = ()
    watermark: st.Watermark | None = None
    starred: bool = False


def if_not_exists(cursor: Cursor) -> bool:
    """Read `IF NOT EXISTS`."""
    return cursor.match("IF", "NOT", "EXISTS")


def read_query(cursor: Cursor) -> Query:
    """Read what is left as a query."""
    start, kept = cursor.token, cursor.rest()
    if start is None:
        cursor.fail()
    check_grammar(cursor.text_of(kept), start.start)
    tree, refused = parse_tokens(cursor.sql, kept)
    if not isinstance(tree, (exp.Query, exp.Values)):
        cursor.at = len(cursor.tokens) - len(kept)
        cursor.fail()
    return Query(tree, cursor.text_of(kept), start.start, refused)


def _column(cursor: Cursor, body: _Body) -> None:
    name = cursor.identifier()
    tokens = cursor.until(*_COLUMN_STOPS)
    if not tokens:
        cursor.fail()
    kind = spark_type(parse_type_tokens(cursor.sql, tokens, cursor.token))
    not_null, default, generated = False, None, None
    while cursor.token is not None and not cursor.is_symbol(",") and not cursor.is_symbol(")"):
        if cursor.match("PRIMARY", "KEY"):
            _primary_key(cursor, body, (name,))
            not_null = True
        elif cursor.match("NOT", "NULL"):
            not_null = True
        elif cursor.match("NULL"):
            continue
        elif cursor.match("DEFAULT"):
            default = _expression_text(cursor)
        elif cursor.match("GENERATED", "ALWAYS", "AS") or cursor.match("AS"):
            generated = _expression_text(cursor)
            cursor.match("STORED")
        elif cursor.peek("CHECK") or cursor.peek("UNIQUE") or cursor.peek("REFERENCES"):
            cursor.refuse(f"the column constraint {cursor.word().upper()}")
        else:
            cursor.fail()
    body.columns.append(st.ColumnDef(name, kind, not_null, default, generated))


def _primary_key(cursor: Cursor, body: _Body, columns: tuple[str, ...]) -> None:
    if body.primary_key:
        at = cursor.tokens[cursor.at - 1].start + 1
        raise InvalidTable("multiple primary keys for a table are not allowed", position=at)
    for name in columns:
        if columns.count(name) > 1:
            raise _at_start(cursor, f'column "{name}" appears twice in primary key constraint', "42701")
    body.primary_key = columns


def _expression_text(cursor: Cursor) -> str:
    tokens = cursor.until(",", "PRIMARY KEY", "NOT NULL", "STORED")
    parse_expression_tokens(cursor.sql, tokens, cursor.token)
    return cursor.text_of(tokens)


def _watermark(cursor: Cursor) -> st.Watermark:
    column = cursor.identifier()
    cursor.expect("AS")
    tokens = cursor.until(",")
    tree = parse_expression_tokens(cursor.sql, tokens, cursor.token)
    return st.Watermark(column, cursor.text_of(tokens), _delay_ms(tree, column))


def _delay_ms(tree: exp.Expr, column: str) -> int | None:
    if isinstance(tree, exp.Column) and tree.name.lower() == column.lower():
        return 0
    if not (
        isinstance(tree, exp.Sub) and isinstance(tree.this, exp.Column) and isinstance(tree.expression, exp.Interval)
    ):
        return None
    months, days, micros = parse_interval(interval_words(tree.expression))
    return None if months else days * 86_400_000 + micros // 1000


def _body(cursor: Cursor) -> _Body:
    body = _Body()
    if not cursor.match("("):
        return body
    while not cursor.match(")"):
        named = cursor.match("CONSTRAINT") and bool(cursor.identifier())
        if cursor.match("PRIMARY", "KEY"):
            _primary_key(cursor, body, cursor.names())
        elif cursor.match("WATERMARK", "FOR"):
            body.watermark = _watermark(cursor)
        elif named or any(cursor.peek(word, "(") for word in ("UNIQUE", "CHECK")) or cursor.peek("FOREIGN", "KEY"):
            cursor.refuse(f"the table constraint {cursor.word().upper()}")
        elif cursor.match("*"):
            body.starred = True
        else:
            _column(cursor, body)
        if not cursor.match(","):
            cursor.expect(")")
            break
    _check_body(cursor, body)
    return body


def _check_body(cursor: Cursor, body: _Body) -> None:
    names = [column.name for column in body.columns]
    if body.starred and names:
        cursor.refuse("* beside columns", "Name all columns, or (*) alone for those of there.")
    for name in names:
        if names.count(name) > 1:
            raise _at_start(cursor, f'column "{name}" specified more than once', "42701")
    _refuse_alike(cursor, names)
    for column in body.columns:
        if column.name in body.primary_key:
            check_key_type(column.name, column.type)
    keyed = [st.ColumnDef(c.name, c.type, True, c.default, c.generated) if c.name in body.primary_key else c
             for c in body.columns]  # fmt: skip
    body.columns = keyed


def _check_key(cursor: Cursor, body: _Body, found: dict[str, str]) -> None:
    """Refuse a primary key of columns that are neither declared nor included."""
    names = [column.name for column in body.columns]
    more = [name for option, name in found.items() if option.startswith("include.")]
    for name in body.primary_key:
        if names and name not in [*names, *more]:
            raise _at_start(cursor, f'column "{name}" named in key does not exist', "42703")


def check_key_type(name: str, kind: str) -> None:
    """Raise `NotSupported` for a column of a primary key whose values can be equal and look different."""
    if kind in (JSONB, SPAN):
        hint = "Give the table a key of another type: keys of this one can be equal and look different."
        raise NotSupported(f'a primary key of type {pg_type_text(kind)} ("{name}") is not supported', hint=hint)


def _refuse_alike(cursor: Cursor, names: Sequence[str]) -> None:
    """Refuses names that differ in upper and lower case alone: to Spark they are the same."""
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > names.count(name):
            raise NotSupported(
                f'columns that differ from "{name}" in upper and lower case alone are not supported',
                position=cursor.tokens[0].start + 1,
            )


class InvalidTable(StatementError):
    """A table that is defined in a way that makes no sense."""

    sqlstate = "42P16"


class DuplicateColumn(StatementError):
    """A column named twice."""

    sqlstate = "42701"


def _at_start(cursor: Cursor, message: str, state: str) -> StatementError:
    position = cursor.tokens[0].start + 1
    return (DuplicateColumn if state == "42701" else UndefinedColumn)(message, position=position)


_AFTER_INCLUDED = ("AS", "INCLUDE", "WITH", "FORMAT")
_HEADER_TYPES = {"binary": "header", "string": "header_text"}


def _format(cursor: Cursor, found: dict[str, str], named: OptionReferences) -> None:
    """Read `INCLUDE ...`, `FORMAT x ENCODE y (...) KEY ENCODE z` into the options that the words stand for."""
    while cursor.match("INCLUDE"):
        part = cursor.word().lower()  # offset is no name
        name = part
        if part == "header" and cursor.is_string():
            part, name = _one_header(cursor)
        if f"include.{part}" in found:
            cursor.refuse(f"INCLUDE {part} twice")
        found[f"include.{part}"] = cursor.identifier() if cursor.match("AS") else name
    if cursor.match("FORMAT"):
        found["format"] = cursor.word().lower()
        cursor.expect("ENCODE")
        found["encode"] = cursor.word().lower()
        if cursor.is_symbol("("):
            own = OptionReferences()
            found.update({f"encode.{key}": value for key, value in options(cursor, own).items()})
            named.secrets.update({f"encode.{key}": name for key, name in own.secrets.items()})
            if own.connection is not None:
                cursor.refuse("a connection in FORMAT ... ENCODE", "A connection stands in WITH (...).")
        if cursor.match("KEY"):
            cursor.expect("ENCODE")
            found["key.encode"] = cursor.word().lower()


def _one_header(cursor: Cursor) -> tuple[str, str]:
    """Read `'name' [type]` behind INCLUDE header: what options call it, and what the column is without AS."""
    name, kind = f"header.{cursor.string()}", "binary"
    if cursor.token is not None and not any(cursor.peek(word) for word in _AFTER_INCLUDED):
        tokens = cursor.until(*_AFTER_INCLUDED)
        kind = spark_type(parse_type_tokens(cursor.sql, tokens, cursor.token))
    if kind not in _HEADER_TYPES:
        cursor.refuse(f"INCLUDE header of type {pg_type_text(kind)}", "It is bytea, or varchar; cast that in a view.")
    return _HEADER_TYPES[kind] + name.removeprefix("header"), name


def _on_conflict(cursor: Cursor) -> str:
    if cursor.match("OVERWRITE") or cursor.match("DO", "UPDATE", "FULL"):
        return "overwrite"
    if cursor.match("IGNORE") or cursor.match("DO", "NOTHING"):
        return "ignore"
    cursor.expect("DO", "UPDATE", "IF", "NOT", "NULL")
    return "do update if not null"


def _create_table(cursor: Cursor, temporary: bool) -> st.Statement:
    exists, name, body = if_not_exists(cursor), cursor.table_name(), _body(cursor)
    append_only, conflict, version, query, validation, origin, upstream = False, None, None, None, None, None, ""
    found: dict[str, str] = {}
    named = OptionReferences()
    while cursor.token is not None and query is None:
        if cursor.match("APPEND", "ONLY"):
            append_only = True
        elif cursor.match("ON", "CONFLICT"):
            conflict = _on_conflict(cursor)
        elif cursor.match("WITH", "VERSION", "COLUMN"):
            version = cursor.names()[0] if cursor.is_symbol("(") else cursor.identifier()
        elif cursor.match("WITH"):
            found.update(options(cursor, named))
        elif cursor.peek("INCLUDE") or cursor.peek("FORMAT"):
            _format(cursor, found, named)
        elif SECRET not in named.secrets and cursor.match("VALIDATE"):
            validation, named.secrets[SECRET] = read_validation(cursor, [c.name for c in body.columns])
        elif cursor.match("AS"):
            query = read_query(cursor)
        elif origin is None and cursor.match("FROM"):
            origin = cursor.table_name()
            cursor.expect("TABLE")
            upstream = cursor.string()
        else:
            cursor.fail()
    _check_key(cursor, body, found)
    return st.CreateTable(
        name, tuple(body.columns), body.primary_key, append_only, conflict, version, exists, found, body.watermark,
        query, temporary, named.secrets, named.connection, validation, origin, upstream,
    )  # fmt: skip


def _create_source(cursor: Cursor) -> st.Statement:
    exists, name, body = if_not_exists(cursor), cursor.table_name(), _body(cursor)
    if body.primary_key:
        cursor.refuse("PRIMARY KEY in CREATE SOURCE", "A source keeps no rows: use CREATE TABLE with a connector.")
    found: dict[str, str] = {}
    named = OptionReferences()
    while cursor.token is not None:
        if cursor.match("WITH"):
            found.update(options(cursor, named))
        elif cursor.peek("INCLUDE") or cursor.peek("FORMAT"):
            _format(cursor, found, named)
        else:
            cursor.fail()
    columns = tuple(replace(c, type="string") if c.type == JSONB else c for c in body.columns)  # as the text that comes
    return st.CreateSource(name, columns, found, body.watermark, body.primary_key, exists, named.secrets,
                           named.connection)  # fmt: skip


def _create_sink(cursor: Cursor) -> st.Statement:
    exists, name = if_not_exists(cursor), cursor.table_name()
    source, query, emit = None, None, False
    into = cursor.table_name() if cursor.match("INTO") else None
    columns = cursor.names() if into is not None and cursor.is_symbol("(") else ()
    if cursor.match("FROM"):
        source = cursor.table_name()
    else:
        cursor.expect("AS")
        tokens = cursor.until("WITH (", "FORMAT")
        query, emit = _closing_query(cursor.sql, tokens)
    found: dict[str, str] = {}
    named = OptionReferences()
    if cursor.match("WITH"):
        found = options(cursor, named)
    _format(cursor, found, named)
    cursor.expect_end()
    return st.CreateSink(name, source, query, found, exists, emit, named.secrets, named.connection, into, columns)


def _closing_query(sql: str, tokens: Sequence[Token]) -> tuple[Query, bool]:
    """A query, and whether `EMIT ON WINDOW CLOSE` follows it."""
    tail = Cursor(sql, tokens[-4:])
    emit = len(tokens) > 4 and tail.match("EMIT", "ON", "WINDOW", "CLOSE") and tail.token is None
    return read_query(Cursor(sql, tokens[:-4] if emit else tokens)), emit


def _view_head(cursor: Cursor) -> tuple[bool, st.TableName, tuple[str, ...] | None]:
    exists, name = if_not_exists(cursor), cursor.table_name()
    return exists, name, cursor.names() if cursor.is_symbol("(") else None


def _create_materialized_view(cursor: Cursor, replace: bool) -> st.Statement:
    exists, name, columns = _view_head(cursor)
    found = options(cursor) if cursor.match("WITH") else {}
    cursor.expect("AS")
    query, emit = _closing_query(cursor.sql, cursor.rest())
    return st.CreateMaterializedView(name, query, columns, found, exists, replace, emit)


def _create_view(cursor: Cursor, replace: bool, temporary: bool) -> st.Statement:
    exists, name, columns = _view_head(cursor)
    cursor.expect("AS")
    return st.CreateView(name, read_query(cursor), columns, exists, replace, temporary)


def _create_index(cursor: Cursor) -> st.Statement:
    exists, name = if_not_exists(cursor), cursor.table_name()
    cursor.expect("ON")
    table = cursor.table_name()
    columns = cursor.names()
    include = cursor.names() if cursor.match("INCLUDE") else ()
    distributed = cursor.names() if cursor.match("DISTRIBUTED", "BY") else ()
    cursor.expect_end()
    return st.CreateIndex(name, table, columns, include, distributed, exists)


def create(cursor: Cursor) -> st.Statement:
    """Read a statement after `CREATE`."""
    replace = cursor.match("OR", "REPLACE")
    temporary = cursor.match("TEMPORARY") or cursor.match("TEMP")
    if cursor.match("TABLE") and not replace:
        return _create_table(cursor, temporary)
    if cursor.match("VIEW"):
        return _create_view(cursor, replace, temporary)
    if temporary:
        cursor.refuse("CREATE TEMPORARY of anything but a table or view")
    for kind in ("TABLE", "SOURCE", "SINK", "INDEX", "SCHEMA", "SECRET"):
        if replace and cursor.peek(kind):
            cursor.refuse(f"CREATE OR REPLACE {kind}", "DROP it first, or use IF NOT EXISTS.")
    if cursor.match("MATERIALIZED", "VIEW"):
        return _create_materialized_view(cursor, replace)
    if cursor.match("SOURCE") and not replace:
        return _create_source(cursor)
    if cursor.match("SINK") and not replace:
        return _create_sink(cursor)
    if cursor.match("INDEX"):
        return _create_index(cursor)
    for kind in ("FUNCTION", "AGGREGATE"):
        if cursor.match(kind):
            return create_function(cursor, replace, kind == "AGGREGATE")
    if cursor.match("SCHEMA"):
        exists = if_not_exists(cursor)
        found = st.CreateSchema(cursor.identifier(), exists)
        if cursor.match("AUTHORIZATION"):
            cursor.identifier()
        cursor.expect_end()
        return found
    for kind in KINDS:
        if cursor.peek(*kind.split()):
            cursor.refuse(f"CREATE {kind.upper()}")
    cursor.fail()


def _kind(cursor: Cursor) -> str:
    for kind in KINDS:
        if cursor.match(*kind.split()):
            return kind
    cursor.fail()


def _dropped(cursor: Cursor, kind: str) -> st.TableName:
    name = cursor.table_name()
    if kind in ("function", "aggregate") and cursor.match("("):  # there is one function of a name, whatever its types
        cursor.until(")")
        cursor.expect(")")
    return name


def drop(cursor: Cursor) -> st.Statement:
    """Read a statement after `DROP`."""
    kind, exists = _kind(cursor), cursor.match("IF", "EXISTS")
    names = [_dropped(cursor, kind)]
    while cursor.match(","):
        names.append(_dropped(cursor, kind))
    cascade = cursor.match("CASCADE")
    if not cascade:
        cursor.match("RESTRICT")
    cursor.expect_end()
    return st.Drop(kind, tuple(names), exists, cascade)


def alter(cursor: Cursor) -> st.Statement:
    """Read a statement after `ALTER`."""
    kind, exists = _kind(cursor), cursor.match("IF", "EXISTS")
    if kind == "table":
        cursor.match("ONLY")  # no table inherits from another
    name = cursor.table_name()
    target, found, action = None, {}, ""
    if cursor.match("PAUSE"):
        action = "pause"
    elif cursor.match("RESUME"):
        action = "resume"
    elif cursor.match("REFRESH", "SCHEMA"):
        action = "refresh schema"
    elif cursor.match("RENAME", "TO"):
        action, target = "rename", cursor.identifier()
    elif cursor.peek("RENAME"):
        cursor.refuse(
            "RENAME COLUMN or CONSTRAINT",
            "rows and plans know columns by name: CREATE VIEW v (other names) AS SELECT ... shows them by others",
        )
    elif cursor.match("OWNER", "TO"):
        action, target = "owner", cursor.identifier()
    elif cursor.match("SET", "SCHEMA"):
        action, target = "set schema", cursor.identifier()
    elif cursor.match("SET"):
        action, found = "set", options(cursor) if cursor.is_symbol("(") else _setting(cursor)
    elif kind == "table" and (cursor.peek("ADD", "CONSTRAINT") or any(cursor.peek("ADD", *k) for k in _CONSTRAINTS)):
        return _add_constraint(cursor, name, exists)
    elif cursor.peek("ADD") or cursor.peek("DROP"):
        return _alter_columns(cursor, kind, name, exists)
    else:
        cursor.fail()
    cursor.expect_end()
    return st.AlterJob(kind, name, action, found, target, exists)


def _setting(cursor: Cursor) -> dict[str, str]:
    key = cursor.identifier()
    if not cursor.match("TO"):
        cursor.expect("=")
    return {key: option_value(cursor)}


def _add_constraint(cursor: Cursor, name: st.TableName, exists: bool) -> st.Statement:
    cursor.expect("ADD")
    if cursor.match("CONSTRAINT"):
        cursor.identifier()
    if not cursor.match("PRIMARY", "KEY"):
        cursor.refuse(f"ADD {cursor.word().upper()}", "PRIMARY KEY is the only constraint that can be added.")
    if cursor.peek("USING", "INDEX"):
        cursor.refuse("PRIMARY KEY USING INDEX", "Name the columns: PRIMARY KEY (a, b).")
    body = _Body()
    _primary_key(cursor, body, cursor.names())
    cursor.expect_end()
    return st.AddPrimaryKey(name, body.primary_key, exists)


def _alter_columns(cursor: Cursor, kind: str, name: st.TableName, exists: bool) -> st.Statement:
    body, gone, unless_there = _Body(), [], []
    while cursor.token is not None:
        if cursor.match("ADD", "COLUMN") or cursor.match("ADD"):
            unless_there.append(if_not_exists(cursor))
            _column(cursor, body)
            if body.primary_key:
                cursor.refuse("PRIMARY KEY of a column that is added")
        else:
            cursor.expect("DROP")
            cursor.match("COLUMN")
            gone.append(cursor.identifier())
        if not cursor.match(","):
            cursor.expect_end()
    return st.AlterColumns(kind, name, tuple(body.columns), tuple(gone), exists, tuple(unless_there))


STARTS = (starts(create, "CREATE"), starts(drop, "DROP"), starts(alter, "ALTER"))
