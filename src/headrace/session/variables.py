"""The settings of one session, as `SET` and `SHOW` know them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import headrace
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone, zone_of_setting
from headrace.config import Settings
from headrace.connectors.job_options import is_group_name
from headrace.errors import InvalidParameter, UndefinedObject

PG_VERSION = "13.14.0"
"""The PostgreSQL version that clients are told: the feature level they may count on."""
_UNITS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "us": 0.001}
_REPORTED = (
    "server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone",
    "integer_datetimes", "standard_conforming_strings", "application_name", "is_superuser", "session_authorization",
    "default_transaction_read_only", "in_hot_standby",
)  # fmt: skip


SEVERITIES = ("debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error")
"""The values of `client_min_messages`, the least severe first."""


@dataclass(frozen=True)
class Variable:
    """A setting: its spelling, default, meaning and check; `check` returns the text to store."""

    name: str
    default: str
    meaning: str = ""
    check: Callable[[str], str] | None = None
    fixed: bool = False
    """Whether SET must not change it."""
    setting: str | None = None
    """The server's setting that new sessions have it from, instead of the default here."""
    inert: bool = False
    """Whether clients set it and it has no effect, since what it asks for holds anyway."""


def _boolean(text: str) -> str:
    word = text.strip().lower()
    if word in ("on", "true", "yes", "1", "t", "y"):
        return "on"
    if word in ("off", "false", "no", "0", "f", "n"):
        return "off"
    raise ValueError("a boolean value is needed")


@lru_cache(maxsize=1024)
def duration_ms(text: str) -> int:
    """Milliseconds of a duration with an optional unit. Raises `ValueError`."""
    match = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|min|h|d)?\s*", text)
    if not match:
        raise ValueError("a number of milliseconds, or a number with a unit (ms, s, min, h, d), is needed")
    return int(int(match[1]) * _UNITS[match[2] or ""])


def _duration(text: str) -> str:
    duration_ms(text)
    return text.strip()


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return text.strip().lower()

    return check


def _zone(text: str) -> str:
    return zone_of_setting(text).name


def _utf8(text: str) -> str:
    if text.strip(" '").upper().replace("-", "") not in ("UTF8", "UNICODE"):
        raise ValueError("only UTF8 is supported")
    return "UTF8"


def _iso(text: str) -> str:
    if "ISO" not in text.upper() and not set(re.findall(r"\w+", text.upper())) <= {"MDY", "DMY", "YMD"}:
        raise ValueError("only ISO is supported")
    return "ISO, MDY"


def _monotonic(text: str) -> str:
    word = text.strip().lower()
    if word in ("strict", "session", "off"):
        return word
    try:
        return "strict" if _boolean(word) == "on" else "off"
    except ValueError:
        raise ValueError("one of strict, session, off is needed") from None


def _digits(text: str) -> str:
    if int(text) not in (1, 2, 3):
        raise ValueError("only 1 to 3 are supported: the shortest text that stands for exactly the number")
    return str(int(text))


def _whole(text: str) -> str:
    return str(int(text)) if text.strip() else ""


def _decoupled(text: str) -> str:
    word = text.strip().lower()
    if word in ("default", "enable"):
        return word
    if word == "disable" or _boolean(word) == "off":
        raise ValueError("a sink always reads the log of what it is built on, by itself")
    return "enable"


def _group(text: str) -> str:
    name = text.strip()
    if name and not is_group_name(name):
        raise ValueError("own, shared, or a name of at most 63 characters is needed")
    return name


