"""Files that are objects of S3, Google Cloud Storage or Azure, read by ranges.

Every request names the content that was seen (its ETag), so an object that has been replaced since is never read as the
one that was taken in, not even in part. A folder stands for all objects below it, for such stores have no folders.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, Final, cast

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.files.clients import STORE, URL, Gone, ObjectPlace, scheme_of, seen_of, told
from headrace.connectors.files.store_access import ContentMark, hidden, in_order
from headrace.errors import InvalidParameter, SourceError

MOST_OBJECTS: Final = 1_000_000
"""Of one listing: the server holds what is listed in its memory."""
MOST_NEW: Final = 1_000
"""New objects that one binding takes in: each is looked at."""
LISTS_EVERY: Final = "10s"
FIRST_BYTES: Final = 64 << 10
"""The first request for an object, whose beginning or end tells how many rows it has."""
_LARGEST_BYTES: Final = 8 << 20
"""Requests for an object that is read in turn grow up to this."""
_LOOKS_AT_ONCE: Final = 16
_WARM_OBJECTS: Final = 256
_MAGIC: Final = re.compile(r"[*?\[]")


def opened(path: str, options: Mapping[str, str]) -> ObjectFiles | None:
    """The object stores of a comma-separated `path`; None where it names files. Raises `InvalidParameter`."""
    scheme = scheme_of(path, options)
    if scheme is None:
        return None
    return ObjectFiles(scheme, {o.name: options[o.name] for o in STORE if o.name in options})


class ObjectFiles:
    """See `FileStore`."""

    remote = True
    most_new: int | None = MOST_NEW

    def __init__(self, scheme: str, options: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._options = tuple(sorted(options.items()))
        self._files: set[str] = set()
        """Items that name single objects, as has been seen."""
        self._warm: dict[tuple[str, ContentMark], tuple[int, memoryview]] = {}
        """Parts of objects, each with the place where it begins."""
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return ObjectFiles, (self._scheme, dict(self._options))

    def split(self, path: str) -> list[str]:
        """See `FileStore`."""
        items = [item.strip() for item in path.split(",") if item.strip()]
        for item in items:
            if "//" in item.partition("://")[2]:
                raise InvalidParameter(f"option path: {item} has an empty part: write one / where there are two")
            ObjectPlace.of(item, self._options)  # options and patterns that cannot be are reported here
            try:
                _pattern(item)
            except re.error as error:
                raise InvalidParameter(f"option path: {item} is no pattern: {error}") from error
        return items

    def is_fixed(self, items: Sequence[str]) -> bool:
        """See `FileStore`."""
        return all(item in self._files for item in items)

    def exists(self, item: str) -> bool:
        """See `FileStore`."""
        self._files.add(item)
        return self._file(item) is not None

    def find(self, item: str, wanted: Callable[[str], bool]) -> list[tuple[str, ContentMark]]:
        """See `FileStore`; objects without content are left alone, as consoles make them for folders."""
        single = self._file(item)
        if single is not None:
            return [(item, single)]
        pattern = _pattern(item)
        place = ObjectPlace.of(pattern.folder, self._options)
        found: list[tuple[str, ContentMark]] = []
        with told(item):
            listed = 0
            for chunk in place.list():
                listed += len(chunk)
                if listed > MOST_OBJECTS:
                    raise SourceError(
                        f"there are more than {MOST_OBJECTS:,} objects below {pattern.folder}",
                        hint="name narrower folders, or patterns that begin with them, in path",
                    )
                for meta in chunk:
                    path = f"{place.bucket_url}/{meta['path']}"
                    if meta["size"] and pattern.matches(path) and wanted(path):
                        found.append((path, seen_of(meta)))
        return in_order(found)

    def _file(self, item: str) -> ContentMark | None:
        """What is known of the single object that an item names; None where it names none."""
        if item.endswith("/") or _MAGIC.search(item) or not URL.fullmatch(item)[3]:  # type: ignore[index]
            return None
        try:
            seen = self.look(item)
        except Gone:
            return None
        self._files.add(item)
        return seen

    def look(self, path: str) -> ContentMark:
        """See `FileStore`."""
        place = ObjectPlace.of(path, self._options)
        with told(path):
            return seen_of(place.head())

    @contextmanager
    def opened(
        self, path: str, seen: ContentMark, check: Callable[[ContentMark], None], in_turn: bool = True
    ) -> Iterator[IO[bytes]]:
        """See `FileStore`; what has changed is refused with the first range that is read of it."""
        raw = _Reader(ObjectPlace.of(path, self._options), seen, check, self._held(path, seen), in_turn)
        yield cast(IO[bytes], io.BufferedReader(raw, FIRST_BYTES) if in_turn else raw)

    def _held(self, path: str, seen: ContentMark) -> tuple[int, memoryview] | None:
        with self._lock:
            return self._warm.get((path, seen))

    def warm(self, files: Iterable[tuple[str, ContentMark, bool]]) -> None:
        """See `FileStore`; what cannot be read is told when it is read."""
        todo = [f for f in files if self._held(f[0], f[1]) is None]
        if len(todo) < 2:
            return
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, "object-look") as pool:
            parts = list(pool.map(self._first, todo))
        with self._lock:
            self._warm |= {(path, seen): part for (path, seen, _), part in zip(todo, parts) if part is not None}
            while len(self._warm) > _WARM_OBJECTS:
                del self._warm[next(iter(self._warm))]

    def _first(self, file: tuple[str, ContentMark, bool]) -> tuple[int, memoryview] | None:
        path, seen, at_end = file
        start = max(0, seen.size - FIRST_BYTES) if at_end else 0
        try:
            found = ObjectPlace.of(path, self._options).get(seen, start, min(seen.size, start + FIRST_BYTES))
        except Exception:  # of whatever kind: see `warm`
            return None
        return (start, found[1]) if seen.same(found[0]) else None


class _Reader(io.RawIOBase):
    """The bytes of an object."""

    def __init__(
        self, place: ObjectPlace, seen: ContentMark, check: Callable[[ContentMark], None],
        held: tuple[int, memoryview] | None, in_turn: bool,
    ) -> None:  # fmt: skip
        self._place, self._seen, self._check, self._in_turn = place, seen, check, in_turn
        self.name = place.url
        self._at = 0
        self._begin, self._block = held or (0, memoryview(b""))
        """A range that has been fetched."""
        self._ahead = FIRST_BYTES

    def readable(self) -> bool:
        """It is read."""
        return True

    def seekable(self) -> bool:
        """Anywhere."""
        return True

    def tell(self) -> int:
        """The place of what is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read on elsewhere."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._seen.size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as there is room for, fewer only at the end."""
        room = memoryview(buffer).cast("B")
        wanted = max(0, min(len(room), self._seen.size - self._at))
        done = 0
        while done < wanted:
            if not self._begin <= self._at < self._begin + len(self._block):
                self._fetch(wanted - done)
            part = self._block[self._at - self._begin :][: wanted - done]
            room[done : done + len(part)] = part
            done, self._at = done + len(part), self._at + len(part)
        return done

    def _fetch(self, wanted: int) -> None:
        if self._in_turn:
            goes_on = self._at == self._begin + len(self._block)
            self._ahead = min(2 * self._ahead, _LARGEST_BYTES) if goes_on and len(self._block) else FIRST_BYTES
            wanted = max(wanted, self._ahead)
        stop = min(self._seen.size, self._at + min(wanted, _LARGEST_BYTES))
        found, data = self._get(stop)
        self._check(found)
        if len(data) != stop - self._at:
            raise SourceError(f"{self.name} has sent {len(data)} bytes where {stop - self._at} were asked for")
        self._begin, self._block = self._at, data

    def _get(self, stop: int) -> tuple[ContentMark, memoryview]:
        from obstore import exceptions

        with told(self.name):
            try:
                return self._place.get(self._seen, self._at, stop)
            except exceptions.PreconditionError:
                now = seen_of(self._place.head())
        self._check(now)
        raise SourceError(f"file {self.name} is being replaced while it is read", hint="it is tried again")


