from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.common.java import find_java, install_command, parse_java_version, require_java
from headrace.errors import OperationalError
from headrace.server.simple_client import PgClient
from support import WAIT_S, child

SERVE = """
import sys, threading, types
sys.path.insert(0, sys.argv.pop(1))
from memory_session import Database
from headrace.session.stored_roles import Role

class Coordinator:
    failure, failed = None, threading.Event()
    def standby(self):
        return None
    def announce(self, address):
        pass

class FakeDatabase(Database):
    coordinator = Coordinator()
    has_passwords = False
    audit = None
    mock_key = bytes(32)
    role = Role
    def session(self, parameters=None, *, user="root"):
        return super().session(parameters or {})
    def client_session(self, parameters):
        return self.session(parameters)
    def close(self):
        print("closed", self.opened, self.closed, flush=True)

def spark_start(settings, master, log_file):
    assert settings.barrier_interval_ms == 250 or "sql" in sys.argv

def open_on(start, settings, scratch=None, *, standby=False):
    FakeDatabase.settings = settings
    return FakeDatabase()

def replace(name, **content):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(content)

import headrace.server.server  # with what it needs as that is
replace("headrace.dataflow.spark", spark_start=spark_start)
replace("headrace.session.instance", open_on=open_on)
from headrace.cli import main
main()
"""


def headrace(*arguments: str, stdin: str | None = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False, env={**os.environ, **environ},
    )  # fmt: skip


@pytest.fixture
def java(tmp_path: Path):
    """Makes a JAVA_HOME whose `java` prints a version."""

    def make(version: str) -> str:
        path = tmp_path / "bin" / "java"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
        path.chmod(0o755)
        return str(tmp_path)

    return make


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """The command over a database in memory."""
    script = tmp_path / "program.py"
    script.write_text(SERVE)
    return [sys.executable, str(script), str(Path(__file__).parent / "server")]


def test_version_needs_nothing_of_spark():
    done = headrace("version")
    assert (done.stdout, done.returncode) == (f"headrace {__version__}\n", 0)
    code = "import sys; import headrace.cli; print([m for m in ('pyspark', 'pyarrow', 'sqlglot') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", [["serve", "--data", "x"], ["sql", "--data", "x", "-c", "select 1"], ["demo"]])
def test_a_missing_java_is_told_in_one_line(tmp_path, command):
    done = headrace(*command, JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert install_command() in done.stderr
    assert "Java 17" in done.stderr


def test_an_old_java_is_told(java):
    done = headrace("serve", "--data", "x", JAVA_HOME=java("11.0.2"))
    assert done.returncode == 1
    assert "is Java 11" in done.stderr
    assert install_command() in done.stderr


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.10" 2024-01-16', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea"', 25),
        ("sh: not found", None),
    ],
)
def test_java_versions(text, version):
    assert parse_java_version(text) == version


def test_java_is_found_where_spark_looks(java, tmp_path):
    home = java("17.0.1")
    assert find_java({"JAVA_HOME": home}) == f"{home}/bin/java"
    assert find_java({"PATH": f"{home}/bin"}) == f"{home}/bin/java"
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": f"{home}/bin"}) is None
    assert require_java({"JAVA_HOME": home}) == 17
    with pytest.raises(OperationalError, match="no Java on the PATH"):
        require_java({"PATH": "/nowhere"})
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(OperationalError, match="does not run"):
        require_java({"JAVA_HOME": home})


def test_install_commands():
    assert install_command("darwin") == "brew install openjdk@17"
    assert install_command("linux") == "sudo apt-get install -y openjdk-17-jre-headless"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_stops_cleanly(program, java, number):
    command = [*program, "serve", "--data", "x", "--port", "0", "--barrier-interval-ms", "250"]
    environ = {**os.environ, "JAVA_HOME": java("17.0.1")}
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            rf"headrace {re.escape(__version__)} accepting connections on 127\.0\.0\.1:(\d+) "
            r"\(psql -h 127\.0\.0\.1 -p (\d+) -d dev -U root\)\n",
            line,
        )
        assert found, (line, process.stderr)
        assert found[1] == found[2]
        done = headrace("sql", "--port", found[1], "-c", "select 1 as one; notify 'x'")
        assert done.stdout == " one \n-----\n   1\n(1 row)\n\nNOTIFY\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
    assert (out, err, process.returncode) == ("closed 1 1\n", "", 0)


def test_settings_come_from_the_environment(program, java):
    command = [*program, "serve", "--data", "x", "--barrier-interval-ms", "250"]
    environ = {"JAVA_HOME": java("17.0.1"), "HEADRACE_HOST": "localhost", "HEADRACE_PORT": "0"}
    environ |= {"HEADRACE_MAX_CONNECTIONS": "1", "HEADRACE_RETENTON_MS": "5"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **environ}}
    with child(command, **pipes) as process:
        assert process.stdout is not None
        found = re.search(r"accepting connections on localhost:(\d+)", process.stdout.readline())
        assert found
        port = found[1]
        with PgClient("127.0.0.1", int(port), timeout_s=WAIT_S):
            refused = headrace("sql", "-c", "select 1", HEADRACE_HOST="127.0.0.1", HEADRACE_PORT=port)
        assert "too many clients" in refused.stderr
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    first, *more = err.splitlines()
    assert first == "warning: HEADRACE_RETENTON_MS is no setting of headrace, and does nothing"
    assert len(more) == 1 and "client turned away" in more[0]


def test_sql_runs_commands_files_and_pipes(program, java, tmp_path):
    file = tmp_path / "script.sql"
    file.write_text("create table t (a int);\ninsert into t values (5);\nselect * from t;\n")
    environ = {**os.environ, "JAVA_HOME": java("17.0.1")}

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [*program, "sql", "--data", "x", *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environ
        )

    for done in (run("-f", str(file)), run("-f", "-", stdin=file.read_text()), run(stdin=file.read_text())):
        assert done.stdout == "CREATE_TABLE\nINSERT 0 1\n a \n---\n 5\n(1 row)\n\nclosed 1 1\n"
        assert (done.stderr, done.returncode) == ("", 0)
    done = run("-c", "oops; notify 'x'")
    assert done.returncode == 1
    assert done.stdout == "closed 1 1\n"
    assert done.stderr.startswith('ERROR:  syntax error at or near "oops"\nLINE 1: oops\n        ^\n')
    done = run("-f", str(tmp_path / "missing.sql"))
    assert done.returncode == 1
    assert "cannot read" in done.stderr


def test_sql_without_a_server_says_so():
    done = headrace("sql", "--port", "1", "-c", "select 1")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "could not connect to 127.0.0.1:1" in done.stderr
    assert "headrace serve" in done.stderr
