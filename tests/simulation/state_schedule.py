"""Runs schedules of the state store's simulation: `python -m tests.simulation.state_schedule --seeds 1000 --from 0`.

Prints the first seed that breaks something, with what happened before; the same seed does the same again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from state_kernel import CALM
from state_world import World, compact, define, expire, follow, inspect, read, settle, simulated, vacuum, write

from headrace.coordinator.writes.small_runs import OBJECT_AGE_S
from headrace.state.run import RunCache

ACTIONS = 40
"""Things that happen in one schedule, about."""
CHANCES = {
    "write": 10, "read": 5, "follow": 3, "inspect": 2, "compact": 5, "vacuum": 4, "define": 1, "expire": 1,
    "settle": 3, "clock": 5,
}  # fmt: skip
WORK = {
    "read": read, "follow": follow, "inspect": inspect, "compact": compact, "vacuum": vacuum, "define": define,
    "expire": expire, "settle": settle,
}  # fmt: skip
MOST_TASKS = 8
MOST_ROUNDS = 3000


class Broken(AssertionError):
    """A schedule that breaks something, with its seed and what happened."""


def run_schedule(seed: int, actions: int = ACTIONS) -> list[str]:
    """Run one schedule; returns what happened. Raises `Broken`."""
    with simulated(seed) as world:
        try:
            _play(world, actions)
            _end(world)
        except Exception as error:
            story = "\n".join(world.kernel.trace)
            raise Broken(f"{story}\n\nseed {seed}: {type(error).__name__}: {error}") from error
        return world.kernel.trace


def _play(world: World, actions: int) -> None:
    rng, kernel = world.rng, world.kernel
    for i in range(rng.randint(1, 2)):
        world.create_table(keyed=bool(i))
    if rng.random() < 0.8:
        world.create_view(world.relations()[0])
    kernel.odds = world.odds
    left = actions
    while left:
        if kernel.dead:
            kernel.odds = CALM
            world.restart()
            kernel.odds = world.odds
        elif rng.random() < 0.25 and len(kernel.tasks) < MOST_TASKS:
            left -= 1
            _begin(world)
        elif kernel.tasks:
            kernel.run_some()
        world.check()


def _begin(world: World) -> None:
    rng, kernel = world.rng, world.kernel
    what = rng.choices(list(CHANCES), list(CHANCES.values()))[0]
    if what == "clock":
        world.clock.advance_ms(rng.choice([1, 50, 400, 5000]))
        return
    if what == "write":
        # One group is committed at a time: a second writer would wait for the first, which stands at a fault point.
        free = world.relations("table")
        if free and not world.writing:
            chosen = rng.choice(free)
            world.writing.add(chosen)
            kernel.spawn(f"write {chosen}", lambda: write(world, chosen))
        return
    if what in ("compact", "vacuum", "define", "settle") and any(t.name == what for t in kernel.tasks):
        return  # one thread does each of them
    if world.relations():
        kernel.spawn(what, lambda: WORK[what](world))


def _end(world: World) -> None:
    """Nothing fails any more: all that is under way ends, and then everything is looked at."""
    world.kernel.odds = CALM
    if world.kernel.dead or world.rng.random() < 0.3:
        world.restart()
    _settle(world)
    if world.rng.random() < 0.3:
        _check_all(world, epochs=1)
    world.clock.advance_ms(world.settings.retention_ms + world.settings.vacuum_grace_ms + 1)
    merges = world.c.compact()
    _check_all(world)
    _check_expiry(world)
    _check_vacuum(world)
    world.kernel.note(f"at the end {merges} merges")
    if world.rng.random() < 0.3:
        world.restart()
        _check_all(world)
        world.durable.check_encoding()


def _settle(world: World) -> None:
    """Let everything finish, and the views catch up."""
    kernel, core = world.kernel, world.core
    for _ in range(MOST_ROUNDS):
        world.c._parts.life.settle()
        world.clock.advance_ms(1)
        if all(t.lasting for t in kernel.tasks) and all(
            j.activity.attempt is None and core.live.graph.job_frontier(j) >= core.live.epochs.complete
            for j in core.live.graph.jobs.values()
        ):
            break
        if kernel.tasks:
            kernel.run_some()
        world.check()
    else:
        states = [(j.id, j.committed, j.error) for j in core.live.graph.jobs.values()]
        raise AssertionError(f"does not come to rest: {[t.name for t in kernel.tasks]} {states}")
    assert not core.storage.pins.prefixes(), "something is still held for writing"


def _check_all(world: World, epochs: int = 3) -> None:
    """Every table at the ends of its readable range and at some epochs between, and its log."""
    world.check()
    cache = RunCache()
    for record in sorted(world.catalog.state.state_tables.values(), key=lambda r: r.id):
        refs, schema = world.version(record.id), record.to_table_schema()
        safe, committed = record.safe_epoch, record.committed_epoch
        known = [e for e in world.model.changes[record.id] if safe <= e <= committed]
        for epoch in {safe, committed, *world.rng.sample(known, min(epochs, len(known)))}:
            world.check_content(record.id, refs, epoch, schema, watermark=record.watermark, cache=cache)
        if record.operator == "view/rows":
            after = world.rng.choice([safe, *known])
            world.check_log(record.id, refs, after, committed, schema)


def _check_expiry(world: World) -> None:
    """FS-19: runs that are below the watermark as a whole are gone."""
    image = world.catalog.image
    for table, watermark in world.model.watermark.items():
        for run in image.runs_of(table):
            assert run.ref.time_max is None or run.ref.time_max >= watermark, f"{run.ref.path} has expired"


def _check_vacuum(world: World) -> None:
    """XC-5, CK-12: after the grace period just what is referenced is left."""
    world.clock.advance_ms(int(OBJECT_AGE_S * 1000))
    for _ in range(2):
        world.c.writer.tidy()  # objects that small runs are added to are kept while that may be
        world.c.vacuum()
        world.clock.advance_ms(world.settings.vacuum_grace_ms + 1)
    world.c.vacuum()
    referenced = {run.ref.path for run in world.catalog.state.runs.values()}
    assert world.objects() == referenced, f"left over: {world.objects() - referenced}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many seeds to try")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--actions", type=int, default=ACTIONS, help="how much happens in each schedule")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    options = parser.parse_args()
    began_s = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        try:
            story = run_schedule(seed, options.actions)
        except Broken as error:
            raise SystemExit(str(error)) from None
        if options.trace:
            print("\n".join(story))
    print(f"{options.seeds} schedules hold, {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    main()
