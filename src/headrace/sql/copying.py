"""COPY: the statement, and its options by PostgreSQL's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from postgast import pg_query_pb2 as pb
from sqlglot.tokenizer_core import Token

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError, InvalidParameter, NotSupported, SyntaxFault
from headrace.sql import statements as st
from headrace.sql.copying_files import copy_files, names_files
from headrace.sql.postgres import ParsedStatement, parse_statement
from headrace.sql.starts import Inner, nests
from headrace.sql.statements import DATABASE
from headrace.sql.subscriptions import subscribe
from headrace.sql.token_cursor import Cursor, other_database

_LISTS: Final = ("force_quote", "force_not_null", "force_null")
_TEXTS: Final = ("format", "delimiter", "null", "quote", "escape", "encoding")
_NO_DELIMITERS: Final = "\\.abcdefghijklmnopqrstuvwxyz0123456789"
_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")
_UTF8: Final = ("utf8", "unicode")


@dataclass(frozen=True)
class CopyFormat:
    """The format of COPY: text, CSV or binary, with its characters."""

    form: Literal["text", "csv", "binary"] = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    header: Literal["none", "line", "match"] = "none"
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] = ()
    """Columns; `*` stands for all."""
    force_not_null: tuple[str, ...] = ()
    force_null: tuple[str, ...] = ()


def copy(cursor: Cursor, inner: Inner) -> st.Statement:
    """Read a COPY statement; `inner` reads the query within its brackets."""
    tokens = cursor.rest()
    start = tokens[0].start
    text = cursor.text_of(tokens)
    subscribed = _subscribed(cursor, tokens)
    closing = _closing(tokens) if Cursor(cursor.sql, tokens).is_symbol("(", 1) else 0
    if subscribed is None and names_files(cursor, tokens, closing + 1):
        return copy_files(cursor, tokens, closing, inner)
    try:
        parsed = parse_statement(text if subscribed is None else _with_a_query(text, tokens))
    except SyntaxFault as error:
        raise SyntaxFault(error.message, position=start + (error.position or 1)) from None
    node = parsed.tree.copy_stmt if parsed.tree is not None else None
    if node is None:
        raise NotSupported("a COPY statement of this size is not supported")
    _refuse(node)
    found = _format(node, parsed, start)
    columns = tuple(item.string.sval for item in node.attlist)
    if subscribed is not None:
        return st.CopySubscribe(*subscribe(subscribed), found)
    if node.HasField("query"):
        within = Cursor(cursor.sql, tokens[2 : _closing(tokens)])
        query = inner(within)
        if not isinstance(query, st.Select):
            raise NotSupported("COPY of anything but a query's rows is not supported", position=query.position)
        return st.CopyTo(None, (), query.query, found)
    relation = node.relation
    if relation.catalogname and relation.catalogname != DATABASE:
        parts = (relation.catalogname, relation.schemaname, relation.relname)
        raise other_database(parts, start + parsed.position(relation.location))
    table = st.TableName(relation.schemaname or None, relation.relname)
    return st.CopyFrom(table, columns, found) if node.is_from else st.CopyTo(table, columns, None, found)


def _subscribed(cursor: Cursor, tokens: Sequence[Token]) -> Cursor | None:
    """What stands within the brackets of `COPY (SUBSCRIBE ...)`; None for any other COPY."""
    stop = _closing(tokens)
    within = Cursor(cursor.sql, tokens[2:stop])
    found = stop < len(tokens) and Cursor(cursor.sql, tokens).is_symbol("(", 1) and within.peek("SUBSCRIBE")
    return within if found else None


def _with_a_query(text: str, tokens: Sequence[Token]) -> str:
    """The text with a query within the brackets that PostgreSQL's parser knows; what follows stays where it is."""
    low, high = tokens[2].start - tokens[0].start, tokens[_closing(tokens)].start - tokens[0].start
    return text[:low] + "SELECT 1".ljust(high - low) + text[high:]


def _refuse(node: pb.CopyStmt) -> None:
    if node.filename or node.is_program:
        raise NotSupported(
            "COPY to or from a program of the server is not supported",
            hint="COPY FROM STDIN and TO STDOUT go over the connection; psql's \\copy reads and writes its own files.",
        )
    if node.HasField("where_clause"):
        raise NotSupported("WHERE in COPY FROM is not supported", hint="Copy to another table, and INSERT from that.")


