"""Nothing but `plan/catalyst/` calls Spark's Java process.

What is counted as a call: an import of py4j, an attribute in which PySpark keeps an object of Java's, a method in camel
case that none of PySpark's own classes has, and the handle of a part of a plan. Methods of one word cannot be told
apart by their names; parts have none that Java's objects have, and mypy knows their types.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from logging import Logger
from pathlib import Path

import pyspark
import pytest
from pyspark import sql
from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.catalog import Catalog
from pyspark.sql.udf import UserDefinedFunction
from pyspark.sql.udtf import UserDefinedTableFunction

import headrace

ROOT = Path(headrace.__file__).parent
SEAM = ROOT / "plan" / "catalyst"
OWN = (
    pyspark.SparkConf, pyspark.SparkContext, pyspark.TaskContext, sql.SparkSession, sql.DataFrame, sql.Column,
    sql.GroupedData, sql.Window, Catalog, Logger, PySparkException, UserDefinedFunction, UserDefinedTableFunction,
    *(found for _, found in inspect.getmembers(types, inspect.isclass)),
)  # fmt: skip
PYTHONS = {name for owner in OWN for name in dir(owner)} - {"toString", "isEmpty"} | {"getLogger", "getOrCreate"}
"""Names in camel case that are no methods of Java's objects."""
HANDLES = re.compile(r"_j(?:c|df|sc|vm|udf|udtf|rdd|sparkSession|ava\w*)|_gateway|in_java")
"""Where PySpark, and a part, keep objects of Java's."""
CAMEL = re.compile(r"[a-z]+[A-Z]\w*")


def calls(tree: ast.AST) -> Iterator[str]:
    """What a module does that only the seam may."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (f"{node.lineno}: import {m}" for m in modules if re.match(r"py4j\b|pyspark\.java_gateway\b", m))
        elif isinstance(node, ast.Attribute) and HANDLES.fullmatch(node.attr):
            yield f"{node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            yield from [f"{node.lineno}: {name}()"] if CAMEL.fullmatch(name) and name not in PYTHONS else []


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if SEAM not in path.parents]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_seam_calls_java(path: Path) -> None:
    assert list(calls(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import py4j", "from py4j.protocol import Py4JError", "from pyspark.java_gateway import launch_gateway",
        "frame._jdf.queryExecution()", "session._jvm", "e.toString()", "node.projectList()", "part.in_java",
    ],
)  # fmt: skip
def test_what_counts_as_a_call(code: str) -> None:
    assert list(calls(ast.parse(code)))


@pytest.mark.parametrize("code", ["frame.mapInArrow(f, schema)", "part.text", "from pyspark.sql import DataFrame"])
def test_what_does_not(code: str) -> None:
    assert not list(calls(ast.parse(code)))
