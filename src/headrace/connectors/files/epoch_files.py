"""Where the file of an epoch goes: to a directory or to an object store, under a name that is given once.

The name is what delivers: it is given only where it is free, to a file that is whole. A directory gives it by a link;
an object store by a request that stores the object if none is there. Either way an answer that was lost does no harm:
who asks again finds the name taken, and so knows that the epoch is there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.files.clients import URL, Bucket, scheme_of
from headrace.connectors.files.out import write_errors
from headrace.connectors.files.store_access import local_path
from headrace.errors import InvalidParameter, SinkError
from headrace.state.objects import sync_directory

MOST_BYTES: Final = 4 << 30
"""Bytes of one object that is stored by one request, at most: S3 takes 5 GiB, Azure some more."""
Fill = Callable[[BinaryIO], int]
"""Writes rows to a file, and says how many."""


class EpochFiles(Protocol):
    """A place for files. Errors are `SinkError`."""

    def reach(self) -> None:
        """Look whether it is there and, as far as that can be seen without leaving something, may be written to."""

    def give(self, name: str, attempt: str, fill: Fill, *, former: str | None = None) -> int:
        """Let a file with this name be there, whole; the rows that it got, 0 where it was there already.

        `former` is the name by which an older program may have given it.
        """


def place_at(path: str, options: Mapping[str, str]) -> EpochFiles:
    """The place that options name. Raises `InvalidParameter`."""
    path = path.strip()
    if scheme_of(path, options) is not None:
        if not URL.fullmatch(path):
            raise InvalidParameter(f"a sink writes to one folder of a store, s3://bucket/folder, not to {path}")
        return StoreFiles(path.rstrip("/"), Bucket.at(path.rstrip("/"), options, SinkError))
    found = local_path(path)
    if not os.path.isabs(found):
        hint = "workers have directories of their own"
        raise InvalidParameter("option path must be an absolute path, or s3://, gs:// or az://", hint=hint)
    return DirectoryFiles(Path(found))


@dataclass(frozen=True)
class DirectoryFiles:
    """A directory."""

    directory: Path

    def reach(self) -> None:
        """See `EpochFiles`. The directory is made where there is none."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory, prefix="."):
                pass
        except OSError as error:
            raise SinkError(f"files cannot be written to {self.directory}: {error.strerror}") from error

    def give(self, name: str, attempt: str, fill: Fill, *, former: str | None = None) -> int:
        """See `EpochFiles`."""
        target, made = self.directory / name, self.directory / f".{name}.{attempt}"
        with write_errors(str(target)):
            try:
                if target.exists() or (former is not None and (self.directory / former).exists()):
                    sync_directory(self.directory)  # whoever gave it its name may not have come to that
                    return 0
                with open(made, "wb") as file:
                    rows = fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):  # another attempt has been faster, with the same rows
                    os.link(made, target)
                sync_directory(self.directory)
            finally:
                with suppress(OSError):
                    made.unlink()
        return rows


@dataclass(frozen=True)
class StoreFiles:
    """A folder of an object store."""

    url: str
    bucket: Bucket

    def reach(self) -> None:
        """See `EpochFiles`. Whether keys permit to write shows with the first epoch: trying would leave an object."""
        next(self.bucket.names(), None)

    def give(self, name: str, attempt: str, fill: Fill, *, former: str | None = None) -> int:
        """See `EpochFiles`."""
        if self.bucket.has(name) or (former is not None and self.bucket.has(former)):
            return 0
        with write_errors(f"{self.url}/{name}"), tempfile.TemporaryFile() as file:
            rows = fill(file)
            size = file.tell()
            if size > MOST_BYTES:
                hint = "let an epoch have fewer rows: smaller changes, or snapshot = false and COPY for what is there"
                raise SinkError(
                    f"the object {self.url}/{name} would have {size} bytes, {MOST_BYTES} at most", hint=hint
                )
            file.seek(0)
            self.bucket.give(name, file)
        return rows
