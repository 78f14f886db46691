"""What the parts share is made of parts itself, and not handed around as a whole where less will do."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace.coordinator
from headrace.coordinator.core import Core
from headrace.coordinator.graph import Graph

FOLDER = Path(headrace.coordinator.__file__).parent
TAKE_IT_WHOLE = {
    "arrival.py",
    "attempt.py",
    "committer.py",
    "compaction.py",
    "driver.py",
    "lane_failures.py",
    "lanes.py",
    "lifecycle.py",
    "logs.py",
    "maintenance.py",
    "metrics.py",
    "operation.py",
    "planning.py",
    "reads.py",
    "standby.py",
    "status.py",
    "subscriptions.py",
    "ticker.py",
    "writes/settling.py",
    "writes/small_runs.py",
    "writes/stored.py",
    "writes/transaction.py",
    "writes/writer.py",
}
"""Modules of which something gets the core whole. Take names out; put none in: say what a part needs instead."""


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
