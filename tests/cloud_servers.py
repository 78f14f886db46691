"""Servers that speak what Google's and Azure's object stores speak.

Azure's is Azurite, Microsoft's own emulator, from the package registry of Node. Google has none for the XML interface,
which is S3's but for the names of a few headers: it is the S3 server behind a translation of these.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any

from headrace.state.stores import StoreRoot
from object_server import CREDENTIALS, call, environment, serve, served

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(hashlib.sha512(b"headrace").digest()).decode()
BUCKET = "headrace"


@dataclass(frozen=True)
class Cloud:
    """A running server with one bucket."""

    scheme: str
    options: tuple[tuple[str, str], ...]

    def root(self, cache_dir: Path) -> StoreRoot:
        """A prefix that nobody else uses."""
        return StoreRoot(f"{self.scheme}://{BUCKET}/{uuid.uuid4().hex}", self.options, str(cache_dir))


@contextmanager
def google() -> Iterator[Cloud]:
    """The XML interface of Google's Cloud Storage."""
    with served(__file__) as endpoint:
        account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        with environment({"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "private_key_id": ""})}):
            call(f"{endpoint}/{BUCKET}", "PUT")
            yield Cloud("gs", (("allow_http", "true"),))


def free_port() -> int:
    """Azurite says only on a terminal which one it has chosen by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def azurite() -> list[str] | None:
    """The command that starts Azurite, installed if need be; None where that cannot be."""
    if found := shutil.which("azurite-blob"):
        return [found]
    npm = shutil.which("npm")
    return None if npm is None else _by_npm(npm)


@cache
def _by_npm(npm: str) -> list[str]:
    """Of an installation that was broken off npm says nothing and leaves it so: another one is made beside it."""
    usual = [npm, "exec", "--yes", "--package", "azurite", "--", "azurite-blob"]
    if subprocess.run([*usual, "--version"], capture_output=True, timeout=300).returncode == 0:
        return usual
    return [npm, "--cache", tempfile.mkdtemp(prefix="headrace-npm-"), *usual[1:]]


@contextmanager
def azure(command: list[str]) -> Iterator[Cloud]:
    """Azure's Blob Storage."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    flags = ["--silent", "--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck"]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    with environment(accounts):
        server = subprocess.Popen(
            [*command, *flags, "--blobPort", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _create_container(server, f"{endpoint}/{BUCKET}?restype=container")
            yield Cloud("az", (("account_name", ACCOUNT), ("allow_http", "true"), ("endpoint", endpoint)))
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _create_container(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 240
    while True:
        stamp, version = formatdate(usegmt=True), "2021-08-06"
        headers = f"x-ms-date:{stamp}\nx-ms-version:{version}"
        signed = "PUT" + "\n" * 12 + f"{headers}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")).decode()
        fields = {"x-ms-date": stamp, "x-ms-version": version, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=fields), timeout=60):
                return
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "Azurite does not come up"
            time.sleep(0.1)


def _translated(app: Callable[..., Any]) -> Callable[..., Any]:
    """Google's headers as those of S3."""

    def translate(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        environ["HTTP_AUTHORIZATION"] = CREDENTIALS
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        return app(environ, start_response)

    return translate


if __name__ == "__main__":
    serve(_translated)
