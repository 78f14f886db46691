"""Views that go on past rows on which an expression fails: the law, with a query that never fails as the oracle."""

from __future__ import annotations

import pytest
from engine import Engine, Row, Table
from on_error_queries import QUERIES
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import DivisionByZero, NumericOutOfRange

SOUND = [(1, 2, "5"), (2, -5, "7"), (3, 3, "8"), (4, 1, "1")]
FAILING = [(1, 0, "6"), (2, 0, "x"), (3, 3, "x"), (None, 0, "9"), (3, 3, "x"), (5, 4, "2"), (6, 0, "4")]


def _tables() -> list[Table]:
    t = Table(1, "t", (Column("k", "int"), Column("x", "bigint"), Column("s", "string")))
    return [t, Table(2, "u", (Column("k", "int"), Column("y", "bigint")))]


def _errors(e: Engine, parallelism: int, *changes: tuple[str, list[tuple[Row, int]]]) -> int:
    """Take changes in as one epoch, look whether the law holds; how many rows were noted."""
    for name, delta in changes:
        e.change(name, delta)
    result = e.advance(parallelism)
    e.check()
    return result.row_error_count


def _delta(weight: int, *rows: Row) -> list[tuple[Row, int]]:
    return [(row, weight) for row in rows]


@pytest.mark.parametrize(
    ("name", "policy"),
    # One way with each query, in turn; the other one with `make test-all`.
    [
        pytest.param(name, policy, marks=[] if (n + m) % 2 else [pytest.mark.soak])
        for n, name in enumerate(sorted(QUERIES))
        for m, policy in enumerate(("null", "skip"))
    ],
)
def test_the_law_holds_past_failing_rows(spark: SparkSession, name: str, policy: str) -> None:
    """First rows that kernels compute, then some that fail, then these are taken back: at any parallelism."""
    case = QUERIES[name]
    with Engine(spark, _tables(), case.query, on_error=policy, oracle=getattr(case, policy)) as e:
        before = ("u", _delta(1, (1, 5), (3, 3), (2, 1), (None, None)))
        assert _errors(e, 1, ("t", _delta(1, *SOUND)), before) == 0
        noted = _errors(e, 2, ("t", _delta(1, *FAILING)), ("u", _delta(1, (2, 0), (1, None), (4, 0))))
        assert (noted > 0) == (name not in ("not computed", "filtered aggregates"))
        _errors(e, 1, ("t", _delta(-1, *FAILING[:4], SOUND[0])), ("u", _delta(-1, (2, 0), (3, 3))))
        _errors(e, 2, ("t", [*_delta(1, SOUND[0], (7, 0, None)), *_delta(-1, (6, 0, "4"))]), ("u", _delta(-1, (4, 0))))


def test_what_is_noted_of_a_row(spark: SparkSession) -> None:
    """Each inserted row once with the reason, none when it goes; `fail` says the same of the first."""
    query = "SELECT k, 10 div x AS d, CAST(s AS int) AS n FROM t"
    with Engine(spark, _tables(), query, on_error="null", oracle="SELECT k, if(x = 0, NULL, 10 div x) AS d, "
                "try_cast(s AS int) AS n FROM t") as e:  # fmt: skip
        e.insert("t", (1, 0, "6"), (1, 0, "6"), (2, 5, "abc"), (3, 1, "4"))
        result = e.advance(1)
        e.check()
        assert result.row_error_count == 3
        found = {(r.operator, r.expression, r.sqlstate, r.row["s"]) for r in result.row_errors}
        assert found == {("0", "(10 div x)", "22012", "6"), ("0", "cast(s as int)", "22P02", "abc")}
        assert any("abc" in r.message and r.row == {"k": "2", "x": "5", "s": "abc"} for r in result.row_errors)
        e.delete("t", (1, 0, "6"), (2, 5, "abc"))
        assert e.advance(1).row_error_count == 0
        e.check()
    with Engine(spark, _tables(), query) as e:
        e.insert("t", (1, 0, "6"))
        with pytest.raises(DivisionByZero):
            e.advance(1)


@pytest.mark.parametrize("policy", ["null", "skip"])
@pytest.mark.parametrize("compound", ["", " / 2"])
def test_an_aggregate_that_overflows_is_no_failure_of_a_row(spark: SparkSession, policy: str, compound: str) -> None:
    """Alone or in an expression: no row is at fault, so the view fails."""
    query = f"SELECT sum(CAST(x AS decimal(28, 0))){compound} AS s FROM t"
    big = 10**18 * 9
    with Engine(spark, _tables(), query, on_error=policy) as e:
        e.insert("t", (1, 1, None))
        e.advance(1)
        e.check()
    whole = f"SELECT sum(x){compound} AS s FROM t"
    with Engine(spark, _tables(), whole, on_error=policy) as e:
        e.insert("t", (1, big, None), (2, big, None))
        with pytest.raises(NumericOutOfRange):
            e.advance(1)


def test_a_row_with_times_for_which_python_has_no_object(spark: SparkSession) -> None:
    """It is noted as any other, its values shown as Spark writes them; the failure is that of the expression."""
    times = (
        "SELECT timestamp_seconds(k) AS t, date_from_unix_date(CAST(k div 1000 AS int)) AS d, x FROM t GROUP BY 1, 2, 3"
    )
    query = f"SELECT CAST(t AS string) AS t, CAST(d AS string) AS d, {{}} AS q FROM ({times})"
    oracle = query.format("if(x = 0, NULL, 10 div x)")
    table = Table(1, "t", (Column("k", "bigint"), Column("x", "bigint")))
    with Engine(spark, [table], query.format("10 div x"), on_error="null", oracle=oracle) as e:
        e.insert("t", (10**9, 0), (-(10**9), 0), (400_000_000_000, 0), (-(10**11), 0))
        result = e.advance(1)
        e.check()
        assert result.row_error_count == 4 and {r.sqlstate for r in result.row_errors} == {"22012"}
        assert len({tuple(r.row.values()) for r in result.row_errors}) == 4
        e.change("t", [(row, -1) for row in list(table.rows)])
        assert e.advance(2).row_error_count == 0
        e.check()
