"""The records of `connectors.py` in each encoding: what makes them, what headrace is told, who reads them plainly."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from schema_registry import SchemaRegistry

SCHEMA = {"type": "record", "name": "Click", "fields": [
    {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "page", "type": "string"}, {"name": "ok", "type": "boolean"},
]}  # fmt: skip
PROTO = """
syntax = "proto3";
message Click { int64 id = 1; string customer = 2; double amount = 3; string page = 4; bool ok = 5; }
"""
_PROTO_TYPES = {"id": 3, "customer": 9, "amount": 1, "page": 9, "ok": 8}
Encode = Callable[[dict[str, object]], bytes]


@dataclass(frozen=True)
class Encoding:
    """One encoding of the records."""

    name: str
    clause: str
    """Behind `ENCODE`."""
    encode: Encode
    parser: str
    """Python that defines `parse(data)`: the customer and the amount of a record."""
    registry: str = ""


def encodings(registry: SchemaRegistry) -> dict[str, Callable[[], Encoding]]:
    """What makes each, by the name of its case."""
    of_registry = f"(schema.registry = '{registry.url}')"
    return {
        "kafka": lambda: Encoding("JSON", "JSON", lambda record: json.dumps(record).encode(), _JSON),
        "avro": lambda: Encoding(
            "Avro", f"AVRO {of_registry}", _avro(registry.add("clicks-value", SCHEMA)),
            _AVRO.replace("SCHEMA", json.dumps(SCHEMA)), registry.url,
        ),
        "protobuf": lambda: Encoding(
            "Protobuf", f"PROTOBUF {of_registry}",
            _protobuf(registry.add("clicks-value", PROTO, schemaType="PROTOBUF")),
            _PROTOBUF.replace("FILE", repr(_file().SerializeToString())), registry.url,
        ),
    }  # fmt: skip


def _avro(schema_id: int) -> Encode:
    """Records with the frame of Confluent's serializers."""
    parsed, head = fastavro.parse_schema(SCHEMA), struct.pack(">bI", 0, schema_id)

    def encode(record: dict[str, object]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        return head + out.getvalue()

    return encode


def _protobuf(schema_id: int) -> Encode:
    """The same; a zero says that it is the first message of its schema."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    click, head = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName("Click")),
        struct.pack(">bIb", 0, schema_id, 0),
    )
    return lambda record: head + bytes(click(**record).SerializeToString())


def _file() -> descriptor_pb2.FileDescriptorProto:
    """`PROTO`, as its compiler describes it."""
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", syntax="proto3")
    click = file.message_type.add(name="Click")
    for number, (name, kind) in enumerate(_PROTO_TYPES.items(), 1):
        click.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return file


_JSON = """
import json
def parse(data):
    record = json.loads(data)
    return record["customer"], record["amount"]
"""
_AVRO = """
import fastavro, io, json
schema = fastavro.parse_schema(json.loads('SCHEMA'))
def parse(data):
    record = fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)
    return record["customer"], record["amount"]
"""
_PROTOBUF = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
pool = descriptor_pool.DescriptorPool()
pool.Add(descriptor_pb2.FileDescriptorProto.FromString(FILE))
read = message_factory.GetMessageClass(pool.FindMessageTypeByName("Click")).FromString
def parse(data):
    record = read(data[6:])
    return record.customer, record.amount
"""
_CONSUME = """
import sys, time
from collections import Counter
from confluent_kafka import Consumer, TopicPartition
servers, topic, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain", "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, p, 0) for p in range(2)])
seen, totals, started = 0, Counter(), time.perf_counter()
while seen < rows:
    for message in consumer.consume(10_000, 1.0):
        customer, amount = parse(message.value())
        totals[customer] += amount
        seen += 1
print(time.perf_counter() - started, time.process_time())
"""


def read_plainly(encoding: Encoding, servers: str, topic: str, rows: int) -> tuple[float, float]:
    """Seconds and processor seconds of a consumer that parses the records and adds them up, in a process of its own."""
    command = [sys.executable, "-c", encoding.parser + _CONSUME, servers, topic, str(rows)]
    seconds, cpu_s = map(float, subprocess.run(command, capture_output=True, check=True).stdout.split())
    return seconds, cpu_s
