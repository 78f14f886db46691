"""Dataclasses whose methods are made later behave as the standard library's do."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import headrace
from headrace.common import lazy_dataclass

ROOT = Path(headrace.__file__).parent
OPTIONS = [
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "order": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True},
    {"eq": False},
    {},
]


def made(decorator: Callable[..., Any], options: dict[str, bool]) -> Any:
    """A class with all that a field can be, and one that inherits from it."""

    @decorator(**options)
    class Point:
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        label: str = dataclasses.field(default="p", compare=False)
        seen: list[int] = dataclasses.field(default_factory=list, repr=False, hash=False)
        norm: int = dataclasses.field(init=False, default=0)
        last: int = dataclasses.field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "norm", abs(self.x))

    @decorator(**options)
    class Named(Point):
        """A point with a name, whose fields come after."""

        name: str = "n"

    return Named


def outcome(call: Callable[[], object]) -> object:
    """What a call gives, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def ask(cls: Any) -> list[object]:
    """All that can be asked of a class, each by whoever asks first."""
    first, same, other = cls(x=-3), cls(x=-3, label="q"), cls(x=4, seen=[1], last=8, name="z")
    return [
        str(inspect.signature(cls)),
        inspect.signature(cls).parameters.keys(),
        cls.__init__.__qualname__,
        cls.__match_args__,
        cls.__doc__,
        [(f.name, f.kw_only, f.init) for f in dataclasses.fields(cls)],
        outcome(lambda: repr(first)).__str__().partition(" at 0x")[0],
        first.norm,
        first == same,
        first == other,
        first != 3,
        outcome(lambda: first < other),
        outcome(lambda: first >= same),
        outcome(lambda: first < 3),
        outcome(lambda: hash(first) == hash(same)) if cls.__hash__ is not object.__hash__ else "by identity",
        outcome(lambda: hash(first)) if cls.__hash__ is not object.__hash__ else "by identity",
        outcome(lambda: setattr(first, "x", 1)),
        outcome(lambda: setattr(first, "unknown", 1)) is None,
        outcome(lambda: delattr(first, "label")),
        outcome(lambda: cls()),
        outcome(lambda: cls(-3, "a", unknown=1)),
        dataclasses.asdict(outcome(lambda: dataclasses.replace(other, x=5))),  # type: ignore[call-overload]
        dataclasses.asdict(copy.copy(other)),
        dataclasses.asdict(copy.deepcopy(other)),
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_methods_are_the_standard_librarys(options: dict[str, bool]) -> None:
    expected = ask(made(dataclasses.dataclass, options))
    assert ask(made(lazy_dataclass.dataclass, options)) == expected


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("method", ["__repr__", "__eq__", "__hash__", "__lt__", "__setattr__", "__init__"])
def test_what_a_class_defines_itself_stays(options: dict[str, bool], method: str) -> None:
    """Its own method goes before one that would be made, in whatever it defines besides."""
    if method == "__lt__" or (method == "__setattr__" and options.get("frozen")):
        return  # the standard library refuses these

    def own(decorator: Callable[..., Any]) -> Any:
        @decorator(**options)
        class Own:
            x: int = 1

        body = {"__annotations__": {"y": "int"}, "y": 2, method: lambda self, *given: "own"}
        return decorator(**options)(type("Own", (Own,), body))

    expected, found = own(dataclasses.dataclass), own(lazy_dataclass.dataclass)
    for cls in (expected, found):
        assert getattr(cls, method)(None) == "own"
    assert (found.__hash__ is None) == (expected.__hash__ is None)
    assert (found.__hash__ is object.__hash__) == (expected.__hash__ is object.__hash__)


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Sent:
    """What is sent to another process."""

    number: int
    texts: tuple[str, ...] = ()


def test_instances_are_sent_to_other_processes() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Sent(1, ("a",)), protocol)) == Sent(1, ("a",))


def test_a_method_is_made_once_for_all_and_replaced_by_nobody() -> None:
    cls = made(lazy_dataclass.dataclass, {"frozen": True})
    cls.__repr__ = lambda self: "mine"
    first = cls(x=1)
    assert inspect.isfunction(vars(cls)["__init__"]) and repr(first) == "mine"
    before = vars(cls)["__init__"]
    assert cls(x=2).x == 2 and vars(cls)["__init__"] is before


def test_a_field_without_a_default_after_one_with_it_is_refused() -> None:
    def misplaced(decorator: Callable[..., Any]) -> Any:
        body = {"__annotations__": {"x": "int", "y": "int"}, "x": 1}
        return decorator(frozen=True)(type("Misplaced", (), body))(1, 2)

    expected = outcome(lambda: misplaced(dataclasses.dataclass))
    assert outcome(lambda: misplaced(lazy_dataclass.dataclass)) == expected == (TypeError, expected[1])  # type: ignore[index]


def test_an_init_finds_what_its_fields_are_called() -> None:
    """Whatever the names of fields are, they are not those that the method itself needs."""
    names = ("set_", "unset", "make_x", "value_x", "object", "list", "cls", "x")

    def named(decorator: Callable[..., Any]) -> Any:
        annotations = dict.fromkeys(names, "object")
        factories = {name: dataclasses.field(default_factory=partial(str, name)) for name in names}
        return decorator(frozen=True)(type("Named", (), {"__annotations__": annotations, **factories}))

    for cls in (named(dataclasses.dataclass), named(lazy_dataclass.dataclass)):
        assert dataclasses.astuple(cls()) == names
        assert dataclasses.astuple(cls(x=None)) == (*names[:-1], None)
        assert "x: 'object' = <factory>" in str(inspect.signature(cls))


def test_threads_that_ask_at_once_get_what_they_ask_for() -> None:
    found: list[object] = []
    for _ in range(20):
        cls = made(lazy_dataclass.dataclass, {"frozen": True, "order": True})
        barrier = threading.Barrier(4)

        def use(cls: Any = cls, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            one = cls(x=1)
            found.append((one == cls(x=1), hash(one) == hash(cls(x=1)), one < cls(x=2)))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [(True, True, True)] * 80


def test_all_dataclasses_are_made_so() -> None:
    """But those of the settings, which depend on nothing."""
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                found += [path.name for alias in node.names if alias.name == "dataclass"]
    assert sorted(found) == ["config.py", "lazy_dataclass.py", "typed_settings.py"]


def test_a_start_makes_few_methods() -> None:
    """Modules that make instances of many classes while they are loaded would bring the time back."""
    code = """
from headrace.common import lazy_dataclass
made, make = [], lazy_dataclass._Later._made
lazy_dataclass._Later._made = lambda self: made.append(self) or make(self)
import headrace.cli
headrace.cli.load_server()
print(len(made))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 100
