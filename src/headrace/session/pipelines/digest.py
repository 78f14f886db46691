"""Whether a definition is still what it was: digests that a new process computes alike."""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Iterator

_DEEPEST = 12


def digest(parts: object) -> str:
    """A digest of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def code_parts(value: object, depth: int = 0, seen: frozenset[int] = frozenset()) -> object:
    """What a function does, as JSON values: its code, constants, defaults, and what it refers to outside of itself.

    Lines and files are left out, so that moving a function changes nothing.
    """
    if depth > _DEEPEST or id(value) in seen:
        return "..."
    inner, seen = depth + 1, seen | {id(value)}
    if isinstance(value, types.CodeType):
        constants = [code_parts(c, inner, seen) for c in value.co_consts]
        return [value.co_code.hex(), constants, value.co_names, value.co_varnames, value.co_freevars]
    if isinstance(value, types.FunctionType):
        outside = [(n, code_parts(v, inner, seen)) for n, v in _references(value)]
        defaults = [code_parts(d, inner, seen) for d in (value.__defaults__ or ())]
        return [code_parts(value.__code__, inner, seen), defaults, outside]
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, type):
        members = sorted((n, v) for n, v in vars(value).items() if isinstance(v, types.FunctionType))
        return [value.__qualname__, [(n, code_parts(v, inner, seen)) for n, v in members]]
    if isinstance(value, (list, tuple)):
        return [code_parts(v, inner, seen) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(code_parts(v, inner, seen)) for v in value)
    if isinstance(value, dict):
        return sorted((str(k), str(code_parts(v, inner, seen))) for k, v in value.items())
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    function = getattr(value, "func", None)
    return code_parts(function, inner, seen) if isinstance(function, types.FunctionType) else type(value).__qualname__


def _references(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
