"""Does state stay bounded while a stream goes on? Windows and sessions emitted on window close, and interval joins.

    python benchmarks/bounded.py [--events 10000000] [--rows-per-epoch 200000] [--every 500000] [--jobs counts,visits]

Runs four jobs over one Nexmark stream of that many events (10,000 for each second of event time):

- `counts`: bids by auction and window of ten seconds, EMIT ON WINDOW CLOSE;
- `visits`: bids by bidder and session with a gap of ten seconds, EMIT ON WINDOW CLOSE into a blackhole sink;
- `joined`: bids with the auction that they are for, within twenty seconds of it: into a blackhole sink, which keeps the
  state of the join and drops its rows;
- `both`: windows of bids joined with the windows of auctions, the same way.

Every so many events it prints the rows and bytes of every job's state as the catalog holds them (rows that have expired
and are not merged away yet are counted), apart from the rows of the view itself, which are its result. The last lines
compare the largest state of the first and of the second half. All of it goes to `results/bounded.md`, too.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import headrace
from headrace.catalog.contents import SourceContent
from headrace.session.database import Database

RESULTS = Path(__file__).parent / "results"
SOURCE = """
CREATE SOURCE {kind} ({columns}, WATERMARK FOR date_time AS date_time - INTERVAL '4 seconds')
WITH (connector = 'nexmark', table_type = '{table}', event_num = '{events}', rows_per_second = 'unlimited',
      max_rows_per_epoch = '{rows}')
"""
JOBS = {
    "counts": """
        CREATE MATERIALIZED VIEW counts WITH (max_rows_per_epoch = {rows}) AS
        SELECT window_start, auction, count(*) AS bids, max(price) AS best
        FROM TUMBLE(bid, date_time, INTERVAL '10 seconds') GROUP BY window_start, auction EMIT ON WINDOW CLOSE""",
    "visits": """
        CREATE SINK visits AS SELECT bidder, window_start, window_end, count(*) AS bids
        FROM SESSION(bid, date_time, INTERVAL '10 seconds', bidder) GROUP BY bidder, window_start, window_end
        EMIT ON WINDOW CLOSE WITH (connector = 'blackhole', max_rows_per_epoch = {rows})""",
    "joined": """
        CREATE SINK joined AS SELECT b.auction, b.price, a.seller FROM bid b JOIN auction a ON b.auction = a.id
        AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '20 seconds'
        WITH (connector = 'blackhole', max_rows_per_epoch = {rows})""",
    "both": """
        CREATE SINK both AS SELECT l.window_start, l.bids, r.auctions FROM
        (SELECT window_start, count(*) AS bids FROM TUMBLE(bid, date_time, INTERVAL '10 seconds') GROUP BY 1) l
        JOIN (SELECT window_start, count(*) AS auctions FROM TUMBLE(auction, date_time, INTERVAL '10 seconds')
        GROUP BY 1) r ON l.window_start = r.window_start
        WITH (connector = 'blackhole', max_rows_per_epoch = {rows})""",
}


@dataclass(frozen=True)
class Look:
    """What there was at a time."""

    events: int
    seconds: float
    server_mb: int
    state: dict[str, tuple[int, int]]
    """Rows and bytes."""


def create(db: Database, events: int, rows: int, jobs: list[str]) -> None:
    """The sources and jobs."""
    for kind, columns in (
        ("bid", "auction bigint, bidder bigint, price bigint, date_time timestamp"),
        ("auction", "id bigint, seller bigint, date_time timestamp"),
    ):
        db.sql(SOURCE.format(kind=kind, table=kind, columns=columns, events=events, rows=rows))
    db.sql("SET background_ddl = true")
    for name in jobs:
        db.sql(JOBS[name].format(rows=rows))


def state(db: Database) -> dict[str, tuple[int, int]]:
    """Rows and bytes of state by job, and of results as `<job> result`."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    with db.catalog.reading() as held:
        for table in held.state_tables.values():
            name = held.objects[table.job_id].name
            if table.operator == "view/rows":
                name += " result"
            for run in held.runs_of(table.id):
                found[name][0] += run.ref.rows
                found[name][1] += run.ref.packed or run.ref.length
    return {name: (rows, size) for name, (rows, size) in sorted(found.items())}


def read_events(db: Database) -> int:
    """Events up to which the slowest job has read."""
    done = []
    with db.catalog.reading() as held:
        for source in held.objects_of(SourceContent):
            for job in held.jobs.values():
                if source.id in held.objects[job.id].depends_on:
                    remap = held.offsets_at(source.id, job.committed_epoch)
                    done.append(0 if remap is None or not job.committed_epoch else int(remap.offsets["0"]))
    return min(done, default=0)


def run(events: int, rows: int, every: int, jobs: list[str]) -> list[Look]:
    """One run; a record for each time that it looked."""
    looks: list[Look] = []
    with tempfile.TemporaryDirectory() as folder, headrace.connect(folder) as db:
        create(db, events, rows, jobs)
        began, due, done = time.monotonic(), 0, 0
        while done < events:
            time.sleep(0.5)
            done = read_events(db)
            if done < due and done < events:
                continue
            due = done - done % every + every
            memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            look = Look(done, time.monotonic() - began, memory_mb, state(db))
            looks.append(look)
            parts = [f"{name} {r:,} rows {size / 1e6:.1f} MB" for name, (r, size) in look.state.items()]
            print(f"{done:>12,} events {look.seconds:7.1f} s  server {memory_mb} MB  " + "  ".join(parts), flush=True)
            failing = [j for j in db.coordinator.jobs() if j.error is not None]
            if failing:
                raise SystemExit(f"{failing[0].name}: {failing[0].error}")
        db.flush()
        for row in db.sql("SELECT name, rows_in, rows_out, late_rows FROM headrace_catalog.jobs"):
            print(*row)
    return looks


def report(looks: list[Look], events: int) -> str:
    """A table of the looks, and the largest state of each half."""
    names = sorted({name for look in looks for name in look.state})
    lines = ["| events | s | server MB | " + " | ".join(names) + " |", "| --: " * (3 + len(names)) + "|"]
    for look in looks:
        cells = [f"{look.events:,}", f"{look.seconds:.0f}", f"{look.server_mb}"]
        for rows, size in (look.state.get(name, (0, 0)) for name in names):
            cells.append(f"{rows:,} rows, {size / 1e6:.1f} MB")
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for name in (name for name in JOBS if name in names):
        sizes = [(look.events, look.state.get(name, (0, 0))[1]) for look in looks]
        first, second = (
            max((s for e, s in sizes if (e <= events // 2) is early), default=0) for early in (True, False)
        )
        lines.append(f"- `{name}`: at most {first:,} bytes in the first half, {second:,} in the second")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rows-per-epoch", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=500_000)
    parser.add_argument("--jobs", default=",".join(JOBS))
    options = parser.parse_args()
    looks = run(options.events, options.rows_per_epoch, options.every, options.jobs.split(","))
    text = report(looks, options.events)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    head = f"# State over {options.events:,} events, {options.rows_per_epoch:,} for each epoch at most\n\n"
    (RESULTS / "bounded.md").write_text(head + text)


if __name__ == "__main__":
    main()
