"""Which hidden objects go with what people drop or give away."""

from __future__ import annotations

from headrace.catalog.contents import Content, MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.session.hidden_views import parts_of


def record(number: int, content: Content, name: str, *depends_on: int) -> ObjectRecord:
    return ObjectRecord(number, content, "public", name, depends_on=depends_on)


def test_a_table_that_is_being_filled_does_not_take_the_slot_of_the_one_beside_it_along() -> None:
    """CANCEL JOBS and DROP TABLE of it are about it alone; the slot goes with the table that has it."""
    state = CatalogState((
        record(1, SourceContent(part="t", origin=3), "t$changes", 3),
        record(2, MaterializedViewContent(), "t", 1),
        record(3, SourceContent(part="t", shared=True), "t$slot"),
        record(4, SourceContent(part="t$refreshed", origin=3), "t$refreshed$changes", 3),
        record(5, MaterializedViewContent(), "t$refreshed", 4),
    ))  # fmt: skip
    assert [o.id for o in parts_of(state, [5])] == [4]
    assert [o.id for o in parts_of(state, [2])] == [3, 1]


def test_a_table_that_is_being_filled_over_the_source_of_another_does_not_take_it_along() -> None:
    state = CatalogState((
        record(1, SourceContent(part="t"), "t$changes"),
        record(2, MaterializedViewContent(), "t", 1),
        record(3, MaterializedViewContent(), "t$refreshed", 1),
    ))  # fmt: skip
    assert parts_of(state, [3]) == []
    assert [o.id for o in parts_of(state, [2])] == [1]
