"""A server killed in the middle of COPY to files, and two that copy to one folder: it is there whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pyarrow.parquet
import pytest

from server import Server

ROWS = 5_000


@pytest.mark.timeout(600)
def test_whole_or_nothing(tmp_path: Path) -> None:
    server, out, both = Server(tmp_path), tmp_path / "out", tmp_path / "both"

    def rows(folder: Path) -> list[int]:
        found = [pyarrow.parquet.read_table(path) for path in folder.glob("*.parquet")]
        return sorted(i for table in found for i in table.column("id").to_pylist())

    def copy(folder: Path) -> None:
        server.execute(f"COPY (SELECT id, v FROM t) TO '{folder}' (FORMAT parquet)")

    server.start("copy.commit.before=kill@1")
    try:
        server.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            f"INSERT INTO t SELECT i, 'value ' || i FROM generate_series(1, {ROWS}) AS g(i)",
        )
        with pytest.raises(psycopg.OperationalError):
            copy(out)
        assert server.wait_exit() == -9 and not out.exists(), "no file that a reader could take for the rows"
        server.start()
        copy(out)
        assert rows(out) == [*range(1, ROWS + 1)], "what the first one has left is in nobody's way"
        told: list[str] = []

        def attempt() -> None:
            try:
                copy(both)
            except psycopg.Error as error:
                told.append(str(error.sqlstate))

        threads = [threading.Thread(target=attempt) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert rows(both) == [*range(1, ROWS + 1)] and told in ([], ["42710"]), "of one of them"
        server.execute("CREATE TABLE back (id int PRIMARY KEY, v text)", f"COPY back FROM '{out}/*.parquet'")
        assert server.rows("SELECT count(*), min(id), max(id) FROM back") == [(ROWS, 1, ROWS)]
        server.stop()
    finally:
        server.close()
