"""What the parts share is made of parts itself, and not handed around as a whole where less will do."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace.coordinator
from headrace.coordinator.decide.graph import Graph
from headrace.coordinator.run.core import Core

FOLDER = Path(headrace.coordinator.__file__).parent
TAKE_IT_WHOLE = {"run/driver.py", "run/operation.py"}
"""Modules of which something gets the core whole: what runs a lane, what starts and stops all. Put none in: say what a
part needs instead."""


def takes_the_core(path: Path) -> bool:
    return any(
        a.annotation is not None and ast.unparse(a.annotation) == "Core"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for a in [*node.args.args, *node.args.kwonlyargs]
    )


def test_the_core_has_a_graph_and_is_none() -> None:
    """Whoever decides something gets the graph; it has neither a lock nor a catalog."""
    assert Core.__bases__ == (object,)
    assert not {name for name in vars(Graph) if not name.startswith("_")} & set(vars(Core))


def test_who_gets_the_core_whole() -> None:
    found = {p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.py") if takes_the_core(p)}
    assert found == TAKE_IT_WHOLE


def test_decisions_know_of_nobody_who_runs_them() -> None:
    """Nothing there has a thread, a clock, a disk or Spark: so the simulation drives the very same code."""
    wrong = []
    for path in sorted((FOLDER / "decide").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            rooms = [n for n in names if n.startswith("headrace.coordinator") and "coordinator.decide" not in n]
            wrong += [f"{path.name}: {n}" for n in [*rooms, *({"threading", "time", "random", "os"} & set(names))]]
    assert not wrong
