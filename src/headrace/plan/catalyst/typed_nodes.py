"""Parts of Catalyst's plans as objects of our own: typed, frozen, each with a handle that only this package reads.

A part never changes, as Catalyst's own never do. So what was asked of Java about one is kept in it, and asked once: a
question to Java takes longer than most answers. Nothing is asked before it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

from py4j.java_gateway import JavaGateway, JavaObject, JVMView, is_instance_of

T = TypeVar("T")
P = TypeVar("P", bound="Part")

_LISTED: Final = 10
"""Up to how many elements Java's `List.of` takes one by one."""
_CHILD, _SIDES = ("child",), ("left", "right")
CHILDREN: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("AttributeReference", "Literal", "LogicalRDD", "LocalRelation", "OneRowRelation"), ()),
    **dict.fromkeys(("Project", "Filter", "Aggregate", "Sort", "SubqueryAlias", "GlobalLimit", "LocalLimit"), _CHILD),
    **dict.fromkeys(("Alias", "Cast", "IsNull", "IsNotNull", "Not", "Sum", "Average", "Min", "Max"), _CHILD),
    **dict.fromkeys(("UnscaledValue", "KnownNullable", "KnownNotNull"), _CHILD),
    **dict.fromkeys(("And", "Or", "EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan"), _SIDES),
    **dict.fromkeys(("GreaterThanOrEqual", "Add", "Subtract", "Multiply", "BitwiseAnd", "ShiftRight", "Join"), _SIDES),
}
"""Kind of node or expression -> the methods that return its children, for the commonest: less to ask than a Seq is."""


class Asked(Generic[T]):
    """A field of a part that is found out when it is first wanted, and kept. Two who want it at once find the same."""

    def __init__(self, find: Callable[[object], T]) -> None:
        self._find = find
        self._name = find.__name__
        self.__doc__ = find.__doc__

    @overload
    def __get__(self, part: None, owner: type) -> Asked[T]: ...
    @overload
    def __get__(self, part: object, owner: type) -> T: ...
    def __get__(self, part: object | None, owner: type) -> T | Asked[T]:
        if part is None:
            return self
        found = part.__dict__[self._name] = self._find(part)
        return found


def asked(find: Callable[[Any], T]) -> Asked[T]:
    """Decorates the method that finds such a field out."""
    return Asked(find)


class Package:
    """A package or an object of Java's of which each member is looked up once."""

    def __init__(self, found: JavaObject):
        self._found = found
        self._modules: dict[str, JavaObject] = {}

    def __getattr__(self, name: str) -> JavaObject:
        member = self.__dict__[name] = getattr(self._found, name)
        return member

    def module(self, name: str) -> JavaObject:
        """The singleton behind a Scala `object` of the package."""
        if name not in self._modules:
            self._modules[name] = getattr(getattr(self._found, name + "$"), "MODULE$")
        return self._modules[name]


class PartReader:
    """Reads the objects of one Java process as parts, and Scala's collections of them."""

    def __init__(self, gateway: JavaGateway, jvm: JVMView) -> None:
        spark = jvm.org.apache.spark
        self._gateway = gateway
        self._class_name = spark.util.Utils.getFormattedClassName
        self._to_seq = spark.api.python.PythonUtils.toSeq
        self._list_of = jvm.java.util.List.of
        self._empty = self._to_seq([])
        self._some = jvm.scala.Some
        self.none: JavaObject = jvm.scala.Option.empty()
        """Scala's None."""

    def kind(self, java: JavaObject) -> str:
        """The simple class name of one of Java's objects."""
        return str(self._class_name(java))

    def part(self, java: JavaObject, base: type[P]) -> P:
        """An object of Java's as a part, of the class that is registered for its kind or else of `base`."""
        kind = self.kind(java)
        return Part.class_of(kind, base)(java, self, kind=kind)

    def parts(self, sequence: JavaObject, base: type[P]) -> tuple[P, ...]:
        """The elements of a Scala Seq as parts."""
        return tuple(self.part(java, base) for java in self.items(sequence))

    def option(self, option: JavaObject, base: type[P]) -> P | None:
        """What a Scala Option holds as a part."""
        return None if option.isEmpty() else self.part(option.get(), base)

    @staticmethod
    def items(sequence: JavaObject) -> list[JavaObject]:
        """The elements of a Scala Seq."""
        return [sequence.apply(i) for i in range(sequence.size())]

    def seq(self, items: Iterable[object]) -> JavaObject:
        """A Scala Seq of parts, or of anything else."""
        found = [item.in_java if isinstance(item, Part) else item for item in items]
        if not found:
            return self._empty
        if len(found) <= _LISTED and all(i is not None for i in found):
            found = self._list_of(*found)  # one question to Java instead of one for each
        return self._to_seq(found)

    def some(self, value: object) -> JavaObject:
        """Scala's Some(value)."""
        return self._some(value)

    def some_or_none(self, part: Part | None) -> JavaObject:
        """Scala's Some of a part, or None."""
        return self.none if part is None else self._some(part.in_java)

    def is_a(self, java: JavaObject, class_name: str) -> bool:
        """Whether an object of Java's is of a class, or of one that extends it."""
        return bool(is_instance_of(self._gateway, java, class_name))


class Part:
    """A node or an expression of a plan. Never changes."""

    in_java: JavaObject
    """The handle: Catalyst's own object. Nothing outside this package looks at it."""
    reader: PartReader
    _classes: ClassVar[dict[str, type[Part]]] = {}

    def __init_subclass__(cls, *, kinds: Sequence[str] = ()) -> None:
        """Register the class for kinds of Catalyst's objects."""
        Part._classes.update(dict.fromkeys(kinds, cls))

    def __init__(self, java: JavaObject, reader: PartReader, **known: object) -> None:
        """`known` are fields of which Java need not be asked."""
        self.__dict__.update(known, in_java=java, reader=reader)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a part of a plan does not change")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text})"

    @staticmethod
    def class_of(kind: str, base: type[P]) -> type[P]:
        """The class for a kind: the one that is registered, if it is one of `base`."""
        found = Part._classes.get(kind, base)
        return found if issubclass(found, base) else base

    @asked
    def kind(self) -> str:
        """Catalyst's name for what it is."""
        return self.reader.kind(self.in_java)

    @asked
    def text(self) -> str:
        """As Spark writes it, with expression ids."""
        return str(self.in_java.toString())

    def equals(self, other: Part) -> bool:
        """Whether Java takes them for equal."""
        return self is other or bool(self.in_java.equals(other.in_java))

    def _children(self, base: type[P]) -> tuple[P, ...]:
        getters = CHILDREN.get(self.kind)
        if getters is None:
            return self.reader.parts(self.in_java.children(), base)
        return tuple(self.reader.part(getattr(self.in_java, name)(), base) for name in getters)

    def _with_children(self: P, children: Sequence[Part]) -> P:
        made = self.in_java.withNewChildren(self.reader.seq(children))
        return type(self)(made, self.reader, kind=self.kind, children=tuple(children))


__all__ = ["CHILDREN", "Asked", "Package", "Part", "PartReader", "asked"]
