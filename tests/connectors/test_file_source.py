import gzip
import itertools
import json
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors import policy
from headrace.connectors.base import Admission, Binding, Offsets, ReadBatch, Source
from headrace.connectors.files import lines as file_lines
from headrace.connectors.files import source as files
from headrace.connectors.files.file_listing import list_files
from headrace.connectors.files.formats import FilePiece, TextOptions, read_piece
from headrace.connectors.sources import infer_columns, open_source, refreshes, widens
from headrace.errors import InvalidParameter, SourceError
from support import examples

COLUMNS = [Column("id", "bigint", False), Column("name", "string"), Column("price", "decimal(10,2)")]


def source(path: Path | str, columns: list[Column] = COLUMNS, **options: str) -> Source:
    return open_source({"connector": "files", "path": str(path), **options}, columns)


def bind(src: Source, after: Offsets, max_rows: int | None = None, now_ms: int = 0) -> Binding:
    binding = src.latest_offsets(json.loads(json.dumps(after)), Admission(max_rows), now_ms)
    return Binding(json.loads(json.dumps(binding.offsets)), *list(vars(binding).values())[1:])


def batches(src: Source, a: Offsets, b: Offsets, parallelism: int = 1) -> list[ReadBatch]:
    tasks = json.loads(json.dumps(src.plan(a, b, parallelism)))
    out = [batch for task in reversed(tasks) for batch in src.read(task)]
    assert all(batch.batch.schema.equals(src.schema) for batch in out)
    return out


def rows(src: Source, a: Offsets, b: Offsets, parallelism: int = 1) -> list[tuple]:
    return [tuple(r.values()) for batch in batches(src, a, b, parallelism) for r in batch.batch.to_pylist()]


def all_rows(src: Source) -> list[tuple]:
    return rows(src, {}, bind(src, {}).offsets)


def errors(src: Source) -> list[tuple]:
    found = batches(src, {}, bind(src, {}).offsets)
    return [(os.path.basename(e.split), e.position, e.column, e.value) for batch in found for e in batch.errors]


def write(path: Path, kind: str, ids: list[int], newline: str = "\n") -> None:
    names = [f'it"em,{i}' if i % 5 == 0 else f"item{i}" for i in ids]
    if kind == "parquet":
        table = pa.table({"id": ids, "name": names, "price": [f"{i}.25" for i in ids]})
        pq.write_table(table, path, row_group_size=7)
        return
    if kind == "json":
        lines = [json.dumps({"id": i, "name": n, "price": i + 0.25}) for i, n in zip(ids, names)]
    else:
        lines = ["id,name,price"] + ['{},"{}",{}.25'.format(i, n.replace('"', '""'), i) for i, n in zip(ids, names)]
    data = newline.join(lines).encode() + (newline.encode() if len(ids) % 2 else b"")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_table(path: Path, table: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pacsv.write_csv(table, path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


def all_read(src: Source) -> list[ReadBatch]:
    begun = bind(src, src.start_offsets()).offsets  # a replay's time begins
    return batches(src, src.start_offsets(), bind(src, begun, now_ms=10**9).offsets)


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(["csv", "json", "parquet", "csv.gz"]), min_size=4, max_size=4),
    limits=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    parallelism=st.integers(1, 9),
    chunk=st.sampled_from([16, 100, 4 << 20]),
    multiline=st.sampled_from(["true", "false"]),
    newline=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_any_cut_reads_everything_exactly_once(
    tmp_path_factory, sizes, kinds, limits, parallelism, chunk, multiline, newline
):
    folder = tmp_path_factory.mktemp("in")
    expected: Counter[int] = Counter()
    for n, size in enumerate(sizes):
        ids = list(range(n * 1000, n * 1000 + size))
        expected.update(ids)
        write(folder / f"f{n}.{kinds[n]}", kinds[n].removesuffix(".gz"), ids, newline)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_lines, "CHUNK_BYTES", chunk)
        patch.setattr(files, "MIN_PIECE_BYTES", 1)
        src = source(folder, multiline=multiline)
        marks = [src.start_offsets()]
        for step in range(1000):
            limit = limits[step % len(limits)]
            binding = bind(source(folder, multiline=multiline), marks[-1], limit)
            assert binding.rows is not None and binding.rows <= limit
            marks.append(binding.offsets)
            if not binding.behind:
                break
        parts = [sorted(rows(src, a, b, parallelism)) for a, b in pairwise(marks)]
        assert Counter(r[0] for part in parts for r in part) == expected
        assert sorted(r for part in parts for r in part) == sorted(rows(src, {}, marks[-1], parallelism + 1))
        assert parts == [sorted(rows(src, a, b, 1)) for a, b in pairwise(marks)]
        assert bind(src, marks[-1]).rows == 0


