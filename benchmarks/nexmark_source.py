"""How fast the nexmark source makes events, in one process: `python benchmarks/nexmark_source.py [events]`."""

from __future__ import annotations

import sys
import time

from headrace.connectors.sources import infer_columns, open_source

CASES = (
    ("person", None), ("auction", None), ("bid", None), ("bid", ("auction", "bidder", "price", "date_time")),
    (None, None),
)  # fmt: skip


def rate(kind: str | None, names: tuple[str, ...] | None, events: int) -> float:
    """Events (of all kinds) per second, the best of three."""
    options = {"connector": "nexmark", **({"table_type": kind} if kind else {})}
    source = open_source(options, infer_columns(options))
    source = source.only(names) if names else source
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        for _ in source.read({"start": 0, "stop": events}):
            pass
        best = max(best, events / (time.perf_counter() - started))
    return best


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for kind, names in CASES:
        what = f"{kind or 'all kinds'}, {', '.join(names) if names else 'all columns'}"
        print(f"{what}: {rate(kind, names, events):,.0f} events/s")


if __name__ == "__main__":
    main()
