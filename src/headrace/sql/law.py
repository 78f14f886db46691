"""A law over syntax trees: what the translation would drop, or take for something else, is refused.

The parser accepts more than the translation understands. So a tree is gone through before anything is made of it: each
kind of node, and each argument that is set on a node, has to be one that is handled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from sqlglot import exp

from headrace.errors import NotSupported, StatementError
from headrace.sql.handled import HANDLED
from headrace.sql.statements import DATABASE

_WORDS: Final[Mapping[tuple[str, str], str]] = {
    ("Between", "symmetric"): "BETWEEN SYMMETRIC",
    ("Column", "catalog"): "a column with the name of its database",
    ("CTE", "this"): "INSERT, UPDATE or DELETE in WITH",
    ("CurrentTimestamp", "this"): "a precision of CURRENT_TIMESTAMP",
    ("Delete", "limit"): "LIMIT in DELETE",
    ("Delete", "order"): "ORDER BY in DELETE",
    ("Group", "all"): "GROUP BY ALL or DISTINCT",
    ("Insert", "alternative"): "INSERT OR ...",
    ("Insert", "default"): "INSERT ... DEFAULT VALUES",
    ("Lateral", "ordinality"): "WITH ORDINALITY",
    ("Lateral", "view"): "LATERAL VIEW",
    ("Limit", "expressions"): "LIMIT ... BY",
    ("LimitOptions", "percent"): "FETCH FIRST ... PERCENT",
    ("LimitOptions", "with_ties"): "FETCH FIRST ... WITH TIES",
    ("Localtimestamp", "this"): "a precision of LOCALTIMESTAMP",
    ("Lock", "wait"): "NOWAIT or SKIP LOCKED",
    ("OnConflict", "index_predicate"): "WHERE behind the columns of ON CONFLICT",
    ("RegexpReplace", "position"): "regexp_replace from a position",
    ("Select", "into"): "SELECT INTO",
    ("Select", "laterals"): "LATERAL VIEW",
    ("Table", "only"): "ONLY",
    ("Table", "ordinality"): "WITH ORDINALITY",
    ("Table", "rows_from"): "ROWS FROM",
    ("Table", "sample"): "TABLESAMPLE",
    ("TimestampTrunc", "zone"): "date_trunc with a time zone",
    ("Trunc", "decimals"): "trunc with a number of digits",
    ("Unnest", "offset"): "WITH ORDINALITY",
    ("Update", "limit"): "LIMIT in UPDATE",
    ("Update", "order"): "ORDER BY in UPDATE",
    ("WindowSpec", "exclude"): "EXCLUDE in a window frame",
    ("With", "search"): "SEARCH or CYCLE in WITH",
}
"""How SQL calls an argument; of the others the argument's own name does."""
_CLASS_WORDS: Final = {
    "All": "ALL (query)",
    "BitString": "a bit string",
    "HexString": "a bit string",
    "IntervalSpan": "a span of units in an interval",
    "Kwarg": "an argument by name",
    "Placeholder": "a parameter other than $1, $2, ...",
    "PropertyEQ": "an argument by name",
    "Slice": "a slice of an array",
    "UnicodeString": "a string with Unicode escapes",
}
_HINTS: Final = {
    "SELECT INTO": "Use CREATE TABLE ... AS.",
    "TRY CAST": "A cast that fails stops the query; test the text with a regular expression first.",
}
_MEANT_BY_FALSE: Final = {("Lock", "wait"), ("Group", "all")}
"""Arguments that say something when they are false, too."""


def check(tree: exp.Expr) -> None:
    """Raises `NotSupported`, with a position, for what the translation does not handle.

    What only the binder knows passes: `check_older` is for trees that are not left to the binder.
    """
    for node in tree.walk():
        if _is_bound(node):
            continue
        arguments = HANDLED.get(type(node))
        if arguments is None:
            _refuse(_class_words(type(node)), node)
        for name, value in node.args.items():
            if name not in arguments and is_set(type(node), name, value):
                _refuse(words_of(type(node), name), value if isinstance(value, exp.Expr) else node)
        special = _SPECIAL.get(type(node))
        if special is not None:
            special(node)


def check_older(tree: exp.Expr) -> None:
    """Raises `NotSupported` for what only the binder knows."""
    for node in tree.walk():
        if _is_bound(node):
            _refuse(_class_words(type(node)), node)


