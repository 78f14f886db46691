"""Where state lives: a directory, or a prefix in an object store, behind one interface.

In a directory sections are stored as they are and mapped. In an object store they are stored compressed; what a
process reads or writes is also kept, unpacked, in a cache on the local disk, which all processes of a host share,
and mapped from there.

Objects are immutable, and their names are never used twice. In a directory they are written under a temporary name,
forced to the disk, renamed, and mapped for reading; obstore's local store does neither of the first and the last, so
only listing and deleting go through it. In an object store an object is one request that asks for a free name.
Put-if-absent is asked of every store, compare-and-set of none.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InvalidParameter, StorageError
from headrace.state.cache import SectionCache
from headrace.state.iopool import IoMetrics, IoPool
from headrace.state.objects import (
    ObjectSink,
    ObjectWriter,
    StoredObject,
    delete_object,
    list_objects,
    map_object,
    prepare_directory,
    storage_errors,
)
from headrace.state.remote import RemoteSections
from headrace.state.schema import RunRef
from headrace.state.transport import Transport, open_transport

ONE_STORE = "put the state in an object store, or in a directory that all hosts have mounted at the same place"
"""What to do where hosts do not see the same store."""
SMALL_BYTES = 1 << 16
"""Bytes of what `get` reads, at most."""
LIST_DEADLINE_MS = 3_600_000
"""Listing a large store takes many requests in turn."""

Check = Callable[[memoryview], None]
"""Raises `CorruptObject` for a section that is damaged."""


@dataclass(frozen=True)
class StoreRoot:
    """Where the state of a database is, as it travels to tasks. Holds no credentials."""

    url: str
    """A path, or `file:///path`, `s3://bucket/prefix`, `gs://...`, `az://container/prefix`, `memory://name`."""
    options: tuple[tuple[str, str], ...] = ()
    """Of the object store, such as its endpoint: see `transport.OPTIONS`."""
    cache_dir: str = ""
    """Directory of the cache for remote objects, shared by all processes of a host; "" is one for each user."""
    cache_bytes: int = 4 << 30
    concurrency: int = 8
    """Requests under way at once per process."""
    timeout_ms: int = 30_000
    """A single request is given up after this time, and tried again."""
    proof: str = ""
    """An object that the server has put there: a process on another host has to see it before it does anything else,
    see `proof`. Empty if all processes run on one host."""

    @cached_property
    def is_local(self) -> bool:
        """Whether this is a directory."""
        return "://" not in self.url or self.url.startswith("file://")

    def __fspath__(self) -> str:
        """The directory. Raises `TypeError` where this is an object store."""
        if not self.is_local:
            raise TypeError(f"{self.url} is no directory")
        return unquote(urlsplit(self.url).path) if "://" in self.url else self.url


Root = str | os.PathLike[str] | StoreRoot
"""What names a store: a path or URL, or all there is to know of it."""


def store_root(root: Root) -> StoreRoot:
    """The root with everything that was left open at its default."""
    return root if isinstance(root, StoreRoot) else StoreRoot(os.fspath(root))


def root_to_json(root: Root) -> object:
    """A root as JSON values: a plain path or URL stays one."""
    return asdict(root) if isinstance(root, StoreRoot) else os.fspath(root)


def root_from_json(data: Any) -> Root:
    """The inverse of `root_to_json`."""
    if isinstance(data, str):
        return data
    return StoreRoot(**{**data, "options": tuple((k, v) for k, v in data["options"])})


class ObjectStore(Protocol):
    """All that headrace asks of storage. Paths are relative to the root. Safe to use from several threads.

    Methods raise `StorageError`, `DiskFull` where room is needed, and `CorruptObject` as they say.
    """

    root: StoreRoot
    metrics: IoMetrics

    def prepare(self) -> None:
        """Make the root ready, or find out early that it cannot be reached."""

    def create(self, path: str, *, fsync: bool = True) -> ObjectSink:
        """A new object. Its `commit` raises `StorageError` if there is one of that name."""

    def open(self, ref: RunRef, check: Check) -> memoryview:
        """A section, mapped. `check` is called before an unpacked copy is kept.

        Raises `CorruptObject` if the object is missing, short or damaged.
        """

    def copied(self, ref: RunRef) -> bool:
        """Whether this host has a copy of a section, so that reading it asks the store for nothing."""

    def distrust(self, ref: RunRef) -> bool:
        """A mapped section turned out to be damaged: forget a copy of it. Whether opening it again may help."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects below a folder, temporary files of writers included."""

    def head(self, path: str) -> StoredObject | None:
        """What is known of an object; None if there is none."""

    def put(self, path: str, data: bytes) -> None:
        """Store a small object as it is. Raises `StorageError` if there is one of that name."""

    def get(self, path: str) -> bytes | None:
        """A small object as it is; None if there is none."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing where there is none."""

    def tidy(self) -> None:
        """Remove what deleting leaves behind."""


