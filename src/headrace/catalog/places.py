"""Where a catalog can be: a SQLite file, a PostgreSQL database, an object store, a directory; and its backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from headrace.catalog.directory import Directory
from headrace.catalog.log_store import LogOptions, LogStore
from headrace.catalog.stash import StashStore
from headrace.catalog.stash_file import FileTables
from headrace.catalog.store import CatalogStore, StoredCatalog
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InvalidParameter, StorageError
from headrace.state.iopool import IoPool, RetryPolicy
from headrace.state.objects import prepare_directory
from headrace.state.transport import OPTIONS, open_transport

if TYPE_CHECKING:
    from sqlalchemy import URL

KINDS: Final = "a path or sqlite:///path, postgresql://user@host/database, file:///directory, s3://bucket/prefix"


@dataclass(frozen=True)
class PlaceOptions:
    """The options for opening a place, of whatever kind its backend is."""

    full_sync: bool = True
    """Whether a commit is flushed to the device."""
    busy_timeout_ms: int = 10_000
    """How long an access waits for another process."""
    connect_timeout_ms: int = 10_000
    """How long a server may take to accept a connection."""
    timeout_ms: int = 30_000
    """After how long without an answer an access is given up."""
    lease_ms: int = 1_000
    """In an object store: how long a look at the fence counts for reads."""
    object_options: Mapping[str, str] = field(default_factory=dict)
    """Of the object store, as for the state."""
    concurrency: int = 8
    generation: int = 0
    """The deploy generation of this process."""


DEFAULTS: Final = PlaceOptions()


def open_store(location: str | Path, options: PlaceOptions = DEFAULTS, *, read_only: bool = False) -> CatalogStore:
    """The backend for a path or URL; touches nothing that exists.

    Raises `StorageError` for a read-only file that is not there, `InvalidParameter` for an unknown kind of URL.
    """
    text = str(location)
    scheme = text.partition("://")[0] if "://" in text else "sqlite"
    if scheme == "sqlite":
        return _file(_sqlite_path(text), options, read_only)
    if scheme.partition("+")[0] == "postgresql":
        return _server(text, options)
    if scheme == "file":
        log = LogOptions(generation=options.generation)
        return LogStore(Directory(_directory(text), sync=options.full_sync), text.rstrip("/"), None, log)
    if scheme in OPTIONS:
        policy = RetryPolicy(deadline_ms=options.timeout_ms)
        lease_ms = 0 if scheme == "memory" else options.lease_ms
        # One request may take a third of the time, so that a lost one is tried again.
        transport = open_transport(text, options.object_options, max(1, options.timeout_ms // 3))
        log = LogOptions(lease_ms=lease_ms, generation=options.generation)
        return LogStore(transport, text.rstrip("/"), IoPool(options.concurrency, policy), log)
    raise InvalidParameter(f'no catalog backend for "{shown(text)}"', hint=KINDS)


def peek(location: str | Path, options: PlaceOptions = DEFAULTS) -> StoredCatalog:
    """The config collection, and what is said about the place, without opening: both empty if there is no catalog."""
    text = str(location)
    if ("://" not in text or text.startswith("sqlite:")) and not _sqlite_path(text).exists():
        return StoredCatalog({}, ())
    store = open_store(location, options, read_only=True)
    try:
        return store.peek()
    finally:
        store.close()


def shown(location: str | Path) -> str:
    """A location as it may be shown and stored: without its password."""
    text = str(location)
    if "://" not in text:
        return text
    if text.startswith("postgresql"):
        return _parsed(text).set(password=None).render_as_string()
    split = urlsplit(text)
    return text.replace(split.netloc, split.netloc.rpartition("@")[2], 1).rstrip("/")


def canonical(location: str | Path) -> str:
    """One spelling for each place: what is stored in another one, and compared."""
    text = str(location)
    if "://" not in text or text.startswith("sqlite:"):
        return f"sqlite:///{_sqlite_path(text).resolve()}"
    if text.startswith("file:"):
        return f"file://{_directory(text).resolve()}"
    if text.startswith("postgresql"):
        return _parsed(text).set(password=None, drivername="postgresql").render_as_string()
    return shown(text)


def _parsed(text: str) -> URL:
    from headrace.catalog.stash_server import parsed_url

    return parsed_url(text)


def _sqlite_path(text: str) -> Path:
    if "://" not in text:
        return Path(text)
    path = text.removeprefix("sqlite:///")
    if path in (text, ""):
        raise InvalidParameter(f'no catalog backend for "{text}"', hint=KINDS)
    before = path.partition("?")[0]
    if before != path and not Path(path).exists() and Path(before).is_file():  # or there would be a second, empty one
        raise InvalidParameter(f"the URL of a catalog in a file has no options: {text}", hint=f"sqlite:///{before}")
    return Path(path)


def _directory(text: str) -> Path:
    split = urlsplit(text)
    if split.netloc not in ("", "localhost") or not split.path:
        raise InvalidParameter(f"{text} is no directory of this host", hint="file:///path")
    return Path(unquote(split.path))


def _file(path: Path, options: PlaceOptions, read_only: bool) -> StashStore:
    if read_only and not path.exists():
        raise StorageError(f"there is no catalog in {path}")
    if not read_only:
        prepare_directory(path.parent)
    tables = FileTables(path, read_only=read_only, full_sync=options.full_sync, busy_timeout_ms=options.busy_timeout_ms)
    return StashStore(tables, str(path), options.generation)


def _server(text: str, options: PlaceOptions) -> StashStore:
    from headrace.catalog.stash_server import ServerTables, server_engine

    engine = server_engine(text, options.connect_timeout_ms, options.timeout_ms)
    return StashStore(ServerTables(engine), shown(text), options.generation)
