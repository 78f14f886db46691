"""By which key a table keeps rows of its source, as its query says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.catalog.contents import MaterializedViewContent, SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.coordinator.decide.widths import wider
from headrace.errors import NotSupported
from headrace.session.execution.fed import COLUMNS, key_of, query_of

NAMES = ("id", "an `odd`, one", "v")
SOURCE = ObjectRecord(
    1, SourceContent(part="t"), "public", "t$changes", tuple(Column(name, "int", False) for name in NAMES)
)
CHANGES = replace(
    SOURCE,
    columns=(*SOURCE.columns, Column(COLUMNS["operation"], "string"), Column(COLUMNS["position"], "bigint")),
)


def table(query: str) -> ObjectRecord:
    return ObjectRecord(2, MaterializedViewContent(spark_sql=query), "public", "t", depends_on=(1,))


@pytest.mark.parametrize("source", [SOURCE, CHANGES])
@pytest.mark.parametrize("key", [(), ("id",), ("v", "an `odd`, one"), ("an `odd`, one",)])
def test_the_key_is_what_the_query_was_made_by(source: ObjectRecord, key: tuple[str, ...]) -> None:
    """All columns are NOT NULL, and it has got more since."""
    made = table(query_of(source, key))
    assert key_of(made, source) == [*key]
    assert key_of(made, wider(source, [Column("more", "int")], {}, 11)) == [*key]


def test_another_query_is_refused() -> None:
    for text in ("SELECT 1", query_of(SOURCE, ["id"]) + " AND `v` = 1"):
        with pytest.raises(NotSupported, match='the query by which "t" keeps rows'):
            key_of(table(text), SOURCE)
