"""A PostgreSQL server of its own for a test, on a scratch directory: what others are compared with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

HOST = "127.0.0.1"
START_S = 120
SERVER_USER = "postgres"
"""Who the server runs as if the tests run as root, for whom it refuses to run."""


class NoPostgres(Exception):
    """There is no PostgreSQL on this machine that could be started."""


@dataclass(frozen=True)
class Postgres:
    """A server; everybody may connect as its superuser `root`."""

    port: int
    data: Path
    log: Path
    programs: Path
    dbname: str = "postgres"

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        _run([*self._control(), "-l", str(self.log), "-w", "-t", str(START_S), "start"])

    def kill(self) -> None:
        """End it at once, without a word to its clients; what is committed is found in the log by the next start."""
        _run([*self._control(), "-m", "immediate", "-w", "stop"])

    def new_database(self, name: str) -> Postgres:
        """The same server with a new, empty database."""
        self.execute(f"CREATE DATABASE {name}")
        return replace(self, dbname=name)

    def _control(self) -> list[str]:
        return [str(self.programs / "pg_ctl"), "-D", str(self.data)]

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A connection; autocommit unless told otherwise."""
        options = {"autocommit": True, **options}
        return psycopg.connect(host=HOST, port=self.port, user="root", dbname=self.dbname, **options)

    def execute(self, *statements: str) -> None:
        """Run statements, on a connection of their own."""
        with self.connect() as connection:
            for sql in statements:
                connection.execute(sql)


def binaries() -> Path:
    """The directory with PostgreSQL's programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: float(p.parts[-3]))
    if found:
        return found[-1].parent
    if at := shutil.which("postgres"):
        return Path(at).resolve().parent
    raise NoPostgres("no PostgreSQL is installed; on Debian: apt-get install postgresql")


def _as_server_user(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    if shutil.which("setpriv") is None:
        raise NoPostgres("PostgreSQL refuses to run as root, and there is no setpriv")
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--init-groups", "--", *command]


def _run(command: list[str]) -> None:
    # Not from a directory that the server's user may not enter; output to a file, which a daemon may keep open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(_as_server_user(command), cwd="/", stdout=output, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            output.seek(0)
            raise NoPostgres(f"{' '.join(command)} ended with {done.returncode}:\n{output.read().decode()[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def cdc_options(server: Postgres, table: str) -> dict[str, str]:
    """Options of a source that follows a table of a server."""
    from headrace.connectors.sources import settled

    return settled(
        {"connector": "postgres-cdc", "hostname": HOST, "port": str(server.port), "username": "root",
         "database.name": server.dbname, "table.name": table, "include.operation": "_op", "include.position": "_at"}
    )  # fmt: skip


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None, parent: Path | None = None) -> Iterator[Postgres]:
    """A new cluster in a scratch directory below `parent`, started, and removed at the end; raises NoPostgres."""
    programs = binaries()
    root = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir=parent))
    data, port = root / "data", _free_port()
    if os.geteuid() == 0:
        shutil.chown(root, SERVER_USER, SERVER_USER)
    server = Postgres(port, data, root / "log", programs)
    try:
        _run(
            [
                str(programs / "initdb"),
                "-D",
                str(data),
                "-U",
                "root",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--lc-ctype=C.UTF-8",
            ]
        )
        options = {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": "", **(settings or {})}
        lines = "".join(f"{name} = '{value}'\n" for name, value in options.items())
        with (data / "postgresql.conf").open("a") as file:
            file.write(lines)
        server.start()
        yield server
    finally:
        if (data / "postmaster.pid").exists():
            server.kill()
        shutil.rmtree(root, ignore_errors=True)
