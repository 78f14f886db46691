"""An accumulator is one class, and nobody asks which one it has: neither by a class, nor by words.

Adding an aggregate that is kept incrementally touches the class and the rule for Catalyst's function, and these tests
count that. How equal rows combine is known to the kernels alone.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import headrace
from headrace.state import accumulators
from headrace.state.accumulators import Accumulator, Sent
from headrace.state.schema import Combine

SOURCE = Path(headrace.__file__).parent
HOME = "state/accumulators/"
RULED = "plan/accumulable.py"
"""Where accumulators are chosen."""
SENDERS = "dataflow/accumulator_input.py"
"""Where the columns that rows send are made."""
COMBINING = ("state/schema.py", "state/kernels/combination.py")
"""Where it is known how diffs of equal rows combine."""
WAYS = {*get_args(Combine), "sum"}


for found_module in pkgutil.iter_modules(accumulators.__path__):
    importlib.import_module(f"{accumulators.__name__}.{found_module.name}")


def kinds(of: type[Accumulator] = Accumulator) -> Iterator[type[Accumulator]]:
    """The accumulators of headrace's own."""
    for kind in of.__subclasses__():
        if kind.__module__.startswith(f"{accumulators.__name__}."):
            yield kind
            yield from kinds(kind)


CONCRETE = sorted({kind for kind in kinds() if not kind.__subclasses__()}, key=lambda kind: kind.__name__)


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def has_word(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and n.value in WAYS for n in ast.walk(node))


def brings_one(node: ast.AST) -> bool:
    """`from headrace.state.accumulators.sums import WideSum` and the like."""
    home = accumulators.__name__
    if isinstance(node, ast.Import):
        return any(alias.name.startswith(f"{home}.") for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == home:
        return any(alias.name not in accumulators.__all__ for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{home}.")


def compares_a_way(node: ast.AST) -> bool:
    """`how == "add"`, `wire.merged in ("min", "max")`, `{"min": ...}[how]` and the like."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(name_of(side) in ("how", "combine", "merged") for side in sides) and any(map(has_word, sides))
    if isinstance(node, ast.Subscript):
        return name_of(node.slice) in ("how", "combine", "merged") and has_word(node.value)
    return False


def names_what_is_sent(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and name_of(node.value) == "Sent" and node.attr in Sent.__members__


@cache
def modules() -> dict[str, list[ast.AST]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): list(ast.walk(ast.parse(path.read_text()))) for path in paths}


def found(nodes: Iterable[ast.AST], wrong: Callable[[ast.AST], bool]) -> list[str]:
    return [f"line {getattr(n, 'lineno', 0)}: {ast.unparse(n)}" for n in nodes if wrong(n)]


@pytest.mark.parametrize(
    ("wrong", "homes"),
    [
        (brings_one, (HOME, RULED)),
        (names_what_is_sent, (HOME, SENDERS)),
        (compares_a_way, (HOME, *COMBINING)),
    ],
    ids=["accumulators", "sent", "combined"],
)
def test_nobody_asks_which_one_it_is(wrong: Callable[[ast.AST], bool], homes: tuple[str, ...]) -> None:
    outside = {module: nodes for module, nodes in modules().items() if not module.startswith(homes)}
    lines = [f"{module}, {line}" for module, nodes in outside.items() for line in found(nodes, wrong)]
    assert not lines, "what depends on the accumulator is said by its class"


@pytest.mark.parametrize(
    "text",
    [
        "from headrace.state.accumulators.sums import WideSum", "from headrace.state.accumulators import sums",
        "import headrace.state.accumulators.sums", 'how == "add"', 'wire.merged in ("min", "max")',
        'pc.fill_null(x, 0) if how == "add" else x', '{"min": F.min}[how]', "Sent.LOW",
    ],
)  # fmt: skip
def test_the_rules_see_what_they_forbid(text: str) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    assert found(nodes, brings_one) or found(nodes, compares_a_way) or found(nodes, names_what_is_sent)


@pytest.mark.parametrize(
    "text", ["from headrace.state.accumulators import Accumulator", 'kind == "add"', 'merged["sum"]', "wire.sent"]
)
def test_the_rules_leave_alone_what_is_not_meant(text: str) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    assert not any(found(nodes, wrong) for wrong in (brings_one, compares_a_way, names_what_is_sent))


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_an_accumulator_stands_in_two_files(kind: type[Accumulator]) -> None:
    """Its module, and that of the rules: docs/EXTENDING.md counts them."""

    def brings_it(node: ast.AST) -> bool:
        of_it = isinstance(node, ast.ImportFrom) and node.module == kind.__module__
        return isinstance(node, ast.ImportFrom) and of_it and kind.__name__ in [alias.name for alias in node.names]

    assert [module for module, nodes in modules().items() if found(nodes, brings_it)] == [RULED]
    assert kind.__name__ not in accumulators.__all__


def test_all_accumulators_are_looked_at() -> None:
    assert {"Count", "WideSum", "Least", "BitXor"} <= {kind.__name__ for kind in CONCRETE}