@settings(max_examples=examples(100), deadline=None)
@given(
    text=st.text(alphabet='",\n\r a1{}:\u00e4', max_size=60),
    kind=st.sampled_from(["csv", "json"]),
    cuts=st.tuples(st.integers(1, 5), st.integers(1, 6), st.sampled_from([1, 7, 30])),
    multiline=st.sampled_from(["true", "false"]),
)
def test_garbage_reads_the_same_however_it_is_cut(tmp_path_factory, text, kind, cuts, multiline):
    path = tmp_path_factory.mktemp("garbage") / f"a.{kind}"
    path.write_bytes(text.encode() + b'\n{"a":1}\n{"a":"1"}\n"1",a\n1,"\xff"\n')
    columns = [Column("a", "bigint"), Column("b", "string")]
    src = source(path, columns, header="false", on_error="null", multiline=multiline)

    def everything(marks: list[Offsets], parallelism: int) -> tuple[list, list]:
        found = [x for a, b in pairwise(marks) for x in batches(src, a, b, parallelism)]
        values = [repr(tuple(r.values())) for x in found for r in x.batch.to_pylist()]
        return sorted(values), sorted((e.position, e.column or "", e.value) for x in found for e in x.errors)

    whole = bind(src, {}).offsets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "SAMPLES_PER_BATCH", 1000)
        expected = everything([{}, whole], 1)
        patch.setattr(file_lines, "CHUNK_BYTES", cuts[2])
        patch.setattr(files, "MIN_PIECE_BYTES", 1)
        marks: list[Offsets] = [{}]
        while bind(src, marks[-1], cuts[0]).rows:
            marks.append(bind(src, marks[-1], cuts[0]).offsets)
        assert marks[-1] == whole
        assert everything(marks, cuts[1]) == expected


def test_values_of_all_formats_agree(tmp_path):
    found = []
    for kind in ("csv", "json", "parquet", "csv.gz"):
        write(tmp_path / f"one.{kind}", kind.removesuffix(".gz"), list(range(20)))
        found.append(all_rows(source(tmp_path / f"one.{kind}")))
    assert found[0] == found[1] == found[2] == found[3]
    assert str(found[0][5][2]) == "5.25" and found[0][5][1] == 'it"em,5'


CSV = 'id,name,price\n1,a,1\n\nx,b,2\n3,"c,3\n4,d\n5,e,9999999999\n6,f,1.005\n'


