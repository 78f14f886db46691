"""Two servers of one database, clients that know both addresses, and what must hold whatever happens to a server."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from server import HOST, Server, differences
from support import eventually

VIEWS = {
    "by_client": "SELECT client, count(*) AS n, sum(amount) AS total FROM entries GROUP BY client",
    "best": "SELECT client, max(amount) AS amount FROM entries GROUP BY client",
    "shares": "SELECT e.id, e.amount, t.total FROM entries e JOIN by_client t ON e.client = t.client "
    "WHERE e.id % 7 = 0",
}
# The view on a view in terms of what is below it.
_TOTALS = VIEWS["by_client"]
DEFINITIONS = {**VIEWS, "shares": VIEWS["shares"].replace("by_client", f"({_TOTALS})")}
SETUP = (
    "CREATE TABLE entries (id bigint PRIMARY KEY, client int, amount int)",
    *(f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in VIEWS.items()),
)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as line:
        line.bind((HOST, 0))
        return int(line.getsockname()[1])


class Pair:
    """Two servers on one catalog and one state; which of them is the active one changes."""

    def __init__(
        self, folder: Path, catalog: str | Sequence[str], state: str, settings: Mapping[str, str] | None = None
    ) -> None:
        """The catalog may be reached in different ways by the two."""
        catalogs = [catalog, catalog] if isinstance(catalog, str) else catalog
        self.servers = [
            Server(folder, folder / name, settings, ["--catalog", at, "--state", state])
            for name, at in zip(("one", "two"), catalogs, strict=True)
        ]
        for server in self.servers:
            server.fixed_port = server.port = free_port()
        self.active, self.standby = self.servers

    def start(self) -> Pair:
        """Start both."""
        self.active.start()
        self.active.execute(*SETUP)
        self.restart()
        return self

    def restart(self) -> None:
        """Start the one that is not the active one as its standby, whether or not it still runs."""
        self.standby.close()
        self.standby.start(more=["--standby"])

    def swap(self) -> None:
        """The standby is the active one now."""
        self.active, self.standby = self.standby, self.active

    def close(self) -> None:
        """Leave nothing running."""
        for server in self.servers:
            with contextlib.suppress(AssertionError):  # it was never started
                server.close()

    @property
    def address(self) -> dict[str, Any]:
        """What clients give: both addresses, in an order that says nothing."""
        return {
            "host": ",".join(HOST for _ in self.servers), "port": ",".join(str(s.fixed_port) for s in self.servers),
            "user": "root", "dbname": "dev", "autocommit": True,
        }  # fmt: skip

    def connect(self, attributes: str = "read-write") -> psycopg.Connection[Any]:
        """A connection to the server that has these `target_session_attrs`. Raises `psycopg.OperationalError`."""
        return psycopg.connect(**self.address, target_session_attrs=attributes, connect_timeout=5)

    def connected(self) -> psycopg.Connection[Any]:
        """A connection to the active server, whichever that is, once there is one."""
        found: list[psycopg.Connection[Any]] = []

        def there() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                found.append(self.connect())
            return bool(found)

        eventually(there, "a server that takes writes")
        return found[0]

    def why(self) -> str:
        """What the active server's last event of a take-over says."""
        return str(
            self.active.rows(
                "SELECT message FROM headrace_catalog.events WHERE kind = 'took_over' ORDER BY sequence DESC LIMIT 1"
            )[0][0]
        )


_GONE = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
"""What a client is told of a server that ends, or is not the active one (any more)."""


class Client(threading.Thread):
    """Inserts one row after another, on whichever server takes them; knows which were acknowledged.

    Where no answer came it looks, on its next connection, whether the row is there.
    """

    def __init__(self, pair: Pair, number: int, first: int = 0) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._pair, self._number = pair, number
        self._next = first
        self.acknowledged: set[int] = set()
        self.connections = 0
        self.failure: BaseException | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        """The thread's main function."""
        try:
            while not self._ending.is_set():
                with contextlib.suppress(*_GONE), self._pair.connect() as connection:
                    self.connections += 1
                    self._write(connection)
        except BaseException as error:
            self.failure = error

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        while not self._ending.is_set():
            row = self._next * 100 + self._number
            if not connection.execute("SELECT id FROM entries WHERE id = %s", [row]).fetchall():
                amount = (self._next * 7919) % 1000
                connection.execute("INSERT INTO entries VALUES (%s, %s, %s)", [row, self._number, amount])
            self.acknowledged.add(row)
            self._next += 1

    def end(self) -> None:
        """Stop after the row at hand."""
        self._ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure


class Load:
    """Some clients at once, as a context manager; at its end all that must hold is checked."""

    def __init__(self, pair: Pair, clients: int = 3, first: int = 0) -> None:
        self._pair = pair
        self.clients = [Client(pair, n, first) for n in range(clients)]

    def __enter__(self) -> Load:
        for client in self.clients:
            client.start()
        self.goes_on(3)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.end()

    @property
    def acknowledged(self) -> set[int]:
        """The rows of all clients."""
        return set().union(*(c.acknowledged for c in self.clients))

    def goes_on(self, rows: int = 10) -> None:
        """Wait until every client has got more rows in."""
        wanted = [len(c.acknowledged) + rows for c in self.clients]

        def further() -> bool:
            return all(
                len(c.acknowledged) >= n or c.failure is not None for c, n in zip(self.clients, wanted, strict=True)
            )

        eventually(further, "the clients to go on")


def check(pair: Pair, acknowledged: set[int]) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and every view is what its query gives."""
    pair.active.flush()
    found = [row[0] for row in pair.active.rows("SELECT id FROM entries")]
    assert len(found) == len(set(found))
    assert acknowledged <= set(found), f"lost: {sorted(acknowledged - set(found))[:10]}"
    for name, definition in DEFINITIONS.items():
        assert differences(pair.active, name, definition) is None


def happens(pair: Pair, event: Callable[[], object], load: Load) -> None:
    """Something happens to the active server under load: the other one takes over, and the clients go on with that."""
    load.goes_on()
    event()
    pair.swap()
    load.goes_on()


def freezes(pair: Pair, load: Load) -> Server:
    """The active server is stopped, and woken when the other one has taken over; returns it.

    Clients that wait for an answer of it do so until it is woken: their connections do not break.
    """
    load.goes_on()
    frozen = pair.active
    frozen.freeze()
    pair.swap()
    eventually(lambda: pair.active.rows("SELECT pg_is_in_recovery()") == [(False,)], "the standby to take over")
    number = sum(len(c.acknowledged) for c in load.clients)
    pair.active.execute(f"INSERT INTO entries VALUES ({-1000 - number}, -1, 1)")
    frozen.thaw()
    load.goes_on()
    return frozen


def cut_off(pair: Pair, load: Load, swallow: Callable[[], object], forward: Callable[[], object]) -> Server:
    """The active server does not reach the catalog any more, and does again when the other one has taken over."""
    load.goes_on()
    lonely = pair.active
    swallow()
    pair.swap()
    load.goes_on()
    forward()
    return lonely


def object_store(endpoint: str) -> dict[str, str]:
    """Settings of servers whose state is in an S3 server."""
    return {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "HEADRACE_STATE_OPTIONS": json.dumps({"endpoint": endpoint, "allow_http": "true", "region": "us-east-1"}),
    }  # fmt: skip
