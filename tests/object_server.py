"""A real S3 server in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.state.stores import StoreRoot
from support import WAIT_S, child

CREDENTIALS = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True)
class S3Server:
    """A server on the loopback address with one bucket."""

    endpoint: str
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        """Of a connector that reads or writes there."""
        return {"s3.endpoint": self.endpoint, "s3.region": "us-east-1"}

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        call(f"{self.endpoint}/{self.bucket}/{quote(key)}", "PUT", data)

    def delete(self, key: str) -> None:
        """Remove an object."""
        call(f"{self.endpoint}/{self.bucket}/{quote(key)}", "DELETE")

    def root(self, cache_dir: Path, **changes: int) -> StoreRoot:
        """A prefix that nobody else uses."""
        return StoreRoot(
            url=f"s3://{self.bucket}/{uuid.uuid4().hex}",
            options=(("allow_http", "true"), ("endpoint", self.endpoint), ("region", "us-east-1")),
            cache_dir=str(cache_dir),
            **changes,
        )


def call(url: str, method: str = "GET", data: bytes | None = None) -> None:
    headers = {"Authorization": CREDENTIALS, "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        answer.read()


@contextmanager
def served(program: str) -> Iterator[str]:
    """The address of a server: `program` calls `serve`, in a process that ends with the block."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with child([sys.executable, program], **streams, text=True, env=environ) as server:
        assert server.stdout is not None
        port = server.stdout.readline()
        assert port, "the server does not come up"
        yield f"http://127.0.0.1:{int(port)}"


def serve(translated: Callable[[Any], Any] = lambda app: app) -> None:
    """Serve for ever on a free port, and say which once clients can connect."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = translated(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables are set meanwhile."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A running server; its credentials are in the environment meanwhile."""
    credentials = environment({"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    with served(__file__) as endpoint, credentials:
        call(f"{endpoint}/headrace", "PUT")
        yield S3Server(endpoint, "headrace")


if __name__ == "__main__":
    serve()