class _Store:
    """What all kinds of stores have in common: requests through the I/O pool."""

    def __init__(self, root: StoreRoot, pool: IoPool | None = None, transport: Transport | None = None) -> None:
        self.root = root
        self.pool = pool or IoPool(root.concurrency)
        self.metrics = self.pool.metrics
        self._given = transport

    @cached_property
    def transport(self) -> Transport:
        """Made at the first request: most workers of a local store send none."""
        url = Path(self.root).absolute().as_uri() if self.root.is_local else self.root.url
        return self._given or open_transport(url, dict(self.root.options), self.root.timeout_ms)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """See `ObjectStore`."""
        found = self.pool.run(
            f"listing {self.root.url}", lambda: self.transport.list(prefix), deadline_ms=LIST_DEADLINE_MS
        )
        return iter(found)

    def head(self, path: str) -> StoredObject | None:
        """See `ObjectStore`."""
        try:
            return self.pool.run(f"looking for object {path}", lambda: self.transport.head(path))
        except FileNotFoundError:
            return None

    def get(self, path: str) -> bytes | None:
        """See `ObjectStore`."""
        try:
            return bytes(self.pool.run(f"reading object {path}", lambda: self.transport.get(path, 0, SMALL_BYTES)))
        except FileNotFoundError:
            return None

    def delete(self, path: str) -> None:
        """See `ObjectStore`."""
        self.pool.run(f"deleting object {path}", lambda: self.transport.delete(path))


class LocalStore(_Store):
    """A directory, used as such: obstore neither flushes to the device nor maps."""

    def prepare(self) -> None:
        """See `ObjectStore`."""
        try:
            prepare_directory(Path(self.root))
        except OSError as error:
            raise StorageError(f"cannot make the directory {self.root.url}: {error.strerror}") from error

    def create(self, path: str, *, fsync: bool = True) -> ObjectSink:
        """See `ObjectStore`."""
        return ObjectWriter(self.root, path, fsync=fsync)

    def put(self, path: str, data: bytes) -> None:
        """See `ObjectStore`."""
        with ObjectWriter(self.root, path) as writer:
            writer.write(data)
            writer.commit()

    def head(self, path: str) -> StoredObject | None:
        """See `ObjectStore`. Unlike obstore it leaves a directory that is not there as it is."""
        with storage_errors("looking for", path):
            try:
                found = os.stat(Path(self.root) / path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return StoredObject(path, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None

    def get(self, path: str) -> bytes | None:
        """See `ObjectStore`."""
        with storage_errors("reading", path):
            try:
                with open(Path(self.root) / path, "rb") as file:
                    return file.read(SMALL_BYTES)
            except FileNotFoundError:
                return None

    def open(self, ref: RunRef, check: Check) -> memoryview:
        """See `ObjectStore`."""
        return map_object(self.root, ref.path, ref.offset, ref.length)

    def copied(self, ref: RunRef) -> bool:
        """Never: a directory is read as it is."""
        return False

    def distrust(self, ref: RunRef) -> bool:
        """See `ObjectStore`."""
        return False

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """See `ObjectStore`."""
        return list_objects(self.root, prefix)

    def delete(self, path: str) -> None:
        """See `ObjectStore`."""
        delete_object(self.root, path)

    def tidy(self) -> None:
        """Remove folders of attempts, `<job>/<epoch>-<attempt>`, that are empty and a minute old."""
        for job in _folders(Path(self.root)):
            for folder in _folders(job):
                try:
                    if time.time() - folder.stat().st_mtime > 60 and not any(folder.iterdir()):
                        folder.rmdir()
                except OSError:
                    continue


def _folders(path: Path) -> list[Path]:
    try:
        return [p for p in path.iterdir() if p.is_dir()]
    except OSError:
        return []


class RemoteStore(_Store):
    """A prefix in an object store, with a cache on the local disk."""

    def __init__(self, root: StoreRoot, pool: IoPool | None = None, transport: Transport | None = None) -> None:
        super().__init__(root, pool, transport)
        self.transport  # noqa: B018  # a wrong URL or option is reported here, not by the first task
        cache_dir = root.cache_dir or os.path.join(tempfile.gettempdir(), f"headrace-cache-{os.getuid()}")
        cache = SectionCache(cache_dir, root.cache_bytes, self.metrics, private=not root.cache_dir)
        self._sections = RemoteSections(root.url, self.transport, self.pool, cache)

    def prepare(self) -> None:
        """See `ObjectStore`."""
        self.pool.run(f"listing {self.root.url}", lambda: self.transport.list("headrace"))

    def create(self, path: str, *, fsync: bool = True) -> ObjectSink:
        """See `ObjectStore`; an object store is durable by itself."""
        return self._sections.create(path)

    def put(self, path: str, data: bytes) -> None:
        """See `ObjectStore`."""
        with tempfile.SpooledTemporaryFile(SMALL_BYTES) as body:
            body.write(data)
            self._sections.put(path, body, len(data))

    def open(self, ref: RunRef, check: Check) -> memoryview:
        """See `ObjectStore`."""
        return self._sections.open(ref, check)

    def copied(self, ref: RunRef) -> bool:
        """See `ObjectStore`."""
        return self._sections.copied(ref)

    def distrust(self, ref: RunRef) -> bool:
        """See `ObjectStore`."""
        self._sections.discard(ref)
        return True

    def tidy(self) -> None:
        """Object stores have no folders."""


def store_of(root: Root) -> ObjectStore:
    """The process's store for a root. Raises `InvalidParameter` for one that is none."""
    return _opened(store_root(root))


@lru_cache(maxsize=64)
def _opened(root: StoreRoot) -> ObjectStore:
    if root.proof:
        found = _opened(replace(root, proof=""))
        if found.head(root.proof) is None:
            host = socket.gethostname()
            raise StorageError(
                f"host {host} does not see the server's object {root.proof} in the state store {root.url}",
                hint=ONE_STORE,
            )
        return found
    if not root.is_local:
        return RemoteStore(root)
    if "://" in root.url and urlsplit(root.url).netloc not in ("", "localhost"):
        raise InvalidParameter(f"{root.url} is no directory of this host", hint="file:///path")
    return LocalStore(root)


# Threads and connections do not survive a fork.
os.register_at_fork(after_in_child=_opened.cache_clear)
