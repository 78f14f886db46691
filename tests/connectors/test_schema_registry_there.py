"""Avro and Protobuf with a schema registry that is not ours: Apicurio's, by the protocol of Confluent's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import message_factory

import registries
from headrace.common.columns import Column
from headrace.connectors.kafka.avro import AvroForm, AvroReader
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.connectors.kafka.protobuf_schemas import compiled
from headrace.connectors.kafka.registry import Registry
from headrace.connectors.sources import infer_columns
from headrace.errors import InvalidParameter, SinkError, SourceError
from support import eventually

PART = 'syntax = "proto3"; package geo; message Point { double x = 1; double y = 2; }'
ORDER = """syntax = "proto3"; package shop; import "geo/point.proto"; import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; optional string name = 2; geo.Point at = 3; google.protobuf.Timestamp made = 4; }"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        held = registries.archive(registries.SCHEMA_REGISTRY)
    except registries.NotToBeHad as error:
        pytest.skip(f"no schema registry: {error}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    assert java is not None
    folder = tmp_path_factory.mktemp("registry")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [java, "-Xmx256m", "-cp", f"{held}/*:{held}/lib/*", "io.quarkus.runner.GeneratedMain"], cwd=folder,
            env={**os.environ, "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    found = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        eventually(lambda: _answers(f"{found}/subjects"), "the schema registry to come up")
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def add(url: str, subject: str, text: str, **more: Any) -> int:
    body = json.dumps({"schema": text, "schemaType": "PROTOBUF", **more}).encode()
    head = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/subjects/{subject}/versions", body, head)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.load(answer)["id"])


def options(url: str, **more: str) -> dict[str, str]:
    place = {"connector": "kafka", "topic": "orders", "properties.bootstrap.server": "h:1"}
    return {**place, "encode.schema.registry": url, **more}


def test_protobuf(url: str) -> None:
    add(url, "point", PART)
    number = add(url, "orders-value", ORDER, references=[{"name": "geo/point.proto", "subject": "point", "version": 1}])
    given = options(url, encode="protobuf")
    columns = infer_columns(given)
    assert [(c.name, c.type) for c in columns] == [
        ("id", "bigint"), ("name", "string"), ("at", "struct<x:double,y:double>"), ("made", "timestamp"),
    ]  # fmt: skip
    registry = Registry(given)
    made = message_factory.GetMessageClass(compiled(registry, registry.by_id(number)).named("Order"))
    values = [made(id=i, name="n") if i % 2 else made(id=i, at={"x": i, "y": -1}) for i in range(1000)]
    frame = b"\0" + number.to_bytes(4, "big") + b"\0"
    shape = RecordShape.of("orders", "plain", "protobuf", columns, given)
    rows = shape.rows([_message(frame + v.SerializeToString(), i) for i, v in enumerate(values)], 0, "fail").batch
    assert rows.to_pylist() == [
        {"id": i, "name": "n" if i % 2 else None, "at": None if i % 2 else {"x": i, "y": -1.0}, "made": None}
        for i in range(1000)
    ]


def test_avro(url: str) -> None:
    columns = [Column("id", "bigint"), Column("name", "string")]
    form = AvroForm(Registry(options(url), SinkError), "clicks", columns, ["id"])
    form.register("upsert")
    row = {"id": 7, "name": "ü"}
    key, value = form.record(form.key(row), form.value(row))
    reader = AvroReader(Registry(options(url)))
    assert (reader.record(key or b""), reader.record(value or b"")) == ({"id": 7}, row)
    found = infer_columns(options(url, encode="avro", topic="clicks"))
    assert [(c.name, c.type) for c in found] == [("id", "bigint"), ("name", "string")]
    form.register("upsert")  # twice is once
    with pytest.raises(InvalidParameter, match="has no subject nothing-value"):
        infer_columns(options(url, encode="avro", topic="nothing"))
    with pytest.raises(SourceError, match="does not answer"):
        infer_columns(options("http://127.0.0.1:9", encode="avro"))


def _message(value: bytes, offset: int) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: None, offset=lambda: offset)
