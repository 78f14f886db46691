"""Texts in which relations have other names: what a view says of what it reads after that was renamed. Pure.

Only the names are put in the place of others, as PostgreSQL shows such a query: `FROM t` becomes `FROM u AS t`, so that
`t.a` stays what it is. A text is as it was but for the names, or it is refused: its tree is compared with the tree of
before. What stands around the query of a statement, the names behind `ON`, `FROM` and `INTO`, is found by words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pb
from postgast import scan

from headrace.common.identifiers import quoted_name, shown_name
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError
from headrace.sql import statements as st
from headrace.sql.parser import parse, parse_one
from headrace.sql.postgres import ParsedStatement, Word, parse_statement, system_time, words_of
from headrace.sql.query import Query
from headrace.sql.statements import TableName

Spell = Callable[[TableName], TableName | None]
"""The new name of a relation, by the one that a text has; None for one that stays."""
_WINDOWS: Final = ("tumble", "hop", "session")
_KINDS: Final = ("table", "source", "view", "index", "sink", "subscription")
_BEFORE_NAMES: Final = {
    st.CreateTable: ("from",), st.CreateSink: ("from", "into"), st.CreateIndex: ("on",),
    st.CreateSubscription: ("from",),
}  # fmt: skip
"""The words behind which statements name relations, outside of brackets and of their queries."""


class Uncertain(Exception):
    """A text of which nobody can say for sure what it would be with other names; the reason."""


@dataclass(frozen=True)
class _Reference:
    """A relation that a query names, and where."""

    name: TableName
    start: int
    """In bytes, as all places here."""
    alias: str | None
    call: int | None = None
    """Where the function's name begins whose argument it is."""

    @property
    def known_as(self) -> str:
        """What the columns are qualified by."""
        return self.alias if self.alias is not None else self.name.name


def query_with(text: str, spell: Spell) -> str:
    """The text of a query with other names of relations. Raises `Uncertain`."""
    try:
        parsed = parse_statement(text)
        references = list(_references(parsed.tree))
        changed = [r for r in references if spell(r.name) is not None]
        if not changed:
            return text
        _check_names(parsed, references, changed, spell)
        found = _put(parsed.source, list(_edits(parsed, changed, spell)))
        _check_same(parsed, references, parse_statement(found), spell)
    except HeadraceError as error:
        raise Uncertain(error.message) from None
    return found


def definition_with(text: str, own: str | None, spell: Spell) -> str:
    """The statements that define an object, with another name of it (None: the same) and of what they name.

    Raises `Uncertain`.
    """
    try:
        edits = [edit for statement in parse(text) for edit in _statement_edits(text, statement, own, spell)]
        found = _put(text.encode(), edits)
        _check_statements(parse(text), parse(found), own, spell)
    except HeadraceError as error:
        raise Uncertain(error.message) from None
    return found


def defined_query(text: str) -> str:
    """The text of the query of the statement that made a view."""
    statement = parse_one(text)
    assert isinstance(statement, st.CreateView)
    return statement.query.text


def spelled(name: TableName) -> str:
    """A name as a text has it, in quotes where it needs them."""
    return ".".join(_spelled(part) for part in (name.schema, name.name) if part is not None)


def _spelled(name: str) -> str:
    tokens = [*scan(name).tokens] if shown_name(name) == name else []
    plain = len(tokens) == 1 and tokens[0].keyword_kind in (pb.NO_KEYWORD, pb.UNRESERVED_KEYWORD)
    return name if plain else quoted_name(name)


Edit = tuple[int, int, str]
"""From where to where, in bytes, and what comes there."""


def _put(source: bytes, edits: Sequence[Edit]) -> str:
    for start, end, instead in sorted(edits, reverse=True):
        source = source[:start] + instead.encode() + source[end:]
    return source.decode()


# ---- queries


def _messages(message: Message) -> Iterator[Message]:
    """A message and all in it, in order, without recursion: trees are as deep as texts are long."""
    left = [message]
    while left:
        found = left.pop()
        yield found
        parts = [v for _, value in found.ListFields() for v in (value if _is_list(value) else [value])]
        left += [part for part in reversed(parts) if isinstance(part, Message)]


