"""Readers of changes, each with nothing but the position that it has noted, while the server is killed again and again.

What they have put together in the end is what the relations hold: nothing is lost, and nothing comes twice. History is
kept by the subscriptions alone; compaction and vacuum run all the time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server import Server
from support import eventually

LIVES = 2
WRITES_A_LIFE = 60


class Life:
    """What runs on the server's side, and whether readers are to go on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.over = threading.Event()
        self.faults: list[BaseException] = []


class TableReader:
    """Fetches a few rows at a time, and takes them for good together with the position behind them."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, int]] = {}
        self.position: str | None = None
        self.taken = 0
        self.newest_ms = 0

    def read(self, connection: psycopg.Connection[Any], most: int) -> bool:
        fetched = connection.execute(f"FETCH {most} FROM c WITH (timeout = '200ms')").fetchall()
        ((_, _, position),) = connection.execute("SHOW SUBSCRIPTION CURSORS").fetchall()
        for ident, kind, price, operation, at_ms in fetched:
            self._take(ident, (kind, price), operation)
            assert at_ms is None or at_ms >= self.newest_ms
            self.newest_ms = at_ms or self.newest_ms
        self.taken += len(fetched)
        self.position = position
        return bool(fetched)

    def _take(self, ident: int, value: tuple[str, int], operation: str) -> None:
        if operation in ("Delete", "UpdateDelete"):
            assert self.rows.pop(ident) == value
        else:
            assert ident not in self.rows
            self.rows[ident] = value

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        since = "FULL" if self.position is None else f"SINCE '{self.position}'"
        connection.execute(f"DECLARE c SUBSCRIPTION CURSOR FOR items_log {since}")


class ViewReader:
    """Copies changes out, and takes what belongs to an epoch when it is told that this is complete."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, ...]] = Counter()
        self.epoch: int | None = None
        self.taken = 0

    def read(self, connection: psycopg.Connection[Any]) -> None:
        since = "FULL" if self.epoch is None else f"SINCE {self.epoch}"
        held: list[tuple[str, tuple[str, ...]]] = []
        sql = f"COPY (SUBSCRIBE kinds_log {since} WITH (progress)) TO STDOUT"
        with connection.cursor() as cursor, cursor.copy(sql) as copy:
            for epoch, operation, *values in copy.rows():
                assert self.epoch is None or int(epoch) > self.epoch or operation == "Progress"
                if operation != "Progress":
                    held.append((operation, tuple(values)))
                    continue
                for kind, row in held:
                    self.rows[row] += 1 if kind == "Insert" else -1
                    assert self.rows[row] >= 0
                self.taken += len(held)
                self.epoch, held = int(epoch), []


def guarded(life: Life, work: Any) -> threading.Thread:
    """Do something on connections of its own until the server dies."""

    def run() -> None:
        try:
            with life.server.connect() as connection:
                work(connection)
        except psycopg.OperationalError:
            pass  # it was killed
        except BaseException as error:
            life.faults.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def write(connection: psycopg.Connection[Any], dice: random.Random, times: int) -> None:
    for _ in range(times):
        ident, price = dice.randrange(40), dice.randrange(100)
        kind = "abc"[dice.randrange(3)]
        which = dice.randrange(10)
        if which < 5:
            connection.execute(f"INSERT INTO items VALUES ({ident}, '{kind}', {price})")
        elif which < 7:
            connection.execute(f"UPDATE items SET price = price + 1 WHERE kind = '{kind}'")
        elif which < 9:
            connection.execute(f"DELETE FROM items WHERE id = {ident}")
        else:
            values = ", ".join(f"({dice.randrange(40, 400)}, '{kind}', {price})" for _ in range(30))
            connection.execute(f"INSERT INTO items VALUES {values}")


def some_more(reader: TableReader, life: Life) -> Callable[[], bool]:
    """Whether a reader has got on by now."""
    before = reader.taken
    return lambda: reader.taken > before + 20 or bool(life.faults)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, settings={"HEADRACE_RETENTION_MS": "0"})
    yield made
    made.close()


def test_readers_go_on_where_they_were(server: Server) -> None:
    dice = random.Random(7)
    table, view = TableReader(), ViewReader()
    server.start()
    server.execute(
        "CREATE TABLE items (id int PRIMARY KEY, kind text, price int)",
        "CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind",
        "CREATE SUBSCRIPTION items_log FROM items WITH (retention = '1 day')",
        "CREATE SUBSCRIPTION kinds_log FROM kinds WITH (retention = '1 day')",
    )
    for number in range(LIVES):
        if number:
            server.start()
        life = Life(server)

        def follow(connection: psycopg.Connection[Any], life: Life = life) -> None:
            table.begin(connection)
            while not life.over.is_set():
                table.read(connection, random.randrange(1, 9))

        threads = [guarded(life, follow), guarded(life, view.read)]
        writer = guarded(life, lambda connection: write(connection, dice, WRITES_A_LIFE))
        if number == LIVES - 1:
            writer.join()
            break
        eventually(some_more(table, life), "rows to be read", 120.0)
        server.kill()
        life.over.set()
        for thread in [*threads, writer]:
            thread.join()
        assert not life.faults
    server.flush()
    items = {ident: (kind, price) for ident, kind, price in server.rows("SELECT id, kind, price FROM items")}
    kinds = Counter((kind, str(n), str(total)) for kind, n, total in server.rows("SELECT kind, n, total FROM kinds"))
    eventually(lambda: table.rows == items or bool(life.faults), "all changes of the table", 60.0)
    eventually(lambda: +view.rows == kinds or bool(life.faults), "all changes of the view", 60.0)
    life.over.set()
    threads[0].join()
    assert not life.faults and table.rows == items and +view.rows == kinds
    assert table.taken > 100 and view.taken > 10
    held = server.rows("SELECT readable_after > since_epoch FROM headrace_catalog.subscriptions")
    assert held == [(False,), (False,)]
