"""The table of conformance names tests that exist and that name its items."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "conformance.md"


def test_every_named_test_exists_and_names_its_item() -> None:
    rows = re.findall(r"^\| ((?:PC|CK|LS|FS|CM|XC)-\d+) \| .* \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    assert len(rows) > 150
    found: dict[str, dict[str, str]] = {}
    for item, cell in rows:
        named = re.findall(r"`([^`]+)::(\w+)`", cell)
        assert named, f"{item} names no test"
        for path, name in named:
            if path not in found:
                tree = ast.parse((TESTS / path).read_text())
                functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
                found[path] = {f.name: ast.get_docstring(f) or "" for f in functions}
            assert re.search(rf"\b{item}\b", found[path].get(name, "")), f"{path}::{name} does not name {item}"
