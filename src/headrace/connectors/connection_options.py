"""What a connection has: the options of connectors that say where something is, and as whom to go there.

They are its own alone. Whoever uses a connection need not know its secrets, and must not be able to send them
elsewhere: so an object that names one gives none of these options itself, whether the connection has them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import DeclaredOptions
from headrace.connectors.option_reader import check_secrets
from headrace.errors import InvalidParameter


def _none(name: str) -> bool:
    return False


@dataclass(frozen=True)
class Connects:
    """A type of connections."""

    declared: DeclaredOptions
    """The options that it may have."""
    connectors: Mapping[str, Mapping[str, str]]
    """The connectors that take it, and what these call options that have another name there."""
    check: Callable[[Mapping[str, str]], object] | None = None
    """Raises `InvalidParameter` for values that are impossible together."""
    tunes: Callable[[str], bool] = _none
    """Whether an option says neither where nor as whom: then an object may add it."""

    def owns(self, name: str) -> bool:
        """Whether an option, by the connection's name of it, is one of this type's."""
        prefix = self.declared.prefix
        return any(o.name == name for o in self.declared.options) or bool(prefix and name.startswith(prefix))


_TYPES: Final[dict[str, tuple[str, str]]] = {
    "http": ("headrace.connectors.http.sink", "CONNECTION"),
    "iceberg": ("headrace.connectors.lake.iceberg", "CONNECTION"),
    "kafka": ("headrace.connectors.kafka.options", "CONNECTION"),
    "postgres": ("headrace.connectors.postgres.options", "CONNECTION"),
    "s3": ("headrace.connectors.lake.tables", "CONNECTION"),
}
TYPES: Final = tuple(_TYPES)


@dataclass(frozen=True)
class GivenOptions:
    """Options with their values, and those with the value of a secret, by its id."""

    options: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, int] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.options or name in self.secrets

    def same(self, name: str, other: GivenOptions) -> bool:
        """Whether an option has the same value in both."""
        mine, others = self.options.get(name, self.secrets.get(name)), other.options.get(name, other.secrets.get(name))
        return mine == others and (name in self.options) == (name in other.options)

    def named(self, names: Mapping[str, str]) -> GivenOptions:
        """The same by other names of the options."""
        return GivenOptions({names.get(n, n): v for n, v in self.options.items()},
                     {names.get(n, n): v for n, v in self.secrets.items()})  # fmt: skip


def connects(kind: str) -> Connects:
    """A type by its name. Raises `InvalidParameter`."""
    if kind not in _TYPES:
        raise InvalidParameter(f"option type of a connection must be one of {', '.join(TYPES)}, not {kind!r}")
    module, attribute = _TYPES[kind]
    found: Connects = getattr(import_module(module), attribute)
    return found


def check(kind: str, options: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for options that are none of a type's, missing or impossible.

    `secrets` are the values of options that were given one.
    """
    found = connects(kind)
    declared = found.declared
    for name in sorted({*options, *secrets}):
        if not found.owns(name):
            own = [o.name for o in declared.options] + ([f"{declared.prefix}*"] if declared.prefix else [])
            raise InvalidParameter(
                f"option {name} is none of a connection of type {kind}", hint=f"options: {', '.join(own)}"
            )
    check_secrets(declared.takes_secret, {"connector": kind, **options}, secrets)
    given = {"connector": kind, **options, **secrets}
    declared.read(given)
    if found.check is not None:
        found.check(given)


def joined(name: str, kind: str, connection: GivenOptions, own: GivenOptions) -> GivenOptions:
    """The options of an object, with those of the connection that it names.

    Raises `InvalidParameter` for a connection of another type than the connector needs, and for options of the object
    that are the connection's to give.
    """
    found, connector = connects(kind), own.options.get("connector", "")
    names = found.connectors.get(connector)
    if names is None:
        raise InvalidParameter(
            f'connection "{name}" is of type {kind}, which is not for connector {connector or "(none is given)"}',
            hint=f"it is for {', '.join(found.connectors)}",
        )
    there, back = connection.named(names), {other: own_name for own_name, other in names.items()}
    for option in sorted({*own.options, *own.secrets}):
        if option in there and not own.same(option, there):
            raise InvalidParameter(
                f'option {option} is given twice: connection "{name}" has it, too', hint="leave it out here"
            )
        ours = back.get(option, option)
        owned = found.owns(ours) and names.get(ours, ours) == option
        if option not in there and owned and not found.tunes(ours):
            raise InvalidParameter(
                f'option {option} says where to connect or as whom, which is for connection "{name}" to say',
                hint="create another connection, or leave connection out and give all of its options",
            )
    secrets = {**own.secrets, **there.secrets}
    return GivenOptions({**own.options, **there.options}, secrets)