def _closing(tokens: Sequence[Token]) -> int:
    """The place of the bracket that closes the one behind COPY."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and i > 1:
            return i
    return len(tokens)


# ---- options


def _format(node: pb.CopyStmt, parsed: ParsedStatement, start: int) -> CopyFormat:
    given: dict[str, Any] = {}
    for item in node.options:
        option, position = item.def_elem, start + parsed.position(item.def_elem.location)
        name = option.defname
        if name in given:
            raise SyntaxFault("conflicting or redundant options", position=position)
        given[name] = _value(option, bool(node.is_from), position)
    given.pop("freeze", None)  # rows have no hidden state that could be frozen: they are as it asks for
    encoding = given.pop("encoding", "utf8").lower().replace("-", "").replace("_", "")
    if encoding not in _UTF8:
        raise NotSupported("COPY in an encoding other than UTF8 is not supported")
    form = given.pop("format", "text")
    _check(form, given, bool(node.is_from))
    defaults = {"delimiter": ",", "null": ""} if form == "csv" else {}
    quote = given.get("quote", '"')
    return CopyFormat(**{"form": form, **defaults, "escape": quote, **given})


def _value(option: pb.DefElem, is_from: bool, position: int) -> str | bool | tuple[str, ...]:
    name, kind = option.defname, option.arg.WhichOneof("node")
    if name == "header":
        return _header(option, is_from)
    if name == "freeze":
        return _truth(option, kind)
    if name in _LISTS:
        if kind == "a_star" and name == "force_quote":
            return ("*",)
        if kind != "list":
            raise InvalidParameter(f'argument to option "{name}" must be a list of column names', position=position)
        return tuple(item.string.sval for item in option.arg.list.items)
    if name in _TEXTS:
        if kind is None:
            raise SyntaxFault(f"{name} requires a parameter")
        word = _word(option, kind)
        if name == "format" and word not in ("text", "csv", "binary"):
            raise InvalidParameter(f'COPY format "{word}" not recognized', position=position)
        return word
    raise SyntaxFault(f'option "{name}" not recognized', position=position)


def _word(option: pb.DefElem, kind: str) -> str:
    arg = option.arg
    if kind == "string":
        return str(arg.string.sval)
    if kind == "integer":
        return str(arg.integer.ival)
    if kind == "float":
        return str(arg.float.fval)
    if kind == "boolean":
        return "true" if arg.boolean.boolval else "false"
    raise SyntaxFault(f"{option.defname} requires a parameter")


def _truth(option: pb.DefElem, kind: str | None) -> bool:
    word = "true" if kind is None else _word(option, kind).lower()
    if word not in _TRUE + _FALSE:
        raise SyntaxFault(f"{option.defname} requires a Boolean value")
    return word in _TRUE


def _header(option: pb.DefElem, is_from: bool) -> Literal["none", "line", "match"]:
    kind = option.arg.WhichOneof("node")
    word = "true" if kind is None else _word(option, kind).lower()
    if word == "match":
        if not is_from:
            raise NotSupported('cannot use "match" with HEADER in COPY TO')
        return "match"
    if word not in _TRUE + _FALSE:
        raise SyntaxFault('header requires a Boolean value or "match"')
    return "line" if word in _TRUE else "none"


def _check(form: str, given: dict[str, object], is_from: bool) -> None:
    """PostgreSQL's checks, in its order and words."""
    for objection in _objections(form, given, is_from):
        raise objection


def _objections(form: str, given: dict[str, Any], is_from: bool) -> Iterator[HeadraceError]:
    csv, binary = form == "csv", form == "binary"
    for name in ("delimiter", "null"):
        if binary and name in given:
            yield SyntaxFault(f"cannot specify {name.upper()} in BINARY mode")
    delimiter = given.get("delimiter", "," if csv else "\t")
    null = given.get("null", "" if csv else "\\N")
    quote = given.get("quote", '"')
    if len(delimiter.encode()) != 1:
        yield NotSupported("COPY delimiter must be a single one-byte character")
    if delimiter in "\r\n":
        yield InvalidParameter("COPY delimiter cannot be newline or carriage return")
    if "\r" in null or "\n" in null:
        yield InvalidParameter("COPY null representation cannot use newline or carriage return")
    if not csv and delimiter in _NO_DELIMITERS:
        yield InvalidParameter(f'COPY delimiter cannot be "{delimiter}"')
    if binary and given.get("header", "none") != "none":
        yield NotSupported("cannot specify HEADER in BINARY mode")
    yield from _quoting(csv, given, is_from, delimiter, quote)
    if delimiter in null:
        yield NotSupported("COPY delimiter must not appear in the NULL specification")
    if csv and quote in null:
        yield NotSupported("CSV quote character must not appear in the NULL specification")


def _quoting(
    csv: bool, given: dict[str, Any], is_from: bool, delimiter: str, quote: str
) -> Iterator[HeadraceError]:  # fmt: skip
    if not csv and "quote" in given:
        yield NotSupported("COPY quote available only in CSV mode")
    if csv and len(quote.encode()) != 1:
        yield NotSupported("COPY quote must be a single one-byte character")
    if csv and delimiter == quote:
        yield InvalidParameter("COPY delimiter and quote must be different")
    if not csv and "escape" in given:
        yield NotSupported("COPY escape available only in CSV mode")
    if csv and len(given.get("escape", quote).encode()) != 1:
        yield NotSupported("COPY escape must be a single one-byte character")
    for name, way in (("force_quote", "TO"), ("force_not_null", "FROM"), ("force_null", "FROM")):
        words = name.replace("_", " ")
        if name in given and not csv:
            yield NotSupported(f"COPY {words} available only in CSV mode")
        if name in given and is_from == (way == "TO"):
            yield NotSupported(f"COPY {words} only available using COPY {way}")


STARTS = (nests(copy, "COPY", whole=True),)
