"""What is loaded before a server accepts connections: each of these would add to the time until then."""

from __future__ import annotations

import subprocess
import sys

from support import WAIT_S

LATER = (
    "pandas",
    "duckdb",
    "obstore",
    "cryptography",
    "psycopg",
    "pyspark.sql.connect",
    "headrace.demo",
    "headrace.shell",
    "headrace.session.database",
    "headrace.session.pipelines",
)
START = "import headrace.cli, headrace.session.instance, headrace.server.door, headrace.server.server"


def test_what_a_start_does_not_need_is_loaded_later() -> None:
    code = f"{START}\nimport sys; print([m for m in {LATER!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "[]\n"
