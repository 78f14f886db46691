"""Objects on local disk: written under a temporary name, made durable, then named; mapped for reading.

A name is given by a link, which fails where there is one already: of two writers of one name only one succeeds.

Without links an empty file takes the name first. Every directory between an object and the root is synced before its
writer has finished, whoever has made it.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, DiskFull, ObjectMissing, StorageError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What filesystems without links answer."""
_durable: set[tuple[str, int]] = set()
"""Directories, with their inodes, whose entries this process knows to be on the disk."""
_DURABLE_AT_MOST = 1024
"""Every attempt at an epoch has a directory of its own: what is known of older ones is forgotten."""
_FLUSH_BYTES = 1 << 20
_LARGE_BYTES = 64 << 10
"""Pieces from this size on are handed over as they are: gathering them would copy them twice."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
ALIGNMENT = 64
"""Sections start at multiples of this many bytes, as Arrow wants its buffers."""


def is_full(error: OSError) -> bool:
    """Whether there is no room on the disk, or no more of it for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing of its store shows it."""

    path: str
    size: int
    modified_s: float
    """Unix seconds."""


@contextmanager
def storage_errors(doing: str, name: str) -> Iterator[None]:
    """Turn an `OSError` inside into `DiskFull`, or `StorageError`, that names the object."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if is_full(error):
            raise DiskFull(
                f"no space left while {doing} object {name}",
                detail=reason,
                hint="Free disk space; the work is retried from the last checkpoint.",
            ) from error
        raise StorageError(f"{doing} object {name} failed: {reason}") from error


@dataclass(frozen=True)
class Extent:
    """Where a section lies in its object: `length` bytes as they are, or packed into `packed` of them."""

    offset: int
    length: int
    packed: int | None = None


class SectionSink(Protocol):
    """Takes the bytes of sections, front to back, and makes an object of them."""

    path: str

    def begin(self) -> None:
        """Start a section."""

    def write(self, data: object) -> int:
        """Append bytes, or anything with the buffer protocol, to the section; returns their number."""

    def end(self) -> Extent:
        """End the section; returns where it is."""


class ObjectSink(SectionSink, Protocol):
    """A new object of several sections; it is there only when `commit` has returned.

    A context manager: leaving it without `commit` leaves nothing behind.
    """

    def __enter__(self) -> ObjectSink: ...

    def __exit__(self, *_: object) -> None: ...

    def commit(self) -> None:
        """Make the object durable and give it its name, which must be free."""


class ObjectBuffer:
    """A small object in memory, or more of one from `at` on; `append_unsynced` writes it."""

    def __init__(self, path: str, at: int = 0) -> None:
        self.path = path
        self.content = bytearray()
        self._at = at
        self._start = at

    def begin(self) -> None:
        """Start a section, as `ObjectWriter` does."""
        self.content += bytes(-len(self.content) % ALIGNMENT)
        self._start = self._at + len(self.content)

    def write(self, data: Any) -> int:
        """Append bytes, or anything with the buffer protocol; returns their number."""
        before = len(self.content)
        self.content += data
        return len(self.content) - before

    def end(self) -> Extent:
        """End the section; returns where it is."""
        return Extent(self._start, self._at + len(self.content) - self._start)


