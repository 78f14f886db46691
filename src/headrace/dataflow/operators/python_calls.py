"""Functions that users have created, as Spark's workers run them.

A definition travels as text or as a pickle, and is loaded once in each worker. Its lines are made known to tracebacks.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

Vectorized = Literal["", "pandas", "arrow"]
REQUIRED_OF_AGGREGATES = ("create_state", "accumulate")


@dataclass(frozen=True)
class FunctionCode:
    """A function's code. `parameters` are the names of its arguments, where they are known."""

    name: str
    source: str | None
    pickled: bytes | None
    parameters: tuple[str, ...] | None
    strict: bool = False
    """Where an argument is NULL, so is the result, and the function is not called."""
    vectorized: Vectorized = ""

    @property
    def filename(self) -> str:
        """What tracebacks call the code."""
        return f"<function {self.name}>"


class NoFunction(Exception):
    """The code does not define what it should; `line` says where, 1-based, if anywhere."""

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message)
        self.line = line


def code_of(text: str) -> str:
    """A body as it is compiled: without the indentation it has in the statement, and without an empty first line."""
    first, _, rest = text.partition("\n")
    return textwrap.dedent(rest if not first.strip() and rest else text).rstrip() + "\n"


def tree_of(definition: FunctionCode) -> ast.Module:
    """The code as a module that defines the function. Raises `SyntaxError`, `NoFunction`.

    A body that defines no function of the name, but returns or yields, is the inside of the function itself.
    """
    assert definition.source is not None
    tree = ast.parse(definition.source, definition.filename)
    if definition.name in _defined(tree) or not _returns(tree):
        return tree
    if definition.parameters is None:
        raise NoFunction("a body without def needs names for the function's arguments")
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(p) for p in definition.parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    function = ast.FunctionDef(name=definition.name, args=arguments, body=tree.body, decorator_list=[])
    return ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))


def _defined(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((a.asname or a.name).partition(".")[0] for a in node.names)
    return found


def _returns(tree: ast.Module) -> bool:
    """Whether statements outside of any function return or yield."""
    left: list[ast.AST] = list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            left += ast.iter_child_nodes(node)
    return False


@lru_cache(maxsize=512)
def namespace(definition: FunctionCode) -> dict[str, Any]:
    """The names that the code defines. Raises whatever the code raises."""
    if definition.pickled is not None:
        from pyspark import cloudpickle

        return {definition.name: cloudpickle.loads(definition.pickled)}
    assert definition.source is not None
    code = compile(tree_of(definition), definition.filename, "exec")
    lines = definition.source.splitlines(keepends=True)
    linecache.cache[definition.filename] = (len(definition.source), None, lines, definition.filename)
    names: dict[str, Any] = {"__name__": f"headrace_function_{definition.name}"}
    exec(code, names)
    return names


def function_of(definition: FunctionCode) -> Callable[..., Any]:
    """The function itself. Raises `NoFunction` where the code defines none of its name."""
    found = namespace(definition).get(definition.name)
    if found is None:
        raise NoFunction(f"the body defines no function {definition.name}")
    if not callable(found):
        raise NoFunction(f"{definition.name} is not a function but {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def state_functions(definition: FunctionCode) -> tuple[Callable[..., Any], ...]:
    """`create_state`, `accumulate` and `finish` of an aggregate, from its module or class. Raises `NoFunction`."""
    names = namespace(definition)
    holder = names.get(definition.name)
    if holder is not None:
        made = holder() if inspect.isclass(holder) else holder
        names = {n: getattr(made, n) for n in (*REQUIRED_OF_AGGREGATES, "finish") if hasattr(made, n)}
    missing = [n for n in REQUIRED_OF_AGGREGATES if not callable(names.get(n))]
    if missing:
        raise NoFunction(f"the body defines no function {' and no function '.join(missing)}")
    return names["create_state"], names["accumulate"], names.get("finish", _itself)


def _itself(state: object) -> object:
    return state


def scalar(definition: FunctionCode) -> Callable[..., object]:
    """For a plain UDF: called with the values of one row."""

    def call(*arguments: object) -> object:
        if definition.strict and any(a is None for a in arguments):
            return None
        return function_of(definition)(*arguments)

    return _named(call, definition)


def scalar_frames(definition: FunctionCode) -> Callable[..., pd.Series]:
    """For a pandas UDF: called with a Series for each argument."""

    def call(*arguments: pd.Series) -> pd.Series:
        return function_of(definition)(*arguments)

    return _named(call, definition)


def scalar_arrays(definition: FunctionCode) -> Callable[..., pa.Array]:
    """For an Arrow UDF: called with an Array for each argument."""

    def call(*arguments: pa.Array) -> pa.Array:
        return function_of(definition)(*arguments)

    return _named(call, definition)


def table(definition: FunctionCode, width: int) -> type:
    """A handler for a table function of `width` columns: rows are tuples, or bare values where there is one column."""

    class Handler:
        def eval(self, *arguments: object) -> Iterator[tuple[object, ...]]:
            if definition.strict and any(a is None for a in arguments):
                return
            for row in function_of(definition)(*arguments) or ():
                yield row_of(row, width)

    Handler.__name__ = definition.name
    return Handler


def row_of(row: Any, width: int) -> tuple[Any, ...]:
    """A row as a table function yields it, as a tuple."""
    if isinstance(row, dict):
        return tuple(row.values())
    if width == 1 and not (isinstance(row, (tuple, list)) and len(row) == 1):
        return (row,)
    return tuple(row)


def aggregate(definition: FunctionCode, result: pa.DataType, width: int) -> Callable[[pa.Array], pa.Array]:
    """For an Arrow UDF over lists of rows, which are structs of an aggregate's `width` arguments."""

    def call(groups: pa.Array) -> pa.Array:
        reduce = _vectorized(definition) if definition.vectorized else _stepwise(definition)
        values = []
        for i in range(len(groups)):
            rows = groups[i].values
            columns = [rows.field(n) for n in range(width)] if rows is not None else []
            values.append(reduce(_without_nulls(columns) if definition.strict else columns) if columns else None)
        return pa.array(values, result)

    return _named(call, definition)


def _without_nulls(columns: Sequence[pa.Array]) -> list[pa.Array]:
    kept = pa.table(dict(zip(map(str, range(len(columns))), columns))).drop_null()
    return [c.combine_chunks() for c in kept.columns]


def _stepwise(definition: FunctionCode) -> Callable[[Sequence[pa.Array]], object]:
    create_state, accumulate, finish = state_functions(definition)

    def reduce(columns: Sequence[pa.Array]) -> object:
        state = create_state()
        for row in zip(*(c.to_pylist() for c in columns)):
            state = accumulate(state, *row)
        return finish(state)

    return reduce


def _vectorized(definition: FunctionCode) -> Callable[[Sequence[pa.Array]], object]:
    function = function_of(definition)

    def reduce(columns: Sequence[pa.Array]) -> object:
        made = function(*(c.to_pandas() if definition.vectorized == "pandas" else c for c in columns))
        if isinstance(made, pa.Scalar):
            return made.as_py()
        return made.item() if hasattr(made, "item") else made

    return reduce


def _named(call: Callable[..., Any], definition: FunctionCode) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = definition.name
    return call
