"""Connectors and options by the names that RisingWave gives them, so that statements written for it are understood.

A statement is read as if it had been written with headrace's names, and is stored so; its text stays what it was. What
has no exact counterpart is refused with what to write instead, or is left for the connector to refuse by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.connection_options import GivenOptions
from headrace.errors import InvalidParameter, NotSupported

_S3: Final = {
    "s3.region_name": "s3.region", "s3.credentials.access": "s3.access.key", "s3.credentials.secret": "s3.secret.key",
    "s3.endpoint_url": "s3.endpoint",
}  # fmt: skip
_AZURE: Final = {
    "azblob.credentials.account_name": "azure.account", "azblob.credentials.account_key": "azure.secret.key",
    "azblob.endpoint_url": "azure.endpoint",
}  # fmt: skip
_MODES: Final = {"disabled": "disable", "preferred": "prefer", "required": "require"}
"""Of `ssl.mode`: here they are called as libpq calls them."""
_TABLE: Final = {"table.name": "table", "schema.name": "schema"}
_CSV: Final = {"encode.delimiter": "delimiter"}
_ANY_PATTERN: Final = "match_pattern"


@dataclass(frozen=True)
class _Place:
    """Where files are: the options that say it, and how a place of `files` is written with them."""

    root: str
    """The option that names a bucket or a directory."""
    folder: str | None
    """The option of the folder below it; None where it has none."""
    scheme: str
    names: Mapping[str, str]


_SOURCES: Final = {
    "s3": _Place("s3.bucket_name", None, "s3://", _S3),
    "s3_v2": _Place("s3.bucket_name", None, "s3://", _S3),
    "gcs": _Place("gcs.bucket_name", None, "gs://", {}),
    "azblob": _Place("azblob.container_name", None, "az://", _AZURE),
    "posix_fs": _Place("posix_fs.root", None, "", {}),
}
_SINKS: Final = {
    "s3": _Place("s3.bucket_name", "s3.path", "s3://", _S3),
    "gcs": _Place("gcs.bucket", "gcs.path", "gs://", {}),
    "azblob": _Place("azblob.container_name", "azblob.path", "az://", _AZURE),
    "fs": _Place("fs.path", None, "", {}),
}


def of_source(given: GivenOptions) -> GivenOptions:
    """The options of a source by headrace's names. Raises `InvalidParameter`, `NotSupported`."""
    connector = given.options.get("connector", "")
    if connector == "postgres-cdc":
        return _modes_of_libpq(given)
    found = _SOURCES.get(connector)
    return given if found is None else _lines_of_csv(_files(given, found, _pattern))


def of_sink(given: GivenOptions) -> GivenOptions:
    """The same of a sink."""
    connector = given.options.get("connector", "")
    if connector == "jdbc":
        return _jdbc(given)
    found = _SINKS.get(connector)
    return given if found is None else _files(given, found, lambda options: options.pop(found.folder or "", ""))


def _modes_of_libpq(given: GivenOptions) -> GivenOptions:
    mode = given.options.get("ssl.mode", "")
    return GivenOptions({**given.options, "ssl.mode": _MODES[mode]}, given.secrets) if mode in _MODES else given


def _files(given: GivenOptions, place: _Place, below: Callable[[dict[str, str]], str]) -> GivenOptions:
    """What is at a place, as options of the connector `files`; `below` takes out of them what is below its root."""
    connector = given.options["connector"]
    if "path" in given.options:
        raise InvalidParameter(
            f"option path is none of connector {connector}", hint=f"{place.root}, or connector = 'files' with a path"
        )
    options = dict(given.options)
    root = options.pop(place.root, "").strip("/" if place.scheme else "")
    if not root:
        raise InvalidParameter(f"option {place.root} is required for connector {connector}")
    if any(c in "*?[{,\\" for c in root):
        raise InvalidParameter(f"option {place.root} names one place, not a pattern")
    inner = below(options).strip("/")
    path = f"{place.scheme}{root.rstrip('/')}/{inner}" if inner else f"{place.scheme}{root}"
    return _named(GivenOptions({**options, "connector": "files", "path": path}, given.secrets), place.names)


def _named(given: GivenOptions, names: Mapping[str, str]) -> GivenOptions:
    for theirs, ours in names.items():
        if theirs in given and ours in given:
            raise InvalidParameter(f"options {theirs} and {ours} are the same", hint="leave one of them out")
    return given.named(names)


def _pattern(options: dict[str, str]) -> str:
    """Take `match_pattern`: its `*` stands for a `/`, too, so for any folders where it begins a name."""
    pattern = options.pop(_ANY_PATTERN, "*").strip("/")
    *folders, name = pattern.split("/")
    name = "*" if name == "**" else name
    deep = name.startswith("*")
    named = [part for part in (*folders, name.removeprefix("*")) if part != "**"]
    if any(c in part for part in named for c in "*?[{,\\"):
        raise NotSupported(
            f"option {_ANY_PATTERN} = '{pattern}', of which a sign may stand for a / as well",
            hint="connector = 'files' with a path: there * is for one folder or file, ** for any folders",
        )
    return "/".join([*folders, *(["**"] if deep and folders[-1:] != ["**"] else []), name])


def _lines_of_csv(given: GivenOptions) -> GivenOptions:
    """`ENCODE CSV (without_header = ..., delimiter = ...)` as the options of `files`."""
    options = dict(given.options)
    bare = options.pop("encode.without_header", None)
    if bare is not None:
        if "header" in given:
            raise InvalidParameter("options without_header and header contradict", hint="leave one of them out")
        if bare.lower() not in ("true", "false"):
            raise InvalidParameter(f"option without_header must be true or false, not {bare!r}")
        options["header"] = "false" if bare.lower() == "true" else "true"
    return _named(GivenOptions(options, given.secrets), _CSV)


def _jdbc(given: GivenOptions) -> GivenOptions:
    """The sink `jdbc`, where its URL is one of PostgreSQL's."""
    options = dict(given.options)
    url = options.pop("jdbc.url", "")
    if "jdbc.url" in given.secrets:
        raise InvalidParameter("option jdbc.url cannot be a secret", hint="password = SECRET s, and no password there")
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        if not url.startswith("jdbc:") or parts.scheme != "postgresql" or not parts.hostname:
            raise NotSupported(
                f"a sink with jdbc.url = '{url.partition('?')[0]}'",
                hint="jdbc:postgresql://host:port/database?user=name",
            )
        port = parts.port
    except ValueError as error:
        raise InvalidParameter(f"option jdbc.url: {error}") from error
    if "@" in parts.netloc:
        raise InvalidParameter(
            "option jdbc.url has a user before its host, which cannot be there",
            hint="the options user = '...' and password = SECRET s",
        )
    said = {"host": parts.hostname, "database": parts.path.strip("/"), **({"port": str(port)} if port else {})}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "user":
            hint = "CREATE SECRET s AS '...'; and then password = SECRET s" if name == "password" else None
            raise InvalidParameter(f"option jdbc.url has {name}, which cannot be there", hint=hint)
        said[name] = value
    twice = sorted(said.keys() & (given.options.keys() | given.secrets.keys()))
    if twice:
        raise InvalidParameter(f"option {twice[0]} is given twice: jdbc.url has it, too")
    return _named(GivenOptions({**options, **said, "connector": "postgres"}, given.secrets), _TABLE)