class ObjectWriter:
    """A new object on the local disk; it appears under its name only when `commit` returns.

    A context manager: leaving it without `commit` removes what was written. Raises `DiskFull` and `StorageError`.
    """

    def __init__(self, root: str | os.PathLike[str], path: str, *, fsync: bool = True) -> None:
        self.path = path
        self.position = 0
        self._start = 0
        self._target = os.path.join(root, path)
        folder, name = os.path.split(self._target)
        self._temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        self._fsync = fsync
        self._pending = bytearray()
        self._root = root
        self._named = False
        with storage_errors("writing", path):
            self._fd: int | None = _open_new(self._temporary)

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if not self._named:
            with suppress(OSError):
                os.unlink(self._temporary)

    def write(self, data: Any) -> int:
        """Append bytes, or anything with the buffer protocol; returns their number."""
        view = memoryview(data).cast("B")
        if len(view) >= _LARGE_BYTES:
            self._flush()
            self._write_all(view)
        else:
            self._pending += view
            if len(self._pending) >= _FLUSH_BYTES:
                self._flush()
        self.position += len(view)
        return len(view)

    def begin(self) -> None:
        """Start a section, at a multiple of `ALIGNMENT` bytes, so that it can be mapped."""
        self.write(bytes(-self.position % ALIGNMENT))
        self._start = self.position

    def end(self) -> Extent:
        """End the section; returns where it is."""
        return Extent(self._start, self.position - self._start)

    def commit(self) -> None:
        """Make the object durable and give it its name. The name must be free: `StorageError` where it is not."""
        self._flush()
        with storage_errors("writing", self.path):
            if self._fsync:
                os.fsync(self._file)
            self._close()
            try:
                _give_name(self._temporary, self._target)
            except FileExistsError as error:
                raise StorageError(f"object {self.path} exists already") from error
            self._named = True
            if self._fsync:
                directory = Path(self._target).parent
                sync_directory(directory)
                _sync_entries(directory, Path(self._root))

    @property
    def _file(self) -> int:
        if self._fd is None:
            raise ValueError("the object is closed")
        return self._fd

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._write_all(memoryview(pending))

    def _write_all(self, view: memoryview) -> None:
        with storage_errors("writing", self.path):
            while view:
                view = view[os.write(self._file, view) :]

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def append_unsynced(root: str | os.PathLike[str], path: str, content: bytes, at: int) -> None:
    """Make a small object that is not durable by itself, or write what comes next in one: it is `at` bytes long.

    A new one has its name at once, which must be free. For what somebody else has the bytes of: a power failure, or the
    end of this process within the call, may leave it damaged, before anything refers to it or with `restore_object` to
    come. After an error nothing more may be added. Changing the directory once, not three times, spares the next
    forced write a good part of its work, and adding to an object changes none. It is closed each time: whoever has
    the same directory mounted elsewhere then finds all of it. Raises `DiskFull`, `StorageError`.
    """
    target = os.path.join(root, path)
    with storage_errors("writing", path):
        fd = os.open(target, os.O_WRONLY) if at else _open_new(target)
        try:
            if at:
                os.lseek(fd, at, os.SEEK_SET)
            _write_all(fd, content)
        except BaseException:
            if not at:
                with suppress(OSError):
                    os.unlink(target)
            raise
        finally:
            os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _open_new(file: str) -> int:
    """A descriptor of a file that must not be there yet; its directory is made if need be."""
    for _ in range(2):
        with suppress(FileNotFoundError):  # it may even be that an empty directory is tidied away just now
            return os.open(file, _NEW, 0o644)
        make_directory(Path(file).parent)
    return os.open(file, _NEW, 0o644)


def _give_name(temporary: str, target: str) -> None:
    """Let a finished file have its name. Raises `FileExistsError` where that is taken."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # An empty file takes the name first. Whoever ends here leaves it, and nothing ever refers to it.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        os.rename(temporary, target)
        return
    with suppress(OSError):  # the object has its name: vacuum removes the other one
        os.unlink(temporary)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it that are missing."""
    try:
        os.mkdir(directory)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(directory.parent)
        make_directory(directory)
        return
    with suppress(FileNotFoundError):
        _durable.discard(_identity(directory))


def _identity(directory: Path) -> tuple[str, int]:
    return str(directory), os.stat(directory).st_ino


def _sync_entries(directory: Path, root: Path) -> None:
    """Make sure that a directory, and those between it and the root, are found again after a power failure.

    That they existed already says nothing: another writer may have made them and not come to this point yet.
    """
    found = []
    while directory not in (root, directory.parent) and (identity := _identity(directory)) not in _durable:
        sync_directory(directory.parent)
        found.append(identity)
        directory = directory.parent
    if len(_durable) >= _DURABLE_AT_MOST:
        _durable.clear()
    _durable.update(found)  # only now: whoever finds one does not look further up


