"""A real S3 server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.state.stores import StoreRoot


@dataclass(frozen=True)
class S3Server:
    """A server on the loopback address with one bucket."""

    endpoint: str
    bucket: str

    def root(self, cache_dir: Path, **changes: int) -> StoreRoot:
        """A prefix that nobody else uses."""
        return StoreRoot(
            url=f"s3://{self.bucket}/{uuid.uuid4().hex}",
            options=(("allow_http", "true"), ("endpoint", self.endpoint), ("region", "us-east-1")),
            cache_dir=str(cache_dir),
            **changes,
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(url: str, method: str = "GET") -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        answer.read()


def wait_until_up(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            call(url)
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None and time.monotonic() < deadline, "the S3 server does not come up"
            time.sleep(0.05)


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
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with environment({"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}):
            endpoint = f"http://127.0.0.1:{port}"
            wait_until_up(server, f"{endpoint}/moto-api/")
            call(f"{endpoint}/headrace", "PUT")
            yield S3Server(endpoint, "headrace")
    finally:
        server.terminate()
        server.wait(30)
