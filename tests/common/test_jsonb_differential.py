"""The functions of documents give what PostgreSQL gives, for random documents."""

from __future__ import annotations

import random
from typing import Any

from headrace.common.jsonb import document
from headrace.common.jsonb.column_kernels import compute

COUNT = 4000
WORDS = ("a", "b", "aa", "", "1", "-1", "0", "é", 'x"\\')


def _document(source: random.Random, depth: int = 3) -> str:
    kind = source.randrange(7 if depth else 5)
    if kind < 5:
        number = source.choice(["0", "-1", "1.0", "1.50", "2e2", "-0.010", "100", "12345678901234567890.5"])
        return source.choice(["null", "true", "false", number, number, document.string_text(source.choice(WORDS))])
    parts = [_document(source, depth - 1) for _ in range(source.randrange(4))]
    if kind == 5:
        return f"[{', '.join(parts)}]"
    return "{" + ", ".join(f"{document.string_text(source.choice(WORDS))}: {part}" for part in parts) + "}"


def _call(source: random.Random) -> tuple[str, str, tuple[Any, ...], str]:
    """A kernel, its arguments, and PostgreSQL's expression."""
    a, b, word, place = _document(source), _document(source), source.choice(WORDS), source.randrange(-3, 4)
    path = [source.choice(WORDS) for _ in range(source.randrange(3))]
    flag = source.random() < 0.5
    a_, b_, w_, p_ = (
        f"{_quoted(a)}::jsonb",
        f"{_quoted(b)}::jsonb",
        f"{_quoted(word)}::text",
        f"ARRAY[{', '.join(map(_quoted, path))}]::text[]",
    )
    a, b = (document.written(document.read(text)) for text in (a, b))
    return source.choice([
        ("jsonb", "read", (a,), a_), ("jsonb", "field", (a, word), f"{a_} -> {w_}"),
        ("jsonb", "element", (a, place), f"{a_} -> {place}"), ("text", "field_text", (a, word), f"{a_} ->> {w_}"),
        ("text", "element_text", (a, place), f"{a_} ->> {place}"), ("jsonb", "path", (a, path), f"{a_} #> {p_}"),
        ("text", "path_text", (a, path), f"{a_} #>> {p_}"), ("bool", "contains", (a, b), f"{a_} @> {b_}"),
        ("bool", "has", (a, word), f"{a_} ? {w_}"), ("bool", "has_any", (a, path), f"{a_} ?| {p_}"),
        ("bool", "has_all", (a, path), f"{a_} ?& {p_}"), ("jsonb", "concat", (a, b), f"{a_} || {b_}"),
        ("jsonb", "minus", (a, word), f"{a_} - {w_}"), ("jsonb", "minus_place", (a, place), f"{a_} - {place}"),
        ("jsonb", "minus_all", (a, path), f"{a_} - {p_}"), ("jsonb", "minus_path", (a, path), f"{a_} #- {p_}"),
        ("jsonb", "set", (a, path, b, flag), f"jsonb_set({a_}, {p_}, {b_}, {flag})"),
        ("jsonb", "insert", (a, path, b, flag), f"jsonb_insert({a_}, {p_}, {b_}, {flag})"),
        ("jsonb", "strip_nulls", (a,), f"jsonb_strip_nulls({a_})"), ("text", "pretty", (a,), f"jsonb_pretty({a_})"),
        ("text", "typeof", (a,), f"jsonb_typeof({a_})"), ("int4", "length", (a,), f"jsonb_array_length({a_})"),
        ("text", "number", (a, "integer"), f"({a_})::int"), ("bool", "boolean", (a,), f"({a_})::bool"),
    ])  # fmt: skip


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _ours(result: str, name: str, given: tuple[Any, ...]) -> str | None:
    value, error = compute(result, name, given)
    if error is not None:
        return "error " + error.split("[")[1][:5]
    if value is None:
        return None
    return str(value[document.TEXT]) if result == "jsonb" else str(value).lower() if result == "bool" else str(value)


def _theirs(connection: Any, expression: str) -> str | None:
    found = connection.pgconn.exec_(f"SELECT ({expression})::text".encode())
    if found.error_message:
        return "error " + found.error_field(67).decode()
    value = found.get_value(0, 0)
    return None if value is None else value.decode()


def test_kernels(postgres: Any) -> None:
    source = random.Random(7)
    with postgres.new_database("documents").connect(autocommit=True) as connection:
        wrong = []
        for _ in range(COUNT):
            result, name, given, expression = _call(source)
            mine, other = _ours(result, name, given), _theirs(connection, expression)
            if mine != other:
                wrong.append((expression, mine, other))
        assert wrong == []


def test_order(postgres: Any) -> None:
    source = random.Random(8)
    with postgres.new_database("order_of_documents").connect(autocommit=True) as connection:
        for _ in range(COUNT // 3):
            a, b = _document(source), _document(source)
            left, right = (document.key(document.read(text)) for text in (a, b))
            mine = "less" if left < right else "equal" if left == right else "more"
            x, y = f"{_quoted(a)}::jsonb", _quoted(b)
            compared = f"CASE WHEN {x} < {y} THEN 'less' WHEN {x} = {y} THEN 'equal' ELSE 'more' END"
            assert mine == _theirs(connection, compared), (a, b)
