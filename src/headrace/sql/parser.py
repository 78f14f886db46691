"""Text to statements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotSupported, StatementError, SyntaxFault
from headrace.sql import (
    comments,
    connections,
    control,
    copying,
    cursors,
    ddl,
    grants,
    not_offered,
    roles,
    secrets,
    subscriptions,
    upkeep,
)
from headrace.sql import statements as st
from headrace.sql.binder.row_changes import QueryWanted
from headrace.sql.conflicts import conflict_of
from headrace.sql.datatypes import catalog_type, spark_type
from headrace.sql.dialect import (
    Headrace,
    parse_expression_tokens,
    parse_tokens,
    parse_type_tokens,
    syntax_fault,
    tokenize,
)
from headrace.sql.dml import InsertedRows, assignments_of, returning_of
from headrace.sql.postgres import check_grammar
from headrace.sql.query import Expression, Query
from headrace.sql.secrets import may_hold_a_secret, unquoted
from headrace.sql.starts import Inner, Readers, nests, starts
from headrace.sql.text_values import parse_text
from headrace.sql.token_cursor import Cursor
from headrace.sql.type_names import pg_type_text
from headrace.sql.with_options import option_value

_WITH_STARTS = (comments, connections, control, copying, cursors, ddl, grants, roles, secrets, subscriptions,
                upkeep)  # fmt: skip


def parse(script: str) -> list[st.Statement]:
    """The statements of a script, empty ones included; a script without any gives one `Empty`.

    Raises `SyntaxFault` with a 1-based character position, or `NotSupported`.
    """
    with unquoted() if may_hold_a_secret(script) else nullcontext():
        return _parse(script)


def _parse(script: str) -> list[st.Statement]:
    tokens = tokenize(script)
    found: list[st.Statement] = []
    start, offset = 0, 0
    for i, token in enumerate([*tokens, None]):
        if token is not None and token.token_type != TokenType.SEMICOLON:
            continue
        part = tokens[start:i]
        end = token.start if token is not None else len(script)
        if part:
            statement = _statement(Cursor(script[:end], part))
            text = script[part[0].start : part[-1].end + 1]
            found.append(_placed(statement, text, part[0].start + 1))
        elif token is not None:
            found.append(st.Empty(text="", position=offset + 1))
        start, offset = i + 1, end + 1
    return found or [st.Empty()]


def _placed(statement: st.Statement, text: str, position: int) -> st.Statement:
    """A statement with the text that it was read from, unless that is to be kept nowhere."""
    inner = statement.statement if isinstance(statement, st.Explain) else statement
    if inner.secret:
        text = inner.text
    return replace(statement, text=text, parsed=text, position=position)


def parse_one(sql: str) -> st.Statement:
    """The only statement of `sql`; `SyntaxFault` if there are several."""
    found = [statement for statement in parse(sql) if not isinstance(statement, st.Empty)]
    if len(found) > 1:
        raise SyntaxFault("cannot insert multiple commands into a prepared statement", position=found[1].position)
    return found[0] if found else st.Empty()


def parse_expression(text: str) -> Expression:
    """A scalar expression, for instance a column's default."""
    return Expression(parse_expression_tokens(text, tokenize(text)), text)


def parse_query(text: str) -> Query:
    """A query."""
    found = parse_one(text)
    if not isinstance(found, st.Select):
        raise SyntaxFault("not a query", position=1)
    return found.query


def _statement(cursor: Cursor) -> st.Statement:
    return _READERS.read(cursor, _inner)


def _explain(cursor: Cursor, inner: Inner) -> st.Statement:
    found: dict[str, str] = {}
    if cursor.is_symbol("("):
        cursor.expect("(")
        while True:
            key = cursor.word().lower()
            ends = cursor.is_symbol(",") or cursor.is_symbol(")")
            found[key] = "true" if ends else option_value(cursor).lower()
            if not cursor.match(","):
                break
        cursor.expect(")")
    for word in ("ANALYZE", "VERBOSE"):
        if cursor.match(word):
            found[word.lower()] = "true"
    return st.Explain(inner(cursor), found)


def _inner(cursor: Cursor) -> st.Statement:
    """Read the statement that stands inside of another one, up to its end."""
    if cursor.token is None:
        cursor.fail()
    rest = cursor.rest()
    inner = _statement(Cursor(cursor.sql, rest))
    return _placed(inner, cursor.text_of(rest), rest[0].start + 1)


