"""Sources that get columns: in which width what was made before reads them, and what goes if nothing comes of it."""

from __future__ import annotations

from headrace.catalog.contents import IndexContent, MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.base import FIELD_IDS
from headrace.coordinator.ddl.replacing import definition_with, left_behind, name_while_refreshed
from headrace.coordinator.decide.widths import left_wide, narrowed, wider

A, B, C, OTHER_C = Column("a", "int"), Column("b", "int"), Column("c", "int"), Column("c", "string")
SOURCE = ObjectRecord(1, SourceContent(part="t"), "public", "t$changes", (A,), options={"x": "1"})


def view(id: int, name: str = "t", definition: str = "CREATE TABLE t") -> ObjectRecord:
    return ObjectRecord(id, MaterializedViewContent(), "public", name, (A,), definition, depends_on=(1,))


def names(record: ObjectRecord) -> list[str]:
    return [c.name for c in record.columns]


def test_who_was_there_before_reads_what_there_was() -> None:
    once = wider(SOURCE, [B, A], {"y": "2"}, 11)
    twice = wider(once, [B, C], {}, 21)
    assert (names(once), names(twice), once.options) == (["a", "b"], ["a", "b", "c"], {"x": "1", "y": "2"})
    assert wider(twice, [C], {"z": "3"}, 31) is twice
    assert [twice.content.width_before(i) for i in (2, 10, 11, 20, 21, 30)] == [1, 1, 2, 2, None, None]


def test_columns_that_nobody_has_come_for_are_taken_away() -> None:
    source = wider(SOURCE, [B], {}, 11)
    assert left_wide(CatalogState([source, view(2)])) == [1]
    assert names(narrowed(CatalogState([source, view(2)]), source)) == ["a"]
    state = CatalogState([source, view(2), view(12, "t$refreshed")])
    assert narrowed(state, source) is source and left_wide(state) == []
    more = wider(wider(source, [C], {}, 21), [Column("d", "int")], {}, 31)
    kept = narrowed(CatalogState([more, view(12)]), more)
    assert names(kept) == ["a", "b"] and kept.content_as(SourceContent).widths == ((11, 1),)
    assert wider(kept, [OTHER_C], {}, 41).columns == (A, B, OTHER_C)
    nobody = narrowed(CatalogState([more]), more)
    assert names(nobody) == ["a"] and nobody.content_as(SourceContent).widths == ()


def test_what_they_are_found_by_goes_with_them() -> None:
    once = wider(SOURCE, [B], {FIELD_IDS: '{"b": 2}'}, 11)
    twice = wider(once, [C], {FIELD_IDS: '{"b": 2, "c": 3}'}, 21)
    assert narrowed(CatalogState([twice, view(12)]), twice).options == {"x": "1", FIELD_IDS: '{"b": 2}'}
    assert narrowed(CatalogState([twice]), twice) == SOURCE


def test_a_source_that_people_know_keeps_its_columns() -> None:
    source = wider(ObjectRecord(1, SourceContent(), "public", "s", (A,)), [B], {}, 11)
    assert narrowed(CatalogState([source]), source) is source


def test_a_table_that_was_being_filled_over_the_same_source_is_left_behind() -> None:
    table = view(2)
    new = view(12, name_while_refreshed(table), definition_with(table, "ALTER TABLE t ADD COLUMN b int"))
    index = ObjectRecord(13, IndexContent(on=12, key=("a",)), "public", "i$refreshed", (A,), depends_on=(12,))
    somebodys = view(14, "u$refreshed", "CREATE TABLE u$refreshed")
    state = CatalogState([wider(SOURCE, [B], {}, 11), table, new, index, somebodys])
    assert sorted(left_behind(state)) == [12, 13]


def test_the_hidden_source_of_a_table_that_did_not_come_is_left_behind() -> None:
    known = ObjectRecord(3, SourceContent(), "public", "s", (A,))
    assert left_behind(CatalogState([SOURCE, known])) == [SOURCE.id]
    assert left_behind(CatalogState([SOURCE, known, view(2)])) == []
