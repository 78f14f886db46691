"""A range of a source is cut into the same read tasks by whoever opens it: a position counts them over a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.common.columns import Column
from headrace.connectors.base import Admission, Offsets
from headrace.connectors.sources import open_source
from kafka import Kafka

ROWS = 30_000
COLUMNS = [Column("id", "bigint")]


def files(folder: Path, kafka: Callable[[], Kafka], kind: str) -> dict[str, str]:
    """Two files, one of them with several row groups or pieces."""
    for name, rows in (("a", ROWS), ("b", 5)):
        path = folder / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"id": range(rows)}), path, row_group_size=rows // 5)
        elif kind == "csv":
            path.write_text("id\n" + "".join(f"{i}{'0' * 60}\n" for i in range(rows)))
        else:
            path.write_text("".join(json.dumps({"id": i, "more": "x" * 60}) + "\n" for i in range(rows)))
    return {"connector": "files", "path": f"{folder}/*.{kind}", "format": kind}


def generated(folder: Path, kafka: Callable[[], Kafka], kind: str) -> dict[str, str]:
    """Rows without end."""
    more = {"table_type": "bid"} if kind == "nexmark" else {}
    return {"connector": kind, "rows_per_second": "unlimited", "max_rows_per_epoch": "9999", **more}


def topic(folder: Path, kafka: Callable[[], Kafka], kind: str) -> dict[str, str]:
    """Records of two partitions."""
    server = kafka()
    name = server.topic("fixed-plans", 2)
    for partition in (0, 1):
        server.send(name, *(f'{{"id": {i}}}' for i in range(1000)), partition=partition)
    return {"connector": "kafka", "topic": name, "properties.bootstrap.server": server.servers}


@pytest.mark.parametrize(
    ("made", "kind"),
    [(files, "parquet"), (files, "csv"), (files, "json"), (generated, "datagen"), (generated, "nexmark"), (topic, "")],
)
def test_plans_are_fixed(
    made: Callable[..., dict[str, str]], kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The tasks of a prefix of bindings, and of what lies between two, are those of any other opening."""
    options = made(tmp_path, lambda: request.getfixturevalue("kafka"), kind)
    columns = [Column("auction", "bigint")] if kind == "nexmark" else COLUMNS
    source, bound = open_source(options, columns), list[Offsets]([{}])
    for _ in range(3):
        limit = Admission(ROWS // 2, 64 << 20, 100.0)
        bound.append(source.latest_offsets(bound[-1] or source.start_offsets(), limit, 1_700_000_000_000).offsets)
    for from_, to in [(bound[0], bound[1]), (bound[1], bound[2]), (bound[0], bound[3])]:
        for parts in (1, 7):
            plans = [json.dumps(open_source(options, columns).plan(from_, to, parts)) for _ in range(2)]
            stored = json.loads(json.dumps([from_, to]))  # as the catalog has them after a restart
            plans.append(json.dumps(open_source(options, columns).plan(*stored, parts)))
            assert plans[0] == plans[1] == plans[2]
    assert json.loads(json.dumps(source.plan({}, bound[-1], 7)))
