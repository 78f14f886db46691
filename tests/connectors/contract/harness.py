"""Targets of sinks as the contract sees them: how a sink is opened, what is there, and what can go wrong."""

from __future__ import annotations

import itertools
import json
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.common.columns import Column
from headrace.connectors.base import Admission
from headrace.connectors.sinks import Sink, SinkPosition, open_sink
from headrace.connectors.sources import open_source
from kafka import Kafka
from postgres import HOST, Postgres
from receiver import Receiver
from schema_registry import SchemaRegistry, unframed

COLUMNS = (Column("id", "int"), Column("v", "string"))
Row = tuple[int, str | None]
_numbers = itertools.count(1)


def changes(*rows: tuple[int, str | None, int]) -> Iterator[pa.RecordBatch]:
    """Batches of (id, v, weight)."""
    for row in rows:
        arrays = [pa.array([row[0]], pa.int32()), pa.array([row[1]], pa.string()), pa.array([row[2]], pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, names=["id", "v", "__w"])


class Target(ABC):
    """One target, new for each test."""

    upserts = True

    def __init__(self) -> None:
        self.delivery = f"contract-{next(_numbers)}"

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Of a sink into it."""

    @abstractmethod
    def rows(self) -> Counter[Row]:
        """What readers of committed rows find."""

    def sink(self) -> Sink:
        """A new one, as every attempt has."""
        kind = {"type": "upsert", "primary_key": "id"} if self.upserts else {"type": "append-only"}
        return open_sink({**kind, **self.options()}, COLUMNS)

    def deliver(
        self, from_epoch: int, epoch: int, rows: Iterable[pa.RecordBatch], attempt: str = "a", known: int = 0
    ) -> int:
        """One attempt."""
        return self.sink().write(SinkPosition(self.delivery, from_epoch, epoch, 0, attempt, known), iter(rows))

    def emptied(self) -> None:
        """Make the target anew, as somebody would who knows nothing of the sink."""
        raise NotImplementedError


class PostgresTarget(Target):
    """A table."""

    def __init__(self, server: Postgres, upserts: bool = True) -> None:
        super().__init__()
        self.server, self.upserts = server, upserts
        self.table = f"target_{next(_numbers)}"
        server.execute(f"CREATE TABLE {self.table} (id int {'PRIMARY KEY' if upserts else ''}, v text)")

    def options(self) -> Mapping[str, str]:
        place = {"host": HOST, "port": str(self.server.port), "user": "root", "database": self.server.dbname}
        return {"connector": "postgres", **place, "table": self.table}

    def emptied(self) -> None:
        self.server.execute(f"DELETE FROM {self.table}", "DROP TABLE headrace_deliveries")

    def rows(self) -> Counter[Row]:
        with self.server.connect() as connection:
            return Counter(connection.execute(f"SELECT id, v FROM {self.table}").fetchall())


class HttpTarget(Target):
    """A receiver that takes each key of a request once."""

    receivers: ClassVar[dict[int, Receiver]] = {}
    """By their ports: a target goes to other processes, a receiver does not."""

    def __init__(self, receiver: Receiver, upserts: bool) -> None:
        super().__init__()
        self.port, self.url, self.upserts = receiver.port, receiver.url, upserts
        self.receivers[receiver.port] = receiver

    def options(self) -> Mapping[str, str]:
        return {"connector": "http", "url": self.url, "batch.rows": "100"}

    def rows(self) -> Counter[Row]:
        receiver = self.receivers[self.port]
        assert not receiver.changed, "a request that comes again is the same"
        return receiver.upserted("id") if self.upserts else receiver.added()


class FilesTarget(Target):
    """A directory."""

    upserts = False

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / "out"

    def options(self) -> Mapping[str, str]:
        return {"connector": "files", "path": str(self.folder)}

    def rows(self) -> Counter[Row]:
        found = [pyarrow.parquet.read_table(p).to_pylist() for p in sorted(self.folder.glob("*.parquet"))]
        return Counter((row["id"], row["v"]) for rows in found for row in rows)


class StoreTarget(Target):
    """A folder of an object store, with files of a format: `csv`, or `csv.gz` for compressed ones."""

    upserts = False

    def __init__(self, url: str, options: Mapping[str, str], format: str) -> None:
        super().__init__()
        self.url, self.store = f"{url}/{self.delivery}", dict(options)
        self.format, _, self.packed = format.partition(".")

    def options(self) -> Mapping[str, str]:
        packed = {"gz": {"compression": "gzip"}, "zst": {"compression": "zstd"}}.get(self.packed, {})
        return {"connector": "files", "path": self.url, "format": self.format, **packed, **self.store}

    def rows(self) -> Counter[Row]:
        source = open_source({"connector": "files", "path": self.url, **self.store}, COLUMNS)
        end = source.latest_offsets({}, Admission(), 0).offsets
        found = [r for task in source.plan({}, end, 4) for made in source.read(task) for r in made.batch.to_pylist()]
        return Counter((row["id"], row["v"]) for row in found)


class IcebergTarget(Target):
    """A table of a catalog in SQLite, read back by the package."""

    def __init__(self, folder: Path, upserts: bool) -> None:
        super().__init__()
        self.folder, self.upserts = folder, upserts

    def options(self) -> Mapping[str, str]:
        return {
            "connector": "iceberg", "catalog.type": "sql", "catalog.uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse.path": f"file://{self.folder}/lake", "database.name": "a.b", "table.name": "t",
            "create_table_if_not_exists": "true",
        }  # fmt: skip

    def emptied(self) -> None:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/lake"
        load_catalog("default", type="sql", uri=uri, warehouse=warehouse).drop_table("a.b.t")

    def rows(self) -> Counter[Row]:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/lake"
        table = load_catalog("default", type="sql", uri=uri, warehouse=warehouse).load_table("a.b.t")
        return Counter((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist())


class DeltaTarget(Target):
    """A table on a disk, read back by the package."""

    def __init__(self, folder: Path, upserts: bool) -> None:
        super().__init__()
        self.location, self.upserts = f"{folder}/table", upserts

    def options(self) -> Mapping[str, str]:
        return {"connector": "deltalake", "location": self.location, "create_table_if_not_exists": "true"}

    def emptied(self) -> None:
        shutil.rmtree(self.location)

    def rows(self) -> Counter[Row]:
        found = DeltaTable(self.location).to_pyarrow_table().to_pylist()
        return Counter((row["id"], row["v"]) for row in found)


class KafkaTarget(Target):
    """A topic; one of upserts is read as the table that it stands for."""

    def __init__(
        self, server: Kafka, format: str, registry: SchemaRegistry | None = None, key_encode: str | None = None
    ) -> None:
        super().__init__()
        self.key_encode = key_encode
        self.server, self.format, self.upserts, self.registry = server, format, format != "plain", registry
        self.topic = server.topic(f"target-{next(_numbers)}", 3)

    def options(self) -> Mapping[str, str]:
        return {
            "connector": "kafka", "topic": self.topic, "properties.bootstrap.server": self.server.servers,
            "format": self.format, "encode": "json" if self.registry is None else "avro",
            **({} if self.registry is None else {"encode.schema.registry": self.registry.url}),
            **({} if self.key_encode is None else {"key.encode": self.key_encode}),
        }  # fmt: skip

    def emptied(self) -> None:
        self.server.remade(self.topic)

    def _read(self, value: bytes) -> Any:
        return json.loads(value) if self.registry is None else unframed(self.registry, value)

    def rows(self) -> Counter[Row]:
        values = [
            (m.key(), None if m.value() is None else self._read(m.value())) for m in self.server.records(self.topic)
        ]
        if self.key_encode == "text":
            assert all(int(key) == value["id"] for key, value in values if value is not None)
        if self.format == "plain":
            return Counter((value["id"], value["v"]) for _, value in values)
        table: dict[Any, Any] = {}
        for key, value in values:
            if self.format == "debezium":
                before, value = value["payload"]["before"], value["payload"]["after"]
                assert table.get(key) == before, "a change begins with what was there"
            table[key] = value
        return Counter((row["id"], row["v"]) for row in table.values() if row is not None)
