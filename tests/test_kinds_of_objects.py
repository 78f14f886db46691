"""What only one kind of object has is read from typed contents, and they are asked what it can do.

Nobody but `catalog/records.py` has to do with the stored form of a content, and nobody compares kinds by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.catalog.contents import CONTENTS

SOURCE = Path(headrace.__file__).parent

STORED_FORM = ("catalog/records.py",)
"""The one place that has the stored form of objects."""
OTHER_PAYLOADS = ("connectors/kafka/", "server/", "catalog/log_store.py", "catalog/journal.py")
"""Where the word means something else: the bytes of a message, or of a file."""
OTHER_KINDS = {
    "sql/": "words of the grammar",
    "session/introspection/": "PostgreSQL's classes of objects",
    "session/pipelines/": "kinds of definitions, which the pipeline's decorators name",
    "shell/remote_run.py": "the same",
}
"""Where a kind is another one, and why."""
OF_STATEMENTS = ("statement", "definition")
"""Names of what has a `kind` that is a word of SQL, or of a pipeline."""


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def names_a_kind(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(names_a_kind(e) for e in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in CONTENTS


def reads_a_payload(node: ast.AST) -> bool:
    """`x.payload`, `payload[...]`, `payload.get(...)` and `... in payload`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "payload" or name_of(node.value) == "payload"
    if isinstance(node, ast.Subscript):
        return name_of(node.value) == "payload"
    return isinstance(node, ast.Compare) and any(name_of(side) == "payload" for side in node.comparators)


def compares_a_kind(node: ast.AST) -> bool:
    """`x.kind == "table"`, `kind in ("table", "view")` and the like."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    of_objects = [
        side for side in sides if name_of(side) == "kind"
        and not (isinstance(side, ast.Attribute) and name_of(side.value) in OF_STATEMENTS)
    ]  # fmt: skip
    return bool(of_objects) and any(names_a_kind(side) for side in sides)


def found(text: str, wrong: Callable[[ast.AST], bool]) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if wrong(node):
            yield f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def test_contents_are_typed() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        module, text = str(path.relative_to(SOURCE)), path.read_text()
        if module not in STORED_FORM and not module.startswith(OTHER_PAYLOADS):
            wrong += [f"{module}, {line}" for line in found(text, reads_a_payload)]
        if not module.startswith(tuple(OTHER_KINDS)):
            wrong += [f"{module}, {line}" for line in found(text, compares_a_kind)]
    assert not wrong, "catalog/contents.py has a class for each kind, with what it has and what it can do"


@pytest.mark.parametrize(
    "text",
    [
        'record.payload["x"]', 'payload["x"]', 'record.payload.get("x")', '"x" in payload', "f(record.payload)",
        'record.kind == "table"', 'kind != "sink"', 'found.kind in ("table", "view")', '"role" == record.kind',
    ],
)  # fmt: skip
def test_the_rules_see_what_they_forbid(text: str) -> None:
    assert list(found(text, reads_a_payload)) or list(found(text, compares_a_kind))


@pytest.mark.parametrize(
    "text", ['statement.kind == "schema"', 'event.kind == "job_failed"', "a.kind == b.kind", "kind"]
)
def test_the_rules_leave_alone_what_is_not_meant(text: str) -> None:
    assert not list(found(text, reads_a_payload)) and not list(found(text, compares_a_kind))
