"""Sources as the contract sees them: how one is opened, and how more rows come to it."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import fastavro

from headrace.common.columns import Column
from headrace.connectors.base import Source
from headrace.connectors.sources import open_source
from kafka import Kafka
from lakes import Lake
from object_server import S3Server
from postgres import Postgres, cdc_options

_numbers = itertools.count(1)


class Origin(ABC):
    """Where rows come from, new for each test."""

    columns: Sequence[Column] = (Column("n", "bigint"),)
    limits = True
    """Whether a binding takes in no more rows than it may."""

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Of a source of it."""

    @abstractmethod
    def add(self, first: int, end: int) -> None:
        """More rows, with the numbers first <= n < end, if it can be told."""

    def source(self) -> Source:
        """A new one, as every process has."""
        return open_source(self.options(), self.columns)


class DatagenOrigin(Origin):
    """Rows that are made up: all of them are there at once."""

    def options(self) -> Mapping[str, str]:
        made = {"fields.n.kind": "sequence", "rows_per_second": "unlimited", "number_of_rows": "300", "splits": "2"}
        return {"connector": "datagen", **made}

    def add(self, first: int, end: int) -> None:
        pass


class FilesOrigin(Origin):
    """A directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self) -> Mapping[str, str]:
        return {"connector": "files", "path": str(self.folder), "format": "json"}

    def add(self, first: int, end: int) -> None:
        made = self.folder / f".{first}"
        made.write_text("".join(f'{{"n": {i}}}\n' for i in range(first, end)))
        made.rename(self.folder / f"{first:06}.json")


class AvroOrigin(FilesOrigin):
    """A directory of Avro's files."""

    def options(self) -> Mapping[str, str]:
        return {"connector": "files", "path": str(self.folder), "format": "avro"}

    def add(self, first: int, end: int) -> None:
        schema = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}
        made = self.folder / f".{first}"
        with made.open("wb") as file:
            fastavro.writer(file, schema, [{"n": n} for n in range(first, end)], codec="deflate", sync_interval=20)
        made.rename(self.folder / f"{first:06}.avro")


class ObjectsOrigin(Origin):
    """A prefix in an object store."""

    def __init__(self, server: S3Server) -> None:
        self.server, self.folder = server, f"contract/{next(_numbers)}"

    def options(self) -> Mapping[str, str]:
        place = {"path": f"s3://{self.server.bucket}/{self.folder}/", "format": "json", "refresh.interval": "1ms"}
        return {"connector": "files", **place, **self.server.options}

    def add(self, first: int, end: int) -> None:
        text = "".join(f'{{"n": {i}}}\n' for i in range(first, end))
        self.server.put(f"{self.folder}/{first:06}.json", text.encode())


class KafkaOrigin(Origin):
    """A topic of three partitions, with aborted records between those that count."""

    def __init__(self, server: Kafka) -> None:
        self.server, self.topic = server, server.topic(f"origin-{next(_numbers)}", 3)
        self._producer = server.producer(**{"transactional.id": self.topic})
        self._producer.init_transactions(60)

    def options(self) -> Mapping[str, str]:
        return {"connector": "kafka", "topic": self.topic, "properties.bootstrap.server": self.server.servers}

    def add(self, first: int, end: int) -> None:
        for numbers, counts in ((range(first, end), True), (range(-end, -first), False)):
            self._producer.begin_transaction()
            for n in numbers:
                self._producer.produce(self.topic, json.dumps({"n": n}), str(n))
            assert self._producer.flush(60) == 0
            (self._producer.commit_transaction if counts else self._producer.abort_transaction)(60)
        self.server.settle(self.topic)


class LakeOrigin(Origin):
    """A table of a lake, to which each time rows are added that go again, and others in two files."""

    limits = False  # commits are whole, and so are files

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    columns = (Column("id", "bigint"),)

    def options(self) -> Mapping[str, str]:
        return self.lake.options()

    def add(self, first: int, end: int) -> None:
        middle = (first + end) // 2
        self.lake.append([(n, "x", None) for n in range(first, middle)])
        self.lake.append([(n, "y", None) for n in (*range(middle, end), -1 - first)])
        self.lake.delete([-1 - first])
        self.lake.compact()


class CdcOrigin(Origin):
    """A table of PostgreSQL, of which the reader takes in each binding before the next is made."""

    columns = (Column("n", "bigint", False), Column("_op", "string"), Column("_at", "bigint"))
    limits = False  # transactions are whole

    def __init__(self, server: Postgres) -> None:
        self.server, self.table = server, f"origin_{next(_numbers)}"
        server.execute(f"CREATE TABLE {self.table} (n bigint PRIMARY KEY)")
        self._options = cdc_options(server, self.table)

    def options(self) -> Mapping[str, str]:
        return self._options

    def add(self, first: int, end: int) -> None:
        self.server.execute(f"INSERT INTO {self.table} SELECT i FROM generate_series({first}, {end - 1}) AS g(i)")
