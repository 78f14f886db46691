"""The handlers of all kinds of statements: those that the modules of `execution/` declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from headrace.session import execution
from headrace.session.execution.handler import Handler
from headrace.sql import statements as st

S = TypeVar("S", bound=st.Statement)


def _declared() -> Iterator[Handler[Any]]:
    for module in pkgutil.iter_modules(execution.__path__, f"{execution.__name__}."):
        yield from getattr(importlib.import_module(module.name), "HANDLERS", ())


def by_kind(handlers: Iterator[Handler[Any]]) -> Mapping[type[st.Statement], Handler[Any]]:
    """The handlers by the kinds that they are for. Raises `ValueError` if a kind has two."""
    found: dict[type[st.Statement], Handler[Any]] = {}
    for handler in handlers:
        if handler.kind in found:
            raise ValueError(f"{handler.kind.__name__} has two handlers")
        found[handler.kind] = handler
    return found


HANDLERS: Final = by_kind(_declared())


def handler_of(statement: S) -> Handler[S]:
    """The handler of a statement."""
    return cast("Handler[S]", HANDLERS[type(statement)])
