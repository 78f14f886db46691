"""Records: structs for Spark, whose fields PostgreSQL calls `f1`, `f2`, ... where nobody has named them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Expr
from headrace.sql.binder.parse_tree import Message, NotBound, place, refuse
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type


def record(parts: Sequence[Expr]) -> Expr:
    """`ROW(...)`."""
    if not parts or any(p.type.category == "?" for p in parts):
        raise NotBound("a row of such values")
    items = ", ".join(f"'f{i + 1}', {{{i}}}" for i in range(len(parts)))
    spark = "struct<" + ",".join(f"f{i + 1}:{p.type.spark}" for i, p in enumerate(parts)) + ">"
    return Call(Type("record", spark, "P"), f"named_struct({items})", tuple(parts))


def field_of(found: Expr, name: str, message: Message) -> Expr:
    """`(record).field`."""
    if found.type.name != "record":
        words = f"column notation .{name} applied to type {found.type}, which is not a composite type"
        raise Wrong(words, "42809", place(message))
    for field, spark in t.fields_of(found.type):
        if field == name:
            kind = t.of_spark(spark)
            if kind is None:
                refuse(f"a field of type {spark}", message)
            return Call(kind, f"{{0}}.{_quoted(name)}", (found,))
    raise Wrong(f'column "{name}" not found in data type record', "42703", place(message))


def _quoted(name: str) -> str:
    if set(name) & set("{}`"):
        raise NotBound(f'a field with the name "{name}"')
    return f"`{name}`"


def is_null(found: Expr, negative: bool) -> Expr:
    """A record is null if all its fields are, and is not null if none of them is."""
    tests = []
    for name, _ in t.fields_of(found.type):
        tests.append(f"{{0}}.{_quoted(name)} IS {'NOT ' if negative else ''}NULL")
    joined = " AND ".join(tests)
    return Call(t.BOOL, f"({joined})" if negative else f"({{0}} IS NULL OR ({joined}))", (found,))
