"""A server killed in the middle of COPY to and from a store: what is not whole is told, nothing is doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.connectors.files.clients import Bucket
from headrace.errors import SinkError
from object_server import S3Server
from server import Server

ROWS = 5_000


class Scene:
    """A table of a server, and a folder of a store."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.server, self.s3, self.at = Server(folder), s3, f"s3://{s3.bucket}/{folder.name}/out"
        self._options = ", ".join(f"{name} '{value}'" for name, value in s3.options.items())

    def names(self) -> list[str]:
        """The objects with content that are there."""
        return [name for name, size in Bucket.at(self.at, self.s3.options, SinkError).names() if size]

    def copy(self, what: str) -> list[str]:
        """Run a COPY; what the client is told beside."""
        told: list[str] = []
        with self.server.connect() as connection:
            connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
            connection.execute(f"COPY {what} '{self.at}' (FORMAT parquet, {self._options})")
        return [text for text in told if "Spark" not in text]

    def dies(self, what: str) -> None:
        with pytest.raises(psycopg.OperationalError):
            self.copy(what)
        assert self.server.wait_exit() == -9

    def holds(self, table: str) -> Any:
        return self.server.rows(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {table}")[0]


@pytest.mark.timeout(600)
def test_whole_or_told(tmp_path: Path, s3: S3Server) -> None:
    scene, whole = Scene(tmp_path, s3), (ROWS, ROWS, ROWS * (ROWS + 1) // 2)
    server = scene.server
    server.start("copy.commit.before=kill@1")
    try:
        server.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE half (id int, v text)",
            "CREATE TABLE back (id int, v text)",
            f"INSERT INTO t SELECT i, 'value ' || i FROM generate_series(1, {ROWS}) AS g(i)",
        )  # fmt: skip
        scene.dies("t TO")
        left = scene.names()
        assert left and "_manifest.json" not in left
        server.start("copy.commit.before=fail@1,table.commit.before=kill@2")
        with pytest.raises(psycopg.errors.DuplicateObject, match="COPY that has not ended"):
            scene.copy("t TO")
        assert scene.names() == left
        assert scene.copy("half FROM") == [f"{scene.at} has files of a COPY that has not ended: no _manifest.json"]
        for name in left:
            s3.delete(f"{tmp_path.name}/out/{name}")
        with pytest.raises(psycopg.Error, match="armed to fail"):
            scene.copy("t TO")
        assert scene.names() == [], "what a statement leaves that fails is tidied up"
        assert scene.copy("t TO") == [] and "_manifest.json" in scene.names()
        scene.dies("back FROM")
        server.start()
        assert scene.holds("back") == (0, 0, None)
        assert scene.copy("back FROM") == [] and scene.holds("back") == whole
        with pytest.raises(psycopg.errors.DuplicateObject, match="is not empty"):
            scene.copy("t TO")
        server.stop()
    finally:
        server.close()
