"""What holds for every class of operators: it stands in its own modules, and nothing else asks which one it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headrace
from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow import build
from headrace.dataflow.lowering import Lowering, by_node
from headrace.plan import tree
from headrace.plan.recompute import Recompute
from headrace.plan.rowwise import Rowwise
from headrace.plan.tree import Operator, OwnReading

SOURCE = Path(headrace.__file__).parent
COMMON = (Operator, Rowwise, Recompute)
"""Classes that others are made of, and no node of a plan is."""


def below(kind: type[Operator]) -> set[type[Operator]]:
    return {kind}.union(*(below(k) for k in kind.__subclasses__() if k.__module__.startswith("headrace.")))


CLASSES = {kind.__name__: kind for kind in below(Operator)}
NODES = set(CLASSES.values()) - set(COMMON)
LABELS = {"Project", "Filter", "Expand", "Generate", "Aggregate", "Window", "Apply", "TopN"}
WORDS = {"kind": {kind.kind for kind in CLASSES.values()}, "label": LABELS, "__name__": set(CLASSES)}
"""What tells operators apart in words, by the attribute that has it."""


def module_of(path: Path) -> str:
    return ".".join(("headrace", *path.relative_to(SOURCE).with_suffix("").parts))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """What is parsed is much, and of no use to other tests."""
    yield
    parsed.cache_clear()


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def known_by(path: Path) -> dict[str, type[Operator]]:
    """The classes of operators that a module defines or imports, also for types alone, by the names it has for them."""
    module = module_of(path)
    found = {name: kind for name, kind in CLASSES.items() if kind.__module__ == module}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                kind = CLASSES.get(alias.name)
                if kind is not None and kind.__module__ == node.module:
                    found[alias.asname or alias.name] = kind
    return found


def imported(module: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports give, and what each stands for."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def within_reach(module: ast.AST) -> set[str]:
    """The classes of others that a module could ask for, as it would write them: `Class`, or `some.module.Class`."""
    found = set()
    for name, meant in imported(module):
        for kind in CLASSES.values():
            whole = f"{kind.__module__}.{kind.__name__}"
            if whole == meant or whole.startswith(f"{meant}."):
                found.add(name + whole.removeprefix(meant))
    return found


def asked(tree: ast.AST) -> Iterator[ast.expr]:
    """What is compared with, matched with, or looked up: where a class decides what is done."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield node.args[1]
        elif isinstance(node, ast.MatchClass):
            yield node.cls
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)


def switches(module: ast.AST) -> Iterator[str]:
    """Where a class of operators is asked for."""
    names = within_reach(module)
    for part in asked(module):
        inner = (node for node in ast.walk(part) if isinstance(node, (ast.Name, ast.Attribute)))
        if names & {ast.unparse(node) for node in inner}:
            yield ast.unparse(part)


def worded(module: ast.AST) -> Iterator[str]:
    """Where the word for a class of operators is compared: its kind, its label, its name."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)}
            for side in sides:
                if isinstance(side, ast.Attribute) and words & WORDS.get(side.attr, set()):
                    yield ast.unparse(node)


OTHER_WORDS = ("sql/", "shell/", "catalog/", "plan/catalyst/", "connectors/")
"""Where a kind is another one: of statements, of objects, of Catalyst's nodes."""
ASKED: dict[str, list[str]] = {}
"""Modules that ask for the class of an operator, and what they ask for. It must stay empty."""


def test_nobody_asks_for_the_class_of_an_operator() -> None:
    """What depends on it is a method of the node, or declared beside its stages: whoever adds one finds it there."""
    found = {}
    for path in sources():
        module = path.relative_to(SOURCE).as_posix()
        texts = list(switches(parsed(path)))
        texts += [] if module.startswith(OTHER_WORDS) else worded(parsed(path))
        if texts:
            found[module] = texts
    assert found == ASKED


IMPORTS = """
import headrace.plan.joins
import headrace.plan.joins as j
from headrace import plan
from headrace.plan import joins, tree
from headrace.plan.catalyst import nodes
from headrace.plan.joins import Join
from headrace.plan.unions import Union as Other
"""


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(op, Join)", "isinstance(op, (Join, tree.Operator))", "issubclass(kind, tree.Operator)",
        "type(op) is Join", "{Join: 1}[type(op)]", "match op:\n    case Join(): pass", "isinstance(op, Other)",
        "type(op) is j.Join", "isinstance(op, joins.Join)", "op.__class__ == headrace.plan.joins.Join",
        "isinstance(op, plan.joins.Join)", "match op:\n    case j.Join(): pass",
    ],
)  # fmt: skip
def test_the_rule_sees_what_it_forbids(text: str) -> None:
    assert list(switches(ast.parse(IMPORTS + text)))


@pytest.mark.parametrize(
    "text",
    [
        "op.kind == 'join'", "op.kind in ('join', 'union')", "op.label == 'Project'", "'Window' != op.label",
        "type(op).__name__ == 'Join'", "op.__class__.__name__ in ('Join', 'Union')",
    ],
)  # fmt: skip
def test_the_rule_sees_words(text: str) -> None:
    assert list(worded(ast.parse(text)))


def test_the_rule_knows_all_labels() -> None:
    assert {label for kind in NODES if isinstance(label := getattr(kind, "label", None), str)} <= LABELS


