"""Dataclasses whose methods are made when they are first asked for.

The standard library compiles up to nine methods of a dataclass as soon as it is defined. headrace defines more than six
hundred, most of which a process never makes an instance of, and that was a third of the processor time until a server
accepts connections. Here a class gets its fields at once and a stand-in for each method; the first use of one lets the
standard library make it, so it is the very same method. `__init__` alone, three quarters of those that are made, is
made here and does the same: the standard library would compile two more methods with that of a frozen class, and all of
it takes four times as long. Whoever looks at a class (`inspect.signature`, `fields`, `replace`, `match`) sees one
difference only: it is not marked as frozen, so a dataclass of the standard library cannot inherit from a frozen one of
these. mypy takes it for the standard library's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from copy import copy
from types import FunctionType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    from _typeshed import DataclassInstance
else:

    def dataclass(cls=None, /, *, eq=True, order=False, frozen=False, slots=False, kw_only=False):
        """As `dataclasses.dataclass`, of which it takes only what headrace uses."""

        def define(cls: type) -> type:
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            _add_methods(made, eq=eq, order=order, frozen=frozen)
            if frozen:
                _freeze(made, slots)
            return made

        return define if cls is None else define(cls)


_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")


class _Later:
    """Stands in a class for one of its methods until somebody asks for it."""

    def __init__(self, cls: type[DataclassInstance], name: str, frozen: bool) -> None:
        self._cls = cls
        self._name = name
        self._frozen = frozen

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """The method, which takes this one's place unless that is taken; threads that ask at once get equal ones."""
        method = self._made()
        if self._cls.__dict__.get(self._name) is self:
            setattr(self._cls, self._name, method)
        return method.__get__(instance, owner)

    def _made(self) -> FunctionType:
        """As the standard library makes it for a class of the same name and fields."""
        name = self._name
        if name == "__init__":
            return _init_of(self._cls, self._frozen)
        make = dataclasses.dataclass(
            init=False,
            repr=name == "__repr__",
            eq=name == "__eq__" or name in _ORDER,
            order=name in _ORDER,
            unsafe_hash=name == "__hash__",
        )
        method = make(_like(self._cls)).__dict__[name]
        assert isinstance(method, FunctionType)
        return method


def _like(cls: type[DataclassInstance]) -> type:
    """A class of the same name and fields, which is no dataclass yet."""
    body: dict[str, object] = {"__doc__": cls.__name__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    fields = dataclasses.fields(cls)
    body["__annotations__"] = {field.name: field.type for field in fields}
    return type(cls.__name__, (), body | {field.name: copy(field) for field in fields})


class _Factory:
    """Stands in a signature for a default that is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE: Final = _Factory()


def _init_of(cls: type[DataclassInstance], frozen: bool) -> FunctionType:
    """The `__init__` of a class: compiled from a text with one line a field, its signature set afterwards."""
    fields = dataclasses.fields(cls)
    plain = [field for field in fields if field.init and not field.kw_only]
    named = [field for field in fields if field.init and field.kw_only]
    _refuse_misplaced(cls, plain)
    parameters = [_SELF, *(field.name for field in plain), *(["*"] if named else []), *(field.name for field in named)]
    lines = [_assignment(cls, field, number, frozen) for number, field in enumerate(fields)]
    if hasattr(cls, "__post_init__"):
        lines.append(f"{_SELF}.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join([*lines, "pass"])
    globals_ = {
        "__name__": cls.__module__, "__dataclass_set__": object.__setattr__, "__dataclass_made__": _MADE,
        **{f"__dataclass_{number}__": _default_of(field) for number, field in enumerate(fields)},
    }  # fmt: skip
    exec(text, globals_)
    method = globals_.pop("__init__")
    assert isinstance(method, FunctionType)
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__defaults__ = tuple(_shown_default(field) for field in plain if _has_default(field))
    method.__kwdefaults__ = {field.name: _shown_default(field) for field in named if _has_default(field)}
    method.__annotations__ = {field.name: field.type for field in (*plain, *named)} | {"return": None}
    return method


_SELF: Final = "__dataclass_self__"
"""No field has a name like this."""


def _assignment(cls: type, field: dataclasses.Field[object], number: int, frozen: bool) -> str:
    """The line that sets a field."""
    own = f"__dataclass_{number}__"
    if field.default_factory is not dataclasses.MISSING:
        value = f"{own}() if {field.name} is __dataclass_made__ else {field.name}" if field.init else f"{own}()"
    elif field.init:
        value = field.name
    elif "__slots__" in vars(cls) and field.default is not dataclasses.MISSING:
        value = own
    else:
        return "pass"  # the class has its value, or `__post_init__` sets it
    return f"__dataclass_set__({_SELF}, {field.name!r}, {value})" if frozen else f"{_SELF}.{field.name} = {value}"


def _default_of(field: dataclasses.Field[object]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory


def _has_default(field: dataclasses.Field[object]) -> bool:
    return _default_of(field) is not dataclasses.MISSING


def _shown_default(field: dataclasses.Field[object]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else _MADE


def _refuse_misplaced(cls: type[DataclassInstance], fields: Sequence[dataclasses.Field[object]]) -> None:
    optional = False
    for field in fields:
        if optional and not _has_default(field):
            dataclasses.dataclass(_like(cls))  # which raises what the standard library of this Python says of it
        optional = _has_default(field)


def _add_methods(cls: type[DataclassInstance], *, eq: bool, order: bool, frozen: bool) -> None:
    """Give a class stand-ins for the methods that it does not define; what is compared and may change has no hash."""
    own = cls.__dict__
    hashes = own.get("__hash__") is not None  # Python itself puts None there beside an `__eq__`
    for name in ("__init__", "__repr__", *(("__eq__",) if eq else ()), *(_ORDER if order else ())):
        if name not in own:
            setattr(cls, name, _Later(cls, name, frozen))
    if eq and not hashes:
        type.__setattr__(cls, "__hash__", _Later(cls, "__hash__", frozen) if frozen else None)


def _freeze(cls: type[DataclassInstance], slots: bool) -> None:
    """Refuse that the fields of instances are set or deleted; with slots let pickle set them all the same."""
    names = frozenset(cls.__dataclass_fields__)

    def refuse_to_set(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def refuse_to_delete(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    methods: dict[str, Callable[..., object]] = {"__setattr__": refuse_to_set, "__delattr__": refuse_to_delete}
    if slots:
        methods |= {"__getstate__": _state_of, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)


def _state_of(self: DataclassInstance) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: DataclassInstance, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
