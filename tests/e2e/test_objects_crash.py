"""A server that takes in objects of a store is killed at points of a binding and a commit: each row counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from object_server import S3Server
from server import Server
from support import eventually

POINTS = ("barrier.bind.after", "commit.before", "commit.after")
ROWS = 50


class Scene:
    """A view over a folder to which objects come."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.s3, self.server, self.sent = s3, Server(folder), 0
        options = ", ".join(f"{name} = '{value}'" for name, value in s3.options.items())
        place = f"connector = 'files', path = 's3://{s3.bucket}/crash/', refresh.interval = '100ms'"
        self.server.start()
        self.server.execute(
            f"CREATE SOURCE objects (n int) WITH ({place}, max_rows_per_epoch = 30, {options}) "
            "FORMAT PLAIN ENCODE JSON",
            "CREATE MATERIALIZED VIEW taken AS SELECT n, count(*) AS times FROM objects GROUP BY n",
        )
        self.server.stop()

    def add(self) -> None:
        lines = "".join(f'{{"n": {n}}}\n' for n in range(self.sent, self.sent + ROWS))
        self.s3.put(f"crash/{self.sent:06}.json", lines.encode())
        self.sent += ROWS

    def whole(self) -> bool:
        ((most, rows),) = self.server.rows("SELECT coalesce(max(times), 1), count(*) FROM taken")
        assert most == 1, "a row was taken in twice"
        return bool(rows == self.sent)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("crash"), s3)
    try:
        yield made
    finally:
        made.server.close()


@pytest.mark.parametrize("point", [POINTS[0], *(pytest.param(p, marks=pytest.mark.soak) for p in POINTS[1:])])
def test_killed_at(scene: Scene, point: str) -> None:
    scene.add()
    scene.server.start(f"{point}=kill@3", wait=False)
    for _ in range(3):
        scene.add()
    scene.server.wait_exit()
    scene.server.start()
    eventually(scene.whole, "all rows once")
    scene.server.stop()
