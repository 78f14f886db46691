"""Options of a connector, declared once: from them follow the checks, what errors say, and the tables of the manual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.option_reader import OptionReader, is_confidential
from headrace.errors import InvalidParameter


@dataclass(frozen=True)
class Option:
    """One option of `WITH (...)`."""

    name: str
    help: str
    kind: str = "text"
    """text, number, boolean or duration; of one with `choices` it does not matter."""
    default: str | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    secret: bool = False
    """Whether its value may be that of a secret."""
    least: int | None = 0
    """The least value of a number; None for any."""

    @property
    def kind_text(self) -> str:
        """What it may be, for people."""
        return ", ".join(f"`{c}`" for c in self.choices) if self.choices else self.kind

    @property
    def default_text(self) -> str:
        """What counts where it is not given, for people."""
        return "required" if self.required else f"`{self.default}`" if self.default is not None else ""

    def read(self, reader: OptionReader) -> Any:
        """Its value, None if it was not given and has no default. Raises `InvalidParameter`."""
        if self.required:
            reader.required(self.name)
        given = reader.options if reader.has(self.name) or self.default is None else {self.name: self.default}
        found = OptionReader(given)
        if not found.has(self.name):
            return None
        if self.choices:
            return found.choice(self.name, self.choices, "")
        if self.kind == "number":
            return found.integer(self.name, self.least)
        if self.kind == "boolean":
            return found.boolean(self.name, False)
        if self.kind == "duration":
            return found.duration_ms(self.name)
        return given[self.name]


@dataclass(frozen=True)
class DeclaredOptions:
    """The options of a connector as a source or as a sink."""

    options: tuple[Option, ...]
    prefix: str | None = None
    """Options that begin with this are passed on as they are."""
    prefix_help: str = ""
    secret_prefix: bool = False

    def read(self, given: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, Any]:
        """The values by name. Raises `InvalidParameter` for an option that is unknown, missing or impossible."""
        reader = OptionReader(given)
        own = {name: value for name, value in given.items() if not (self.prefix and name.startswith(self.prefix))}
        names = [*(o.name for o in self.options), *also]
        OptionReader(own).refuse_unknown([*names, f"{self.prefix}*"] if self.prefix else names)
        return {o.name: o.read(reader) for o in self.options}

    def passed_on(self, given: Mapping[str, str]) -> dict[str, str]:
        """What begins with the prefix, without it."""
        prefix = self.prefix or "\0"
        return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}

    def takes_secret(self, name: str) -> bool:
        """Whether an option may have the value of a secret."""
        own = any(o.secret for o in self.options if o.name == name)
        return own or bool(self.secret_prefix and self.prefix and name.startswith(self.prefix))

    def table(self) -> str:
        """The options as a table in Markdown."""
        lines = ["| option | value | default | |", "| --- | --- | --- | --- |"]
        for o in self.options:
            note = f" {'Has to' if is_confidential(o.name) else 'May'} be a secret." if o.secret else ""
            lines.append(f"| `{o.name}` | {o.kind_text} | {o.default_text} | {o.help}{note} |")
        if self.prefix:
            note = " May be secrets." if self.secret_prefix else ""
            lines.append(f"| `{self.prefix}*` | text | | {self.prefix_help}{note} |")
        return "\n".join(lines)


def needed_module(name: str, extra: str) -> Any:
    """A module of a package that only this connector needs. Raises `InvalidParameter` that names the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidParameter(
            f"this connector needs the Python package {name.partition('.')[0]}: {error}",
            hint=f"pip install 'headrace[{extra}]', on the hosts of Spark's workers too",
        ) from error
