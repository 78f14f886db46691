"""A real server that asks for passwords by encrypted lines, and the command that connects to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from server import HOST, Server

pytest.importorskip("cryptography")


def command(server: Server, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`headrace sql` as anna."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "sql", "--host", HOST, "--port", str(server.port), "-U", "anna", *words],
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_passwords_and_encryption_over_a_restart(tmp_path: Path) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "server"))
    from certificates import Authority

    authority = Authority(tmp_path)
    files = authority.pair("server")
    settings = {
        "HEADRACE_AUTH_RULES": "hostnossl all root loopback trust; hostssl all all all scram-sha-256",
        "HEADRACE_TLS_CERT_FILE": str(files.certificate), "HEADRACE_TLS_KEY_FILE": str(files.key),
    }  # fmt: skip
    server = Server(tmp_path, settings=settings)
    try:
        server.start()
        with psycopg.connect(
            host=HOST, port=server.port, user="root", dbname="dev", sslmode="disable", autocommit=True
        ) as root:
            root.execute("CREATE ROLE anna LOGIN SUPERUSER PASSWORD 'open sesame'")
            root.execute("CREATE TABLE kept (a int)")
            root.execute("CREATE ROLE bert LOGIN PASSWORD 'drawbridge'")
            root.execute("CREATE TABLE hidden (a int)")
            root.execute("GRANT SELECT ON kept TO bert")
        server.kill()
        server.start()
        query = ("-c", "SELECT current_user, count(*) FROM kept")
        strict = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(authority.file)}
        done = command(server, *query, PGPASSWORD="open sesame", **strict)
        assert done.returncode == 0 and "anna" in done.stdout, done.stderr
        refused = {
            "password authentication failed": command(server, *query, PGPASSWORD="x"),
            "asks for a password": command(server, *query, PGPASSWORD=""),
            "without encryption": command(server, *query, PGPASSWORD="open sesame", PGSSLMODE="disable"),
        }
        for told, done in refused.items():
            assert done.returncode == 1 and told in done.stderr, (told, done.stderr)
        assert "open sesame" not in server.log_text()
        with psycopg.connect(
            host=HOST, port=server.port, user="bert", password="drawbridge", dbname="dev", autocommit=True
        ) as bert:
            assert bert.execute("SELECT count(*) FROM kept").fetchall() == [(0,)]
            for sql in ("SELECT * FROM hidden", "INSERT INTO kept VALUES (1)", "DROP TABLE kept", "SET ROLE anna"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    bert.execute(sql)
            assert bert.info.parameter_status("is_superuser") == "off"
    finally:
        server.close()
