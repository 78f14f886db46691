"""Sums, overflow and errors in views: what the random histories, whose numbers are tame, do not reach."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from engine import Engine, Row, Table
from pyspark.sql import SparkSession

from headrace.common.columns import Column
from headrace.errors import DivisionByZero, HeadraceError, JobFailed, NumericOutOfRange

Make = Callable[..., Engine]


@pytest.fixture
def make(spark: SparkSession) -> Make:
    """An engine of one table `t` with the given column types by name."""
    engines = []

    def build(query: str, udfs: object = None, append_only: bool = False, **columns: str) -> Engine:
        table = Table(1, "t", tuple(Column(n, k) for n, k in columns.items()), append_only)
        engines.append(Engine(spark, [table], query, udfs=udfs))  # type: ignore[arg-type]
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def test_float_sums_forget_what_is_deleted(make: Make) -> None:
    e = make("SELECT sum(x) AS s, avg(x) AS m, count(x) AS c FROM t", x="double")
    e.insert("t", (1e16,), (1.0,))
    e.advance()
    e.delete("t", (1e16,))
    e.advance(2)
    assert e.rows() == [(1.0, 1.0, 1)]
    for odd in (math.inf, -math.inf, math.nan):
        e.insert("t", (odd,))
        e.advance()
        e.check()
        e.delete("t", (odd,))
        e.advance()
        assert e.rows() == [(1.0, 1.0, 1)]
    e.insert("t", (math.inf,), (-math.inf,))
    e.advance()
    assert math.isnan(e.rows()[0][0])
    e.delete("t", (math.inf,), (-math.inf,), (1.0,))
    e.advance()
    assert e.rows() == [(None, None, 0)]


def test_a_float_sum_takes_back_exactly_what_it_put_out(make: Make) -> None:
    """I1, over the whole range of doubles: the exact sum of the rows that are there, rounded once. Spark's own sum
    depends on the order of addition."""
    choice = random.Random(7)
    e = make("SELECT g, sum(x) AS s, sum(DISTINCT x) AS d, avg(x) AS m FROM t GROUP BY g", g="int", x="double")
    live: list[Row] = []
    for turn in range(12):
        for _ in range(3):
            if live and choice.random() < 0.45:
                e.delete("t", live.pop(choice.randrange(len(live))))
            exponent = choice.choice([-1074, -700, -100, -30, 0, 30, 50, 130, 700, 1020])
            live.append((1, math.ldexp(choice.uniform(-1, 1), exponent)))
            e.insert("t", *[live[-1]] * choice.randint(1, 2))
            live += [live[-1]] * (len(e.tables["t"].rows) - len(live))
        e.advance(1 + turn % 3)
        total, once = (float(sum(map(Fraction, values))) for values in ([x for _, x in live], {x for _, x in live}))
        assert e.rows() == [(1, total, once, total / len(live))]
    e.delete("t", *live)
    e.advance()
    assert e.rows() == []
    e.insert("t", (1, 0.5))
    e.advance()
    assert e.rows() == [(1, 0.5, 0.5, 0.5)]


def test_a_sum_of_doubles_overflows_and_comes_back(make: Make) -> None:
    """I1: +1e308, +1.5e308, then -1.5e308; and a condition sees no rest of what is gone."""
    e = make("SELECT g, sum(x) AS s FROM t GROUP BY g HAVING sum(x) > 0", g="int", x="double")
    for step, expected in (
        ([((1, 1e308), 1)], 1e308),
        ([((1, 1.5e308), 1)], math.inf),
        ([((1, 1.5e308), -1)], 1e308),
        ([((1, 1e308), -1)], None),
        ([*[((1, 0.1), 1)] * 3, ((1, 0.0), 1)], math.fsum([0.1] * 3)),
        ([((1, 0.1), -1)], 0.2),
        ([((1, 0.1), -1)], 0.1),
        ([((1, 0.1), -1)], None),
    ):
        e.change("t", step)
        e.advance()
        assert e.rows() == ([] if expected is None else [(1, expected)])


def test_decimal_sums_beyond_64_bits(make: Make) -> None:
    e = make("SELECT sum(x) AS s, avg(x) AS m FROM t", x="decimal(38,2)")
    big = Decimal("30000000000000000000000000000000.01")
    for rows in ([(big,)], [(big,), (-big,), (Decimal("0.01"),)], [(big,)] * 3):
        e.insert("t", *rows)
        e.advance()
        e.check()
    e.delete("t", (big,), (big,))
    e.advance(2)
    e.check()


@pytest.mark.parametrize("n", [6, 9])
def test_decimal_sum_overflows(make: Make, n: int) -> None:
    """Above 10**38, whether or not 128 bits still hold it."""
    e = make("SELECT sum(x) AS s FROM t", x="decimal(38,0)")
    x = Decimal(n * 10**37)
    e.insert("t", (x,), (x,))
    with pytest.raises(NumericOutOfRange):
        e.expected()
    with pytest.raises(NumericOutOfRange):
        e.advance()
    e.delete("t", (x,))
    e.advance()
    assert e.rows() == [(x,)]


def test_bigint_sum_overflows_and_recovers(make: Make) -> None:
    e = make("SELECT a, sum(x) AS s FROM t GROUP BY a", a="int", x="bigint")
    top = 2**63 - 1
    e.insert("t", (1, top))
    e.advance()
    e.insert("t", (1, 1))
    with pytest.raises(NumericOutOfRange) as caught:
        e.advance()
    assert caught.value.sqlstate == "22003"
    e.insert("t", (1, -2))  # the sum over all epochs since then fits again
    e.advance(2)
    assert e.rows() == [(1, top - 1)]


def test_extremes_of_append_only_tables(make: Make) -> None:
    e = make("SELECT a, min(x) AS lo, max(x) AS hi FROM t GROUP BY a", append_only=True, a="int", x="decimal(20,3)")
    assert "recompute" not in "\n".join(e.plan.explain())
    for rows in ([(1, Decimal("1.500")), (2, None)], [(1, Decimal("-3")), (2, Decimal("7"))], [(None, Decimal("0"))]):
        e.insert("t", *rows)
        e.advance()
        e.check()


def test_division_by_zero_in_a_view(make: Make) -> None:
    e = make("SELECT 10 / x AS q FROM t", x="int")
    e.insert("t", (5,))
    e.advance()
    e.insert("t", (0,), (2,))
    with pytest.raises(DivisionByZero) as caught:
        e.advance()
    assert caught.value.sqlstate == "22012"
    assert e.rows() == [(2.0,)]
    e.delete("t", (0,))  # corrected: the row comes and goes within the next attempt's range
    e.advance(2)
    assert e.rows() == [(2.0,), (5.0,)]


def test_a_row_that_comes_and_goes_between_epochs_is_never_computed(make: Make) -> None:
    e = make("SELECT a, 10 / x AS q FROM t WHERE 1 / x > 0", a="int", x="int")
    e.insert("t", (1, 0))
    e.insert("t", (2, 5))
    e.delete("t", (1, 0))
    e.advance()
    e.insert("t", (3, 0))
    e.delete("t", (3, 0), (2, 5))
    e.advance(2)
    assert e.rows() == []


@pytest.mark.parametrize("outer", ["", "LEFT ", "FULL "])
def test_a_pair_that_never_was_is_never_computed(make: Make, outer: str) -> None:
    """The left row goes in the very epoch in which the right one comes: the condition fails on the two together."""
    query = f"SELECT x.v AS xv, y.v AS yv FROM t x {outer}JOIN t y ON x.k = y.k - 1 AND 1 / (x.v - y.v) <> 0"
    e = make(query, k="int", v="int")
    e.insert("t", (1, 7), (2, 8))
    e.advance()
    e.check()
    e.change("t", [((1, 7), -1), ((2, 7), 1)])
    e.advance()
    e.check()
    e.change("t", [((2, 7), -1), ((1, 7), 1)])
    e.advance(2)
    e.check()


def test_python_functions(make: Make) -> None:
    def picky(x: int | None) -> int | None:  # inside, so that it travels by value
        if x == 13:
            raise ValueError("thirteen")
        return None if x is None else x * 2

    e = make(
        "SELECT a, picky(x) AS y, count(*) AS c FROM t WHERE picky(a) >= 0 GROUP BY a, picky(x)",
        udfs={"picky": (picky, "int")}, a="int", x="int",
    )  # fmt: skip
    e.insert("t", (1, 2), (1, 2), (2, None), (None, 4))
    e.advance()
    e.check()
    e.insert("t", (2, 13))
    with pytest.raises(JobFailed, match="thirteen"):
        e.advance()
    e.delete("t", (2, 13), (1, 2))
    e.advance(2)
    e.check()


def test_ties_are_cut_consistently(make: Make) -> None:
    """Which of the rows that tie are taken is open; that they are taken back as they were put out is not."""
    e = make(
        "SELECT a, x FROM (SELECT a, x, row_number() OVER (ORDER BY a) AS r FROM t) WHERE r <= 2", a="int", x="int"
    )
    f = make("SELECT a, x FROM t ORDER BY a LIMIT 2", a="int", x="int")
    for step, parallelism in enumerate([1, 3, 1, 2]):
        for engine in (e, f):
            engine.insert("t", *((0, i + 10 * step) for i in range(4)))
            if step:
                engine.delete("t", (0, 10 * (step - 1)), (0, 10 * (step - 1) + 3))
            engine.advance(parallelism)
            assert len(engine.rows()) == 2
            assert [a for a, _ in engine.rows()] == [0, 0]


def test_zeros_and_nans_keep_their_sign_where_they_are_only_passed_on(make: Make) -> None:
    e = make("SELECT x FROM t", x="double")
    e.insert("t", (-0.0,), (0.0,), (math.nan,))
    e.advance()
    assert [repr(x) for (x,) in e.rows()] == ["-0.0", "0.0", "nan"]
    e.delete("t", (-0.0,), (math.nan,))
    e.advance()
    assert [repr(x) for (x,) in e.rows()] == ["0.0"]


def test_an_engine_that_starts_late_reads_what_is_there(spark: SparkSession) -> None:
    columns = (Column("a", "int"),)
    table = Table(1, "t", columns)
    with Engine(spark, [table], "SELECT a, count(*) AS c FROM t GROUP BY a") as first:
        first.insert("t", (1,), (2,))
        first.delete("t", (1,))
        first.advance()
        first.insert("t", (2,))
        with Engine(spark, [table], "SELECT count(*) AS c FROM t UNION ALL SELECT 9") as second:
            second.root = first.root
            second.advance(3)
            assert second.rows() == [(2,), (9,)]


def test_errors_name_no_stack(make: Make) -> None:
    e = make("SELECT CAST(x AS int) AS y FROM t", x="string")
    e.insert("t", ("no number",))
    with pytest.raises(HeadraceError) as caught:
        e.advance()
    assert "\n\tat " not in str(caught.value)
    assert caught.value.sqlstate.startswith("22")


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("grouped", ["", "GROUP BY k"])
def test_rows_that_are_there_very_often(make: Make, parallelism: int, grouped: str) -> None:
    """Sums are exact, whatever a number times its weight comes to on the way."""
    e = make(f"SELECT sum(x) AS x, sum(k) AS k, count(*) AS c, sum(d) AS d FROM t {grouped}",
             k="int", x="bigint", d="decimal(18, 2)")  # fmt: skip
    large, many = 2**62 + 12345, 2**33 + 7
    e.change("t", [((1, -5, Decimal("0.25")), many), ((1, 2**40, Decimal("-1.00")), 3)])
    e.advance(parallelism)
    assert e.rows() == [(3 * 2**40 - 5 * many, many + 3, many + 3, many * Decimal("0.25") - 3)]
    e.change("t", [((1, -5, Decimal("0.25")), -many), ((1, large, None), 2**31 + 1), ((1, -large, None), 2**31)])
    e.advance(parallelism)
    assert e.rows() == [(large + 3 * 2**40, 2**32 + 4, 2**32 + 4, Decimal(-3))]
    e.change("t", [((1, large, None), -(2**31)), ((1, -large, None), -(2**31))])
    e.advance(parallelism)
    assert e.rows() == [(large + 3 * 2**40, 4, 4, Decimal(-3))]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("what", ["count(*)", "sum(k)", "count(DISTINCT x)", "count(*) FILTER (WHERE k = 3)"])
def test_counts_and_small_sums_are_refused_where_they_end(make: Make, parallelism: int, what: str) -> None:
    """In one epoch, and over two; never anything but the right number, and well again once it can be."""
    e = make(f"SELECT {what} AS c FROM t", k="int", x="bigint")
    e.change("t", [((3, 1), 2**60)])
    e.advance(parallelism)
    was = e.rows()
    rows = [((3, n), 2**62) for n in range(3)]
    e.change("t", rows)
    with pytest.raises(NumericOutOfRange):
        e.advance(parallelism)
    e.change("t", [(row, -weight) for row, weight in rows])
    e.change("t", [((3, 1), 2**60)])
    e.change("t", [((3, 1), -(2**60))])
    e.advance(parallelism)
    assert e.rows() == was


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "FULL JOIN"])
def test_pairs_that_are_too_many_are_refused(make: Make, kind: str) -> None:
    e = make(f"SELECT count(*) AS c FROM t a {kind} t b ON a.k = b.k", k="int")
    e.change("t", [((1,), 2**20)])
    e.advance()
    assert e.rows() == [(2**40,)]
    e.change("t", [((1,), 2**32 - 2**20)])
    with pytest.raises(NumericOutOfRange):
        e.advance()
