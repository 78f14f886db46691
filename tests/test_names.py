"""The public names: exported, documented, and errors as their own documentation says."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace import errors
from headrace.errors import HeadraceError

_LINE = re.compile(r"^    (?P<indent> *)(?P<name>[A-Z]\w+) +(?P<state>[0-9A-Z]{5})\b", re.MULTILINE)


def error_classes() -> list[type[HeadraceError]]:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, HeadraceError)]
    return [c for c in found if c.__module__ == errors.__name__]


def documented_errors() -> dict[str, tuple[str, str | None]]:
    """By name the SQLSTATE and the parent, as the tree in the module's docstring has them."""
    above: list[str] = []
    found: dict[str, tuple[str, str | None]] = {}
    for match in _LINE.finditer(errors.__doc__ or ""):
        depth = len(match["indent"]) // 2
        del above[depth:]
        found[match["name"]] = (match["state"], above[-1] if above else None)
        above.append(match["name"])
    return found


def test_the_tree_of_errors_lists_exactly_the_classes() -> None:
    assert documented_errors().keys() == {c.__name__ for c in error_classes()}


@pytest.mark.parametrize("kind", error_classes(), ids=lambda c: c.__name__)
def test_an_error_is_as_documented(kind: type[HeadraceError]) -> None:
    state, parent = documented_errors()[kind.__name__]
    assert kind.sqlstate == state
    assert parent == (None if kind is HeadraceError else kind.__bases__[0].__name__)
    assert kind.__doc__


def test_an_error_carries_what_it_was_given() -> None:
    error = errors.NotSupported("no", hint="do this", detail="because", position=3)
    assert (error.message, error.hint, error.detail, error.position) == ("no", "do this", "because", 3)
    assert str(error) == "no"
    assert HeadraceError("odd", sqlstate="42P99").sqlstate == "42P99"
    assert HeadraceError.sqlstate == "XX000"


def test_every_exported_name_exists_and_is_documented() -> None:
    assert headrace.__all__ == ["Database", "Pipeline", "__version__", "connect"]
    for name in headrace.__all__:
        value = getattr(headrace, name)
        assert name.startswith("__") or inspect.getdoc(value)
    assert headrace.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headrace.nothing


def test_the_public_methods_of_a_database_are_documented() -> None:
    for name, member in inspect.getmembers(headrace.Database):
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"Database.{name} has no docstring"


def module_names() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(headrace.__path__, "headrace.")]


@pytest.mark.parametrize("name", module_names())
def test_a_module_exports_what_it_says(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported), f"{name}.__all__ has {exported}, which is not there"


def test_test_modules_have_unique_names() -> None:
    """Without packages two of one name are one module to pytest, and to processes that tests start."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_module_is_imported() -> None:
    """What several of them need lives in a module that is named for it: a test can be split without looking around."""
    root = Path(__file__).parent
    found = {
        f"{path.relative_to(root)}: {line}"
        for path in root.rglob("*.py")
        for line in re.findall(r"^\s*(?:from|import) +(?:[\w.]+\.)?test_\w+.*", path.read_text(), re.MULTILINE)
    }
    assert found == set()


LAYERS = (
    ("sql", "sql/binder", "session/execution", "coordinator"),
    ("plan", "dataflow", "dataflow/operators"),
    ("sql/binder", "sql/binder/catalogue"),
)
"""Rooms of which each has a module of one thing: how a statement is read, bound, run and carried out; what an operator
is, how it is lowered and what its tasks do; what is done with some functions and which there are."""


def is_one_thing(folders: list[str]) -> bool:
    """Whether modules of one name are of one thing: one to a layer of it, or one to a connector."""
    rooms = ["coordinator" if f.startswith("coordinator") else f for f in folders]
    apart = len(set(rooms)) == len(rooms)
    return apart and (all(f.startswith("connectors/") for f in folders) or any({*rooms} <= {*some} for some in LAYERS))


def test_a_module_has_its_name_to_itself() -> None:
    """Whoever sees a module's name in an editor or a traceback knows which one it is."""
    root, found = Path(headrace.__file__).parent, dict[str, list[str]]()
    for path in sorted(root.rglob("*.py")):
        if path.name != "__init__.py":
            found.setdefault(path.name, []).append(path.relative_to(root).parent.as_posix())
    assert not {name: folders for name, folders in found.items() if len(folders) > 1 and not is_one_thing(folders)}
    assert not is_one_thing(["session", "sql"])
    assert not is_one_thing(["coordinator/run", "coordinator/observe"])


SHARED = {
    "Aggregate", "Call", "Column", "Commit", "Constant", "Delete", "Describe", "Execute", "Expr", "Flush", "Join",
    "Literal", "Query", "Select", "Session", "Union",
}  # fmt: skip
"""Names that several public classes have, mostly of one thing in different rooms: Spark's node and the operator that
stands for it, a statement and its message on the wire. The set may only shrink.
"""


def test_a_class_has_its_name_to_itself() -> None:
    """Whoever looks a class up by its name finds the one that is meant."""
    found: Counter[str] = Counter()
    for path in Path(headrace.__file__).parent.rglob("*.py"):
        found.update(
            node.name for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )  # fmt: skip
    assert {name for name, count in found.items() if count > 1} == SHARED