_LEVELS = ("serializable", "repeatable read", "read committed", "read uncommitted", "default")
VARIABLES: dict[str, Variable] = {
    v.name.lower(): v
    for v in (
        Variable("server_version", f"{PG_VERSION} (headrace {headrace.__version__})", "PostgreSQL level.", fixed=True),
        Variable("server_version_num", "130014", "The same as a number.", fixed=True),
        Variable("server_encoding", "UTF8", "Encoding of stored text.", fixed=True),
        Variable("client_encoding", "UTF8", "Encoding on the wire.", _utf8),
        Variable("DateStyle", "ISO, MDY", "Format of dates.", _iso),
        Variable("IntervalStyle", "postgres", "Format of intervals.", _one_of("postgres")),
        Variable("TimeZone", "UTC", "Zone in which times with a time zone are read and shown.", _zone),
        Variable("integer_datetimes", "on", "Times are integers.", fixed=True),
        Variable("standard_conforming_strings", "on", "Backslashes are ordinary in strings.", _one_of("on")),
        Variable("is_superuser", "on", "Whether the user may do everything.", fixed=True),
        Variable("session_authorization", "root", "The user; SET SESSION AUTHORIZATION changes it.", fixed=True),
        Variable("role", "none", "Whose rights the user has; SET ROLE changes it. none: the user's own.", fixed=True),
        Variable("in_hot_standby", "off", "Whether the server only reads.", fixed=True),
        Variable("application_name", "", "What the client calls itself."),
        Variable("search_path", '"$user", public', "Schemas in which names are looked up."),
        Variable("extra_float_digits", "1", "Numbers are shown exactly; nothing else is offered.", _digits),
        Variable("client_min_messages", "notice", "Least severe notices that are sent.", _one_of(*SEVERITIES)),
        Variable("bytea_output", "hex", "Format of binary values.", _one_of("hex")),
        Variable(
            "enable_quick_reads", "on", "Small reads are answered without Spark where it would say the same.", _boolean
        ),
        Variable("row_security", "on", "No effect: there are no policies.", _boolean, inert=True),
        Variable("max_identifier_length", "63", "As in PostgreSQL.", fixed=True),
        Variable("max_index_keys", "32", "As in PostgreSQL.", fixed=True),
        Variable(
            "jit", "off", "No effect: clients switch it off for their queries of the catalog.", _boolean, inert=True
        ),
        Variable("lock_timeout", "0", "No effect: statement_timeout limits all waiting.", _duration, inert=True),
        Variable(
            "idle_in_transaction_session_timeout",
            "0",
            "Milliseconds (or with a unit) for which a client may leave a transaction alone; 0: no limit.",
            _duration,
            setting="idle_in_transaction_session_timeout_ms",
        ),
        Variable(
            "transaction_timeout",
            "0",
            "Milliseconds (or with a unit) that a transaction may take.",
            _duration,
            setting="transaction_timeout_ms",
        ),
        Variable(
            "idle_session_timeout",
            "0",
            "The same outside of a transaction.",
            _duration,
            setting="idle_session_timeout_ms",
        ),
        Variable("synchronous_commit", "on", "No effect: what is committed is durable.", inert=True),
        Variable("lc_collate", "C", "Order of text: by code point.", fixed=True),
        Variable("lc_ctype", "C.UTF-8", "Classification of characters.", fixed=True),
        Variable(
            "transaction_isolation",
            "serializable",
            "Accepted: all transactions are serializable.",
            _one_of(*_LEVELS),
            inert=True,
        ),
        Variable(
            "default_transaction_isolation", "serializable", "The same for new ones.", _one_of(*_LEVELS), inert=True
        ),
        Variable("transaction_read_only", "off", "Whether the transaction only reads.", _boolean),
        Variable("default_transaction_read_only", "off", "The same for new ones.", _boolean),
        Variable(
            "statement_timeout",
            "0",
            "Milliseconds (or with a unit) per statement; 0: no limit.",
            _duration,
            setting="statement_timeout_ms",
        ),
        Variable("query_epoch", "0", "Epoch that queries read; 0: the newest.", _whole),
        Variable(
            "query_consistency",
            "snapshot",
            "What a query over several relations sees.",
            _one_of("snapshot", "global", "latest"),
        ),
        Variable("monotonic_reads", "strict", "Whose earlier reads no relation is shown older than.", _monotonic),
        Variable("background_ddl", "off", "CREATE MATERIALIZED VIEW returns before it is filled.", _boolean),
        Variable(
            "streaming_enable_unaligned_join",
            "off",
            "Joins inside new views are jobs of their own.",
            _boolean,
        ),
        Variable(
            "streaming_use_arrangements",
            "on",
            "Joins in new views look rows up by primary key or index instead of keeping them; in a checkpoint group by "
            "automatic indexes, too.",
            _boolean,
        ),
        Variable("default_checkpoint_group", "", "Group of new views; empty: as the system parameter says.", _group),
        Variable(
            "sink_decouple",
            "default",
            "On always: a target that is slow or down delays no view.",
            _decoupled,
            inert=True,
        ),
        Variable("rw_implicit_flush", "off", "FLUSH after each INSERT, UPDATE and DELETE.", _boolean),
        Variable("read_your_writes", "off", "Reads wait for the session's own writes.", _boolean),
    )
}
"""Every setting by its name in lower case."""


def defaults_of(settings: Settings) -> dict[str, str]:
    """What new sessions have from the settings of the server."""
    return {name: str(getattr(settings, v.setting)) for name, v in VARIABLES.items() if v.setting is not None}


def table() -> str:
    """The settings as a table in Markdown."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for v in VARIABLES.values():
        own = f"`{v.default}`" if v.default else ""
        default = "is not set" if v.fixed else own if v.setting is None else f"as `{v.setting}` says"
        lines.append(f"| `{v.name}` | {default} | {v.meaning} |")
    return "\n".join(lines)


_ALIASES = {"timezone": "timezone", "names": "client_encoding", "transaction isolation level": "transaction_isolation",
            "headrace.read_your_writes": "read_your_writes"}  # fmt: skip


def accepted(name: str, value: str) -> tuple[str, str]:
    """A setting's name in lower case, and the value as it is stored. Names with a dot need not be known.

    Raises `UndefinedObject`, `InvalidParameter`.
    """
    key = _settable(name)
    known = VARIABLES.get(key)
    if known is None or known.check is None:
        return key, value
    try:
        return key, known.check(value)
    except ValueError as error:
        raise InvalidParameter(f'invalid value for parameter "{known.name}": "{value}"', hint=str(error)) from None


def _settable(name: str) -> str:
    key = _key(name)
    known = VARIABLES.get(key)
    if known is None and "." not in key:
        raise UndefinedObject(f'unrecognized configuration parameter "{name}"', hint="SHOW ALL lists them.")
    if known is not None and known.fixed:
        raise InvalidParameter(f'parameter "{known.name}" cannot be changed', sqlstate="55P02")
    return key


class SettingsMark(NamedTuple):
    """What a session's settings were at a moment: those of the session, and those of its transaction alone."""

    values: Mapping[str, str]
    local: Mapping[str, str]


