"""What a client asks for when it connects: the settings of its start-up packet, and those in that packet's `options`.

They are the session's defaults, which `RESET` goes back to. What cannot be had ends the connection, as it does in
PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.errors import HeadraceError, NotSupported
from headrace.session.variables import accepted

_OTHERS: Final = frozenset({"user", "database", "options", "replication"})
"""What a start-up packet holds besides settings."""
_OFF: Final = frozenset({"", "false", "off", "no", "0"})
_WORD: Final = re.compile(r"(?:[^\s\\]|\\.)+", re.DOTALL)


def requested(parameters: Mapping[str, str]) -> dict[str, str]:
    """The settings that a start-up packet asks for, by their names in lower case.

    Raises `UndefinedObject`, `InvalidParameter`, `NotSupported`.
    """
    if parameters.get("replication", "").lower() not in _OFF:
        raise NotSupported("there are no replication connections", hint="CREATE SUBSCRIPTION follows changes")
    given = [(n, v) for n, v in parameters.items() if n not in _OTHERS and not n.startswith("_pq_.")]
    return dict(accepted(name, text) for name, text in (*_of_options(parameters.get("options", "")), *given))


def _of_options(text: str) -> Iterator[tuple[str, str]]:
    """Settings written as arguments of PostgreSQL's server: `-c name=value`, `--name=value`; a backslash quotes."""
    words = iter([re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in _WORD.findall(text)])
    for word in words:
        setting = next(words, "") if word == "-c" else word.removeprefix("-c") if word[:2] == "-c" else word[2:]
        name, equals, value = setting.partition("=")
        if not equals or word[:2] not in ("-c", "--"):
            raise HeadraceError(
                f"invalid command-line argument for server process: {word}", sqlstate="42601",
                hint="options are settings: -c name=value",
            )  # fmt: skip
        yield name.replace("-", "_"), value
