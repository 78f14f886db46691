"""Watermarks of what is read apart: partitions of a topic over a broker, and files whose times overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.session.database import Database, connect
from kafka import Kafka
from support import eventually

ORIGIN = datetime(2024, 1, 1)
SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=600_000)
ROWS = 60
"""Rows of each partition or file, a second apart."""
AHEAD = 1000
"""Seconds by which the first partition is ahead of the second."""


@pytest.fixture(scope="module")
def database(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with connect(tmp_path_factory.mktemp("apart") / "db", spark=spark, settings=SETTINGS) as made:
        yield made


def record(second: int) -> str:
    return f'{{"t": "{(ORIGIN + timedelta(seconds=second)).isoformat()}"}}'


def made(database: Database, name: str, options: str) -> Callable[[], dict[str, int]]:
    """A source and a view of its closed windows; returns what tells the bound positions, once they are read."""
    database.sql(
        f"CREATE SOURCE {name} (t timestamp, WATERMARK FOR t AS t - INTERVAL '5 seconds') WITH ({options}); "
        f"SET background_ddl = on; CREATE MATERIALIZED VIEW {name}_n AS SELECT window_start, count(*) AS n FROM "
        f"TUMBLE({name}, t, INTERVAL '10 seconds') GROUP BY window_start EMIT ON WINDOW CLOSE"
    )
    core = database.coordinator._core
    ids = {r.name: r.id for r in core.live.graph.relations.values()}
    job, source = core.live.graph.jobs[ids[f"{name}_n"]], ids[name]

    def tick() -> dict[str, int]:
        database.coordinator.tick()
        newest = core.storage.catalog.state.newest_remap(source)
        assert newest is not None
        eventually(lambda: job.committed >= newest.epoch, "what is bound is read")
        return {s: at[1] for s, at in newest.offsets.items() if isinstance(at, list)}

    return tick


def closed(database: Database, name: str) -> dict[int, int]:
    rows = database.sql(f"SELECT window_start, n FROM {name}_n").rows()
    return {round((start.replace(tzinfo=None) - ORIGIN).total_seconds()): n for start, n in rows}


def late(database: Database, name: str) -> int:
    return database.sql(f"SELECT late_rows FROM headrace_catalog.jobs WHERE name = '{name}_n'").rows()[0][0]


def behind_each_other(kafka: Kafka, name: str) -> str:
    """A topic of which one partition is far ahead of the other; returns its options."""
    topic = kafka.topic(name, 2)
    kafka.send(topic, *map(record, range(AHEAD, AHEAD + ROWS)), partition=0)
    kafka.send(topic, *map(record, range(ROWS)), partition=1)
    return (
        f"connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{kafka.servers}', "
        "max_rows_per_epoch = 20, format = 'plain', encode = 'json'"
    )


def test_a_partition_that_is_behind_loses_no_rows(database: Database, kafka: Kafka) -> None:
    """In a backlog its rows come long after those of the other, and in time where they stand."""
    tick = made(database, "slow", behind_each_other(kafka, "slow"))
    while tick() != {"0": ROWS, "1": ROWS}:
        pass
    for _ in range(2):
        tick()
    assert late(database, "slow") == 0
    assert closed(database, "slow") == dict.fromkeys(range(0, ROWS - 10, 10), 10), "the other waits for it"
    shown = database.sql("SELECT newest_time FROM headrace_catalog.source_splits WHERE source = 'slow' ORDER BY split")
    newest = [(at.replace(tzinfo=None) - ORIGIN).total_seconds() for (at,) in shown.rows()]
    assert newest == [AHEAD + ROWS - 1, ROWS - 1]


def test_an_idle_partition_holds_the_watermark_for_a_while(database: Database, kafka: Kafka) -> None:
    tick = made(database, "idle", behind_each_other(kafka, "idle") + ", scan.watermark.idle.timeout = '1 h'")
    while tick() != {"0": ROWS, "1": ROWS}:
        pass
    tick()
    assert max(closed(database, "idle")) < ROWS
    database.sql("ALTER SOURCE idle SET (scan.watermark.idle.timeout = '1 s')")
    assert "scan.watermark.idle.timeout = '1 s'" in database.sql("SHOW CREATE SOURCE idle").rows()[0][1]
    expected = dict.fromkeys([*range(0, ROWS, 10), *range(AHEAD, AHEAD + ROWS - 10, 10)], 10)
    eventually(lambda: bool(tick()) and closed(database, "idle") == expected, "both are idle")
    assert late(database, "idle") == 0


def test_partitions_are_read_side_by_side_in_time(database: Database, kafka: Kafka) -> None:
    """`scan.watermark.alignment.max.drift`: who is far ahead waits, so that windows do not pile up."""
    options = behind_each_other(kafka, "aligned") + ", scan.watermark.alignment.max.drift = '30 s'"
    tick, seen = made(database, "aligned", options), [{"0": 0, "1": 0}]
    while seen[-1] != {"0": ROWS, "1": ROWS}:
        seen.append(tick())
    started = next(at["0"] for at in seen if at["0"])
    assert all(at["0"] <= started for at in seen if at["1"] < ROWS), seen
    assert late(database, "aligned") == 0


def test_files_whose_times_overlap_lose_no_rows(database: Database, tmp_path: Path) -> None:
    """Those that are there and not read yet hold the watermark; one that is over does not."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_text("".join(record(s) + "\n" for s in range(ROWS)))
    options = f"connector = 'files', path = '{tmp_path}/*.json', format = 'json', max_rows_per_epoch = 25"
    tick = made(database, "overlapping", options)
    for _ in range(3 * ROWS // 25 + 3):
        tick()
    assert late(database, "overlapping") == 0
    assert closed(database, "overlapping") == dict.fromkeys(range(0, ROWS - 10, 10), 30)


def test_options_that_nobody_reads_are_refused(database: Database, kafka: Kafka, tmp_path: Path) -> None:
    options = behind_each_other(kafka, "unread_options") + ", scan.watermark.idle.timeout = '1 s'"
    with pytest.raises(HeadraceError, match=r"scan\.watermark\.idle\.timeout of a source without a watermark"):
        database.sql(f"CREATE SOURCE refused (t timestamp) WITH ({options})")
    with pytest.raises(HeadraceError, match=r"scan\.watermark\.idle\.timeout must be"):
        made(database, "refused", options.replace("1 s", "soon"))
    with pytest.raises(HeadraceError, match=r"unknown option scan\.watermark\.idle\.timeout"):
        made(
            database, "refused", f"connector = 'files', path = '{tmp_path}/*.json', scan.watermark.idle.timeout = '1 s'"
        )
    (tmp_path / "a.json").write_text(record(1))
    files = f"connector = 'files', path = '{tmp_path}/*.json', format = 'json'"
    database.sql(f"CREATE SOURCE of_files (t timestamp, WATERMARK FOR t AS t) WITH ({files})")
    with pytest.raises(HeadraceError, match=r'source "of_files" has no scan\.watermark\.alignment\.max\.drift'):
        database.sql("ALTER SOURCE of_files SET (scan.watermark.alignment.max.drift = '1 s')")
