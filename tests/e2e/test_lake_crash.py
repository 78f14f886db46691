"""A server that follows tables of a lake is killed, again and again: what it has is what they have, each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lakes import DeltaLake, IcebergLake, Lake
from server import Server
from support import WAIT_S, eventually

POINTS = ("barrier.bind.after", "commit.before")


def check(server: Server, lake: Lake) -> None:
    """A table, and a view of a source, against what the package reads."""
    rows, name = lake.rows(), lake.kind
    wanted = Counter((row[0], row[1]) for row in rows.elements())
    sums = {v: sum(row[0] for row in rows.elements() if row[1] == v) for v in {row[1] for row in rows}}
    eventually(lambda: Counter(server.rows(f"SELECT id, v FROM {name}")) == wanted, f"the table {name}")
    eventually(lambda: dict(server.rows(f"SELECT v, s FROM {name}_sums")) == sums, f"the sums of {name}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("points", [POINTS[:1], pytest.param(POINTS, marks=pytest.mark.soak)], ids=["once", "twice"])
def test_killed_and_started_again(tmp_path: Path, points: tuple[str, ...]) -> None:
    lakes: list[Lake] = [IcebergLake(tmp_path), DeltaLake(tmp_path)]
    server = Server(tmp_path)
    server.start()
    try:
        for lake in lakes:
            lake.append([(i, "xyz"[i % 3], None) for i in range(60)])
            server.execute(
                f"CREATE TABLE {lake.kind} (id bigint PRIMARY KEY, v text) WITH ({lake.sql()})",
                f"CREATE SOURCE {lake.kind}_s (id bigint, v text) WITH ({lake.sql(max_rows_per_epoch='20')})",
                f"CREATE MATERIALIZED VIEW {lake.kind}_sums AS SELECT v, sum(id) AS s FROM {lake.kind}_s GROUP BY v",
            )
        server.stop()
        for round_, point in enumerate(points):
            server.start(f"{point}=kill@3", wait=False)
            eventually(lambda: server.ready() or server.exit_code() is not None)
            for n in range(100 * round_, 100 * round_ + 100):
                if server.exit_code() is not None:
                    break
                for lake in lakes:
                    lake.append([(1000 + n, "x", None)])
                    lake.merge([(n % 60, f"m{n}", None)])
                    lake.delete([(n + 30) % 60])
            server.wait_exit(WAIT_S)
            server.start()
            for lake in lakes:
                check(server, lake)
            server.stop()
    finally:
        server.close()
