"""What sinks have for tables: changes by key, pieces that end between keys, and circles that are found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.catalog.contents import Content, MaterializedViewContent, SinkContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator.ddl.recovered import rows_schema
from headrace.coordinator.decide.into import circle
from headrace.coordinator.writes.handing import change_of, whole_keys
from headrace.errors import NotNullViolation, SinkError
from headrace.state.kernels import consolidate
from headrace.state.table_changes import TableChange, stored_rows

KEYED = ObjectRecord(
    1, TableContent(), "public", "t", (Column("v", "int"), Column("k", "int", False), Column("w", "string", False)),
    primary_key=("k",),
)  # fmt: skip
LOOSE = ObjectRecord(1, TableContent(), "public", "t", (Column("a", "int"),))


def stored(table: ObjectRecord, *rows: tuple[object, ...]) -> pa.RecordBatch:
    """Rows, each with its weight behind its values, in the layout of the table's state."""
    schema = rows_schema(table)
    fields = [pa.field(c.name, schema.arrow().field(c.name).type) for c in table.columns]
    data = pa.RecordBatch.from_pylist([dict(zip((c.name for c in table.columns), r)) for r in rows], pa.schema(fields))
    made = stored_rows(schema, data, 1)
    weights = pa.array([r[-1] for r in rows], pa.int64())
    return consolidate(made.set_column(made.num_columns - 1, made.schema.field(-1), weights), schema)


def change(table: ObjectRecord, *rows: tuple[object, ...], upserts: bool = True) -> TableChange:
    return change_of(table, rows_schema(table), stored(table, *rows), upserts=upserts)


def test_rows_of_a_key_replace_and_delete() -> None:
    found = change(KEYED, (1, 1, "a", -1), (2, 1, "a", 1), (3, 2, "b", -1), (None, 3, "c", 1))
    assert found.inserts is not None and found.deletes is not None
    assert sorted(r["k"] for r in found.inserts.to_pylist()) == [1, 3]
    assert sorted(r["k"] for r in found.deletes.to_pylist()) == [1, 2]
    assert found.on_conflict == "overwrite"


def test_what_only_adds_adds_each_as_often_as_it_is_there() -> None:
    found = change(LOOSE, (1, 2), (None, 1), (3, -1), upserts=False)
    assert found.deletes is None and found.inserts is not None
    assert sorted(found.inserts.column("a").to_pylist(), key=str) == [1, 1, None]


@pytest.mark.parametrize("rows", [((1, 7, "a", 1), (2, 7, "a", 1)), ((1, 7, "a", 2),)])
def test_several_rows_of_a_key_are_refused(rows: tuple[tuple[object, ...], ...]) -> None:
    with pytest.raises(SinkError, match=r"\(k\) does not tell the rows of the sink apart: 7 is NULL"):
        change(KEYED, *rows, (5, 5, "b", 1))


@pytest.mark.parametrize(("row", "column"), [((1, None, "a", 1), "k"), ((1, 1, None, 1), "w")])
def test_nulls_where_none_may_be_are_refused(row: tuple[object, ...], column: str) -> None:
    with pytest.raises(NotNullViolation, match=f'null value in column "{column}"'):
        change(KEYED, row)
    assert change(KEYED, (*row[:-1], -1)).inserts is not None, "one that is taken back was never there"


def test_no_piece_ends_within_a_key() -> None:
    rng = np.random.default_rng(5)
    keys = np.sort(rng.integers(0, 12, 60))
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.arange(60))], names=["__k", "n"])
    for size in (1, 2, 7, 60, 100):
        pieces = list(whole_keys(iter([rows.slice(i, size) for i in range(0, 60, size)])))
        assert pa.Table.from_batches(pieces).column("n").to_pylist() == list(range(60))
        of = [set(p.column(0).to_pylist()) for p in pieces]
        assert sum(map(len, of)) == len(set(keys.tolist())), "each key is in one piece"
    assert list(whole_keys(iter([]))) == []


class _State:
    """Objects, and what depends on them."""

    def __init__(self, *records: ObjectRecord) -> None:
        self.objects = {r.id: r for r in records}

    def dependents(self, object_id: int) -> list[int]:
        return [r.id for r in self.objects.values() if object_id in r.depends_on]


def made(number: int, content: Content, *below: int) -> ObjectRecord:
    return ObjectRecord(number, content, "public", f"o{number}", depends_on=below)


def test_circles_go_through_views_and_other_sinks() -> None:
    table, view = TableContent(), MaterializedViewContent()
    state = _State(
        made(1, table), made(2, view, 1), made(3, table), made(4, SinkContent(into=3), 2, 3), made(5, view, 3),
        made(6, SinkContent(), 3), made(7, table),
    )  # fmt: skip

    def way(table: int, *read: int) -> list[int]:
        return [r.id for r in circle(state, table, read)]  # type: ignore[arg-type]

    assert way(1, 5) == [1, 2, 4, 3, 5]
    assert way(1, 1) == [1] and way(3, 2) == [] and way(7, 1, 2, 3, 5) == []
    assert way(3, 1, 5) == [3, 5]