def _prepare(cursor: Cursor, inner: Inner) -> st.Statement:
    if cursor.peek("TRANSACTION"):
        cursor.refuse("two-phase commit")
    name = cursor.identifier()
    types: list[str | None] = []
    if cursor.match("("):
        while not types or cursor.match(","):
            tokens = cursor.until(",")
            unknown = len(tokens) == 1 and tokens[0].text.lower() == "unknown"
            types.append(None if unknown else spark_type(parse_type_tokens(cursor.sql, tokens, cursor.token)))
        cursor.expect(")")
    cursor.expect("AS")
    prepared = inner(cursor)
    if not prepared.preparable:
        raise SyntaxFault("only a query, INSERT, UPDATE or DELETE can be prepared", position=prepared.position)
    return st.Prepare(name, tuple(types), prepared)


def _from_tree(cursor: Cursor) -> st.Statement:
    tokens = cursor.rest()
    text = cursor.text_of(tokens)
    check_grammar(text, tokens[0].start)
    tree, refused = parse_tokens(cursor.sql, tokens)
    if isinstance(tree, (exp.Query, exp.Values)):
        return st.Select(Query(tree, text, tokens[0].start, refused))
    if refused is not None:
        raise refused
    if isinstance(tree, exp.Insert):
        return _insert(tree, text, tokens[0].start)
    if isinstance(tree, exp.Update):
        return _update(tree, text, tokens[0].start)
    if isinstance(tree, exp.Delete):
        return _delete(tree, text, tokens[0].start)
    raise syntax_fault(cursor.sql, tokens[0])


_READERS = Readers(
    (
        starts(_from_tree, "SELECT", "WITH", "VALUES", "TABLE", "(", "INSERT", "UPDATE", "DELETE", whole=True),
        nests(_explain, "EXPLAIN"),
        nests(_prepare, "PREPARE"),
        *(start for module in _WITH_STARTS for start in module.STARTS),
        *not_offered.REFUSALS,
    )
)


def _name(identifier: exp.Expr) -> str:
    inner = identifier.this if isinstance(identifier, exp.Column) else identifier
    return str(inner.name if inner.args.get("quoted") else inner.name.lower())


def _table(node: exp.Expr) -> tuple[st.TableName, str | None]:
    schema, alias = node.args.get("db"), node.args.get("alias")
    label = _name(alias.this) if alias is not None and alias.args.get("this") is not None else None
    return st.TableName(_name(schema) if schema is not None else None, _name(node.this)), label


def _insert(tree: exp.Insert, text: str, offset: int) -> st.Statement:
    target = tree.this
    columns: tuple[str, ...] = ()
    if isinstance(target, exp.Schema):
        columns = tuple(_name(column) for column in target.expressions)
        target = target.this
    table, alias = _table(target)
    source, conflict = tree.args.get("expression"), tree.args.get("conflict")
    if tree.args.get("with_") is not None and source is not None:
        source.set("with_", tree.args["with_"])
    plain = isinstance(source, exp.Values) and not any(
        source.args.get(k) for k in ("with_", "order", "limit", "offset")
    )
    return st.Insert(
        table,
        columns,
        None if source is None or plain else Query(source, text, offset, change=QueryWanted("insert", text)),
        InsertedRows(source, text, offset) if plain and isinstance(source, exp.Values) else None,
        returning_of(tree, table, alias, text, offset),
        conflict_of(conflict, table, alias, text, offset),
    )


def _where(tree: exp.Expr) -> Expression | None:
    where = tree.args.get("where")
    return Expression(where.this.copy(), where.this.sql(dialect=Headrace)) if where is not None else None


def _update(tree: exp.Update, text: str, offset: int) -> st.Statement:
    table, alias = _table(tree.this)
    source = tree.args.get("from_")
    sources = source.sql(dialect=Headrace).strip()[len("FROM ") :] if source is not None else None
    if tree.args.get("with_") is not None:
        raise NotSupported("WITH in UPDATE is not supported", hint="Use a subquery.")
    returning = returning_of(tree, table, alias, text, offset)
    return st.Update(table, alias, assignments_of(tree, text), _where(tree), returning, sources)


