"""Clients of other languages against a real server: programs in `foreign/` that say of each step whether it held."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import registries
from server import Server, served

PROGRAMS = Path(__file__).parent / "foreign"
LIMIT_S = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("foreign")) as found:
        yield found


def _jdbc(scratch: Path) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    compiler = f"{home}/bin/javac" if home else shutil.which("javac")
    if compiler is None or not Path(compiler).exists():
        raise registries.NotToBeHad("there is no Java compiler")
    path = f"{registries.jars(*registries.JDBC)}/*"
    subprocess.run([compiler, "-cp", path, "-d", str(scratch), str(PROGRAMS / "Client.java")], check=True)
    return [str(Path(compiler).with_name("java")), "-Xmx128m", "-cp", f"{path}:{scratch}", "Client"]


def _node(scratch: Path) -> list[str]:
    folder = registries.node_modules(*registries.NODE)
    shutil.copy(PROGRAMS / "client.js", scratch)
    (scratch / "node_modules").symlink_to(folder / "node_modules")
    return ["node", str(scratch / "client.js")]


def _duckdb(scratch: Path) -> list[str]:
    packages = registries.python_packages(*registries.DUCKDB)
    [extension] = packages.glob("duckdb_extension_postgres_scanner/extensions/*/*.duckdb_extension")
    return ["env", f"PYTHONPATH={packages}", sys.executable, str(PROGRAMS / "duckdb_client.py"), str(extension)]


def _pgx(scratch: Path) -> list[str]:
    return [str(registries.go_program(registries.GO_CLIENT, registries.PGX))]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("made", "steps"), [(_jdbc, 52), (_node, 13), (_pgx, 45), (_duckdb, 17)], ids=["jdbc", "node", "pgx", "duckdb"]
)
def test_every_step_holds(server: Server, tmp_path: Path, made: Callable[[Path], list[str]], steps: int) -> None:
    try:
        command = made(tmp_path)
    except registries.NotToBeHad as error:
        pytest.skip(str(error))
    done = subprocess.run([*command, str(server.port)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in said if not line.startswith("ok ")] == []
    assert len(said) == steps
