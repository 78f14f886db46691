"""Folders that the rows of one statement are written to by many tasks, and that are there whole or not at all.

A directory gets its name when all of it is there. An object store has no such step: its objects come one by one, and
the manifest that names them comes last. Either way there is one commit, given once, to a folder that was empty.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.clients import STORE, URL, Bucket, scheme_of
from headrace.connectors.files.out import COMPRESSION, FORMATS, write_errors
from headrace.connectors.files.store_access import local_path
from headrace.errors import DuplicateObject, HeadraceError, InvalidParameter, SinkError, SourceError
from headrace.state.objects import sync_directory

MANIFEST: Final = "_manifest.json"
_PART: Final = re.compile(r"part-\d{5,}-[0-9a-f]{16}-\d+(\.\w+){1,2}")
"""The name of a file that a task writes."""
_LOOKED_AT: Final = 1000
"""Objects of a folder that is not empty: the manifest comes first in the order of names."""
OPTIONS: Final = DeclaredOptions(
    (
        Option("format", "What the files are.", choices=FORMATS, required=True),
        COMPRESSION,
        Option("header", "Of CSV: the first line of each file names the columns.", "boolean", "false"),
        Option("delimiter", "Of CSV: one character.", default=","),
        *STORE,
    )
)  # fmt: skip


_OF_FORMAT: Final = {
    "header": "csv", "delimiter": "csv", "null_string": "csv", "multiline": "csv",
}  # fmt: skip


def check_of_format(formats: Collection[str], options: Iterable[str]) -> None:
    """Raise `InvalidParameter` for an option that no file of these formats has."""
    for name in options:
        if name in _OF_FORMAT and _OF_FORMAT[name] not in formats:
            raise InvalidParameter(f"option {name} is for {_OF_FORMAT[name]}, not for {' and '.join(sorted(formats))}")


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has written."""

    name: str
    rows: int
    bytes: int


class Folder(Protocol):
    """Where one statement writes to. Travels to tasks; errors are `SinkError`."""

    def claim(self) -> None:
        """Raise `DuplicateObject` unless it is empty, or not there."""

    def put(self, name: str, file: BinaryIO) -> None:
        """Store a file, whole; nobody takes it as one of the folder yet."""

    def commit(self, files: Sequence[WrittenFile]) -> None:
        """Make these files the content of the folder, and no others. Raises `DuplicateObject` if another was faster."""

    def give_up(self) -> None:
        """Remove what was stored, as far as that can be done."""


def folder_at(location: str, options: Mapping[str, str], copy_id: str) -> Folder:
    """The folder that a statement names; `copy_id` is its own. Raises `InvalidParameter`."""
    if location.rstrip("/").lower().endswith(tuple(f".{kind}" for kind in FORMATS)):
        hint = "each task writes a file of its own: name a folder"
        raise InvalidParameter(f"COPY writes no single file, as {location} looks like", hint=hint)
    location = location.strip()
    if scheme_of(location, options) is not None:
        if not URL.fullmatch(location):
            raise InvalidParameter(f"COPY writes to one folder of a store, s3://bucket/folder, not to {location}")
        return ObjectFolder(location.rstrip("/"), tuple(sorted(options.items())), copy_id)
    path = local_path(location)
    if not os.path.isabs(path) or path.rstrip("/") == "":
        raise InvalidParameter("relative path not allowed for COPY to file", sqlstate="42602")
    return LocalFolder(path.rstrip("/"), copy_id)


def manifest(copy_id: str, files: Sequence[WrittenFile]) -> bytes:
    """The manifest's text."""
    found = {"copy": copy_id, "rows": sum(f.rows for f in files), "files": [asdict(f) for f in files]}
    return json.dumps(found, indent=1).encode() + b"\n"


