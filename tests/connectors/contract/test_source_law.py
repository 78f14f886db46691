"""The law of sources: what is bound is read by whoever asks, in whatever pieces, always the same, and each row once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from origins import AvroOrigin, CdcOrigin, DatagenOrigin, FilesOrigin, KafkaOrigin, LakeOrigin, ObjectsOrigin, Origin

from headrace.connectors.base import Admission, Binding, Offsets, ReadTask, Source
from lakes import DeltaLake, IcebergLake, Lake

KINDS = ("datagen", "files", "avro", "objects", "kafka", "cdc", "iceberg", "deltalake")
LAKES: dict[str, type[Lake]] = {"iceberg": IcebergLake, "deltalake": DeltaLake}
_minutes = itertools.count()
"""Each binding is made a minute after the one before."""


@pytest.fixture(params=KINDS)
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Origin:
    if request.param == "kafka":
        return KafkaOrigin(request.getfixturevalue("kafka"))
    if request.param == "cdc":
        return CdcOrigin(request.getfixturevalue("logical"))
    if request.param in LAKES:
        return LakeOrigin(LAKES[request.param](tmp_path))
    if request.param == "objects":
        return ObjectsOrigin(request.getfixturevalue("s3"))
    folders = {"files": FilesOrigin, "avro": AvroOrigin}
    return folders[request.param](tmp_path) if request.param in folders else DatagenOrigin()


def bind(source: Source, after: Offsets | None, rows: int | None = None, size: int | None = None) -> Binding:
    return source.latest_offsets(
        source.start_offsets() if after is None else after, Admission(rows, size), 60_000 * next(_minutes)
    )


def positions(offsets: Offsets) -> dict[str, object]:
    """How far each split is, without what is noted of the binding itself, as its time."""
    return {split: offset for split, offset in offsets.items() if not split.startswith("@")}


def read(source: Source, from_: Offsets, to: Offsets, parts: int = 3) -> Counter[int]:
    return read_tasks(source, source.plan(from_, to, parts))


def read_tasks(source: Source, tasks: Sequence[ReadTask]) -> Counter[int]:
    found: Counter[int] = Counter()
    for made in (made for task in tasks for made in source.read(task)):
        numbers = made.batch.column(0).to_pylist()
        weights = [1] * len(numbers) if made.weights is None else made.weights.to_pylist()
        for number, weight in zip(numbers, weights, strict=True):
            found[number] += weight
    return Counter({number: count for number, count in found.items() if count})


@pytest.mark.parametrize(("limit", "size"), [(None, None), (37, None), (None, 300)])
def test_every_row_is_read_once(origin: Origin, limit: int | None, size: int | None) -> None:
    bounds: list[Offsets] = []
    found: Counter[int] = Counter()
    bounds.append(origin.source().start_offsets())
    for first in (0, 100, 200):
        origin.add(first, first + 100)
        while True:
            source = origin.source()  # as after a restart
            if len(bounds) > 1:
                source.acknowledge(bounds[-1])
            bound = bind(source, bounds[-1], limit, size)
            if bound.offsets == bounds[-1]:
                break
            assert limit is None or not origin.limits or (bound.rows or 0) <= limit
            again = bind(source, bounds[-1], limit, size)
            assert positions(bound.offsets) == positions(again.offsets), "what is not bound yet is not lost"
            found += read(source, bounds[-1], bound.offsets)
            bounds.append(bound.offsets)
    assert found == Counter(range(300))


def test_a_range_is_the_same_whoever_reads_it(origin: Origin) -> None:
    source = origin.source()
    origin.add(0, 100)
    bounds = [bind(source, None).offsets]
    source.acknowledge(bounds[0])
    for first in (100, 200):
        origin.add(first, first + 100)
        bounds.append(bind(source, bounds[-1]).offsets)
    pieces = [read(source, low, high) for low, high in pairwise(bounds)]
    origin.add(300, 310)
    for parts in (1, 2, 16):
        other = origin.source()
        assert [read(other, low, high, parts) for low, high in pairwise(bounds)] == pieces
        assert read(other, bounds[0], bounds[-1], parts) == sum(pieces, Counter())
        tasks = other.plan(bounds[0], bounds[-1], parts)  # by steps, of each as few tasks as there are
        steps = [read_tasks(other, other.joined(tasks[i : i + 5], 2)) for i in range(0, len(tasks), 5)]
        assert sum(steps, Counter()) == sum(pieces, Counter())
    assert read(source, bounds[0], bounds[0]) == Counter()
    counted = source.rows_between(bounds[0], bounds[-1])
    assert counted is None or counted >= sum(piece.total() for piece in pieces)