def prepare_directory(directory: Path) -> None:
    """Make a directory that is found again after a power failure. Raises `OSError`."""
    directory = directory.absolute()
    make_directory(directory)
    for parent in directory.parents:
        with suppress(PermissionError):  # what may not be read was not made here
            sync_directory(parent)


def sync_directory(directory: Path) -> None:
    """Force the names in a directory to the disk. Raises `OSError`."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is how a file system says that its directories need no such thing
            raise
    finally:
        os.close(fd)


def map_object(root: str | os.PathLike[str], path: str, offset: int, length: int) -> memoryview:
    """A read-only mapping of a byte range; it lives as long as anything refers to it.

    Raises `CorruptObject` if the object is missing or ends before the range does.
    """
    try:
        fd = os.open(os.path.join(root, path), os.O_RDONLY)
    except FileNotFoundError as error:
        raise ObjectMissing(f"object {path} is missing") from error
    except OSError as error:
        raise StorageError(f"reading object {path} failed: {error.strerror}") from error
    try:
        with storage_errors("reading", path):
            size = os.fstat(fd).st_size
            if size < offset + length or length <= 0:
                raise CorruptObject(
                    f"object {path} is truncated", detail=f"{size} bytes where {offset + length} are needed"
                )
            skip = offset % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(fd, length + skip, access=mmap.ACCESS_READ, offset=offset - skip)
    finally:
        os.close(fd)
    return memoryview(mapped)[skip : skip + length]


def let_go(view: memoryview, start: int, stop: int) -> None:
    """Give back the memory that some bytes of a mapping take in this process. Whoever reads them maps them again."""
    mapped = view.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    at = len(mapped) - len(view)  # what is mapped before it, so that the mapping begins with a page
    low = at + start + -(at + start) % mmap.PAGESIZE
    length = (at + stop) // mmap.PAGESIZE * mmap.PAGESIZE - low
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, low, length)


def sync_object(root: str | os.PathLike[str], path: str) -> None:
    """Force an object that was written without that to the disk, with its name.

    Raises `CorruptObject` where there is none, `StorageError`.
    """
    target = Path(root) / path
    with storage_errors("syncing", path):
        try:
            fd = os.open(target, os.O_RDONLY)
        except FileNotFoundError as error:
            raise ObjectMissing(f"object {path} is missing") from error
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        for directory in (target.parent, *target.parent.parents):
            sync_directory(directory)
            if directory == Path(root):
                break


def restore_object(root: str | os.PathLike[str], path: str, pieces: Sequence[tuple[int, bytes]]) -> bool:
    """Make pieces of an object, each at its place, what they were, and durable, if any was lost or damaged.

    What else is in the object stays as it is. Returns whether anything was lost. To be called while nobody reads it.
    Raises `DiskFull`, `StorageError`.
    """
    target = Path(root) / path
    with storage_errors("restoring", path):
        try:
            there = target.read_bytes()
        except FileNotFoundError:
            there = b""
        if all(there[at : at + len(content)] == content for at, content in pieces):
            return False
        make_directory(target.parent)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            for at, content in pieces:
                os.lseek(fd, at, os.SEEK_SET)
                _write_all(fd, content)
        finally:
            os.close(fd)
    sync_object(root, path)
    return True


def list_objects(root: str | os.PathLike[str], prefix: str = "") -> Iterator[StoredObject]:
    """Every file below a folder of the root, unfinished objects included."""
    for folder, _, names in os.walk(Path(root) / prefix):
        for name in names:
            path = Path(folder) / name
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield StoredObject(path.relative_to(root).as_posix(), found.st_size, found.st_mtime)


def delete_object(root: str | os.PathLike[str], path: str) -> None:
    """Delete an object; one that is gone is no error. Raises `StorageError`."""
    with storage_errors("deleting", path), suppress(FileNotFoundError):
        os.unlink(Path(root) / path)


def visible_name(path: str) -> str:
    """The name that an unfinished object, `.name.xxxxxxxx.tmp`, is to get; any other name as it is."""
    folder, _, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:].removesuffix(".tmp").rpartition(".")[0]
    return f"{folder}/{name}" if folder else name