def _is_list(value: object) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes))


def _references(tree: Message) -> Iterator[_Reference]:
    for message in _messages(tree):
        if isinstance(message, pb.RangeVar):
            alias = message.alias.aliasname if message.HasField("alias") else None
            yield _Reference(TableName(message.schemaname or None, message.relname), message.location, alias)
        elif isinstance(message, pb.RangeFunction):
            alias = message.alias.aliasname if message.HasField("alias") else None
            for call in (m for m in _messages(message) if isinstance(m, pb.FuncCall) and _is_window(m)):
                names = call.args[0].column_ref
                parts = [part.string.sval for part in names.fields]
                name = TableName(parts[-2] if len(parts) > 1 else None, parts[-1])
                yield _Reference(name, names.location, alias, call.location)


def _is_window(call: pb.FuncCall) -> bool:
    """Whether it is a function whose first argument is a relation."""
    return call.funcname[-1].string.sval in _WINDOWS and len(call.args) > 0 and call.args[0].HasField("column_ref")


def _check_names(
    parsed: ParsedStatement, references: Sequence[_Reference], changed: Sequence[_Reference], spell: Spell
) -> None:
    """Raise `Uncertain` where a name can mean something else, too."""
    inside = {m.ctename for m in _messages(parsed.tree) if isinstance(m, pb.CommonTableExpr)}
    for reference in changed:
        new = spell(reference.name)
        assert new is not None
        for name in (reference.name, new):
            if name.schema is None and name.name in inside:
                raise Uncertain(f'WITH has a query "{name.name}", too')
        if reference.alias is None:
            others = {r.name for r in references if r.alias is None and r.name.name == reference.name.name}
            if len(others) > 1:
                raise Uncertain(f'"{reference.name.name}" is more than one relation in it')
            if any(_is_of(m, reference.name.name) for m in _messages(parsed.tree)):
                raise Uncertain(f'it names columns with the schema of "{reference.name.name}"')


def _is_of(message: Message, name: str) -> bool:
    """Whether it is a column that is qualified by a relation and its schema."""
    if not isinstance(message, pb.ColumnRef) or len(message.fields) < 3:
        return False
    return any(part.string.sval == name for part in list(message.fields)[:-1])


def _edits(parsed: ParsedStatement, changed: Sequence[_Reference], spell: Spell) -> Iterator[Edit]:
    words = words_of(parsed.source)
    for reference in changed:
        new = spell(reference.name)
        assert new is not None
        at = next(i for i, w in enumerate(words) if w.start == reference.start)
        last = _name_end(words, at)
        yield reference.start, words[last].end, spelled(new)
        if reference.alias is None and new.name != reference.name.name:
            end = words[last].end if reference.call is None else _call_end(words, reference.call)
            added = system_time(words, last + 1)
            if added is not None:
                end = words[min(added[0], len(words)) - 1].end
            yield end, end, f" AS {_spelled(reference.name.name)}"


def _name_end(words: Sequence[Word], at: int) -> int:
    """The last word of the name that begins with one."""
    while at + 2 < len(words) and words[at + 1].text == ".":
        at += 2
    return at


def _call_end(words: Sequence[Word], start: int) -> int:
    """Behind the closing bracket of a call that begins there."""
    depth = 0
    for word in (w for w in words if w.start >= start):
        depth += (word.text == "(") - (word.text == ")")
        if word.text == ")" and not depth:
            return word.end
    raise Uncertain("a function has no end")


def _check_same(
    before: ParsedStatement, references: Sequence[_Reference], after: ParsedStatement, spell: Spell
) -> None:
    """Raise `Uncertain` unless two queries are the same but for the names of relations, which are the wanted ones."""
    found = list(_references(after.tree))
    wanted = [(spell(r.name) or r.name, r.known_as) for r in references]
    if [(r.name, r.known_as) for r in found] != wanted:
        raise Uncertain("other relations were found in it than wanted")
    added = [
        (p.refused, len(p.lookups), [n for _, n in p.left_out], [k for _, k in p.side_joins]) for p in (before, after)
    ]
    if added[0] != added[1] or _bare(before.tree) != _bare(after.tree):
        raise Uncertain("it would be another query")


