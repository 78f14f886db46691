"""Commands that are functions with annotated parameters, over argparse.

    commands = Commands("tool", "What it is.")

    @commands.command()
    def copy(
        what: Annotated[Path, CommandArgument("What to copy.")],
        force: Annotated[bool, CommandOption("Copy it whatever is there.")] = False,
    ) -> None: ...

A parameter without a default is required. Options are called as their parameters are, unless they name their flags.
Libraries for command lines take a seventh of the processor time until a server accepts connections.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Final, NoReturn, TypeVar, get_args, get_type_hints

from headrace.common.lazy_dataclass import dataclass

_F = TypeVar("_F", bound=Callable[..., None])
_HELP: Final = ("-h", "--help")
_USAGE_ERROR: Final = 2
"""The exit code after a mistake in the arguments."""


class CommandOption:
    """An option of a command."""

    def __init__(
        self, meaning: str, *flags: str, least: int | None = None, most: int | None = None, shown: str | None = None
    ) -> None:
        """`shown` is what the help says of a default that is found elsewhere."""
        self.meaning = meaning if shown is None else f"{meaning} [{shown}]"
        self.flags = flags
        self.least = least
        self.most = most


class CommandArgument:
    """An argument that stands for itself."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning


@dataclass(frozen=True)
class _Command:
    run: Callable[..., None]
    passes_on: bool
    """Whether it gets all arguments as they are."""

    @property
    def meaning(self) -> str:
        return inspect.getdoc(self.run) or ""


class Commands:
    """A program's commands, or a group of them."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name = name
        self._meaning = meaning
        self._commands: dict[str, _Command | Commands] = {}

    @property
    def meaning(self) -> str:
        """What they do, in a sentence."""
        return self._meaning

    def group(self, name: str, meaning: str) -> Commands:
        """Commands below a command of that name."""
        made = Commands(f"{self._name} {name}", meaning)
        self._commands[name] = made
        return made

    def command(self, name: str | None = None, *, passes_on: bool = False) -> Callable[[_F], _F]:
        """Make a function a command of its own name or another one; with `passes_on` it gets a list of arguments."""

        def add(run: _F) -> _F:
            self._commands[name or run.__name__] = _Command(run, passes_on)
            return run

        return add

    def run(self, arguments: Sequence[str] | None = None) -> None:
        """Run what the arguments say. Raises `SystemExit` for mistakes in them, and once help has been shown."""
        given = list(sys.argv[1:] if arguments is None else arguments)
        if not given or given[0] in _HELP:
            print(self._overview())
            sys.exit(0 if given else _USAGE_ERROR)
        found = self._commands.get(given[0])
        if found is None:
            self._refuse(f"no such command: {given[0]}")
        if isinstance(found, Commands) or found.passes_on:
            found.run(given[1:])
        else:
            parser, valued = _parser(f"{self._name} {given[0]}", found)
            found.run(**vars(parser.parse_args(_joined(given[1:], valued))))

    def _refuse(self, what: str) -> NoReturn:
        print(f"usage: {self._name} COMMAND ...\n{self._name}: error: {what}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)

    def _overview(self) -> str:
        wide = max(map(len, self._commands)) + 4
        lines = [
            textwrap.fill(
                command.meaning, _width(), initial_indent=f"  {name}".ljust(wide), subsequent_indent=" " * wide
            )
            for name, command in self._commands.items()
        ]
        usage = f"usage: {self._name} [-h] COMMAND ..."
        return "\n".join([usage, "", textwrap.fill(self._meaning, _width()), "", "commands:", *lines])


def _width() -> int:
    import shutil  # for those only who ask for help

    return max(40, shutil.get_terminal_size((100, 24)).columns)


def _parser(name: str, command: _Command) -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """What reads a command's arguments; and the flags that have a value, each with the first one of its option."""
    made = argparse.ArgumentParser(name, description=command.meaning, allow_abbrev=False)
    valued: dict[str, str] = {}
    hints = get_type_hints(command.run, include_extras=True)
    for parameter in inspect.signature(command.run).parameters.values():
        annotation, *notes = get_args(hints[parameter.name])
        for note in notes:
            if isinstance(note, CommandArgument):
                made.add_argument(parameter.name, type=_type(annotation), help=_plain(note.meaning))
            elif isinstance(note, CommandOption):
                flags = note.flags or (f"--{parameter.name.replace('_', '-')}",)
                _add_option(made, flags, parameter, annotation, note)
                valued |= dict.fromkeys(flags if annotation is not bool else (), flags[0])
    return made, valued


def _joined(arguments: Sequence[str], valued: Mapping[str, str]) -> list[str]:
    """The same with each option and its value as one: else a value that begins with a dash would be an option."""
    found, left = [], iter(arguments)
    for argument in left:
        value = next(left, None) if argument in valued else None
        found.append(argument if value is None else f"{valued[argument]}={value}")
    return found


def _add_option(
    parser: argparse.ArgumentParser, flags: Sequence[str], parameter: inspect.Parameter, annotation: object,
    option: CommandOption,
) -> None:  # fmt: skip
    if annotation is bool:
        parser.add_argument(*flags, dest=parameter.name, action="store_true", help=_plain(option.meaning))
        return
    required = parameter.default is inspect.Parameter.empty
    shown = "" if required or parameter.default is None else f" [{parameter.default}]"
    parser.add_argument(
        *flags, dest=parameter.name, required=required, default=None if required else parameter.default,
        type=_whole(option) if _type(annotation) is int else _type(annotation), help=_plain(option.meaning + shown),
    )  # fmt: skip


def _type(annotation: object) -> Callable[[str], object]:
    """The one type of an annotation beside None."""
    found = next((one for one in get_args(annotation) if one is not NoneType), annotation)
    return {int: int, str: str, Path: Path}[found]  # type: ignore[index]


def _whole(option: CommandOption) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f'"{text}" is no whole number') from None
        if option.least is not None and value < option.least:
            raise argparse.ArgumentTypeError(f"it has to be at least {option.least}")
        if option.most is not None and value > option.most:
            raise argparse.ArgumentTypeError(f"it may be at most {option.most}")
        return value

    return read


def _plain(text: str) -> str:
    """A meaning in which argparse replaces nothing."""
    return text.replace("%", "%%")