def _is_bound(node: exp.Expr) -> bool:
    """Whether it is one of the operators and functions of documents that the binder alone knows."""
    kind = type(node)
    return kind not in HANDLED and (kind.__name__.startswith("JSON") or kind.__name__ == "ArrayContainsAll")


def is_set(kind: type[exp.Expr], name: str, value: object) -> bool:
    """Whether an argument says anything."""
    if value is False and (kind.__name__, name) in _MEANT_BY_FALSE:
        return True
    return value is not None and value is not False and value != []


def words_of(kind: type[exp.Expr], name: str) -> str:
    """How SQL calls an argument of a kind of nodes."""
    found = _WORDS.get((kind.__name__, name))
    return found or f"{name.strip('_').replace('_', ' ').upper()} in {_class_words(kind)}"


def _class_words(kind: type[exp.Expr]) -> str:
    if kind.__name__ in _CLASS_WORDS:
        return _CLASS_WORDS[kind.__name__]
    if issubclass(kind, exp.Func) and kind not in (exp.TryCast,):
        return f"the function {kind.sql_name().lower()}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).upper()


def position_of(node: exp.Expr) -> int | None:
    """Where a node stands in the statement, from 1, as far as its tokens or those around it tell."""
    at: exp.Expr | None = node
    while at is not None:
        starts = [n.meta["start"] for n in at.walk() if "start" in n.meta]
        if starts:
            return int(min(starts)) + 1
        at = at.parent
    return None


def _refuse(words: str, node: exp.Expr, hint: str | None = None) -> NoReturn:
    raise NotSupported(f"{words} is not supported", hint=hint or _HINTS.get(words), position=position_of(node))


# ---- arguments that are handled, but not with any value


def _table(node: exp.Expr) -> None:
    catalog = node.args.get("catalog")
    if catalog is not None and catalog.name.lower() != DATABASE:
        raise NotSupported(
            f'cross-database references are not implemented: "{catalog.name}.{node.text("db")}.{node.name}"',
            position=position_of(catalog),
        )
    if not isinstance(node.this, (exp.Identifier, exp.Func)):
        _refuse("this in FROM", node)


def _statement(node: exp.Expr) -> None:
    if node.parent is not None:
        _refuse("INSERT, UPDATE or DELETE inside of another statement", node)


def _join(node: exp.Expr) -> None:
    method, kind = str(node.args.get("method") or ""), str(node.args.get("kind") or "")
    if method not in ("", "NATURAL") or kind not in ("", "INNER", "CROSS", "OUTER", "SEMI", "ANTI"):
        _refuse(f"{method or kind} JOIN", node)


def _alias(node: exp.Expr) -> None:
    for column in node.args.get("columns") or ():
        if not isinstance(column, exp.Identifier):
            _refuse("a list of columns with types behind a relation", column)


def _version(node: exp.Expr) -> None:
    if node.text("this") != "TIMESTAMP" or node.text("kind") != "AS OF":
        _refuse("FOR VERSION, or a range in FOR SYSTEM_TIME", node)


def _window(node: exp.Expr) -> None:
    if node.args.get("over") not in (None, "OVER"):
        _refuse(str(node.args["over"]), node)
    named = node.args.get("alias") is not None
    if named and any(node.args.get(name) for name in ("partition_by", "order", "spec")):
        _refuse("a window that extends a named one", node, "Write it out.")


def _frame(node: exp.Expr) -> None:
    if node.args.get("kind") not in ("ROWS", "RANGE"):
        _refuse(f"a window frame in {node.args.get('kind')}", node)


_FIELD_WORDS: Final = (
    "century day decade dow doy epoch hour isodow isoyear microsecond microseconds millennium millisecond milliseconds "
    "minute month quarter second week year"
)
_FIELDS: Final = frozenset(_FIELD_WORDS.split())
_TRUNCATED: Final = frozenset(
    ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
)


def _field(node: exp.Expr) -> None:
    _known_unit(node.this, _FIELDS)


def _unit(node: exp.Expr) -> None:
    _known_unit(node.args["unit"], _TRUNCATED)


OPEN_UNIT: Final = "date_trunc with a unit that is no literal"
"""What such a call is named in the tree."""


def _open_unit(node: exp.Expr) -> None:
    if node.this == OPEN_UNIT:
        _refuse(OPEN_UNIT, node.expressions[0] if node.expressions else node)


def _known_unit(node: exp.Expr, known: frozenset[str]) -> None:
    if node.name.lower() not in known or not isinstance(node, (exp.Var, exp.Literal)):
        raise StatementError(
            f'unit "{node.name.lower()}" not supported for this function',
            sqlstate="0A000", hint=f"There are {', '.join(sorted(known))}.", position=position_of(node),
        )  # fmt: skip