@pytest.mark.parametrize(
    "text",
    [
        "Join(output, True, [])", "node.kind == 'Join'", "{op.id: Join(op)}", "isinstance(node, nodes.Join)",
        "isinstance(a, j.JoinSide)", "stage.label == other.label", "type(error).__name__ == 'Py4JJavaError'",
    ],
)  # fmt: skip
def test_the_rule_leaves_alone_what_is_not_meant(text: str) -> None:
    module = ast.parse(IMPORTS + text)
    assert not list(switches(module)) and not list(worded(module))


def test_every_operator_is_lowered_in_one_way() -> None:
    assert set(build.LOWERINGS) == NODES
    declared: Lowering[Operator] = Lowering(Operator, flow=lambda plan, op: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="Operator is lowered in two ways"):
        by_node([declared, Lowering(Operator, flow=declared.flow)])
    with pytest.raises(ValueError, match="Operator needs a flow"):
        Lowering(Operator, chain=lambda chains, op: None)


def test_the_module_of_an_operator_has_one_name() -> None:
    """`plan/x.py` has its node and its rule, `dataflow/x.py` how it is executed. Python's are row by row."""
    for module in build.OPERATORS:
        name = module.__name__.rpartition(".")[2]
        homes = {lowering.node.__module__.rpartition(".")[2] for lowering in module.LOWERINGS}
        assert homes - {"python"} == {name}


HOMES = {
    "Lookup": {"plan/lookups.py", "dataflow/lookups.py", "dataflow/operators/lookups.py"},
    "Session": {"plan/sessions.py", "dataflow/sessions.py", "dataflow/operators/sessions.py"},
    "WindowClose": {"plan/closing.py", "dataflow/closing.py", "dataflow/operators/close.py"},
    "TemporalFilter": {"plan/temporal.py", "dataflow/temporal.py", "dataflow/operators/timed.py"},
}
"""All files of the program that know of an operator of one stage, or of two."""


def stages_of(plan: Path) -> set[Path]:
    """The modules of stages that the plan of an operator uses."""
    nodes = [node for node in ast.walk(parsed(plan)) if isinstance(node, ast.ImportFrom)]
    names = {name for node in nodes for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
    return {path for path in SOURCE.glob("dataflow/operators/*.py") if module_of(path) in names}


@pytest.mark.parametrize("name", HOMES)
def test_an_operator_stands_in_three_files(name: str) -> None:
    """Its node with its rule, its plan, and what runs of it in workers: docs/EXTENDING.md counts them."""
    found = {path for path in sources() if CLASSES[name] in known_by(path).values()}
    (plan,) = (path for path in found if path.parent.name == "dataflow")
    stages = stages_of(plan)
    for other in SOURCE.glob("dataflow/*.py"):
        assert other == plan or not stages & stages_of(other), f"{other.name} runs its stage, too"
    assert {path.relative_to(SOURCE).as_posix() for path in found | stages} == HOMES[name]


def test_an_operator_without_a_rule_of_its_own_has_no_marks_and_no_state() -> None:
    """What a new operator need not say."""
    op = Operator([], True, [])
    assert (op.state(), op.shared(), op.reading(), op.sharable(), op.picked(), op.renamed()) == (
        {},
        {},
        None,
        [],
        None,
        None,
    )
    assert op.marks([{1: None}], {}) == {} and op.marks_needed() == []  # type: ignore[dict-item]
    assert tree.readings(op) == [] and not op.by_clock


@dataclass
class Given(Operator):
    """A leaf, or what is over some: only what it reads is said."""

    own: OwnReading | None = None

    def reading(self) -> OwnReading | None:
        return self.own


def test_what_reads_a_relation_is_idle_while_that_does_not_change() -> None:
    """A leaf need not say so, nor what takes rows in and reads a relation beside them."""
    leaf = Given([], True, [], OwnReading(7, changes=True, content=True))
    looking_up = Given([], True, [leaf], OwnReading(8, changes=False, content=True))
    both = Given([], True, [leaf], OwnReading(8, changes=True, content=True))
    rows = Given([], True, [])
    active = [None, frozenset[int](), frozenset({7}), frozenset({8})]
    assert [leaf.is_idle(a) for a in active] == [False, True, False, True]
    assert [looking_up.is_idle(a) for a in active] == [False, True, False, True]
    assert [both.is_idle(a) for a in active] == [False, True, False, False]
    assert [rows.is_idle(a) for a in active] == [False, True, True, True]


def test_what_changes_with_time_is_never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Given, "by_clock", True)
    assert not Given([], True, []).is_idle(frozenset())


def rows_of_the_map() -> list[str]:
    """For each module its nodes, and what runs of them in workers."""
    found = []
    for module in build.OPERATORS:
        path = Path(str(module.__file__))
        nodes = ", ".join(sorted(f"`{lowering.node.__name__}`" for lowering in module.LOWERINGS))
        stages = ", ".join(sorted(f"`{stage.name}`" for stage in stages_of(path)))
        found.append(f"| `{path.name}` | {nodes} | {stages or 'none of its own'} |")
    return found


def test_the_documentation_has_a_map_of_operators() -> None:
    text = (SOURCE.parents[1] / "docs" / "EXTENDING.md").read_text()
    assert [row for row in rows_of_the_map() if row not in text] == []
