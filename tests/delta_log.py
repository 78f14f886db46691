"""Commits to Delta tables that the package cannot make, written into their logs: deletion vectors, renamed columns."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet
from pyroaring import BitMap

from lakes import DeltaLake, Row

_MAGIC = 1681511377
_OF_PYTHON = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_OF_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def inline_vector(positions: Sequence[int]) -> dict[str, Any]:
    """A deletion vector that stands in the log itself."""
    data = struct.pack("<iqi", _MAGIC, 1, 0) + BitMap(positions).serialize()
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).decode()
    text = text.translate(str.maketrans(_OF_PYTHON, _OF_Z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(positions)}


class DeltaLog:
    """The log of a table, as files."""

    def __init__(self, location: str) -> None:
        self.root = Path(location)

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """All of a kind, in order."""
        paths = sorted((self.root / "_delta_log").glob("*.json"))
        lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [line[kind] for line in lines if kind in line]

    def commit(self, *actions: Mapping[str, Any]) -> None:
        """The next version."""
        version = 1 + max(int(path.stem) for path in (self.root / "_delta_log").glob("*.json"))
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.root / "_delta_log" / f"{version:020}.json").write_text(text)

    def files(self) -> dict[str, dict[str, Any]]:
        """What was added and not removed, by path."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.root / "_delta_log").glob("*.json")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for gone in (line["remove"]["path"] for line in lines if "remove" in line):
                found.pop(gone, None)
            found.update({line["add"]["path"]: line["add"] for line in lines if "add" in line})
        return found

    def remove(self, add: Mapping[str, Any], changes: bool = True) -> dict[str, Any]:
        """The action that takes a file away."""
        kept = {k: add[k] for k in ("path", "partitionValues", "size", "deletionVector") if add.get(k) is not None}
        return {"remove": {**kept, "deletionTimestamp": int(time.time() * 1000), "dataChange": changes,
                           "extendedFileMetadata": True}}  # fmt: skip


class VectorLake(DeltaLake):
    """A Delta table of which rows are deleted by deletion vectors."""

    def __init__(self, folder: Path, partitioned: bool = False) -> None:
        super().__init__(folder, partitioned, **{"delta.enableDeletionVectors": "true"})
        self.log = DeltaLog(self.location)
        self.dead: dict[str, set[int]] = {}

    def _ids(self, path: str) -> list[int]:
        found: pa.Table = pyarrow.parquet.ParquetFile(self.log.root / unquote(path)).read(columns=["id"])
        return [int(i) for i in found.column("id").to_pylist()]

    def delete(self, ids: Sequence[int]) -> None:
        actions: list[dict[str, Any]] = []
        for path, add in self.log.files().items():
            places = {i for i, id_ in enumerate(self._ids(path)) if id_ in ids}
            dead = self.dead.setdefault(path, set())
            if places - dead:
                dead |= places
                actions += [self.log.remove(add), {"add": {**add, "deletionVector": inline_vector(sorted(dead))}}]
        if actions:
            self.log.commit(*actions)

    def merge(self, rows: Sequence[Row]) -> None:
        self.delete([row[0] for row in rows])
        self.append(rows)

    def restore(self) -> None:
        """All rows of the files that are there are in the table again."""
        files = self.log.files()
        actions: list[dict[str, Any]] = []
        for path in [p for p, dead in self.dead.items() if dead and p in files]:
            plain = {k: v for k, v in files[path].items() if k != "deletionVector"}
            actions += [self.log.remove(files[path]), {"add": plain}]
        self.dead.clear()
        if actions:
            self.log.commit(*actions)
