"""The options of the `files` source: where the files are, how they are laid out, and at what pace they are replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.clients import STORE
from headrace.connectors.files.file_listing import FORMATS
from headrace.connectors.files.formats import TextOptions
from headrace.connectors.files.object_files import LISTS_EVERY, opened
from headrace.connectors.files.replay import ReplayPace
from headrace.connectors.files.store_access import LOCAL, FileStore
from headrace.connectors.option_reader import OptionReader
from headrace.errors import InvalidParameter, NotSupported

SOURCE: Final = DeclaredOptions(
    (
        Option("path", "A directory, a glob (`**` for any number of folders, in stores without those that begin with "
               "`_`; links to one folder are followed once), a "
               "file, or a list of them separated by commas: a path, `file:///path`, `s3://bucket/path`, "
               "`gs://bucket/path` or `az://container/path`. New files are followed.", required=True),
        Option("format", "What the files are; by default their extensions say it, and others are left alone. "
               "`FORMAT PLAIN ENCODE PARQUET` says it, too.", choices=FORMATS),
        Option("header", "Of CSV: the first record names the columns; else they go by place.", "boolean", "true"),
        Option("delimiter", "Of CSV: one character, or `\\t`.", default=","),
        Option("null_string", "Of CSV: the text without quotes that is NULL; empty is NULL for all but texts.",
               default=""),
        Option("multiline", "Of CSV: quoted values may hold line breaks; one task reads such a file.",
               "boolean", "false"),
        Option("refresh.interval", f"How often an object store is listed; {LISTS_EVERY} by default.", "duration"),
        Option("replay_column", "Replay in the order of this column, a timestamp or date."),
        Option("replay_speed", "Pace of the replay: a factor of event time, 1 by default,", "a number"),
        Option("replay_rate", "or rows per second,", "a number"),
        Option("replay_duration", "or the whole within this time.", "duration"),
        *STORE,
    )
)  # fmt: skip
_EVENT_TIMES: Final = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True)
class Location:
    """Where files are, and what they are."""

    store: FileStore
    paths: list[str]
    format: str | None
    """None where extensions say it."""
    text: TextOptions
    refresh_ms: float
    """How long what was listed holds."""


def location(options: Mapping[str, str]) -> Location:
    """Where the files of a source are. Raises `InvalidParameter`."""
    options = spelled(options)
    values = SOURCE.read(options)
    store: FileStore = opened(values["path"], options) or LOCAL
    paths = store.split(values["path"])
    if not paths:
        raise InvalidParameter("option path must name a directory, glob or file")
    given = values["refresh.interval"]
    if given is not None and not store.remote:
        raise InvalidParameter("option refresh.interval needs a path in an object store: directories are always listed")
    refresh_ms = (given or OptionReader({"interval": LISTS_EVERY}).duration_ms("interval") or 0) if store.remote else 0
    return Location(store, paths, values["format"], _text(values), refresh_ms)


def _text(values: Mapping[str, str | bool]) -> TextOptions:
    delimiter, null_string = delimiter_of(values), str(values["null_string"])
    return TextOptions(bool(values["header"]), delimiter, null_string, bool(values["multiline"]))


def delimiter_of(values: Mapping[str, str | bool]) -> str:
    """The option `delimiter`. Raises `InvalidParameter`."""
    delimiter = str(values["delimiter"])
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n0' or not delimiter.isascii():
        raise InvalidParameter(
            f"option delimiter must be one ASCII character other than a quote or 0, not {delimiter!r}"
        )
    return delimiter


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """`FORMAT PLAIN ENCODE x` as the option `format`."""
    found = dict(options)
    if "encode" in found:
        if found.get("format", "plain") != "plain":
            raise NotSupported(f"FORMAT {found['format'].upper()} of files", hint="write FORMAT PLAIN")
        found["format"] = found.pop("encode")
    return found


def replay_options(options: Mapping[str, str], columns: Sequence[Column]) -> tuple[Column | None, ReplayPace | None]:
    """The column in whose order files are replayed, and how fast; None if they are not. Raises `InvalidParameter`."""
    reader = OptionReader(options)
    paces = ("replay_speed", "replay_rate", "replay_duration")
    given = [name for name in paces if reader.has(name)]
    if len(given) > 1:
        raise InvalidParameter(f"options {' and '.join(given)} exclude each other: give one of {', '.join(paces)}")
    if not reader.has("replay_column"):
        if given:
            raise InvalidParameter(f"option {given[0]} needs the option replay_column")
        return None, None
    name = reader.required("replay_column")
    column = next((c for c in columns if c.name == name), None)
    if column is None or column.type not in _EVENT_TIMES:
        fitting = ", ".join(c.name for c in columns if c.type in _EVENT_TIMES) or "there is none"
        raise InvalidParameter(
            f"option replay_column must be a column of type timestamp, timestamp_ntz or date ({fitting}), not {name!r}"
        )
    speed, rate = reader.positive("replay_speed"), reader.positive("replay_rate")
    duration_ms = reader.duration_ms("replay_duration")
    return column, ReplayPace(speed if given else 1.0, rate, duration_ms)