@dataclass(frozen=True)
class _Pattern:
    """What an item that names several objects stands for."""

    folder: str
    """The URL below which they are listed."""
    names: re.Pattern[str] | None
    """Of a glob: what URLs look like."""

    def matches(self, url: str) -> bool:
        """Whether an object is meant; those that are hidden are not."""
        if self.names is not None:
            return self.names.fullmatch(url) is not None and not hidden(url)
        below = url[len(self.folder) :].strip("/")
        return not any(part.startswith((".", "_")) for part in below.split("/"))


def _pattern(item: str) -> _Pattern:
    magic = _MAGIC.search(item)
    if magic is None:
        return _Pattern(item.rstrip("/"), None)
    folder, parts = item[: magic.start()].rpartition("/")[0], item.split("/")
    text = "".join(_part(part, i == len(parts) - 1) for i, part in enumerate(parts))
    return _Pattern(folder, re.compile(text, re.DOTALL))


def _part(part: str, last: bool) -> str:
    """A part of a glob between slashes as a regular expression."""
    if part == "**":
        return r"(?:(?![._])[^/]+/)*" + (r"[^/]+" if last else "")
    found, i = "", 0
    while i < len(part):
        close = part.find("]", i + 2) if part[i] == "[" else -1
        if close > 0:
            inner = part[i + 1 : close].replace("\\", "\\\\")
            found += f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
            i = close
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(part[i], re.escape(part[i]))
        i += 1
    begins = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    return begins + found + ("" if last else "/")
