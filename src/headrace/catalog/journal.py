"""The log of a catalog in an object store: its objects as bytes, their names, and what replaying them gives. No I/O.

The log is cut into *terms*, one for each opener. A term's batches are numbered from 0; the last one is written by the
next opener, whose own term comes after it. So that one batch is both the end of the older opener's log and the newer
one's fence. Each batch names the checksum of the one before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import field, replace
from typing import Final, Literal

import pyarrow as pa

from headrace.catalog.store import StoredCatalog, Writes
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, OperationalError

LOG: Final = "log"
"""The folder of the batches, with a folder for each term."""
ROLLUPS: Final = "rollup"
"""The folder of the rollups: the whole content as of some batch."""
KNOCK: Final = "knock"
"""The object by which an opener asks the owner to let it go first."""
JOURNAL_VERSION: Final = 1
"""Of the objects' form; what they hold has the catalog's own format version."""
KEPT_AT_END: Final = 2
"""Batches at the end of a term that stay for ever: whoever wrote there may come back at any time, and must find the
name that it goes for taken."""
Kind = Literal["open", "append", "nothing", "rollup"]

_MAGIC: Final = b"headrace catalog\n"
_CHECKSUM_CHARS: Final = 64
_PACKED_FROM_BYTES: Final = 1024
_CODEC: Final = "zstd"
_BATCH: Final = re.compile(rf"{LOG}/(\d{{10}})/(\d{{12}})\.batch")
_ROLLUP: Final = re.compile(rf"{ROLLUPS}/(\d{{10}})-(\d{{12}})\.rollup")

Position = tuple[int, int]
"""Term and number of a batch."""


def batch_name(at: Position) -> str:
    """The object of a batch."""
    return f"{LOG}/{at[0]:010d}/{at[1]:012d}.batch"


def rollup_name(at: Position) -> str:
    """The object of the rollup that holds everything up to and with a batch."""
    return f"{ROLLUPS}/{at[0]:010d}-{at[1]:012d}.rollup"


def batch_position(name: str) -> Position | None:
    """The inverse of `batch_name`; None for any other object."""
    found = _BATCH.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def rollup_position(name: str) -> Position | None:
    """The inverse of `rollup_name`; None for any other object."""
    found = _ROLLUP.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class Batch:
    """A batch of the log as an object holds it; a rollup has the same form."""

    kind: Kind
    at: Position
    before: str
    """The checksum of the batch before this one, of any term; of a rollup, that of its last batch."""
    writes: Writes
    reset: bool = False
    """Whether everything that was there before goes first."""
    lease_ms: int = 0
    """How long its writer may believe that it has not been shut out after it has looked."""
    nonce: str = ""
    checksum: str = ""
    """Of the object: tells it from any other one of its name."""
    data: bytes = b""
    """The object."""


def encode_batch(batch: Batch) -> Batch:
    """The batch with its bytes and their checksum."""
    body = json.dumps(
        {
            "puts": batch.writes.puts,
            "deletes": batch.writes.deletes,
            "config": dict(batch.writes.config or {}),
        },
        separators=(",", ":"),
    ).encode()
    header: dict[str, object] = {
        "version": JOURNAL_VERSION, "kind": batch.kind, "term": batch.at[0], "number": batch.at[1],
        "before": batch.before, "reset": batch.reset, "lease_ms": batch.lease_ms, "nonce": batch.nonce,
        "bytes": len(body),
    }  # fmt: skip
    if len(body) >= _PACKED_FROM_BYTES:
        header["codec"] = _CODEC
        body = pa.compress(body, _CODEC, asbytes=True)
    rest = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
    checksum = hashlib.sha256(rest).hexdigest()
    data = _MAGIC + checksum.encode() + b"\n" + rest
    return replace(batch, checksum=checksum, data=data)


def decode_batch(name: str, data: bytes) -> Batch:
    """What an object holds, which must be the one of that name.

    Raises `CorruptObject` for anything that is not exactly what was written, `OperationalError` for a newer form.
    """
    start = len(_MAGIC) + _CHECKSUM_CHARS + 1
    if not data.startswith(_MAGIC):
        raise CorruptObject(f"object {name} is no part of a catalog", hint="nothing was changed")
    checksum, rest = data[len(_MAGIC) : start - 1].decode("ascii", "replace"), data[start:]
    if hashlib.sha256(rest).hexdigest() != checksum:
        raise CorruptObject(
            f"object {name} of the catalog is damaged: its {len(data)} bytes do not have the checksum that it names",
            hint="nothing was changed; restore the object from a backup",
        )
    line, _, body = rest.partition(b"\n")
    header = json.loads(line)
    if header["version"] > JOURNAL_VERSION:
        raise OperationalError(
            f"object {name} of the catalog has form {header['version']}, this program knows up to {JOURNAL_VERSION}",
            hint="start the headrace version that wrote it, or a newer one; nothing was changed",
        )
    at = (header["term"], header["number"])
    if name not in (batch_name(at), rollup_name(at)):
        raise CorruptObject(f"object {name} of the catalog holds {batch_name(at)}", hint="nothing was changed")
    if header.get("codec") == _CODEC:
        body = pa.decompress(body, header["bytes"], _CODEC, asbytes=True)
    content = json.loads(body)
    writes = Writes(
        tuple((c, k, v) for c, k, v in content["puts"]), tuple((c, k) for c, k in content["deletes"]), content["config"]
    )
    return Batch(
        header["kind"], at, header["before"], writes, header["reset"], header["lease_ms"], header["nonce"], checksum,
        data,
    )  # fmt: skip


@dataclass
class JournalReplay:
    """Where the log ends as far as it is known, and what it holds up to there."""

    last: Position | None = None
    """The last batch; None if there is no catalog."""
    next: Position = (0, 0)
    """The name that the next batch will have."""
    before: str = ""
    """The checksum of the last batch."""
    lease_ms: int = 0
    """Of whom the last batch is by."""
    config: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[str, str], str] | None = field(default_factory=dict)
    """None where nobody needs them."""
    since_rollup: int = 0
    """Batches since the last rollup, and their bytes; and the rollup's own."""
    log_bytes: int = 0
    rollup_bytes: int = 0

    def start(self, rollup: Batch) -> None:
        """Begin from a rollup."""
        self._write(rollup.writes)
        self.last = rollup.at
        self.before = rollup.before
        self.lease_ms = rollup.lease_ms
        self.rollup_bytes = len(rollup.data)
        # Whether it ends a term is what a rollup says by its nonce: the batch itself may be gone.
        self.next = (rollup.at[0] + 1, 0) if rollup.nonce == "open" else (rollup.at[0], rollup.at[1] + 1)

    def advance(self, batch: Batch) -> None:
        """Take in the batch at `next`. Raises `CorruptObject` if it does not follow on the last one."""
        if batch.at != self.next or batch.before != self.before:
            raise CorruptObject(
                f"object {batch_name(batch.at)} of the catalog does not follow on the one before it",
                hint="nothing was changed; were objects of two catalogs mixed?",
            )
        if batch.reset:
            self.config.clear()
            if self.rows is not None:
                self.rows.clear()
        self._write(batch.writes)
        self.last = batch.at
        self.before = batch.checksum
        self.lease_ms = batch.lease_ms
        self.next = (batch.at[0] + 1, 0) if batch.kind == "open" else (batch.at[0], batch.at[1] + 1)
        self.since_rollup += 1
        self.log_bytes += len(batch.data)

    def _write(self, writes: Writes) -> None:
        self.config.update(writes.config or {})
        if self.rows is None:
            return
        for target in writes.deletes:
            self.rows.pop(target, None)
        for collection, key, value in writes.puts:
            self.rows[collection, key] = value

    def loaded(self) -> StoredCatalog:
        """The content that the log comes to."""
        rows = self.rows or {}
        return StoredCatalog(dict(self.config), tuple((c, k, v) for (c, k), v in rows.items()))

    def rollup(self) -> Batch:
        """The rollup of all that has been taken in."""
        assert self.last is not None and self.rows is not None, "there is nothing to roll up"
        loaded = self.loaded()
        ends_term = "open" if self.next[0] != self.last[0] else ""
        writes = Writes(loaded.rows, (), loaded.config)
        return Batch("rollup", self.last, self.before, writes, lease_ms=self.lease_ms, nonce=ends_term)