def _delete(tree: exp.Delete, text: str, offset: int) -> st.Statement:
    table, alias = _table(tree.this)
    using = tree.args.get("using")
    sources = ", ".join(item.sql(dialect=Headrace) for item in using) if using else None
    if tree.args.get("with_") is not None:
        raise NotSupported("WITH in DELETE is not supported", hint="Use a subquery.")
    return st.Delete(table, alias, _where(tree), returning_of(tree, table, alias, text, offset), sources)


def _parameters(sql: str, tokens: Sequence[Token]) -> list[tuple[int, int, int]]:
    """Start, end (exclusive) and number of every `$n`."""
    found = []
    for token, number in pairwise(tokens):
        adjacent = token.end + 1 == number.start and number.token_type == TokenType.NUMBER
        if token.token_type == TokenType.PARAMETER and adjacent and number.text.isdigit():
            found.append((token.start, number.end + 1, int(number.text)))
    return found


def parameter_count(statement: st.Statement) -> int:
    """The highest `$n` in a statement."""
    return max((number for _, _, number in _parameters(statement.text, tokenize(statement.text))), default=0)


def parameter_types(statement: st.Statement, known: Sequence[str | None] = ()) -> list[str | None]:
    """For each `$n` its type: as `known`, from a cast right around it or from `LIMIT`; else None.

    It is Spark's, or one of the system catalogs' own.
    """
    tokens = tokenize(statement.text)
    count = max((n for _, _, n in _parameters(statement.text, tokens)), default=0)
    types: list[str | None] = [known[i] if i < len(known) else None for i in range(count)]
    for i, token in enumerate(tokens):
        if token.token_type != TokenType.PARAMETER or i + 1 >= len(tokens) or not tokens[i + 1].text.isdigit():
            continue
        at = int(tokens[i + 1].text) - 1
        if types[at] is None:
            types[at] = _context_type(statement.text, tokens, i)
    return types


def _context_type(sql: str, tokens: Sequence[Token], at: int) -> str | None:
    before = tokens[at - 1].text.upper() if at else ""
    if before in ("LIMIT", "OFFSET"):
        return "bigint"
    cursor = Cursor(sql, tokens)
    cursor.at = at + 2
    called = before == "(" and at > 1 and tokens[at - 2].text.upper() == "CAST"
    if not (cursor.match("::") or (called and cursor.match("AS"))):
        return None
    for end in range(min(len(tokens), cursor.at + 8), cursor.at, -1):
        try:
            kind = parse_type_tokens(sql, tokens[cursor.at : end])
            return catalog_type(kind) or spark_type(kind)
        except StatementError:
            continue
    return None


_S = TypeVar("_S", bound=st.Statement)


def bind(statement: _S, values: Sequence[str | None], types: Sequence[str | None]) -> _S:
    """The statement with every `$n` replaced by a typed literal; `values` are text-format values.

    A type is Spark's type string, or None to leave it to the context. Raises `InvalidText`, `InvalidDatetime` or
    `NumericOutOfRange` for text that does not spell a value of its type, `SyntaxFault` for a parameter without value.
    """
    sql = statement.text
    tokens = tokenize(sql)
    parts, done = [], 0
    for start, end, number in _parameters(sql, tokens):
        if not 1 <= number <= len(values):
            raise SyntaxFault(f"there is no parameter ${number}", position=start + 1)
        parts.append(sql[done:start])
        before = sql[:start].rstrip().upper()
        kind = types[number - 1] if number <= len(types) else None
        parts.append(_literal(values[number - 1], kind, bare=before.endswith(("LIMIT", "OFFSET"))))
        done = end
    if not parts:
        return statement
    bound = parse_one("".join([*parts, sql[done:]]))
    assert isinstance(bound, type(statement))
    return replace(bound, text=sql, position=statement.position)


def _literal(value: str | None, kind: str | None, bare: bool) -> str:
    if value is None:
        return "NULL" if kind is None else f"CAST(NULL AS {pg_type_text(kind)})"
    if bare:
        return str(parse_text(value, "bigint"))
    quoted = "'" + value.replace("'", "''") + "'"
    if kind is None:
        return quoted
    if not kind.startswith(("struct<", "map<", "interval")):
        parse_text(value, kind)
    return f"CAST({quoted} AS {pg_type_text(kind)})"
