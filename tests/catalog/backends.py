"""Empty places for a catalog, of each kind."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from object_server import S3Server
from postgres import Postgres


def new_database(server: Postgres, port: int | None = None) -> str:
    """The URL of an empty database of a server, by another port if need be."""
    name = f"t{uuid.uuid4().hex}"
    server.execute(f"CREATE DATABASE {name}")
    return f"postgresql://root@127.0.0.1:{port or server.port}/{name}"


def empty_place(kind: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of an empty catalog of some kind."""
    if kind == "sqlite":
        return str(folder / "data" / "catalog.db")
    if kind == "directory":
        return f"file://{folder}/log"
    if kind == "postgres":
        return new_database(request.getfixturevalue("postgres"))
    server: S3Server = request.getfixturevalue("s3")
    for name, value in (("ENDPOINT", server.endpoint), ("ALLOW_HTTP", "true"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    return f"s3://{server.bucket}/{uuid.uuid4().hex}"
