"""Reading and checking the WITH options of a source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.errors import InvalidParameter

ON_ERROR = ("fail", "null", "skip")
COMMON_OPTIONS = ("connector", "on_error", "max_rows_per_epoch", "max_mb_per_epoch", "source_rate_limit")

_UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")
_WHOLE = re.compile(r"\s*-?\d{1,18}\s*", re.ASCII)
_TRUE = frozenset(("true", "t", "yes", "on", "1"))
_FALSE = frozenset(("false", "f", "no", "off", "0"))


_CONFIDENTIAL = (
    ".client.secret", ".key.pem", ".secret.key", ".credential", ".token", ".authorization", ".cookie", "-key",
    "-token", "-authorization", "-secret", "-signature", "apikey",
)  # fmt: skip
"""How the names of options end, besides passwords, whose values nobody is to read."""


_OPEN_IN_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/?#@\s]*:[^/?#@\s]+@|[?&;](?:password|passwd|api_?key|secret|(?:access_?)?token)=[^&\s]",
    re.IGNORECASE,
)
"""A password in front of a URL's host, or in its query."""


def without_included(options: Mapping[str, str]) -> dict[str, str]:
    """Options but for those by which INCLUDE asks for columns."""
    return {name: value for name, value in options.items() if not name.startswith("include.")}


def parse_duration_ms(text: str) -> float | None:
    """Milliseconds of a duration such as `60s`, `1.5h`, `200ms`; None if it is not one."""
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _UNITS_MS[match[2]] if match else None


def _refuse_secrets(options: Mapping[str, str], refused: Sequence[str]) -> None:
    """Raise `InvalidParameter` for options that were given a secret, and are not made for that."""
    if refused:
        raise InvalidParameter(
            f"option {refused[0]} of connector {options.get('connector')} cannot be a secret: "
            "its value is stored or shown",
            hint="write the value itself",
        )


def is_confidential(name: str) -> bool:
    """Whether an option is one whose value nobody is to read."""
    return name.endswith(_CONFIDENTIAL) or name.rpartition(".")[2] == "password"


def _refuse_open(names: Iterable[str]) -> None:
    """Raise `InvalidParameter` for a password among options whose values are written in the statement."""
    for name in names:
        if is_confidential(name):
            raise InvalidParameter(
                f"option {name} has to be a secret: everybody can read a statement's text",
                hint=f"CREATE SECRET s AS '...'; and then {name} = SECRET s",
            )


def _refuse_in_urls(options: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for a password in a URL: everybody can read that, too."""
    for name, value in options.items():
        if _OPEN_IN_URL.search(value):
            raise InvalidParameter(
                f"option {name} has a password in its URL: everybody can read a statement's text",
                hint="Leave it out there, and give it as a secret by the option for it.",
            )


def check_secrets(takes_secret: Callable[[str], bool], options: Mapping[str, str], secrets: Iterable[str]) -> None:
    """Raise `InvalidParameter` for a secret as the value of an option that has to be readable, and the other way.

    `options` are those with their values, the connector among them; `secrets` the names of those that are secrets.
    """
    _refuse_open(name for name in options if takes_secret(name))
    _refuse_in_urls(options)
    _refuse_secrets(options, [name for name in secrets if not takes_secret(name)])


class OptionReader:
    """Typed access to options; every method raises `InvalidParameter` naming the option and what it may be."""

    def __init__(self, options: Mapping[str, str]):
        self.options = options

    def refuse_unknown(self, known: Iterable[str], prefix: str | None = None) -> None:
        """Raise for an option that is neither in `known` nor starts with `prefix`."""
        names = sorted({*COMMON_OPTIONS, *known})
        for name in self.options:
            if name not in names and not (prefix and name.startswith(prefix)):
                connector = self.options.get("connector", "?")
                raise InvalidParameter(
                    f"unknown option {name} for connector {connector}",
                    hint=f"options: {', '.join(names)}" + (f", {prefix}<column>.<property>" if prefix else ""),
                )

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.options

    def required(self, name: str) -> str:
        """The text of an option that must be given."""
        value = self.options.get(name, "")
        if not value:
            raise InvalidParameter(f"option {name} is required for connector {self.options.get('connector')}")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """One of `allowed`."""
        value = self.options.get(name, default)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        if name not in self.options:
            return default
        value = self.options[name].strip().lower()
        if value not in _TRUE and value not in _FALSE:
            raise self._wrong(name, "true or false")
        return value in _TRUE

    def integer(self, name: str, least: int | None = None) -> int | None:
        """A whole number of at least `least`, None if not given."""
        if name not in self.options:
            return None
        text = self.options[name]
        value = int(text) if _WHOLE.fullmatch(text) else None
        if value is None or (least is not None and value < least):
            raise self._wrong(name, "a whole number" + (f" of at least {least}" if least is not None else ""))
        return value

    def positive(self, name: str) -> float | None:
        """A number above zero, None if not given."""
        if name not in self.options:
            return None
        try:
            value = float(self.options[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise self._wrong(name, "a number above zero")
        return value

    def fraction(self, name: str, default: float) -> float:
        """A number from 0 to 1."""
        try:
            value = float(self.options.get(name, default))
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise self._wrong(name, "a number from 0 to 1")
        return value

    def duration_ms(self, name: str) -> float | None:
        """A duration above zero in milliseconds, None if not given."""
        if name not in self.options:
            return None
        value = parse_duration_ms(self.options[name])
        if not value:
            raise self._wrong(name, "a duration above zero such as 500ms, 60s, 5min, 1h")
        return value

    def on_error(self) -> str:
        """What becomes of malformed input: 'fail', 'null' or 'skip'."""
        return self.choice("on_error", ON_ERROR, "fail")

    def _wrong(self, name: str, allowed: str) -> InvalidParameter:
        return InvalidParameter(f"option {name} must be {allowed}, not {self.options[name]!r}")
