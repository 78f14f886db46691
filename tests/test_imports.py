"""The parts of the package import each other in one direction only, and workers stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
LAYERS = (
    ("common",),
    ("state", "catalog"),
    ("connectors",),
    ("dataflow", "plan", "sql"),
    ("coordinator",),
    ("session",),
    ("cli", "demo", "server", "shell", "web"),
)
FREE = ("errors", "config", "typed_settings")
"""Modules that every part may import; they import no part themselves."""
FORBIDDEN = {("plan", "dataflow"), ("sql", "dataflow"), ("sql", "plan"), ("state", "catalog"), ("server", "shell")}
"""Pairs within one layer: the first must not import the second."""
HEAVY = ("pyspark", "sqlglot", "sqlalchemy", "pydantic", "py4j")
WORKER_PARTS = ("common", "state", "connectors", "dataflow/operators")
"""What runs inside Spark's Python workers."""


def modules(under: str = "") -> list[Path]:
    return sorted((ROOT / under).rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def rank(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute names of the modules that are imported anywhere below `tree`; `package` is the importing package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *([node.module] if node.module else [])))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> tuple[str, ...]:
    return ("headrace", *path.relative_to(ROOT).parts[:-1])


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements that run when the module is imported."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if is_type_checking(node):
            assert isinstance(node, ast.If)
            pending.extend(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef, ast.For, ast.While)):
            pending.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
        else:
            yield node


def test_every_module_belongs_to_a_part() -> None:
    known = {part for parts in LAYERS for part in parts} | {*FREE, "__init__"}
    assert {part_of(path) for path in modules()} <= known


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    for name in imported(parse(path), package_of(path)):
        words = name.split(".")
        if words[0] != "headrace" or len(words) < 2 or not (ROOT / words[1]).exists():
            continue
        other = words[1]
        assert part not in FREE or other in FREE, f"{part} must not import {name}"
        if part in FREE or other in FREE:
            continue
        assert rank(other) <= rank(part), f"{part} lies below {other}, and must not import {name}"
        assert (part, other) not in FORBIDDEN, f"{part} must not import {name}"


@pytest.mark.parametrize(
    "path",
    [path for part in WORKER_PARTS for path in modules(part)],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_worker_modules_import_nothing_heavy(path: Path) -> None:
    for node in at_import(parse(path)):
        for name in imported(node, package_of(path)):
            assert name.split(".")[0] not in HEAVY, f"{name} is imported when the module is"
            assert name != "headrace.config", "the settings are the server's: tasks get what they need of them"


def loaded_by(*names: str) -> set[str]:
    """The heavy packages that are there after importing modules in a fresh interpreter."""
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name in HEAVY}


def test_importing_the_package_is_cheap() -> None:
    assert loaded_by("headrace") == set()


def test_what_workers_import_is_light_in_the_end() -> None:
    names = [
        ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for part in WORKER_PARTS
        for path in modules(part)
    ]
    # Shipped functions arrive through pyspark, so only what comes on top of it counts.
    assert loaded_by(*names) <= {"pyspark", "py4j"}
    assert loaded_by(*(n for n in names if not n.startswith("headrace.dataflow"))) == set()


MUTUAL = ("sql",)
"""Parts of which some modules import each other: expressions hold queries, and queries expressions."""


def needed_modules(path: Path) -> set[str]:
    """The modules of headrace that one imports anywhere, also inside functions, but for types alone."""
    pending: list[ast.AST] = [parse(path)]
    found: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt) and is_type_checking(node):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(imported(node, package_of(path)))
        pending.extend(ast.iter_child_nodes(node))
    return found


def module_names(under: str = "") -> dict[str, Path]:
    """The modules by name, packages themselves aside."""
    return {".".join((*package_of(path), path.stem)): path for path in modules(under) if path.name != "__init__.py"}


def in_circles(below: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others; what each one imports is given, and used up."""
    while ends := {name for name, needed in below.items() if not needed & below.keys()}:
        for name in ends:
            del below[name]
    return {name for name in below if needs_itself(name, below)}


def test_no_modules_import_each_other() -> None:
    """Nor by way of others: who reads a module needs to know those below it only."""
    names = module_names()
    found = in_circles({name: needed_modules(path) & names.keys() - {name} for name, path in names.items()})
    assert {name for name in found if name.split(".")[1] not in MUTUAL} == set()


def known_modules(path: Path) -> set[str]:
    """The modules of headrace that one imports anywhere, for types, too."""
    return set(imported(parse(path), package_of(path)))


def test_no_modules_of_sessions_know_each_other() -> None:
    """Not even for types: a statement's execution knows what it may use, and not the session that runs it."""
    names = module_names("session")
    assert in_circles({name: known_modules(path) & names.keys() - {name} for name, path in names.items()}) == set()


SESSION_ITSELF = {f"headrace.session.{name}" for name in ("session", "instance", "database")}
BELOW_THE_SESSION = ("execution", "reading", "system", "introspection")
"""Packages of `session` that carry statements out, and get a `Context` for that."""


@pytest.mark.parametrize(
    "path",
    [ROOT / "session" / "context.py", *(path for part in BELOW_THE_SESSION for path in modules(f"session/{part}"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_what_carries_statements_out_knows_no_session(path: Path) -> None:
    assert known_modules(path) & SESSION_ITSELF == set()


def test_a_context_knows_nothing_of_what_uses_it() -> None:
    """Nor does anything that it is made of."""
    names = module_names("session")
    found: set[str] = set()
    pending = ["headrace.session.context"]
    while pending:
        needed = known_modules(names[pending.pop()]) & names.keys() - found
        found |= needed
        pending += needed
    used_by = {name for name in found if name.split(".")[2] in BELOW_THE_SESSION} | found & SESSION_ITSELF
    assert found and used_by == set()


def needs_itself(name: str, below: dict[str, set[str]]) -> bool:
    """Whether a module imports itself by way of others."""
    seen: set[str] = set()
    pending = [*below[name]]
    while pending:
        other = pending.pop()
        if other in below and other not in seen:
            seen.add(other)
            pending += below[other]
    return name in seen
