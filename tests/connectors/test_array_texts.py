"""PostgreSQL's spelling of arrays, as columns: what is quoted, nested, NULL, and what a column cannot hold."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.parsed_values import strings_to_array
from headrace.connectors.postgres.array_texts import arrays_of


def read(texts: list[str | None], kind: pa.DataType) -> tuple[list[object], list[tuple[int, str]]]:
    made, bad = arrays_of(pa.array(texts, pa.string()), kind, strings_to_array)
    assert made.type == kind
    return made.to_pylist(), bad


def test_plain_and_quoted() -> None:
    texts = ["{}", None, "{1,NULL,-3}", "{4}"]
    assert read(texts, pa.list_(pa.int32())) == ([[], None, [1, None, -3], [4]], [])
    spelled = ['{a,"b c","d,e","\\"\\\\",NULL,"NULL","",é}', "{NULL}", '{"{1}"}']
    words = [["a", "b c", "d,e", '"\\', None, "NULL", "", "é"], [None], ["{1}"]]
    assert read(spelled, pa.list_(pa.string())) == (words, [])


def test_nested() -> None:
    kind = pa.list_(pa.list_(pa.string()))
    found = read(['{{a,"}{"},{NULL,"\\""}}', "{}", None, "{{x}}"], kind)
    assert found == ([[["a", "}{"], [None, '"']], [], None, [["x"]]], [])


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("{{1,2},{3,4}}", pa.list_(pa.int32()), "more dimensions"),
        ('{{"a b"}}', pa.list_(pa.string()), "more dimensions"),
        ("{1,2}", pa.list_(pa.list_(pa.int32())), "fewer dimensions"),
        ("[0:1]={1,2}", pa.list_(pa.int32()), "not numbered from 1"),
        ("{1,x}", pa.list_(pa.int32()), "an element: not a whole number"),
        ("1", pa.list_(pa.int32()), "not an array"),
        ('{"a"b}', pa.list_(pa.string()), "not an array"),
    ],
)
def test_what_a_column_cannot_hold_is_one_row_at_fault(text: str, kind: pa.DataType, said: str) -> None:
    good = "{{7}}" if pa.types.is_list(kind.value_type) else "{7}"
    rows, bad = read([good, text, good], kind)
    assert rows[1] is None and rows[0] == rows[2] != [] and [i for i, _ in bad] == [1] and said in bad[0][1]


@given(st.lists(st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"))))))
def test_what_is_quoted_comes_back(arrays: list[list[str | None]]) -> None:
    def spelled(value: str | None) -> str:
        return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    texts: list[str | None] = ["{" + ",".join(map(spelled, array)) + "}" for array in arrays]
    assert read(texts, pa.list_(pa.string())) == (arrays, [])
