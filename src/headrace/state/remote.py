"""Sections in an object store: packed and uploaded as one object, downloaded and unpacked into the cache."""

from __future__ import annotations

import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

from headrace.errors import CorruptObject, DiskFull, ObjectMissing, StorageError
from headrace.state.cache import SectionCache
from headrace.state.iopool import IoPool
from headrace.state.objects import Extent, map_object, storage_errors
from headrace.state.schema import RunRef
from headrace.state.transport import LARGEST_REQUEST_BYTES, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CODEC = "zstd"
SINGLE_PUT_BYTES = LARGEST_REQUEST_BYTES
"""Objects up to this size go up in one request, which checks that the name is free; larger ones in parts."""
GET_BYTES = 16 << 20
"""Larger sections come down in parts of this size, several at a time."""
PARTS_AHEAD = 4
"""Parts of a section that are held in memory or on their way; each is let go of as it is unpacked."""
_COPY_BYTES = 1 << 20


class RemoteSections:
    """Writes and reads the sections of one object store."""

    def __init__(self, url: str, transport: Transport, pool: IoPool, cache: SectionCache) -> None:
        self._url = url
        self._transport = transport
        self._pool = pool
        self.cache = cache

    def create(self, path: str) -> Upload:
        """A new object."""
        return Upload(self, path)

    def key(self, path: str, offset: int) -> str:
        """The name of a section in the cache."""
        return f"{self._url}|{path}|{offset}"

    def discard(self, ref: RunRef) -> None:
        """Forget the unpacked copy of a section."""
        self.cache.discard(self.key(ref.path, ref.offset))

    def copied(self, ref: RunRef) -> bool:
        """Whether the cache has the section."""
        return self.cache.holds(self.key(ref.path, ref.offset), ref.length)

    def open(self, ref: RunRef, check: Callable[[memoryview], None]) -> memoryview:
        """The section from the cache, which is filled if need be. See `ObjectStore.open`."""
        found = self.cache.map(self.key(ref.path, ref.offset), ref.length)
        if found is not None:
            return found
        try:
            return self._download(ref, check)
        except CorruptObject:
            # It may have been damaged on the way.
            return self._download(ref, check)

    def _download(self, ref: RunRef, check: Callable[[memoryview], None]) -> memoryview:
        temporary = self.cache.temporary()
        try:
            with storage_errors("caching", ref.path), open(temporary, "xb") as file:
                _unpack(ref, self._parts(ref), file)
            view = map_object(temporary.parent, temporary.name, 0, ref.length)
            check(view)
            self.cache.admit(self.key(ref.path, ref.offset), temporary)
            return view
        finally:
            temporary.unlink(missing_ok=True)

    def _parts(self, ref: RunRef) -> Iterator[object]:
        """The section's bytes as they are stored, in order. At most `PARTS_AHEAD` parts are held or on their way."""
        length = ref.length if ref.packed is None else ref.packed
        counts = [min(GET_BYTES, length - start) for start in range(0, length, GET_BYTES)]
        waiting: deque[Callable[[], Any]] = deque()
        for i, count in enumerate(counts):
            for n in range(i + len(waiting), min(i + PARTS_AHEAD, len(counts))):
                call = _getter(self._transport, ref.path, ref.offset + n * GET_BYTES, counts[n])
                waiting.append(self._pool.start(f"reading object {ref.path}", call, size_bytes=counts[n]))
            try:
                part = waiting.popleft()()
            except FileNotFoundError as error:
                raise ObjectMissing(f"object {ref.path} is missing", detail=f"in {self._url}") from error
            self._pool.metrics.add(bytes_read=len(part))
            if len(part) != count:
                found = i * GET_BYTES + len(part)
                raise CorruptObject(
                    f"object {ref.path} is truncated", detail=f"{found} bytes at {ref.offset} where {length} are needed"
                )
            yield part

    def put(self, path: str, body: tempfile.SpooledTemporaryFile[bytes], size: int) -> None:
        """Upload an object. Raises `StorageError` if there is one of that name."""
        body.seek(0)
        try:
            if size > SINGLE_PUT_BYTES:
                self._put_large(path, body, size)
            else:
                self._put_whole(path, body, size)
        except FileNotFoundError as error:
            raise StorageError(f"writing object {path} failed: {error}", hint="is there such a bucket?") from error
        self._pool.metrics.add(bytes_written=size)

    def _put_large(self, path: str, body: tempfile.SpooledTemporaryFile[bytes], size: int) -> None:
        # An upload in parts cannot ask for a free name. It is atomic all the same, and no name is used twice.
        if self._exists(path):
            raise _exists_already(path)
        doing = f"writing object {path}"
        self._pool.run(doing, lambda: _put_parts(self._transport, path, body), size_bytes=size)

    def _put_whole(self, path: str, body: tempfile.SpooledTemporaryFile[bytes], size: int) -> None:
        data = body.read()
        body.close()  # so that it is not held twice
        tries = 0

        def call() -> None:
            nonlocal tries
            tries += 1
            self._transport.put(path, data, create=True)

        try:
            self._pool.run(f"writing object {path}", call, size_bytes=size)
        except FileExistsError as error:
            # After a try whose answer was lost the object may be ours.
            if tries == 1 or not self._holds(path, data):
                raise _exists_already(path) from error

    def _exists(self, path: str) -> bool:
        try:
            self._pool.run(f"looking for object {path}", lambda: self._transport.head(path))
        except FileNotFoundError:
            return False
        return True

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether the object has exactly this content."""
        try:
            found = self._pool.run(f"reading object {path}", lambda: self._transport.get(path, 0, len(data) + 1))
        except FileNotFoundError:
            return False
        return bytes(found) == data


def _exists_already(path: str) -> StorageError:
    return StorageError(f"object {path} exists already")


class Upload:
    """A new object, see `ObjectSink`. Its sections go to the cache as well, where their first reader finds them."""

    def __init__(self, sections: RemoteSections, path: str) -> None:
        self.path = path
        self._sections = sections
        self._cache = sections.cache
        self._body: tempfile.SpooledTemporaryFile[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # closed on leaving
            SINGLE_PUT_BYTES, dir=str(self._cache.temporary().parent)
        )
        self._size = 0
        self._done: list[tuple[int, Path]] = []
        self._temporary: Path | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._body.close()
        for path in [*(p for _, p in self._done), *([self._temporary] if self._temporary else [])]:
            path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Start a section, in a file of the cache that is not named yet."""
        self._temporary = self._cache.temporary()
        with storage_errors("writing", self.path):
            self._file = open(self._temporary, "xb")  # noqa: SIM115  # closed by `end`, or on leaving

    def write(self, data: Any) -> int:
        """Append to the section."""
        assert self._file is not None, "between begin and end"
        with storage_errors("writing", self.path):
            return self._file.write(data)

    def end(self) -> Extent:
        """Pack the section; returns where it is."""
        assert self._file is not None and self._temporary is not None, "after begin"
        with storage_errors("writing", self.path):
            length = self._file.tell()
            self._file.close()
            self._file = None
            view = map_object(self._temporary.parent, self._temporary.name, 0, length)
            with pa.CompressedOutputStream(pa.PythonFile(_Open(self._body), mode="w"), CODEC) as packer:
                packer.write(pa.py_buffer(view))
            end = self._body.tell()
        offset, self._size = self._size, end
        self._done.append((offset, self._temporary))
        self._temporary = None
        return Extent(offset, length, end - offset)

    def commit(self) -> None:
        """Upload, then let the cache have the sections."""
        self._sections.put(self.path, self._body, self._size)
        for offset, temporary in self._done:
            with suppress(StorageError, DiskFull):  # a copy that cannot be kept can be fetched
                self._cache.admit(self._sections.key(self.path, offset), temporary)


