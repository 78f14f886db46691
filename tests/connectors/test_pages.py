"""The manual's pages on connectors: their tables of options are those of the code."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from headrace.connectors import base, datagen, nexmark, sinks
from headrace.connectors.declared import DeclaredOptions
from headrace.connectors.files import folders, options
from headrace.connectors.files import sink as file_sink
from headrace.connectors.http import sink as http
from headrace.connectors.kafka import options as kafka
from headrace.connectors.lake import delta, delta_source, iceberg, iceberg_source
from headrace.connectors.postgres import options as postgres
from headrace.connectors.webhook import options as webhook
from headrace.session.database import connect
from support import eventually

PAGES = Path(__file__).parents[2] / "docs" / "connectors"


@pytest.mark.parametrize(
    ("page", "mark", "declared"),
    [
        ("postgres", "options", postgres.SINK),
        ("postgres", "cdc options", postgres.CDC),
        ("postgres", "shared options", postgres.SHARED),
        ("files", "source options", options.SOURCE),
        ("files", "options", file_sink.SINK),
        ("files", "copy options", folders.OPTIONS),
        ("http", "options", http.SINK),
        ("webhook", "options", webhook.OPTIONS),
        ("datagen", "options", datagen.OPTIONS),
        ("nexmark", "options", nexmark.OPTIONS),
        ("iceberg", "options", iceberg.SINK),
        ("deltalake", "options", delta.SINK),
        ("iceberg", "source options", iceberg_source.SOURCE),
        ("deltalake", "source options", delta_source.SOURCE),
        ("README", "options of every sink", sinks.OPTIONS),
        ("README", "options of every source", base.OPTIONS),
        ("kafka", "source options", kafka.SOURCE),
        ("kafka", "sink options", kafka.SINK),
    ],
)
def test_options_are_those_of_the_code(page: str, mark: str, declared: DeclaredOptions) -> None:
    text = (PAGES / f"{page}.md").read_text()
    _, found, rest = text.partition(f"<!-- {mark} -->\n")
    assert found and rest.lstrip("\n").startswith(declared.table() + "\n"), declared.table()


def test_every_source_knows_the_options_of_every_source() -> None:
    assert ("connector", *(option.name for option in base.OPTIONS.options)) == base.COMMON_OPTIONS


def test_each_connector_has_a_page() -> None:
    listed = (PAGES / "README.md").read_text()
    assert all(f"({page.name})" in listed for page in PAGES.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize(("page", "view"), [("datagen", "by_page"), ("nexmark", "hottest")])
def test_the_example_runs(spark: SparkSession, tmp_path: Path, page: str, view: str) -> None:
    example = (PAGES / f"{page}.md").read_text().partition("```sql\n")[2].partition("```")[0]
    with connect(tmp_path / "db", spark=spark) as database:
        for sql in example.split(";\n"):
            if sql.strip():
                database.sql(sql)
        eventually(lambda: len(database.sql(f"SELECT * FROM {view}").rows()) > 1, "rows to come")


@pytest.mark.parametrize("page", ["iceberg", "deltalake"])
def test_the_example_of_a_lake_source_runs(spark: SparkSession, tmp_path: Path, page: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(10, 2))])
    orders = pa.table({"id": [1, 2], "customer": ["ann", "ann"], "amount": ["1.50", "2.25"]}).cast(schema)
    if page == "iceberg":
        (tmp_path / "lake").mkdir()
        catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/lake/catalog.db",
                               warehouse=f"file://{tmp_path}/lake")  # fmt: skip
        catalog.create_namespace("shop")
        catalog.create_table("shop.orders", schema).append(orders)
    else:
        write_deltalake(tmp_path / "orders", orders)
    source = (PAGES / f"{page}.md").read_text().partition("## Source\n")[2]
    example = source.partition("```sql\n")[2].partition("```")[0]
    with connect(tmp_path / "db", spark=spark) as database:
        for sql in example.replace("/tmp/", f"{tmp_path}/").split(";\n"):
            if sql.strip():
                database.sql(sql)
        found = [("ann", Decimal("3.75"))]
        eventually(lambda: [tuple(r) for r in database.sql("SELECT * FROM spent").rows()] == found, "the sum")