def _bare(tree: pb.Node) -> pb.Node:
    """The tree of a query without the names of relations and without places."""
    copy = pb.Node()
    copy.CopyFrom(tree)
    for message in list(_messages(copy)):
        if isinstance(message, pb.RangeVar):
            message.ClearField("relname")
            message.ClearField("schemaname")
        if isinstance(message, (pb.RangeVar, pb.RangeFunction)) and not message.alias.colnames:
            message.ClearField("alias")
        if isinstance(message, pb.FuncCall) and _is_window(message):
            message.args[0].column_ref.ClearField("fields")
    for message in _messages(copy):
        for field in ("location", "stmt_location", "stmt_len", "list_start", "list_end", "name_location"):
            if field in message.DESCRIPTOR.fields_by_name:
                message.ClearField(field)
    return copy


# ---- statements


def _statement_edits(text: str, statement: st.Statement, own: str | None, spell: Spell) -> Iterator[Edit]:
    """What is put elsewhere into a script for one of its statements."""
    first = (statement.position or 1) - 1
    base = len(text[:first].encode())
    words = words_of(statement.text.encode())
    at = _own_name(words)
    last = at if at is None else _name_end(words, at)
    if own is not None and last is not None:
        yield base + words[last].start, base + words[last].end, _spelled(own)
    query: Query | None = getattr(statement, "query", None)
    ends = len(text.encode())
    if query is not None:
        if query.offset is None or text[query.offset : query.offset + len(query.text)] != query.text:
            raise Uncertain("its query is not what its text says")
        ends = len(text[: query.offset].encode())
        yield ends, ends + len(query.text.encode()), query_with(query.text, spell)
    for i in _named_behind(words, -1 if last is None else last, _BEFORE_NAMES.get(type(statement), ())):
        named_to = _name_end(words, i)
        parts = tuple(_plain(statement.text, w) for w in words[i : named_to + 1] if w.text != ".")
        new = spell(TableName(parts[-2] if len(parts) > 1 else None, parts[-1]))
        if new is not None and base + words[i].start < ends:
            yield base + words[i].start, base + words[named_to].end, spelled(new)


def _plain(text: str, word: Word) -> str:
    """A name as it is looked up."""
    found = text.encode()[word.start : word.end].decode()
    return found[1:-1].replace('""', '"') if found.startswith('"') else found.lower()


def _own_name(words: Sequence[Word]) -> int | None:
    """Where a statement that makes or alters something names it; None where it does not."""
    kind = next((i for i, w in enumerate(words[:6]) if w.text in _KINDS), None)
    if kind is None:
        raise Uncertain("it is no statement that defines a relation")
    at = kind + 1
    while at < len(words) and words[at].text in ("if", "not", "exists", "only"):
        at += 1
    return None if at >= len(words) or words[at].text == "on" else at


def _named_behind(words: Sequence[Word], after: int, marks: Sequence[str]) -> Iterator[int]:
    """Where the names begin behind some words that stand outside of brackets, each of which comes once."""
    depth, left = 0, list(marks)
    for i, word in enumerate(words):
        depth += (word.text == "(") - (word.text == ")")
        if i > after and not depth and word.text in left and i + 1 < len(words):
            left.remove(word.text)
            yield i + 1


_NAMED: Final = ("source", "into", "table", "origin")
"""The attributes of statements that are the names of relations."""


def _check_statements(
    before: Sequence[st.Statement], after: Sequence[st.Statement], own: str | None, spell: Spell
) -> None:
    """Raise `Uncertain` unless statements have the wanted names; their queries are compared by themselves."""
    if [type(s) for s in before] != [type(s) for s in after]:
        raise Uncertain("it would be another statement")
    for was, now in zip(before, after, strict=True):
        old, new = getattr(was, "name", None), getattr(now, "name", None)
        if isinstance(old, TableName) and new != TableName(old.schema, own or old.name):
            raise Uncertain("its own name was not found")
        for attribute in _NAMED:
            named = getattr(was, attribute, None)
            if isinstance(named, TableName) and getattr(now, attribute) != (spell(named) or named):
                raise Uncertain(f'the name "{named}" was not found')
