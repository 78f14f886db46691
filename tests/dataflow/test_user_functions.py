"""Users' functions as workers run them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from headrace.dataflow.operators import calls
from headrace.dataflow.operators import python_calls as code
from headrace.dataflow.operators.python_calls import FunctionCode, NoFunction


def made(source: str, *parameters: str, **more: Any) -> FunctionCode:
    return FunctionCode("f", code.code_of(source), None, parameters, **more)


@pytest.mark.parametrize(
    "source",
    ["def f(a, b):\n    return a - b", "return a - b", "\n    c = a\n    return c - b\n", "f = lambda a, b: a - b",
     "import operator\nf = operator.sub"],
)  # fmt: skip
def test_bodies(source: str) -> None:
    assert code.scalar(made(source, "a", "b"))(7, 2) == 5


def test_a_body_that_is_no_function() -> None:
    with pytest.raises(NoFunction, match="no function f"):
        code.function_of(made("def g(): return 1"))
    with pytest.raises(NoFunction, match="not a function but int"):
        code.function_of(made("f = 1"))
    with pytest.raises(SyntaxError):
        code.function_of(made("return (1"))
    with pytest.raises(NoFunction, match="names"):
        code.function_of(FunctionCode("f", "return 1\n", None, None))


def test_strict_functions_are_not_called_with_null() -> None:
    definition = made("return a + b", "a", "b", strict=True)
    assert [code.scalar(definition)(1, None), code.scalar(definition)(1, 2)] == [None, 3]
    handler = code.table(made("yield a", "a", strict=True), 1)()
    assert list(handler.eval(None)) == [] and list(handler.eval(3)) == [(3,)]


def test_tracebacks_show_the_lines_of_the_body() -> None:
    import traceback

    try:
        code.scalar(made("\n  x = 1 / a\n  return x", "a"))(0)
    except ZeroDivisionError:
        text = traceback.format_exc()
    assert 'File "<function f>", line 1, in f' in text and "x = 1 / a" in text


@pytest.mark.parametrize(
    ("row", "width", "expected"),
    [(1, 1, (1,)), ((1,), 1, (1,)), ([1, 2], 1, ([1, 2],)), ([1, 2], 2, (1, 2)), ({"x": 1, "y": 2}, 2, (1, 2))],
)
def test_rows_of_table_functions(row: Any, width: int, expected: tuple[Any, ...]) -> None:
    assert code.row_of(row, width) == expected


STEPS = """
def create_state(): return []
def accumulate(state, v, w): return [*state, (v, w)]
def finish(state): return sum((v or 0) * w for v, w in state)
"""


def groups(*rows: list[tuple[Any, ...]] | None) -> pa.Array:
    kind = pa.list_(pa.struct([("a0", pa.int64()), ("a1", pa.int64())]))
    return pa.array([None if r is None else [{"a0": a, "a1": b} for a, b in r] for r in rows], kind)


def test_aggregates_over_lists_of_rows() -> None:
    call = code.aggregate(made(STEPS), pa.int64(), 2)
    given = groups([(9, 9)], [(1, 2), (None, 5), (3, 4)], [], None)
    assert call(given.slice(1)).to_pylist() == [14, 0, None]
    strict = code.aggregate(made("def f(v, w): return len(v)", strict=True, vectorized="pandas"), pa.int64(), 2)
    assert strict(given).to_pylist() == [1, 2, 0, None]
    arrow = code.aggregate(
        made("import pyarrow.compute as pc\ndef f(v, w): return pc.sum(w)", vectorized="arrow"), pa.int64(), 2
    )
    assert arrow(given).to_pylist() == [9, 11, None, None]
    with pytest.raises(NoFunction, match="accumulate"):
        code.state_functions(made("def create_state(): return 0"))


def command(function: Any) -> bytes:
    return cloudpickle.dumps((function, None))


def test_maps_keep_the_sign_of_rows() -> None:
    def big(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[frame["a"] > 1][["b", "a"]]

    run = calls.map_frames(command(big), ["a", "b"])
    batches = [
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "__w": [1, 2]}),
        pd.DataFrame({"a": [3, 4], "b": ["z", "v"], "__w": [-1, 1]}),
    ]
    found = pd.concat(list(run(iter(batches)))).values.tolist()
    assert found == [[2, "y", 1], [2, "y", 1], [4, "v", 1], [3, "z", -1]]
    assert list(run(iter([]))) == []


def test_a_map_that_stops_early_does_not_hide_removed_rows() -> None:
    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    run = calls.map_batches(command(first), ["a"])
    given = [pa.RecordBatch.from_pydict({"a": [i], "__w": [w]}) for i, w in ((1, 1), (2, 1), (3, -1))]
    assert [b.to_pylist() for b in run(iter(given))] == [[{"a": 1, "__w": 1}], [{"a": 3, "__w": -1}]]


def test_groups_keep_their_side() -> None:
    run = calls.apply_frame(command(lambda key, rows: pd.DataFrame([[key[0], len(rows)]])), 2, ["k", "n"])
    group = pd.DataFrame({"k": [1, 1], "v": [2, 3], "__g0": [1, 1], "__side": [0, 0]})
    assert run((1, 0), group).values.tolist() == [[1, 2, 0]]
    with pytest.raises(ValueError, match="no column n"):
        calls.apply_frame(command(lambda rows: rows), 2, ["k", "n"])((1, 0), group)
    with pytest.raises(ValueError, match="1 columns; 2 are declared"):
        calls.apply_frame(command(lambda rows: pd.DataFrame([[1]])), 2, ["k", "n"])((1, 0), group)
    table = calls.apply_table(command(lambda rows: rows.select(["v"])), 2, ["v"])
    made_table = table((pa.scalar(1), pa.scalar(1)), pa.Table.from_pandas(group))
    assert made_table.to_pylist() == [{"v": 2, "__side": 1}, {"v": 3, "__side": 1}]
