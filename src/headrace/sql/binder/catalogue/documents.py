"""Functions and operators of `jsonb`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import StatementError
from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import BoundAggregate, Call, Constant, Expr, SortKey
from headrace.sql.binder.catalogue.entries import Entry, Make, made
from headrace.sql.binder.coerce import as_text, coerce
from headrace.sql.binder.overloads import undefined
from headrace.sql.binder.own import kernel
from headrace.sql.binder.parse_tree import NotBound, refuse
from headrace.sql.binder.resolve import Signature
from headrace.sql.binder.types import Type

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

_OPERATORS: Final = """
->(jsonb, text) -> jsonb : field
->(jsonb, int4) -> jsonb : element
->>(jsonb, text) -> text : field_text
->>(jsonb, int4) -> text : element_text
#>(jsonb, text[]) -> jsonb : path
#>>(jsonb, text[]) -> text : path_text
@>(jsonb, jsonb) -> bool : contains
?(jsonb, text) -> bool : has
?|(jsonb, text[]) -> bool : has_any
?&(jsonb, text[]) -> bool : has_all
||(jsonb, jsonb) -> jsonb : concat
-(jsonb, text) -> jsonb : minus
-(jsonb, int4) -> jsonb : minus_place
-(jsonb, text[]) -> jsonb : minus_all
#-(jsonb, text[]) -> jsonb : minus_path
"""
_FUNCTIONS: Final = """
jsonb_typeof(jsonb) -> text : typeof
jsonb_array_length(jsonb) -> int4 : length
jsonb_strip_nulls(jsonb) -> jsonb : strip_nulls
jsonb_pretty(jsonb) -> text : pretty
jsonb_set(jsonb, text[], jsonb, bool) -> jsonb : set
jsonb_insert(jsonb, text[], jsonb, bool) -> jsonb : insert
"""
_KINDS: Final = {
    "bool": "b", "int2": "n", "int4": "n", "int8": "n", "float4": "n", "float8": "n", "numeric": "n", "text": "s", "varchar": "s",
    "jsonb": "j", "date": "s", "timestamp": "s", "timestamptz": "s", "interval": "s", "bytea": "s", "time": "s",
}  # fmt: skip
"""How kernels call a value of SQL that is given to them: a number by its text, a boolean, text, or a document's text."""


def _of(name: str, result: str) -> Make:
    kind = t.SCALARS[result]
    return lambda arguments: kernel(kind, name, arguments)


def _lines(text: str) -> list[Entry]:
    found = []
    for line in text.strip().splitlines():
        head, name = line.split(" : ")
        call, result = head.rsplit(" -> ", 1)
        symbol, listed = call.removesuffix(")").split("(", 1)
        found.append(made(symbol, listed, _of(name, result), result))
    return found


def operators() -> list[Entry]:
    """All operators, comparisons apart."""
    swapped = made("<@", "jsonb, jsonb", lambda a: kernel(t.BOOL, "contains", (a[1], a[0])), "bool")
    return [*_lines(_OPERATORS), swapped]


def spelled(value: Expr) -> tuple[str, Expr]:
    """A value of SQL as kernels take it: how it is given, and what is given."""
    kind = value.type
    if kind.element is not None:
        letter = _KINDS.get(kind.element.name)
        if letter is None:
            raise NotBound(f"{kind} as jsonb")
        if kind.element.name in t.TEXTS:
            return "as", value
        inner = Call(kind.element, "`__j`", ())
        shown = spelled(inner)[1]
        if not isinstance(shown, Call):
            raise NotBound(f"{kind} as jsonb")
        form = "`__j`" if shown is inner else shown.form.replace("{0}", "`__j`")
        return f"a{letter}", Call(t.array_of(shown.type), f"transform({{0}}, `__j` -> {form})", (value,))
    letter = _KINDS.get(kind.name)
    if letter is None:
        raise NotBound(f"{kind} as jsonb")
    if letter == "b" or kind.name in t.TEXTS:
        return letter, value
    if letter == "j":
        return letter, as_text(value)
    if kind.name in ("timestamp", "timestamptz"):
        local = "concat(replace(CAST({0} AS STRING), ' ', 'T'), '')"
        return letter, Call(
            t.TEXT, zone_times.iso_form(zone_times.current()) if kind.name == "timestamptz" else local, (value,)
        )
    return letter, as_text(value)


def _flat(values: Sequence[Expr]) -> list[Expr]:
    """Spellings and values by turns."""
    return [part for value in values for spelling, given in [spelled(value)] for part in (_text(spelling), given)]


def _text(text: str) -> Expr:
    return Constant(t.TEXT, text)


def _to_jsonb(arguments: Sequence[Expr]) -> Expr:
    value = arguments[0]
    return value if value.type.name == "jsonb" else kernel(t.JSONB, "value", _flat(arguments))


def _build_array(arguments: Sequence[Expr]) -> Expr:
    return kernel(t.JSONB, "array", _flat(arguments)) if arguments else Constant(t.JSONB, "[]")