class _Open:
    """A file that Arrow may not close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _getter(transport: Transport, path: str, offset: int, count: int) -> Callable[[], Any]:
    return lambda: transport.get(path, offset, count)


def _put_parts(transport: Transport, path: str, body: tempfile.SpooledTemporaryFile[bytes]) -> None:
    body.seek(0)
    transport.put(path, cast(BinaryIO, body), create=False)


class _Parts:
    """Parts of a section one after another, as a file for Arrow to read."""

    closed = False

    def __init__(self, parts: Iterator[Any]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def read(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        if not len(self._left):
            self._left = memoryview(next(self._parts, b""))
        piece, self._left = self._left[:count], self._left[count:]
        return bytes(piece)

    def close(self) -> None:
        pass


def _unpack(ref: RunRef, parts: Iterator[Any], file: BinaryIO) -> None:
    """Write out a section as it was before it was packed. Raises `CorruptObject` if that is not what it holds."""
    if ref.packed is None:
        for part in parts:
            file.write(part)
        return
    left = ref.length
    try:
        with pa.CompressedInputStream(pa.PythonFile(_Parts(parts), mode="r"), CODEC) as unpacker:
            while piece := unpacker.read(_COPY_BYTES):
                left -= len(piece)
                if left < 0:
                    break
                file.write(piece)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptObject(f"object {ref.path} is damaged", detail=str(error)) from error
    if left:
        raise CorruptObject(f"object {ref.path} is damaged", detail=f"not {ref.length} bytes at byte {ref.offset}")