def _interval(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.Literal):
        _refuse("an interval that is no literal", node, "Multiply one: x * INTERVAL '1 day'.")


def _plain_word(node: exp.Expr) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9 ]*", node.name):
        _refuse(f'"{node.name}"', node)


def _is(node: exp.Expr) -> None:
    if not isinstance(node.expression, (exp.Null, exp.Boolean)):
        _refuse("this test with IS", node)


_COLLATIONS: Final = frozenset(("default", "c", "posix", "ucs_basic"))
"""Those that order text by code points, as all text is ordered."""


def _collation(node: exp.Expr) -> None:
    name = node.expression.name
    if name.lower() not in _COLLATIONS:
        _refuse(f'COLLATE "{name}"', node.expression, 'Text is compared by code point, as with COLLATE "C".')


def _any(node: exp.Expr) -> None:
    if not isinstance(node.parent, (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)):
        _refuse("ANY with another operator than a comparison", node)


def _if(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.Case):
        _refuse("the function if", node, "Use CASE.")


def _dimension(node: exp.Expr) -> None:
    dimension = node.args.get("expression")
    if dimension is not None and not (isinstance(dimension, exp.Literal) and dimension.name == "1"):
        _refuse("array_length of another dimension than 1", node)


def _json(node: exp.Expr) -> None:
    if not isinstance(node.expression, exp.JSONPath):
        _refuse("a JSON operator with a key that is no literal", node)
    if isinstance(node, exp.JSONExtractScalar):
        return
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    if not isinstance(above, (exp.JSONExtract, exp.JSONExtractScalar)):
        _refuse("-> that is not followed by ->>", node, "Use ->> for the text of a value.")


def _data_type(node: exp.Expr) -> None:
    if not isinstance(node.this, exp.DType):
        _refuse("this type", node)


def _sets(node: exp.Expr) -> None:
    """At most one function that returns a set: PostgreSQL advances several in step."""
    found = [
        call for item in node.expressions for call in item.find_all(exp.Explode, exp.ExplodingGenerateSeries)
        if call.find_ancestor(exp.Select) is node
    ]  # fmt: skip
    if len(found) > 1:
        _refuse("several set-returning functions in one SELECT list", found[1], "Call them in FROM.")


_RESERVED: Final = re.compile(
    r"__(?:[lrs]|item|rank|k\d+|window|windowed|time|first|timed|begun|sessions|ranked|values|view|new_.*|format_type)",
    re.IGNORECASE,
)
"""Names that the translation gives to what it makes."""


class ReservedName(StatementError):
    """A name that is the system's own."""

    sqlstate = "42939"


def _name(node: exp.Expr) -> None:
    if _RESERVED.fullmatch(node.name):
        raise ReservedName(f'the name "{node.name}" is reserved', position=position_of(node))


def _update(node: exp.Expr) -> None:
    _statement(node)
    for item in node.expressions:
        left = item.this
        targets = left.expressions if isinstance(left, exp.Tuple) else [left.unnest()]
        for target in targets:
            if not isinstance(target, exp.Column) or target.table or not isinstance(target.this, exp.Identifier):
                _refuse("SET of a part of a column", target, "Name the column alone.")
    if node.this.args.get("joins"):
        _refuse("UPDATE of several relations", node.this)


def _delete(node: exp.Expr) -> None:
    _statement(node)
    if not isinstance(node.this, exp.Table):
        _refuse("DELETE without FROM", node)


_SPECIAL: Final[Mapping[type[exp.Expr], Callable[[exp.Expr], None]]] = {
    exp.Anonymous: _open_unit,
    exp.Any: _any,
    exp.ArraySize: _dimension,
    exp.Collate: _collation,
    exp.DataType: _data_type,
    exp.Delete: _delete,
    exp.Extract: _field,
    exp.Identifier: _name,
    exp.If: _if,
    exp.Insert: _statement,
    exp.Interval: _interval,
    exp.Is: _is,
    exp.JSONExtract: _json,
    exp.JSONExtractScalar: _json,
    exp.Join: _join,
    exp.Select: _sets,
    exp.Table: _table,
    exp.TableAlias: _alias,
    exp.TimestampTrunc: _unit,
    exp.Update: _update,
    exp.Var: _plain_word,
    exp.Version: _version,
    exp.Window: _window,
    exp.WindowSpec: _frame,
}
