"""Tables that take requests: what VALIDATE says, what it accepts, and bodies as rows. No network."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from headrace.common.columns import Column
from headrace.common.jsonb import document
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.connectors.webhook.body import MAX_CELLS, MAX_DEPTH, BodyFault, check_not_null, rows_of
from headrace.connectors.webhook.options import check_options
from headrace.connectors.webhook.validation import Validation
from headrace.errors import HeadraceError, InvalidParameter, NotSupported
from headrace.sql import statements as st
from headrace.sql.parser import parse

COLUMNS = (Column("id", "int"), Column("name", "string"), Column("amount", "decimal(10,2)"), Column("at", "timestamp"))
BODY = b'{"id": 1}'


def rows(body: bytes | str, *columns: Column, lines: bool = False) -> list[Any]:
    found = rows_of(body if isinstance(body, bytes) else body.encode(), columns or COLUMNS, lines=lines)
    return [tuple(row.values()) for row in found.to_pylist()]


def fault(body: bytes | str, *columns: Column, lines: bool = False) -> BodyFault:
    with pytest.raises(BodyFault) as caught:
        rows(body, *columns, lines=lines)
    return caught.value


# ---- bodies


def test_an_object_an_array_and_lines_are_rows() -> None:
    first, second = (
        '{"id": 1, "name": "ann", "amount": 1.005, "other": [1]}',
        '{"at": "2024-05-01T12:00:00+02:00", "id": 2}',
    )
    expected = [(1, "ann", Decimal("1.01"), None), (2, None, None, datetime(2024, 5, 1, 10, tzinfo=UTC))]
    assert rows(first) == expected[:1]
    assert rows(f"[{first},\n {second}]") == expected
    assert rows(f"{first}\n\r\n{second}\r\n", lines=True) == expected
    assert rows(f"[{first}]\n{second}", lines=True) == expected
    assert rows("[]") == rows("", lines=True) == []


def test_one_column_of_jsonb_takes_each_document_as_it_is() -> None:
    whole = Column("data", JSONB)
    texts = lambda *a, **k: [row[0]["hr_jsonb"] for row in rows(*a, **k)]  # noqa: E731
    assert texts('{"b": 1.50, "a": [null]}', whole) == ['{"a": [null], "b": 1.50}']
    assert texts('[{"a": 1}, 2]', whole) == ['[{"a": 1}, 2]'], "an array is one document"
    assert texts('[1]\n"x"\n', whole, lines=True) == ["[1]", '"x"']


def test_a_column_of_jsonb_among_others() -> None:
    found = rows(
        '[{"id": 1, "j": {"x": 1.0}}, {"id": 2, "j": null}, {"id": 3}]', Column("id", "int"), Column("j", JSONB)
    )
    assert [(i, j and j["hr_jsonb"]) for i, j in found] == [(1, '{"x": 1.0}'), (2, None), (3, None)]


def test_members_stand_for_columns_that_they_differ_from_in_capitals_alone() -> None:
    columns = (Column("id", "int"), Column("j", JSONB))
    assert [(i, j["hr_jsonb"]) for i, j in rows('{"Id": 1, "J": [2]}', *columns)] == [(1, "[2]")]
    assert rows('{"J": 1, "j": 2}', *columns)[0][1]["hr_jsonb"] == "2"
    assert fault('[{}, {"ID": 1, "Id": 2}]', *columns).record == 2
    assert fault('[{}, {"NAme": 1, "NAME": 2}]', Column("name", JSONB), columns[0]).record == 2


@pytest.mark.parametrize(
    ("body", "lines", "record", "column", "message"),
    [
        (b"", False, 1, None, "malformed JSON"),
        (b"{", False, 1, None, "malformed JSON"),
        (b'{"id": 1}\n{"id": 2}', False, 1, None, "malformed JSON: Extra data"),
        (b'{"id": 1}\n{"id": }', True, 2, None, "malformed JSON"),
        (b'[{"id": 1}, 7]', False, 2, None, "not a JSON object"),
        (b'[{"id": 1}, {"id": "x"}]', False, 2, "id", "not a whole number"),
        (b'[{"id": 1}, {"id": 4000000000}]', False, 2, "id", "out of range"),
        (b'{"at": "yesterday"}', False, 1, "at", "not a timestamp"),
        (b'{"amount": NaN}', False, 1, None, "NaN is not JSON"),
        (b'{"name": "\xff"}', False, None, None, "not UTF-8"),
        (b"\xef\xbb\xbf{}", False, 1, None, "malformed JSON"),
        (b'{"id": 1e9999}', False, None, None, "exponent"),
        (b'{"name": "a\\\\\\u0000"}', False, None, None, "u0000"),
        (rb'[{"id": 1}, {"name": "\ud800"}]', False, 2, "name", "surrogates"),
        (rb'[{"id": 1}, {"name": ["\ud800"]}]', False, 2, "name", "surrogates"),
        (rb'[{"id": 1}, {"name": {"\ud800": 1}}]', False, 2, "name", "surrogates"),
        (b'{"x": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", False, None, None, "inside of one another"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_record(
    body: bytes, lines: bool, record: int | None, column: str | None, message: str
) -> None:
    found = fault(body, lines=lines)
    assert (found.record, found.column) == (record, column) and message in found.message


def test_depth_and_exponents_count_outside_of_strings() -> None:
    text = "[" * 200 + ' 1e9999 \\" ' + "{" * 200
    assert rows(json.dumps({"name": text})) == [(None, text, None, None)]
    assert rows(rb'{"name": "\\u0000"}') == [(None, r"\u0000", None, None)], "six plain characters"
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert rows(f'{{"id": 1, "x": {deep}}}')[0][0] == 1
    assert "exponent" in fault('{"a": 1E+00123456}', Column("data", JSONB)).message


def test_numbers_that_are_far_longer_than_the_body() -> None:
    whole = Column("data", JSONB)
    many = "[" + ",".join(["1e999"] * 1000) + "]"
    assert "too many digits" in fault(many, whole).message
    assert "too many digits" in fault(many.replace("e", "E-"), whole).message
    assert len(rows(json.dumps({"x": many}), whole)) == 1, "a string is as long as it is"
    assert len(rows(f"[1e308, 1e-300, 1e{'0' * 5000}]", whole)) == 1
    assert len(rows("[" + ",".join(["1.5e3"] * 50_000) + "]", whole)) == 1


@pytest.mark.parametrize("columns", [(Column("j", JSONB),), (Column("id", "int"), Column("j", JSONB))])
def test_a_document_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch, columns: tuple[Column, ...]) -> None:
    monkeypatch.setattr(document, "MOST_CHARACTERS", 100)
    wrong = fault('{"id": 1, "j": {"x": "' + "y" * 200 + '"}}', *columns)
    assert "too large" in wrong.message and (wrong.record, wrong.column) == (1, "j")


def test_rows_times_columns_have_a_bound() -> None:
    wide = [Column(f"c{i}", "int") for i in range(100)]
    body = f"[{','.join(['{}'] * (MAX_CELLS // 100 + 1))}]"
    assert "send fewer" in fault(body, *wide).message
    assert len(rows(body, *wide[:1])) == MAX_CELLS // 100 + 1


def test_a_column_that_must_have_a_value() -> None:
    found = rows_of(b'[{"id": 1}, {"name": "x"}]', COLUMNS, lines=False)
    check_not_null(found, [])
    with pytest.raises(BodyFault, match='null value in column "id"') as caught:
        check_not_null(found, ["id"])
    assert caught.value.record == 2


# ---- VALIDATE


def table(validate: str, columns: str = "data jsonb") -> st.CreateTable:
    (found,) = parse(f"CREATE TABLE t ({columns}) WITH (connector = 'webhook') VALIDATE {validate}")
    assert isinstance(found, st.CreateTable)
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("secure_compare(headers->>'Authorization', s)", Validation("authorization")),
        ("secure_compare(headers->>'authorization', 'Bearer ' || s)", Validation("authorization", "Bearer ")),
        (
            "secure_compare(headers->>'x-hub-signature-256', 'sha256=' || encode(hmac(s, data, 'sha256'), 'hex'))",
            Validation("x-hub-signature-256", "sha256=", "sha256", "hex"),
        ),
        (
            "SECURE_COMPARE(headers->>'x-sig', encode(hmac(s, payload, 'sha1'), 'base64'))",
            Validation("x-sig", "", "sha1", "base64"),
        ),
    ],
)  # fmt: skip
def test_what_validate_says(expression: str, expected: Validation) -> None:
    found = table(f"SECRET s AS {expression}")
    assert found.validation == expected and dict(found.secrets) == {"validate.secret": st.TableName(None, "s")}
    assert Validation.of({"connector": "webhook", **expected.options()}) == expected


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("AS secure_compare(headers->>'x', 'raw')", "AS"),
        ("SECRET s AS true", "true"),
        ("SECRET s AS headers->>'x' = s", "headers"),
        ("SECRET s AS secure_compare(s, headers->>'x')", "s, headers"),
        ("SECRET s AS secure_compare(headers->'x', s)", "->'x'"),
        ("SECRET s AS secure_compare(headers->>lower('x'), s)", "lower"),
        ("SECRET s AS secure_compare(headers->>'', s)", "''"),
        ("SECRET s AS secure_compare(headers->>'x y', s)", "'x y'"),
        ("SECRET s AS secure_compare(headers->>'x:', s)", "'x:'"),
        ("SECRET s AS secure_compare(headers->>'é', s)", "'é'"),
        ("SECRET s AS secure_compare(headers->>'x', other)", "other"),
        ("SECRET s AS secure_compare(headers->>'x', 'raw')", ") "),
        ("SECRET s AS secure_compare(headers->>'x', s || 'x')", "|| 'x'"),
        ("SECRET s AS secure_compare(headers->>'x', encode(hmac(s, data, 'md5'), 'hex')) ", "'md5'"),
        ("SECRET s AS secure_compare(headers->>'x', encode(hmac(s, data, 'sha256'), 'escape'))", "'escape'"),
        ("SECRET s AS secure_compare(headers->>'x', encode(hmac(data, s, 'sha256'), 'hex'))", "data"),
        ("SECRET s AS secure_compare(headers->>'x', encode(hmac(s, headers, 'sha256'), 'hex'))", "headers, 'sha256'"),
        ("SECRET s AS secure_compare(headers->>'x', encode(hmac(s, lower(data), 'sha256'), 'hex'))", "lower"),
        ("SECRET s AS secure_compare(headers->>'x', s, s)", ", s)"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_where_it_stands(said: str, at: str) -> None:
    start = "CREATE TABLE t (data jsonb) WITH (connector = 'webhook') VALIDATE "
    with pytest.raises(NotSupported) as caught:
        parse(f"{start}{said} ")
    assert caught.value.position == len(start) + (said + " ").rindex(at) + 1
    assert caught.value.hint


def test_the_body_has_the_name_of_a_column_only_where_there_is_one() -> None:
    signed = "SECRET s AS secure_compare(headers->>'x', encode(hmac(s, {}, 'sha256'), 'hex'))"
    assert table(signed.format("payload"), "id int, data jsonb").validation
    with pytest.raises(NotSupported):
        table(signed.format("data"), "id int, data jsonb")


@pytest.mark.parametrize(
    "again", ["VALIDATE SECRET s AS secure_compare(headers->>'x', s)", "WITH (validate.secret = SECRET r)"]
)
def test_a_secret_is_named_once(again: str) -> None:
    with pytest.raises(HeadraceError):
        table(f"SECRET s AS secure_compare(headers->>'x', s) {again}")
    with pytest.raises(HeadraceError):
        parse(f"CREATE TABLE t (a int) {again} VALIDATE SECRET s AS secure_compare(headers->>'x', s)")


@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("digest", ["sha1", "sha256", "sha512"])
def test_signatures(digest: str, encoding: str) -> None:
    proof = Validation("x-sig", "v=", digest, encoding)
    code = hmac.new(b"key", BODY, getattr(hashlib, digest)).digest()
    good = "v=" + (code.hex() if encoding == "hex" else base64.b64encode(code).decode())
    assert proof.accepts([("x-sig", good)], BODY, "key")
    for headers in (
        [],
        [("x-sig", good[2:])],
        [("x-sig", good + "0")],
        [("y", good)],
        [("x-sig", good)] * 2,
        [("x-sig", "é")],
    ):
        assert not proof.accepts(headers, BODY, "key")
    assert not proof.accepts([("x-sig", good)], BODY + b" ", "key")
    assert not proof.accepts([("x-sig", good)], BODY, "other")
    of_nothing = proof.expected(BODY, "").decode()
    assert not proof.accepts([("x-sig", of_nothing)], BODY, ""), "by an empty secret everybody can sign"


def test_a_secret_in_a_header() -> None:
    assert Validation("authorization").accepts([("authorization", "open")], b"", "open")
    assert Validation("authorization", "Bearer ").accepts([("authorization", "Bearer open")], b"", "open")
    assert not Validation("authorization", "Bearer ").accepts([("authorization", "open")], b"", "open")
    assert not Validation("authorization").accepts([("authorization", "")], b"", "")


@pytest.mark.parametrize("name", ["on_error", "max_rows_per_epoch", "format", "validate.header", "path"])
def test_options_that_there_are_not(name: str) -> None:
    with pytest.raises(InvalidParameter, match=name):
        check_options({"connector": "webhook", name: "skip"})
