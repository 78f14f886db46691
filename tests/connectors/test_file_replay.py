import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors.base import Admission
from headrace.connectors.pacing import MAX_LAG_MS
from headrace.connectors.sources import open_source
from headrace.errors import InvalidParameter, SourceError
from support import examples

COLUMNS = [Column("id", "bigint"), Column("at", "timestamp")]
T0 = datetime(2024, 1, 1, tzinfo=UTC)


def write(folder, files):
    for n, seconds in enumerate(files):
        lines = [
            f"{n * 1000 + i},{'' if s is None else (T0 + timedelta(seconds=s)).isoformat()}"
            for i, s in enumerate(seconds)
        ]
        (folder / f"f{n}.csv").write_text("\n".join(["id,at", *lines]) + "\n")


def source(folder, **options):
    paths = ",".join(str(p) for p in sorted(folder.glob("*.csv")))
    return open_source({"connector": "files", "path": paths, "replay_column": "at", **options}, COLUMNS)


def bind(src, after, now_ms, max_rows=None):
    found = src.latest_offsets(json.loads(json.dumps(after)), Admission(max_rows), now_ms)
    return json.loads(json.dumps(found.offsets)), found


def ids(src, a, b, parallelism=3):
    return [r["id"] for task in src.plan(a, b, parallelism) for x in src.read(task) for r in x.batch.to_pylist()]


def test_rows_come_in_event_time_order_over_files(tmp_path):
    write(tmp_path, [[10, 0, 30], [20, 10, None]])
    src = source(tmp_path, replay_duration="30s")
    a, first = bind(src, {}, 1_000_000)
    assert ids(src, {}, a) == [1002 + 0, 1]
    assert first.watermark_us == int(T0.timestamp() * 1e6)
    b, _ = bind(src, a, 1_009_999)
    assert ids(src, a, b) == []
    c, _ = bind(source(tmp_path, replay_duration="30s"), b, 1_020_000)
    assert ids(src, b, c) == [0, 1001, 1000]
    d, last = bind(src, c, 1_030_000)
    assert ids(src, c, d) == [2] and last.finished
    assert last.watermark_us == int((T0 + timedelta(seconds=30)).timestamp() * 1e6)


def test_speed_and_rate(tmp_path):
    write(tmp_path, [list(range(0, 1000, 10))])
    src = source(tmp_path, replay_speed="100")
    a, _ = bind(src, {}, 0)
    assert bind(src, a, 1000)[1].rows == 10
    src = source(tmp_path, replay_rate="5")
    a, _ = bind(src, {}, 0)
    assert bind(src, a, 2000)[1].rows == 10


def test_a_pause_is_not_made_up_for_at_once(tmp_path):
    write(tmp_path, [list(range(10_000))])
    src = source(tmp_path)
    a, _ = bind(src, {}, 0)
    b, found = bind(src, a, 5_000_000)
    assert found.rows == MAX_LAG_MS // 1000 + 1 and not found.behind
    c, limited = bind(src, a, 5_000_000, 7)
    assert limited.rows == 7 and limited.behind
    assert bind(source(tmp_path), b, 5_001_000)[1].rows == 1
    assert c["@replay"]["start_ms"] == b["@replay"]["start_ms"]


def test_long_gaps_between_events_are_waited_for(tmp_path):
    write(tmp_path, [[0, 100_000]])
    src = source(tmp_path)
    a, _ = bind(src, {}, 0)
    assert bind(src, a, 99_999_999)[1].rows == 0
    assert bind(src, a, 100_000_000)[1].rows == 1


@settings(max_examples=examples(40), deadline=None)
@given(
    contents=st.lists(st.lists(st.none() | st.integers(0, 50), max_size=20), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 20_000), st.none() | st.integers(1, 9)), max_size=20),
    parallelism=st.integers(1, 5),
)
def test_any_pacing_reads_everything_once_in_order(tmp_path_factory, contents, steps, parallelism):
    folder = tmp_path_factory.mktemp("replay")
    write(folder, contents)
    times = {n * 1000 + i: s for n, c in enumerate(contents) for i, s in enumerate(c)}
    expected = sorted(times, key=lambda k: (times[k] is not None, times[k] or 0, k))
    now, mark, seen = 0, {}, []
    for gap, limit in [*steps, (10**6, None), (10**6, None), (10**6, None)]:
        now += gap
        src = source(folder)
        to, found = bind(src, mark, now, limit)
        part = ids(src, mark, to, parallelism)
        assert part == ids(src, mark, to, 1) and len(part) == found.rows
        assert limit is None or len(part) <= limit
        seen, mark = seen + part, to
        if found.watermark_us is not None:
            floor = found.watermark_us / 1e6 - T0.timestamp()
            assert all(times[k] >= floor for k in expected[len(seen) :])
    assert seen == expected[: len(seen)]
    assert seen == expected or (found.behind is False and times[expected[-1]] is not None)


def test_errors_wait_for_their_row_and_name_it(tmp_path):
    (tmp_path / "a.csv").write_text("id,at\n1,2024-01-01\nx,2024-01-03\n2,never\n")
    src = source(tmp_path, replay_duration="10s")
    a, _ = bind(src, {}, 0)
    with pytest.raises(SourceError, match=r"a\.csv, line 4, column at: not a timestamp"):
        ids(src, {}, a)
    skipping = source(tmp_path, replay_duration="10s", on_error="skip")
    b, _ = bind(skipping, a, 10_000)
    assert ids(skipping, {}, a) == [1] and ids(skipping, a, b) == []


def test_file_of_a_replay_that_changed(tmp_path):
    write(tmp_path, [[0, 1]])
    src = source(tmp_path)
    a, _ = bind(src, {}, 0)
    mark = {path: {**p, "size": p["size"] + 1} if path[0] == "/" else p for path, p in a.items()}
    with pytest.raises(SourceError, match="has changed"):
        ids(src, {}, mark)


def test_only_one_pace():
    with pytest.raises(InvalidParameter, match="replay_speed and replay_rate exclude each other"):
        open_source({"connector": "files", "path": "/x", "replay_speed": "1", "replay_rate": "1"}, COLUMNS)