def test_bad_csv_fails_with_place_and_value(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    with pytest.raises(SourceError, match=r"a\.csv, line 4, column id: not a whole number.*'x'"):
        all_rows(source(tmp_path))


@pytest.mark.parametrize("chunk", [1, 20, 4 << 20])
def test_bad_csv_skipped(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", chunk)
    (tmp_path / "a.csv").write_text(CSV)
    src = source(tmp_path, on_error="skip")
    assert [r[0] for r in all_rows(src)] == [1, 6]
    assert errors(src) == [
        ("a.csv", 4, "id", "x"),
        ("a.csv", 5, None, '3,"c,3'),
        ("a.csv", 6, None, "4,d"),
        ("a.csv", 7, "price", "9999999999"),
    ]


def test_bad_csv_nulled_except_where_null_is_not_allowed(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    nullable = [Column(c.name, c.type) for c in COLUMNS]
    assert [r[:2] for r in all_rows(source(tmp_path, nullable, on_error="null"))] == [
        *((1, "a"), (None, "b"), (None, None), (None, None), (5, "e"), (6, "f"))
    ]
    assert [r[0] for r in all_rows(source(tmp_path, on_error="null"))] == [1, 5, 6]


def test_line_numbers_are_right_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_PIECE_BYTES", 1)
    text = "id,name,price\n" + "".join(f"{'x' if i in (31, 77) else i},n,\n" for i in range(100))
    (tmp_path / "a.csv").write_text(text)
    src = source(tmp_path, on_error="skip")
    mid = bind(src, {}, 60).offsets
    end = bind(src, mid).offsets
    found = [e.position for a, b in (({}, mid), (mid, end)) for x in batches(src, a, b, 7) for e in x.errors]
    assert sorted(found) == [33, 79]


def test_null_in_not_null_column_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("id,name,price\n1,a,1\n,b,2\n")
    with pytest.raises(SourceError, match="line 3, column id: NULL in a column that is NOT NULL"):
        all_rows(source(tmp_path))


@pytest.mark.parametrize("bad", ["{", "[1]", '{"id":"x"}', '{"id":1.5}', '{"id":1,"price":"y"}', '{"id":1}{"id":2}'])
def test_bad_json(tmp_path, bad):
    (tmp_path / "a.json").write_text('{"id":1}\n' + bad + '\n{"id":3,"name":7,"extra":[]}\n')
    assert all_rows(source(tmp_path, on_error="skip")) == [(1, None, None), (3, "7", None)]
    with pytest.raises(SourceError, match=r"a\.json, line 2"):
        all_rows(source(tmp_path))


def test_json_fast_and_slow_path_agree(tmp_path):
    columns = [Column("id", "bigint"), Column("s", "string"), Column("d", "double"), Column("b", "boolean")]
    good = '{"id":5,"s":"\\u00e4","d":0.1,"b":true}\n{"id":null}\n{"d":3}\n'
    (tmp_path / "a.json").write_text(good)
    (tmp_path / "b.json").write_text(good + '{"id":"7"}\n')
    assert [*all_rows(source(tmp_path / "a.json", columns)), (7, None, None, None)] == all_rows(
        source(tmp_path / "b.json", columns)
    )


def test_nested_and_temporal_values(tmp_path):
    columns = [
        *(Column("t", "timestamp"), Column("l", "timestamp_ntz"), Column("d", "date"), Column("x", "binary")),
        *(Column("a", "array<int>"), Column("s", "struct<p:int,q:string>"), Column("m", "map<string,double>")),
    ]
    record = {"t": "2024-01-02T03:04:05+01:00", "l": "2024-01-02 03:04:05.5", "d": "2024-01-02", "x": "\\xff00"}
    nested = {"a": [1, None], "s": {"p": 1, "q": "z"}, "m": {"k": 1.5}}
    (tmp_path / "a.json").write_text(json.dumps(record | nested))
    texts = {**record, **{k: json.dumps(v) for k, v in nested.items()}}
    quoted = ['"' + v.replace('"', '""') + '"' for v in texts.values()]
    (tmp_path / "b.csv").write_text(",".join(texts) + "\n" + ",".join(quoted) + "\n")
    (row,) = all_rows(source(tmp_path / "a.json", columns))
    assert [row] == all_rows(source(tmp_path / "b.csv", columns))
    assert row[0].isoformat() == "2024-01-02T02:04:05+00:00"
    assert row[3:] == (b"\xff\x00", [1, None], {"p": 1, "q": "z"}, [("k", 1.5)])


def test_csv_dialect(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"1;NA;NA\n2;;3\n")
    found = all_rows(source(tmp_path, format="csv", header="false", delimiter=";", null_string="NA"))
    assert [(r[0], r[1]) for r in found] == [(1, None), (2, "")]


def test_multiline_values(tmp_path):
    (tmp_path / "a.csv").write_text('\ufeffID,name,price\n1,"two\nlines",1\n2,b,2\n')
    assert [r[1] for r in all_rows(source(tmp_path, multiline="true"))] == ["two\nlines", "b"]
    assert len(errors(source(tmp_path, on_error="skip"))) == 2


def test_files_added_later_come_after(tmp_path):
    src = source(tmp_path)
    empty = bind(src, src.start_offsets())
    assert (empty.offsets, empty.rows, empty.finished) == ({}, 0, False)
    assert src.plan({}, empty.offsets, 4) == []
    write(tmp_path / "m.csv", "csv", [1, 2])
    first = bind(src, empty.offsets, 1)
    assert first.behind
    write(tmp_path / "a.csv", "csv", [3])
    os.utime(tmp_path / "a.csv", (1, 1))
    write(tmp_path / ".hidden.csv", "csv", [9])
    write(tmp_path / "notes.txt", "csv", [9])
    second = bind(source(tmp_path), first.offsets)
    assert sorted(rows(src, first.offsets, second.offsets))[0][0] == 2
    assert [r[0] for r in rows(src, {}, second.offsets)] == [1, 2, 3]


def test_fixed_files_finish(tmp_path):
    write(tmp_path / "a.csv", "csv", [1, 2])
    write(tmp_path / "b.parquet", "parquet", [3])
    src = source(f"{tmp_path / 'b.parquet'}, {tmp_path / 'a.csv'}")
    half = bind(src, {}, 2)
    assert not half.finished
    assert [r[0] for r in rows(src, {}, half.offsets)] == [3, 1]
    assert bind(src, half.offsets).finished


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_deleted_and_changed_files_are_named(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    write(path, kind, list(range(20)))
    src = source(tmp_path)
    half = bind(src, {}, 10).offsets
    write(path, kind, list(range(30)))
    with pytest.raises(SourceError, match=rf"a\.{kind} has changed"):
        rows(src, {}, half)
    with pytest.raises(SourceError, match=rf"a\.{kind} has changed"):
        bind(src, half)
    path.unlink()
    with pytest.raises(SourceError, match=rf"a\.{kind} of the source cannot be read"):
        rows(src, {}, half)
    with pytest.raises(SourceError, match=rf"a\.{kind} of the source cannot be read"):
        bind(src, half)


def test_deleted_file_that_was_taken_in_does_not_stop_the_source(tmp_path):
    write(tmp_path / "a.csv", "csv", [1])
    src = source(tmp_path / "a.csv")
    end = bind(src, {}).offsets
    (tmp_path / "a.csv").unlink()
    assert bind(src, end).offsets == end


def test_missing_column_and_missing_file(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(SourceError, match="has no column name"):
        all_rows(source(tmp_path))
    with pytest.raises(SourceError, match="nowhere"):
        bind(source(tmp_path / "nowhere"), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "option format must be one of csv, json, parquet, avro, not 'xml'"),
        ({"on_error": "x"}, "option on_error must be one of fail, null, skip"),
        ({"max_rows_per_epoch": "0"}, "option max_rows_per_epoch must be a whole number of at least 1, not '0'"),
        ({"colour": "red"}, "unknown option colour"),
        ({"header": "maybe"}, "option header must be true or false"),
        ({"delimiter": "::"}, "option delimiter must be one ASCII character"),
        ({"replay_speed": "2"}, "option replay_speed needs the option replay_column"),
        ({"replay_column": "id"}, "option replay_column must be a column of type timestamp"),
        (
            {"connector": "pulsar"},
            "option connector must be one of datagen, deltalake, files, iceberg, kafka, nexmark, postgres-cdc, "
            "not 'pulsar'",
        ),
        ({"path": ""}, "option path is required"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidParameter, match=message):
        open_source({"connector": "files", "path": "/tmp", **options}, COLUMNS)


def test_inference(tmp_path):
    write(tmp_path / "a.parquet", "parquet", [1])
    write(tmp_path / "b.json", "json", [1])
    (tmp_path / "c.csv").write_text("id,at,day,note\n1,2024-01-01T00:00:00Z,2024-01-01,NA\n")
    kinds = {
        name: [(c.name, c.type) for c in infer_columns({"connector": "files", "path": str(tmp_path / name)})]
        for name in ("a.parquet", "b.json", "c.csv")
    }
    assert kinds["a.parquet"] == [("id", "bigint"), ("name", "string"), ("price", "string")]
    assert kinds["b.json"] == [("id", "bigint"), ("name", "string"), ("price", "double")]
    assert kinds["c.csv"] == [("id", "bigint"), ("at", "timestamp"), ("day", "date"), ("note", "string")]
    with pytest.raises(SourceError, match="no file"):
        (tmp_path / "e").mkdir()
        infer_columns({"connector": "files", "path": str(tmp_path / "e")})


ASKED_FOR = [list(found) for n in range(4) for found in itertools.combinations(("id", "name", "price"), n)]


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
@pytest.mark.parametrize("on_error", ["null", "skip"])
def test_the_same_rows_whichever_columns_are_asked_for(tmp_path, kind, on_error, replay):
    ids, prices = [1, None, 3, 4, 5], ["1.5", "2.5", "x", None, "5.5"]
    table = pa.table({"id": ids, "name": list("abcde"), "price": prices, "day": ["2026-01-01"] * 5})
    write_table(tmp_path / f"a.{kind}", table)
    columns = [*COLUMNS, Column("day", "date")]
    options = {"on_error": on_error} | ({"replay_column": "day", "replay_rate": "1000000"} if replay else {})
    whole = all_read(source(tmp_path, columns, **options))
    assert sum(b.error_count for b in whole) == 2
    assert sum(b.batch.num_rows for b in whole) == (4 if on_error == "null" else 3)
    for names in ASKED_FOR:
        found = all_read(source(tmp_path, columns, **options).only(names))
        assert [b.error_count for b in found] == [b.error_count for b in whole]
        for b, w in zip(found, whole, strict=True):
            assert b.batch.num_rows == w.batch.num_rows
            assert b.batch.select(names).to_pylist() == w.batch.select(names).to_pylist()


def test_only_the_columns_that_are_asked_for_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    columns = [Column("a", "bigint"), Column("b", "string"), Column("c", "bigint", False), Column("d", "bigint")]
    table = pa.table({"a": [1], "b": ["x"], "c": [2], "d": pa.array([3], pa.int32())})
    write_table(path, table)
    (state,) = list_files([str(path)], None)
    piece = FilePiece(state, "parquet", 0, None)
    (read,) = read_piece(piece, columns, TextOptions(), {"a"})
    assert read.batch.schema.names == ["a", "c", "d"], "a NULL in c would be a fault, and so could a value of d"
    (read,) = read_piece(piece, columns, TextOptions(), {"a", "b", "c", "d"})
    assert read.batch.to_pylist() == [{"a": 1, "b": "x", "c": 2, "d": 3}]
    with pytest.raises(SourceError, match="no column e"):
        list(read_piece(piece, [*columns, Column("e", "string")], TextOptions(), {"a"}))


def bound_by_bytes(src: Source, most_bytes: int, max_rows: int | None = None) -> list[tuple[int, int]]:
    """Rows and bytes of each binding, until all is bound; together they read all rows once, in order."""
    taken, after, found = [], {}, []
    for _ in range(1000):
        binding = src.latest_offsets(json.loads(json.dumps(after)), Admission(max_rows, most_bytes), 0)
        if binding.offsets == after:
            break
        read = rows(src, after, binding.offsets)
        found += read
        taken.append((len(read), src.bytes_between(after, binding.offsets) or 0))
        assert binding.behind or binding.finished or binding.rows is not None
        after = binding.offsets
    assert sorted(found) == sorted(all_rows(src))
    return taken


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.json.gz"])
@pytest.mark.parametrize("most_bytes", [1, 150, 1_000, 100_000, 10_000_000])
def test_text_is_bound_by_its_bytes(tmp_path: Path, name: str, most_bytes: int) -> None:
    """At least a record, and no more than the limit but for a single one."""
    opened = gzip.open if name.endswith("gz") else open
    count = 12 if most_bytes < 1000 else 3000
    with opened(tmp_path / name, "wt") as out:  # type: ignore[operator]
        if "csv" in name:
            out.write("id,name,price\n")
        for i in range(count):
            text = "x" * (i * 7 % 90)
            out.write(f"{i},{text},1\n" if "csv" in name else json.dumps({"id": i, "name": text, "price": 1}) + "\n")
    taken = bound_by_bytes(source(tmp_path), most_bytes)
    assert sum(n for n, _ in taken) == count
    assert all(size <= most_bytes or n <= 1 for n, size in taken)
    if most_bytes == 100_000:
        assert all(size > 90_000 for _, size in taken[:-1]), "no smaller than it has to be"
    if most_bytes == 10_000_000:
        assert len(taken) == 1


@pytest.mark.parametrize("multiline", ["true", "false"])
def test_wide_records_are_bound_one_by_one_where_they_are_too_wide(tmp_path: Path, multiline: str) -> None:
    (tmp_path / "a.csv").write_text("id,name,price\n" + "".join(f"{i},{'y' * 200_000},1\n" for i in range(20)))
    src = source(tmp_path, multiline=multiline)
    assert [n for n, _ in bound_by_bytes(src, 100)][-3:] == [1, 1, 1]
    assert max(n for n, _ in bound_by_bytes(src, 1_000_000)) in (4, 5)


def test_files_are_bound_as_long_as_they_fit(tmp_path: Path) -> None:
    """Small ones together, a large one after them by parts; Parquet by its share of rows, to the end of a row group."""
    for i, size in enumerate((10, 10, 3000, 10)):
        write(tmp_path / f"{i}.csv", "csv", [*range(i * 10_000, i * 10_000 + size)])
        os.utime(tmp_path / f"{i}.csv", (i, i))
    taken = bound_by_bytes(source(tmp_path), 20_000)
    assert sum(n for n, _ in taken) == 3030 and all(size <= 20_000 for _, size in taken) and len(taken) < 9
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder / "a.parquet", "parquet", [*range(1000)])
    size = (folder / "a.parquet").stat().st_size
    assert [n for n, _ in bound_by_bytes(source(folder), size // 4 + 1)] == [245, 245, 245, 245, 20]
    assert [n for n, _ in bound_by_bytes(source(folder), size)] == [1000]
    assert [n for n, _ in bound_by_bytes(source(folder), size, 600)] == [595, 405]
    assert {n for n, _ in bound_by_bytes(source(folder), 1)} == {1}


def write_rows(path: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "avro":
        kinds = {int: "long", str: "string"}
        fields = [{"name": name, "type": kinds[type(value)]} for name, value in rows[0].items()]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, rows)
    elif kind == "csv":
        path.write_text("\n".join(",".join(map(str, line)) for line in [rows[0].keys(), *(r.values() for r in rows)]))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "avro"])
def test_columns_that_newer_files_have(tmp_path: Path, kind: str) -> None:
    """They are NULL in files that lack them, also for who reads nothing else; and no file may lack one of before."""
    first = source(tmp_path, [Column("id", "int", False)], format=kind)
    write_rows(tmp_path / f"1.{kind}", kind, [{"id": 1}, {"id": 2}])
    assert first.columns_there({}) == [Column("id", "int", False)]
    write_rows(tmp_path / f"2.{kind}", kind, [{"n": "x", "ID" if kind == "parquet" else "id": 3, "m": 7}])
    os.utime(tmp_path / f"1.{kind}", (1, 1))
    there = first.columns_there({})
    assert {c.name: c.type for c in there} == {"id": "int", "n": "string", "m": "bigint"} and there[1].nullable
    options = first.found_by(there[1:2])
    wider = source(tmp_path, there[:2], format=kind, **options)
    assert sorted(all_rows(wider)) == [(1, None), (2, None), (3, "x")]
    narrow = wider.only(["n"])
    assert sorted(all_rows(narrow), key=str) == [("x",), (None,), (None,)]
    again = source(tmp_path, there, format=kind, **wider.found_by(there[2:]))
    assert sorted(all_rows(again)) == [(1, None, None), (2, None, None), (3, "x", 7)]
    if kind != "json":
        with pytest.raises(SourceError, match="has no column n"):
            all_rows(source(tmp_path, there[:2], format=kind))


@pytest.mark.parametrize("kind", ["csv", "parquet", "avro", "json"])
def test_names_that_differ_in_capitals_alone(tmp_path: Path, kind: str) -> None:
    columns = [Column("userid", "bigint"), Column("n", "bigint")]
    write_rows(tmp_path / f"1.{kind}", kind, [{"UserId": 1, "n": 2, "N": 3}])
    assert all_rows(source(tmp_path, columns, format=kind)) == [(1, 2)], "its own spelling comes first"
    write_rows(tmp_path / f"2.{kind}", kind, [{"userid": 1, "Nn": 2, "NN": 3}])
    first = source(tmp_path, [columns[0]], format=kind)
    later = source(
        tmp_path, [columns[0], Column("nn", "bigint")], format=kind, **first.found_by([Column("nn", "bigint")])
    )
    with pytest.raises(SourceError, match="NN and Nn differ from nn in capitals alone"):
        all_rows(later)


def test_columns_without_names_do_not_come(tmp_path: Path) -> None:
    options = {"connector": "files", "path": str(tmp_path)}
    assert widens({**options, "format": "csv"}) and refreshes(options)
    assert not widens({**options, "format": "csv", "header": "false"}) and not widens({**options, "header": "false"})
    assert not widens({**options, "replay_column": "t"}) and widens({**options, "format": "json", "header": "false"})