@dataclass(frozen=True)
class LocalFolder:
    """A directory, which is renamed into place."""

    path: str
    copy_id: str

    @property
    def _made(self) -> Path:
        """Where files are until then."""
        target = Path(self.path)
        return target.parent / f".{target.name}.{self.copy_id}"

    def claim(self) -> None:
        """See `Folder`."""
        target = Path(self.path)
        with write_errors(self.path):
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise _taken(self.path)
            self._made.mkdir(parents=True)

    def put(self, name: str, file: BinaryIO) -> None:
        """See `Folder`. The folder is not made here: a task that is late must not bring it back."""
        with write_errors(self.path), open(self._made / name, "xb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())

    def commit(self, files: Sequence[WrittenFile]) -> None:
        """See `Folder`."""
        with write_errors(self.path):
            wanted = {f.name: f.bytes for f in files}
            found = {p.name: p.stat().st_size for p in self._made.iterdir()}
            for name in found.keys() - wanted.keys():
                (self._made / name).unlink()
            if any(found.get(name) != size for name, size in wanted.items()):
                hint = "name a directory that all hosts have mounted at the same place, or an object store"
                raise SinkError(f"the server does not see all files that tasks have written to {self._made}", hint=hint)
            self.put(MANIFEST, _reading(manifest(self.copy_id, files)))
            sync_directory(self._made)
            try:
                self._made.rename(self.path)
            except OSError as error:
                raise _taken(self.path) if os.path.lexists(self.path) else error from error
            sync_directory(Path(self.path).parent)

    def give_up(self) -> None:
        """See `Folder`."""
        shutil.rmtree(self._made, ignore_errors=True)


@dataclass(frozen=True)
class ObjectFolder:
    """A prefix of an object store, which a manifest makes whole."""

    url: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    copy_id: str

    @property
    def _bucket(self) -> Bucket:
        return Bucket.at(self.url, dict(self.options), SinkError)

    def claim(self) -> None:
        """See `Folder`; objects without content do not count, as consoles make them for folders."""
        there = [*islice((name for name, size in self._bucket.names() if size), _LOOKED_AT)]
        if there and MANIFEST not in there and all(_PART.fullmatch(name) for name in there):
            hint = f"delete its files if it does not run any more, such as {there[0]}, or name another folder"
            raise DuplicateObject(f"{self.url} has files of a COPY that has not ended: no {MANIFEST}", hint=hint)
        if there:
            raise _taken(self.url)

    @property
    def _given_up(self) -> str:
        """The object, without content, that tells late tasks that nobody waits for their files."""
        return f"_gone-{self.copy_id}"

    def put(self, name: str, file: BinaryIO) -> None:
        """See `Folder`."""
        self._bucket.put(name, file)
        if self._bucket.read(self._given_up) is not None:
            self._bucket.delete(name)
            raise SinkError(f"nothing is written to {self.url} any more")

    def commit(self, files: Sequence[WrittenFile]) -> None:
        """See `Folder`."""
        wanted = {f.name: f.bytes for f in files}
        found = dict(self._own())
        if any(found.get(name) != size for name, size in wanted.items()):
            raise SinkError(f"not all files that tasks have written are at {self.url}", hint="somebody removes them")
        for name in found.keys() - wanted.keys():
            self._bucket.delete(name)
        if not self._bucket.create(MANIFEST, manifest(self.copy_id, files)):
            raise _taken(self.url)

    def _own(self) -> Iterator[tuple[str, int]]:
        """The objects of this statement, with their sizes."""
        return ((name, size) for name, size in self._bucket.names() if self.copy_id in name)

    def give_up(self) -> None:
        """See `Folder`. Where the manifest is there after all, or nobody can say, all of its files stay."""
        with suppress(HeadraceError):
            found = self._bucket.read(MANIFEST)
            if found is not None and self.copy_id.encode() in found:
                return
            self._bucket.create(self._given_up, b"")
            for name, size in self._own():
                if size:
                    self._bucket.delete(name)


def half_written(paths: Iterable[str], options: Mapping[str, str]) -> list[str]:
    """The folders of stores that files of a COPY are in which has not ended, or whose manifest was taken away."""
    parts = [path.rpartition("/") for path in paths if scheme_of(path, options) is not None]
    found = sorted({folder for folder, _, name in parts if _PART.fullmatch(name)})
    return [at for at in found if Bucket.at(at, dict(options), SourceError).read(MANIFEST) is None]


def _reading(data: bytes) -> BinaryIO:
    from io import BytesIO

    return BytesIO(data)


def _taken(place: str) -> DuplicateObject:
    hint = "COPY writes to a folder of its own: name one that is not there"
    return DuplicateObject(f"{place} is not empty", hint=hint)
