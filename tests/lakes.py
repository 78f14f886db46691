"""Tables of a lake for tests: made and changed by the packages of their formats, and read back by these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("p", pa.string())])
Row = tuple[int, str | None, str | None]


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as Arrow has them."""
    return (
        pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows), SCHEMA)], schema=SCHEMA)
        if rows
        else (SCHEMA.empty_table())
    )


class Lake(ABC):
    """One table of (id, v, p), perhaps partitioned by p."""

    kind: str

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Of a source of it, that looks each time."""

    @abstractmethod
    def append(self, rows: Sequence[Row]) -> None:
        """Add rows."""

    @abstractmethod
    def delete(self, ids: Sequence[int]) -> None:
        """Delete rows by their ids."""

    @abstractmethod
    def overwrite(self, rows: Sequence[Row]) -> None:
        """Have these rows only."""

    @abstractmethod
    def merge(self, rows: Sequence[Row]) -> None:
        """Replace rows by their ids, and add those that are new."""

    @abstractmethod
    def compact(self) -> None:
        """Lay rows out in fewer files."""

    @abstractmethod
    def rows(self) -> Counter[Row]:
        """What is in it now."""

    def sql(self, **more: str) -> str:
        """The options, for WITH."""
        return ", ".join(f"{name} = '{value}'" for name, value in {**self.options(), **more}.items())


class DeltaLake(Lake):
    """A Delta table in a folder."""

    kind = "deltalake"

    def __init__(self, folder: Path, partitioned: bool = False, **configuration: str) -> None:
        self.location = f"{folder}/delta"
        by = ["p"] if partitioned else None
        DeltaTable.create(self.location, SCHEMA, partition_by=by, configuration=configuration or None)

    @property
    def table(self) -> DeltaTable:
        """As it is now."""
        return DeltaTable(self.location)

    def options(self) -> Mapping[str, str]:
        return {"connector": "deltalake", "location": self.location, "refresh.interval": "1ms"}

    def append(self, rows: Sequence[Row]) -> None:
        properties = WriterProperties(max_row_group_size=65_536)
        write_deltalake(self.location, table_of(rows), mode="append", writer_properties=properties)

    def delete(self, ids: Sequence[int]) -> None:
        self.table.delete(f"id IN ({', '.join(map(str, ids))})")

    def overwrite(self, rows: Sequence[Row]) -> None:
        write_deltalake(self.location, table_of(rows), mode="overwrite")

    def merge(self, rows: Sequence[Row]) -> None:
        merger = self.table.merge(table_of(rows), "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        self.table.optimize.compact()

    def rows(self) -> Counter[Row]:
        found = pa.table(self.table.scan().read_all())
        return Counter((r["id"], r["v"], r["p"]) for r in found.to_pylist())


class IcebergLake(Lake):
    """An Iceberg table of a catalog in SQLite."""

    kind = "iceberg"

    def __init__(self, folder: Path, partitioned: bool = False, **properties: str) -> None:
        self.folder = folder
        self.catalog.create_namespace("n")
        table = self.catalog.create_table("n.t", SCHEMA, properties=properties)
        if partitioned:
            with table.update_spec() as update:
                update.add_identity("p")

    @property
    def place(self) -> Mapping[str, str]:
        """Where the catalog is."""
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/ice"}

    @property
    def catalog(self) -> Catalog:
        """The catalog."""
        return load_catalog("default", **self.place)

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.catalog.load_table("n.t")

    def options(self) -> Mapping[str, str]:
        return {
            "connector": "iceberg", "catalog.type": self.place["type"], "catalog.uri": self.place["uri"],
            "warehouse.path": self.place["warehouse"], "database.name": "n", "table.name": "t",
            "refresh.interval": "1ms",
        }  # fmt: skip

    def append(self, rows: Sequence[Row]) -> None:
        self.table.append(table_of(rows))

    def delete(self, ids: Sequence[int]) -> None:
        self.table.delete(In("id", ids))

    def overwrite(self, rows: Sequence[Row]) -> None:
        self.table.overwrite(table_of(rows))

    def merge(self, rows: Sequence[Row]) -> None:
        self.table.overwrite(table_of(rows), overwrite_filter=In("id", [r[0] for r in rows]))

    def compact(self) -> None:
        """The package cannot: the rows are written anew, as an overwrite."""
        self.table.overwrite(self.table.scan().to_arrow())

    def rows(self) -> Counter[Row]:
        return Counter((r["id"], r["v"], r["p"]) for r in self.table.scan().to_arrow().to_pylist())