def _build_object(arguments: Sequence[Expr]) -> Expr:
    if len(arguments) % 2:
        raise StatementError("argument list must have even number of elements", sqlstate="22023",
                             hint="The arguments of jsonb_build_object() must consist of alternating keys and values.")  # fmt: skip
    given: list[Expr] = []
    for key, value in zip(arguments[::2], arguments[1::2], strict=True):
        if key.type.is_array or key.type.name in ("jsonb", "record"):
            raise StatementError("key value must be scalar, not array, composite, or json", sqlstate="22023")
        given += [as_text(key), *_flat([value])]
    return kernel(t.JSONB, "object", given) if given else Constant(t.JSONB, "{}")


def _path(name: str, result: Type) -> Make:
    """`jsonb_extract_path`: the steps as arguments of their own."""

    def make(arguments: Sequence[Expr]) -> Expr:
        steps = tuple(coerce(a, t.TEXT, "implicit") for a in arguments[1:])
        holes = ", ".join(f"{{{i}}}" for i in range(len(steps)))
        path = Call(t.array_of(t.TEXT), f"CAST(array({holes}) AS array<string>)", steps)
        return kernel(result, name, (arguments[0], path))

    return make


def _defaulted(name: str, default: str) -> Make:
    return lambda arguments: kernel(t.JSONB, name, (*arguments, Constant(t.BOOL, default)))


def _contained(name: str) -> Make:
    return lambda arguments: kernel(t.BOOL, name, arguments)


def functions() -> list[Entry]:
    """All functions of single rows."""
    return [
        *_lines(_FUNCTIONS),
        made("jsonb_set", "jsonb, text[], jsonb", _defaulted("set", "true"), "jsonb"),
        made("jsonb_insert", "jsonb, text[], jsonb", _defaulted("insert", "false"), "jsonb"),
        made("jsonb_extract_path", "jsonb, text...", _path("path", t.JSONB), "jsonb"),
        made("jsonb_extract_path_text", "jsonb, text...", _path("path_text", t.TEXT), "text"),
        made("to_jsonb", "anyelement", _to_jsonb, "jsonb"),
        made("jsonb_build_array", "", _build_array, "jsonb"),
        made("jsonb_build_array", "any...", _build_array, "jsonb"),
        made("jsonb_build_object", "", _build_object, "jsonb"),
        made("jsonb_build_object", "any...", _build_object, "jsonb"),
        made("jsonb_exists", "jsonb, text", _contained("has"), "bool"),
        made("jsonb_exists_any", "jsonb, text[]", _contained("has_any"), "bool"),
        made("jsonb_exists_all", "jsonb, text[]", _contained("has_all"), "bool"),
        made("jsonb_contains", "jsonb, jsonb", _contained("contains"), "bool"),
    ]


# ---- sets and aggregates

_LISTS: Final = {"jsonb_array_elements": ("elements", "jsonb"), "jsonb_array_elements_text": ("elements_text", "text"),
                 "jsonb_object_keys": ("keys", "text"), "jsonb_each": ("values", "jsonb"),
                 "jsonb_each_text": ("values_text", "text")}  # fmt: skip
SETS: Final = frozenset(_LISTS)
"""Functions that return sets."""


def lists_of(name: str, document: Expr) -> tuple[Expr, ...]:
    """The columns of such a function, each as an array."""
    found, element = _LISTS[name]
    kind = t.array_of(t.SCALARS[element])
    named = () if name.startswith("jsonb_array") else (_text(name),)
    last = kernel(kind, found, (document, *named))
    return (kernel(t.array_of(t.TEXT), "keys", (document, *named)), last) if "each" in name else (last,)


def column_names(name: str) -> tuple[str, ...]:
    """What PostgreSQL calls the columns."""
    return ("key", "value") if "each" in name else ("value",) if "array" in name else (name,)


AGGREGATES: Final = frozenset(("jsonb_agg", "jsonb_object_agg"))
"""Aggregates that make a document."""


def aggregated(
    name: str, arguments: Sequence[Expr], order: tuple[SortKey, ...], where: Expr | None, message: pb.FuncCall
) -> Expr:  # fmt: skip
    """A call of one: the values as a list, and that as a document."""
    count = 2 if name == "jsonb_object_agg" else 1
    if len(arguments) != count:
        undefined(name, [a.type for a in arguments], [Signature(("any",) * count)], message)
    if message.agg_distinct:
        refuse(f"DISTINCT in {name}", message)
    ready = [coerce(a, t.TEXT, "implicit") if a.type.name == "unknown" else a for a in arguments]
    if ready[-1].type.is_array:
        ready[-1] = _to_jsonb(ready[-1:])
    spelling, given = spelled(ready[-1])
    if count == 1:
        values = BoundAggregate(t.array_of(given.type), "array_agg", (given,), False, order, where)
        return kernel(t.JSONB, "value", (_text("a" + spelling), values))
    pair = Type("record", f"struct<k:string,v:{given.type.spark}>", "P")
    row = Call(pair, "named_struct('k', {0}, 'v', {1})", (as_text(ready[0]), given))
    rows = BoundAggregate(
        Type("rows", f"array<{pair.spark}>", "A", element=pair), "array_agg", (row,), False, order, where
    )
    return kernel(t.JSONB, "object_agg", (_text(spelling), rows))
