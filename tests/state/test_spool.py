"""The spool of a Spark task: several workers write, the last one collects; what is not complete is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dataflow.operators.task import Buffer
from headrace.errors import JobFailed
from headrace.state.kernels.exact_sum import EXACT_TYPE
from headrace.state.memory import MemoryController
from headrace.state.run import Section, write_run
from headrace.state.schema import TableSchema
from headrace.state.spool import TaskSpool, forget_attempt, forget_earlier, forget_leftovers
from headrace.state.watermark import expired_runs

W = (pa.field("__w", pa.int64(), nullable=False), "add")
PLAIN = TableSchema((pa.field("a", pa.int32()),), (), (W,))
WIDE = TableSchema(
    (pa.field("a", pa.int32()),),
    (pa.field("b", pa.string()), pa.field("c", pa.int64())),
    (W, (pa.field("m", pa.int64()), "min"), (pa.field("f", EXACT_TYPE), "exact")),
    expires="c",
)  # fmt: skip


def _rows(schema: TableSchema, keys: list[int]) -> pa.RecordBatch:
    target = schema.arrow()
    values = {"b": [str(k) for k in keys], "f": [struct.pack("<d", k) for k in keys]}
    return pa.RecordBatch.from_arrays([pa.array(values.get(f.name, keys), f.type) for f in target], schema=target)


def _content(sections: list[Section]) -> dict[int, tuple[TableSchema, list[pa.RecordBatch]]]:
    return {s.table_id: (s.schema, list(s.batches)) for s in sections}


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6), st.sampled_from([0, 1, 100, 10**6]))
def test_what_a_task_writes(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[int]], limit_bytes: int
) -> None:
    """The design's shared buffer: rows of several workers, in memory and on disk, come together in order."""
    folder = tmp_path_factory.mktemp("spool")
    inner = TaskSpool(folder, "1-1-1", 7)
    inner.begin("0.0")
    memory = MemoryController(limit_bytes)
    buffer = Buffer(inner, memory if limit_bytes else None)
    last = Buffer(TaskSpool(folder, "1-1-1", 7), memory if limit_bytes else None)
    keys = sorted(k for piece in pieces for k in piece)
    start = 0
    for piece in pieces:
        part = keys[start : start + len(piece)]
        start += len(piece)
        if part:
            for table, schema in ((3, PLAIN), (4, WIDE)):
                buffer.add("0.0", table, schema, _rows(schema, part))
            last.add("view", 5, WIDE, _rows(WIDE, part))
    buffer.flush()
    inner.end("0.0")
    sections = last.sections(9)
    assert all(s.epoch == 9 for s in sections)
    found = _content(sections)
    assert set(found) == ({3, 4, 5} if keys else set())
    for table, (schema, batches) in found.items():
        wanted = PLAIN if table == 3 else WIDE
        assert schema == wanted
        assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([_rows(wanted, keys)]))
    refs = write_run(folder / "out", "x.run", last.sections(9), fsync=False)
    assert sum(r.rows for r in refs) == 3 * len(keys)
    last.clear()
    assert memory.use().used_bytes == 0 and memory.use().peak_bytes <= limit_bytes


def test_spooled_rows_keep_their_event_times(tmp_path: Path) -> None:
    """FS-19: a run that has passed through the spool is dropped by the watermark like any other, without being read."""
    spool = TaskSpool(tmp_path / "spool", "1-1-1", 7)
    spool.append("0", 4, WIDE, _rows(WIDE, [3, 5, 9]))
    ref = write_run(tmp_path, "x.run", spool.sections(1), fsync=False)[0]
    assert (ref.time_min, ref.time_max) == (3, 9)
    assert expired_runs([ref], 10) == [ref]


def test_a_stage_that_did_not_see_the_end_of_its_input(tmp_path: Path) -> None:
    """I3: what is spooled only in part never becomes part of an object."""
    spool = TaskSpool(tmp_path, "1-1-1", 7)
    spool.begin("0.1")
    with pytest.raises(JobFailed, match=r"stage 0\.1"):
        TaskSpool(tmp_path, "1-1-1", 7).sections(1)
    spool.end("0.1")
    assert TaskSpool(tmp_path, "1-1-1", 7).sections(1) == []


def test_tasks_and_attempts_do_not_share_a_spool(tmp_path: Path) -> None:
    """FS-20: parallel tasks, attempts and stages never share a path; one stage twice in a task is refused."""
    for attempt, task in (("1-1-1", 7), ("1-1-1", 8), ("1-1-2", 7)):
        spool = TaskSpool(tmp_path, attempt, task)
        spool.append("0", 3, PLAIN, _rows(PLAIN, [task]))
        assert [b.num_rows for s in spool.sections(1) for b in s.batches] == [1]
    again = TaskSpool(tmp_path, "1-1-1", 7)
    with pytest.raises(JobFailed, match="twice"):
        again.append("0", 3, PLAIN, _rows(PLAIN, [1]))


def test_leftovers_are_removed(tmp_path: Path) -> None:
    for attempt in ("1-1-1", "1-1-2", "1-1-3"):
        TaskSpool(tmp_path, attempt, 1).begin("0")
    forget_attempt(tmp_path, "1-1-1")
    forget_attempt(tmp_path, "1-1-1")
    assert forget_leftovers(tmp_path, {"1-1-2"}, older_than_s=3600) == 0
    assert forget_leftovers(tmp_path, {"1-1-2"}) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["1-1-2"]
    assert forget_leftovers(tmp_path / "missing") == 0
    spool = TaskSpool(tmp_path, "1-1-2", 1)
    spool.remove()
    spool.remove()
    forget_attempt(tmp_path, "1-1-2")
    assert not list(tmp_path.iterdir())


def test_an_attempt_tidies_up_after_earlier_ones_of_its_job(tmp_path: Path) -> None:
    """On hosts that the server does not run on."""
    for name in ("7-1-1", "7-1-2", "7-1-2again", "70-1-1", "8-1-1"):
        (tmp_path / name / "5").mkdir(parents=True)
        (tmp_path / name / "5" / "x.rows").write_bytes(b"x")
    forget_earlier(tmp_path, "7-1-2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["7-1-2", "70-1-1", "8-1-1"]
    forget_earlier(tmp_path / "missing", "7-1-2")
