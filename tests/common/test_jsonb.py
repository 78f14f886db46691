"""Documents: what is read is written as PostgreSQL writes it, and keys compare as it compares."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.jsonb import document
from headrace.common.jsonb.column_kernels import compute, over_columns
from headrace.common.jsonb.document import JsonbFault

DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.text('ab\x01é"\\', max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"bb": 1.50, "a":[1,2e3,{"x":null,"x":"\\u00e9\\n"}], "c":true}',
         '{"a": [1, 2000, {"x": "é\\n"}], "c": true, "bb": 1.50}'),
        ("-0.0", "0.0"), ("1.5e-3", "0.0015"), ("0e5", "0"), (' "\\u0001\\/" ', '"\\u0001/"'), ("[]", "[]"),
    ],
)  # fmt: skip
def test_a_text_is_written_as_postgresql_does(given: str, shown: str) -> None:
    assert document.written(document.read(given)) == shown


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [("{", "22P02"), ("NaN", "22P02"), ("[1,]", "22P02"), ("01", "22P02"),
     ('"\\u0000"', "22P05"), ('"\\ud800"', "22P02"),
     ("1e200000", "22003"), ("[" * 100_000, "54001"),
     ("", "22P02")],
)  # fmt: skip
def test_what_is_no_document_is_refused(text: str, sqlstate: str) -> None:
    with pytest.raises(JsonbFault) as found:
        document.read(text)
    assert found.value.sqlstate == sqlstate


MANY_ZEROS = "[" + ", ".join(["1e999"] * 50) + "]"


@pytest.mark.parametrize("text", [MANY_ZEROS, MANY_ZEROS.replace("e", "E-"), "1e131071", '{"a": {"b": -1.5e21000}}'])
def test_zeros_of_exponents_are_counted_before_they_are_written(text: str) -> None:
    with pytest.raises(JsonbFault, match="too many zeros") as found:
        document.read(text)
    assert found.value.sqlstate == "54000"
    assert "too many zeros" in (compute("jsonb", "read", (text,))[1] or "")


@pytest.mark.parametrize(
    "text", ["1e19000", "1e-16383", "0e131000", "[1E400, 1e308, 1e-300]", "[" + "1.5e3," * 999 + "1]"]
)
def test_numbers_within_the_bound_are_written_in_full(text: str) -> None:
    shown = document.stored(document.read(text))[document.TEXT]
    assert "e" not in shown.lower()
    assert document.key(document.known(shown)) == document.key(document.read(text))


def test_what_functions_make_is_counted_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MOST_CHARACTERS", 1000)
    half = json.dumps("x" * 600)
    for result, name, arguments in (
        ("jsonb", "array", ("j", half, "j", half)), ("jsonb", "concat", (half, half)),
        ("text", "path_text", (f"[[{half}, {half}]]", ["0"])),
        ("text", "pretty", ("[" * 20 + "]" * 20,)), ("jsonb[]", "elements", (f"[[{half}, {half}]]",)),
    ):  # fmt: skip
        value, error = compute(result, name, arguments)
        assert value is None and error and "[54000] the jsonb document is too large" in error, name
    assert compute("jsonb", "array", ("j", half))[1] is None


def test_a_deep_document_is_refused_when_it_is_written() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(JsonbFault) as found:
        document.stored(deep)
    assert found.value.sqlstate == "54001"


@settings(deadline=None)
@given(DOCUMENTS)
def test_what_is_written_reads_back_the_same(found: object) -> None:
    text = document.written(found)
    assert document.written(document.read(text)) == text
    assert document.key(document.read(text)) == document.key(document.known(text))


def test_keys_are_in_the_order_of_documents() -> None:
    texts = ["[]", "null", '""', '"a"', '"b"', "-10", "-9.99", "-0.5", "0", "0.001", "1", "1.5", "9", "10", "1e3",
             "false", "true", "[1]", '["a", 1]', "[0, 5]",
             "{}", '{"a": 1}', '{"b": 0}', '{"a": 1, "b": 2}']  # fmt: skip
    keys = [document.key(document.read(text)) for text in texts]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_equal_documents_have_one_key_and_one_that_stands_for_them() -> None:
    left, right = (document.read(text) for text in ('{"a": 1.0, "b": [100, 0.0]}', '{"b": [1e2, 0], "a": 1}'))
    assert document.key(left) == document.key(right)
    assert document.written(document.without_scale(left)) == document.written(document.without_scale(right))


def test_a_kernel_says_what_is_wrong_instead_of_failing() -> None:
    assert compute("int4", "length", ('{"a": 1}',)) == (
        None, "headrace.errors.DataError: [22023] cannot get array length of a non-array",
    )  # fmt: skip
    found = over_columns(
        "text", (pa.array(["field_text"] * 3), pa.array(['{"a": 1.0}', None, "{}"]), pa.array(["a"] * 3))
    )
    assert found.to_pylist() == [{"v": "1.0", "e": None}, {"v": None, "e": None}, {"v": None, "e": None}]
