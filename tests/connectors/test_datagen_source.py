import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors.base import Admission
from headrace.connectors.pacing import MAX_LAG_MS
from headrace.connectors.sources import infer_columns, open_source
from headrace.errors import InvalidParameter

TYPES = [
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary", "date"),
    *("timestamp", "timestamp_ntz", "decimal(12,3)", "decimal(38,2)", "array<string>", "array<array<int>>"),
]
COLUMNS = [Column("n", "bigint", False), *(Column(f"c{i}", kind) for i, kind in enumerate(TYPES))]


def source(columns=COLUMNS, **options):
    merged = {"connector": "datagen", "fields.n.kind": "sequence"}
    merged |= {name.replace("__", "."): value for name, value in options.items()}
    return open_source({k: v for k, v in merged.items() if v}, columns)


def rows(src, a, b, parallelism=1):
    tasks = json.loads(json.dumps(src.plan(a, b, parallelism)))
    batches = [x.batch for task in tasks for x in src.read(task)]
    for batch in batches:
        batch.validate(full=True)
    return sorted((tuple(r.values()) for batch in batches for r in batch.to_pylist()), key=lambda r: r[0])


@settings(max_examples=30, deadline=None)
@given(
    splits=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.none() | st.integers(1, 50)), max_size=8),
    parallelism=st.integers(1, 6),
)
def test_any_cut_is_the_whole_exactly_once(splits, steps, parallelism):
    src = source(splits=str(splits), rows_per_second="20", number_of_rows="100")
    marks, now, most = [src.start_offsets()], 1_000, []
    for gap, limit in [*steps, (10_000, None)]:
        now += gap
        found = src.latest_offsets(json.loads(json.dumps(marks[-1])), Admission(limit), now)
        assert limit is None or (found.rows or 0) <= limit
        most.append(found.rows)
        marks.append(found.offsets)
    parts = [rows(src, a, b, parallelism) for a, b in pairwise(marks)]
    assert [len(part) for part in parts] == most
    together = sorted((r for part in parts for r in part), key=lambda r: r[0])
    assert [r[0] for r in together] == list(range(len(together)))
    again = source(splits=str(splits), rows_per_second="20", number_of_rows="100")
    assert repr(together) == repr(rows(again, {}, marks[-1], parallelism + 1))


def test_rate_restart_and_bound():
    src = source(rows_per_second="100", number_of_rows="100000")
    a = src.latest_offsets(src.start_offsets(), Admission(), 5_000)
    assert a.rows == 1
    b = source(rows_per_second="100", number_of_rows="100000").latest_offsets(a.offsets, Admission(), 6_000)
    assert b.rows == 100
    late = src.latest_offsets(b.offsets, Admission(), 10**9)
    assert late.rows == MAX_LAG_MS // 10 + 1
    assert src.latest_offsets(late.offsets, Admission(), 10**9 + 10).rows == 1
    limited = src.latest_offsets(b.offsets, Admission(50), 10**9)
    assert limited.rows == 50 and limited.behind


def test_unlimited():
    src = source(rows_per_second="unlimited", number_of_rows="70")
    a = src.latest_offsets({}, Admission(50), 0)
    assert (a.rows, a.finished, a.behind) == (50, False, True)
    b = src.latest_offsets(a.offsets, Admission(50), 0)
    assert (b.rows, b.finished, b.behind) == (20, True, False)
    endless = source(rows_per_second="unlimited", max_rows_per_epoch="50").latest_offsets({}, Admission(), 0)
    assert (endless.rows, endless.finished, endless.behind) == (50, False, False)


def values(type_, count=200, /, **properties):
    options = {"connector": "datagen", "rows_per_second": "unlimited", "number_of_rows": str(count)}
    src = open_source(options | {f"fields.v.{k}": v for k, v in properties.items()}, [Column("v", type_)])
    end = src.latest_offsets({}, Admission(), 0).offsets
    return [x for task in src.plan({}, end, 1) for b in src.read(task) for x in b.batch.column(0).to_pylist()]


def test_properties():
    assert values("int", 5, kind="sequence", start="3", end="5") == [3, 4, 5, 3, 4]
    assert [str(v) for v in values("decimal(5,2)", 2, kind="sequence", step="0.25")] == ["0.00", "0.25"]
    assert [v.isoformat() for v in values("timestamp_ntz", 2, kind="sequence", start="2024-01-01", step="1min")] == [
        *("2024-01-01T00:00:00", "2024-01-01T00:01:00")
    ]
    assert values("string", 2, kind="sequence", prefix="u") == ["u0", "u1"]
    assert set(values("int", min="-1", max="1")) == {-1, 0, 1}
    assert set(values("string", choices="a, b")) == {"a", "b"}
    assert {len(v) for v in values("string", length="4")} == {4}
    assert 60 < sum(v is None for v in values("int", null_fraction="0.5")) < 140
    assert values("int") != values("int", seed="1")
    full = values("bigint", min=str(-(2**63)), max=str(2**63 - 1))
    assert len(set(full)) == 200 and min(full) < 0 < max(full)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_second": "-1"}, "option rows_per_second must be a number above zero"),
        ({"rows_per_second": "unlimited"}, "needs number_of_rows or max_rows_per_epoch"),
        ({"fields.zz.kind": "random"}, "there is no column 'zz'"),
        ({"fields.n.colour": "x"}, "the property must be one of kind, start"),
        ({"fields.n.kind": "x"}, "option fields.n.kind must be one of random, sequence"),
        ({"fields.n.min": "a"}, "option fields.n.min must be a value of type bigint, not 'a'"),
        ({"fields.n.kind": "random", "fields.n.min": "5", "fields.n.max": "1"}, "fields.n.max must be at least min"),
        ({"fields.c0.max": "300"}, "fields.c0.max must be in the range of tinyint"),
        ({"fields.n.null_fraction": "0.5"}, "NOT NULL"),
        ({"path": "x"}, "unknown option path"),
        ({"max_mb_per_epoch": "0"}, "option max_mb_per_epoch must be a whole number of at least 1"),
        ({"source_rate_limit": "fast"}, "option source_rate_limit must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidParameter, match=message):
        open_source({"connector": "datagen", **options}, COLUMNS)


def test_no_columns():
    with pytest.raises(InvalidParameter, match="declared columns"):
        infer_columns({"connector": "datagen"})