class Variables:
    """A session's settings: what was set for it, for its transaction, and the defaults."""

    def __init__(self, **values: str) -> None:
        self._values: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self.version = 0
        """Another number after every change."""
        self._found: dict[str, str] = {}
        self._found_version = 0
        """The values that were asked for, and as of which version."""
        self._reported: tuple[int, dict[str, str]] | None = None
        self._defaults = {name: v.default for name, v in VARIABLES.items()}
        for name, value in values.items():
            self._defaults[name.lower()] = value

    def get(self, name: str) -> str:
        """The value of a setting. Raises `UndefinedObject`."""
        if self._found_version != self.version:
            self._found.clear()
            self._found_version = self.version
        value = self._found.get(name)
        if value is None:
            value = self._found[name] = self._get(name)
        return value

    def _get(self, name: str) -> str:
        key = _key(name)
        if key in self._local:
            return self._local[key]
        if key in self._values:
            return self._values[key]
        if key not in self._defaults:
            raise UndefinedObject(f'unrecognized configuration parameter "{name}"', hint="SHOW ALL lists them.")
        return self._defaults[key]

    def look(self, name: str) -> str:
        """The value of a known setting, for whoever looks from another thread: nothing is kept of it."""
        key = _key(name)
        for values in (self._local, self._values):
            found = values.get(key)
            if found is not None:
                return found
        return self._defaults[key]

    def is_on(self, name: str) -> bool:
        """Whether a boolean setting is on."""
        return self.get(name) == "on"

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Set, or with None put back to the default. Names with a dot need not be known."""
        key = _settable(name)
        self.version += 1
        if value is None and local:
            self._local[key] = self._defaults.get(key, "")
        elif value is None:
            self._values.pop(key, None)
            self._local.pop(key, None)
        else:
            key, value = accepted(name, value)
            self._local.pop(key, None)
            (self._local if local else self._values)[key] = value

    def mark(self) -> SettingsMark:
        """Return what `go_back` goes back to."""
        return SettingsMark(dict(self._values), dict(self._local))

    def go_back(self, mark: SettingsMark) -> None:
        """Undo what was set since a mark."""
        if (self._values, self._local) != mark:
            self.version += 1
            self._values, self._local = dict(mark.values), dict(mark.local)

    def end_transaction(self) -> None:
        """Forget what `SET LOCAL` has set."""
        if self._local:
            self.version += 1
            self._local.clear()

    def hold(self, values: Mapping[str, str | None], *, local: bool = False) -> None:
        """Set what `SET` must not, or with None put it back."""
        self.version += 1
        for name, value in values.items():
            self._local.pop(name, None)
            if value is not None:
                (self._local if local else self._values)[name] = value
            elif not local:
                self._values.pop(name, None)

    def reset(self) -> None:
        """Put every setting back to its default that can be set."""
        self.version += 1
        self._values = {name: value for name, value in self._values.items() if _is_fixed(name)}
        self._local = {name: value for name, value in self._local.items() if _is_fixed(name)}

    def all(self) -> Iterator[tuple[Variable, str]]:
        """Every known setting with its value, by name."""
        for key in sorted(VARIABLES):
            yield replace(VARIABLES[key]), self.get(key)

    def reported(self) -> dict[str, str]:
        """What clients are told: the same mapping as long as no setting changes."""
        if self._reported is None or self._reported[0] != self.version:
            told = {name: self.get(name) for name in _REPORTED if name.lower() in self._defaults}
            self._reported = self.version, told
        return self._reported[1]

    @property
    def role(self) -> str:
        """The name of the role whose rights the session has."""
        role = self.get("role")
        return self.get("session_authorization") if role == "none" else role

    @property
    def zone(self) -> Zone:
        """The time zone of the session."""
        return zone_of_setting(self.get("timezone"))

    def search_path(self) -> tuple[str, ...]:
        """The schemas of the search path; `"$user"` does not exist."""
        parts = [part.strip().strip('"') for part in self.get("search_path").split(",")]
        return tuple(p for p in parts if p and p not in ("$user", "pg_catalog")) or ("public",)


def _is_fixed(name: str) -> bool:
    known = VARIABLES.get(name)
    return known is not None and known.fixed


def _key(name: str) -> str:
    key = name.lower()
    return _ALIASES.get(key, key)
