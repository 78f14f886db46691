"""Every package says in its docstring what each of its files owns, and names just the files that there are."""

import ast
import re
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
ENTRY = re.compile(r"^(\w+\.py|\w+/) +\S", re.MULTILINE)
"""A line of a map: a file or a package, and what it owns."""


def packages() -> list[Path]:
    return sorted(path.parent for path in ROOT.rglob("__init__.py"))


def named(package: Path) -> list[str]:
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    return ENTRY.findall(ast.get_docstring(tree) or "")


def present(package: Path) -> set[str]:
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    return files | {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", packages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_names_each_of_its_files_once(package: Path) -> None:
    names = named(package)
    assert set(names) == present(package)
    assert len(names) == len(set(names)), "a file is named twice"


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder without `__init__.py` would have no map."""
    folders = {path.parent for path in ROOT.rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