@dataclass(frozen=True)
class RollupPolicy:
    """When all of the content is written again, so that opening reads little and old batches can go.

    With the log's bytes at least a `share`-th of the rollup's, what rollups add to what is written stays below `share`
    times the log; beyond `most_batches` opening would take long, whatever that adds.
    """

    least_batches: int = 256
    most_batches: int = 4096
    share: int = 4

    def due(self, since_rollup: int, log_bytes: int, rollup_bytes: int) -> bool:
        """Whether it is time for another rollup."""
        if since_rollup < self.least_batches:
            return False
        return since_rollup >= self.most_batches or log_bytes * self.share >= rollup_bytes


def garbage(batches: Iterable[Position], rollups: Iterable[Position]) -> tuple[list[Position], list[Position]]:
    """The batches and the rollups that nobody needs any more, given all that there are.

    What lies below the newest rollup goes, apart from the last batches of each term; of rollups the newest two stay,
    so that who is reading the one before finds it.
    """
    kept = sorted(rollups)[-2:]
    if not kept:
        return [], []
    newest, by_term = kept[-1], dict[int, list[int]]()
    for term, number in batches:
        by_term.setdefault(term, []).append(number)
    gone = [
        (term, number)
        for term, numbers in sorted(by_term.items())
        for number in sorted(numbers)[:-KEPT_AT_END]
        if (term, number) < newest
    ]
    return gone, [r for r in sorted(rollups) if r not in kept]
