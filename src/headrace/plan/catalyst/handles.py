"""What is asked of Java about plans, as seldom as possible: a question to Java takes longer than most answers.

Nodes, expressions and types of Catalyst never change. So what was found out of one is kept in its handle, and goes
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from pyspark.sql.types import DataType, _parse_datatype_json_string

T = TypeVar("T")

_KEPT = "_headrace_"
"""What the names begin with under which a handle keeps what is known."""

_CHILD, _SIDES = ("child",), ("left", "right")
CHILDREN: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("AttributeReference", "Literal", "LogicalRDD", "LocalRelation", "OneRowRelation"), ()),
    **dict.fromkeys(("Project", "Filter", "Aggregate", "Sort", "SubqueryAlias", "GlobalLimit", "LocalLimit"), _CHILD),
    **dict.fromkeys(("Alias", "Cast", "IsNull", "IsNotNull", "Not", "Sum", "Average", "Min", "Max"), _CHILD),
    **dict.fromkeys(("And", "Or", "EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan"), _SIDES),
    **dict.fromkeys(("GreaterThanOrEqual", "Add", "Subtract", "Multiply", "Join"), _SIDES),
}
"""Kind of node or expression -> the methods that return its children, for the commonest: less to ask than a Seq is."""


def once(handle: Any, what: str, find: Callable[[], T]) -> T:
    """What `find` finds out of something that never changes, kept in its handle under `what`."""
    kept: dict[str, Any] = handle.__dict__
    name = _KEPT + what
    if name not in kept:
        kept[name] = find()  # whoever asks at the same time finds the same
    found: T = kept[name]
    return found


def type_of(handle: Any) -> Any:
    """The Catalyst type of an expression."""
    return once(handle, "type", handle.dataType)


def spark_type_of(handle: Any) -> DataType:
    """The PySpark type of an expression."""
    return _parsed(_json(handle))


def has_text(handle: Any) -> bool:
    """Whether there may be strings in the values of an expression."""
    return any(word in _json(handle) for word in ("string", "char"))


def _json(handle: Any) -> str:
    return once(handle, "json", lambda: str(type_of(handle).json()))


_parsed = lru_cache(4096)(_parse_datatype_json_string)


class Package:
    """A package or an object of Java's of which each member is looked up once."""

    def __init__(self, found: Any):
        self._found = found

    def __getattr__(self, name: str) -> Any:
        member = self.__dict__[name] = getattr(self._found, name)
        return member

    def module(self, name: str) -> Any:
        """The singleton behind a Scala `object` of the package."""
        return once(self, f"module {name}", lambda: getattr(getattr(self._found, name + "$"), "MODULE$"))


__all__ = ["CHILDREN", "Package", "has_text", "once", "spark_type_of", "type_of"]
