"""What is loaded before a server accepts connections: each of these would add to the time until then."""

from __future__ import annotations

import subprocess
import sys

from support import WAIT_S

LATER = (
    "pandas",
    "rich",
    "structlog",
    "sqlalchemy",
    "duckdb",
    "obstore",
    "cryptography",
    "pydantic",
    "typer",
    "psycopg",
    "pyspark.sql.connect",
    "headrace.demo",
    "headrace.shell",
    "headrace.session.database",
    "headrace.session.pipelines",
)
START = "import headrace.cli; headrace.cli.load_server()"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    return done.stdout


def test_what_a_start_does_not_need_is_loaded_later() -> None:
    code = f"{START}\nimport sys; print([m for m in {LATER!r} if m in sys.modules])"
    assert _run(code) == "[]\n"


def test_what_is_left_out_is_there_for_who_asks_for_it() -> None:
    """Arrays need no pandas after a start; frames of pandas are made and taken all the same."""
    code = f"""{START}
import sys
import pyarrow as pa
held = pa.array([1, 2, None])
print("pandas" in sys.modules, pa.table({{"n": held}}).to_pandas()["n"].sum())
import pandas as pd
print(pa.array(pd.Series([1.0, float("nan")])).null_count, pa.table(pd.DataFrame({{"n": [1, 2]}})).num_rows)
import rich.text
"""
    assert _run(code) == "False 3.0\n1 2\n"


def test_a_program_looks_for_garbage_as_it_did_before() -> None:
    """It is off only while the database's modules are loaded."""
    loaded = "'headrace.session.database' in sys.modules"
    code = f"import gc, sys, headrace\n{{}}\nheadrace.connect\nprint(gc.isenabled(), {loaded})"
    assert _run(code.format("gc.enable()")) == "True True\n"
    assert _run(code.format("gc.disable()")) == "False True\n"


def test_a_program_that_opens_a_database_loads_no_pandas_and_no_rich() -> None:
    found = "[m for m in ('pandas', 'rich', 'structlog') if m in sys.modules]"
    code = f"import sys, headrace\nheadrace.connect\nprint({found})"
    assert _run(code) == "[]\n"


def test_pyarrow_knows_the_pandas_that_a_program_loads_later() -> None:
    """Categories are no plain strings, and frames are frames."""
    code = """
import headrace
headrace.connect
import pandas as pd
import pyarrow as pa
print(pa.array(pd.Categorical(["a", "b", "a"])).type, pa.array(pd.Index([1.0, float("nan")])).null_count)
"""
    assert _run(code) == "dictionary<values=string, indices=int8, ordered=0> 1\n"


def test_who_asks_where_pandas_is_does_not_load_it() -> None:
    """Polars and others look for it without loading it: pyarrow is told when somebody does."""
    code = """
import importlib.util
import sys
import headrace
headrace.connect
print(importlib.util.find_spec("pandas") is not None, "pandas" in sys.modules)
import pandas as pd
import pyarrow as pa
print(pa.array(pd.Series([1.0, float("nan")])).null_count)
"""
    assert _run(code) == "True False\n1\n"


def test_a_program_that_has_pandas_keeps_it() -> None:
    code = """
import pandas as pd
import headrace
headrace.connect
import pyarrow as pa
print(pa.array(pd.Categorical(["a"])).type)
"""
    assert _run(code).startswith("dictionary<")
