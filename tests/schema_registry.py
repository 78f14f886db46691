"""A schema registry that speaks what Confluent's does of it that clients ask: schemas by id and by subject."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import fastavro


class SchemaRegistry:
    """What is registered, and who asked."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.fails = 0
        """With which status it answers; 0 if it works."""
        self.url = ""

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        """Register the next version; its id. A schema of Protobuf is a text, others are JSON."""
        text = schema if more.get("schemaType") == "PROTOBUF" else json.dumps(schema)
        self.schemas.append({"schema": text, **more})
        self.subjects.setdefault(subject, []).append(len(self.schemas))
        return len(self.schemas)

    def answer(self, path: str) -> tuple[int, Any]:
        match path.partition("?")[0].strip("/").split("/"):
            case _ if self.fails:
                return self.fails, {"error_code": 50001}
            case ["schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return 200, self.schemas[int(number) - 1]
            case ["subjects", subject, "versions", asked] if unquote(subject) in self.subjects:
                versions = self.subjects[unquote(subject)]
                version = len(versions) if asked == "latest" else int(asked)
                if 0 < version <= len(versions):
                    about = {"subject": unquote(subject), "id": versions[version - 1], "version": version}
                    return 200, about | self.schemas[versions[version - 1] - 1]
        return 404, {"error_code": 40403, "message": "Schema not found"}


def unframed(registry: SchemaRegistry, data: bytes) -> Any:
    """What Confluent's deserializer reads."""
    magic, number = struct.unpack_from(">bI", data)
    assert magic == 0
    stream = io.BytesIO(data[5:])
    value = fastavro.schemaless_reader(
        stream, fastavro.parse_schema(json.loads(registry.schemas[number - 1]["schema"])), None
    )
    assert not stream.read()
    return value


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    """A value as Confluent's serializer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A running registry."""
    found = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, self.headers["Authorization"]))
            self._answer(*found.answer(self.path))

        def _answer(self, status: int, answer: Any) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            subject = unquote(self.path.strip("/").split("/")[1])
            if found.fails:
                return self._answer(found.fails, {"error_code": found.fails, "message": "incompatible"})
            known = [i + 1 for i, each in enumerate(found.schemas) if each["schema"] == data["schema"]]
            number = next((i for i in known if i in found.subjects.get(subject, [])), None)
            return self._answer(200, {"id": number or found.add(subject, json.loads(data["schema"]))})

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="schema-registry")
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
