"""Looks again at a history that was written down: `python tests/history/recheck.py FILE [T1,T2]`.

Prints the anomalies, and the transactions that they name, or those that are asked for, in the order in which they
began.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from checker import anomalies_of
from events import History, Op, Transaction, load


def step(op: Op) -> str:
    """One step in a few words."""
    how = [str(part) for part in (op.key, op.value, op.form if op.writes else None) if part is not None]
    via = f" of {op.via}" if op.via != "table" else ""
    result = "" if op.result is None else f" -> {op.result}"
    return f"    {op.kind} {' '.join(how)}{via}{result[:300]}"


def lines(t: Transaction, start_ns: int) -> list[str]:
    """A transaction with its steps."""
    times = f"{(t.began_ns - start_ns) / 1e6:.1f} to {(t.ended_ns - start_ns) / 1e6:.1f} ms"
    head = f"{t} session {t.session} {t.status} {'alone ' * t.alone}{t.freshness} {times} {t.error}"
    return [head, *map(step, t.ops)]


def report(history: History, wanted: set[int]) -> str:
    """All that is found, and the transactions."""
    found = anomalies_of(history)
    wanted = wanted or {number for each in found for number in each.transactions}
    start_ns = min(t.began_ns for t in history.transactions)
    shown = [t for t in sorted(history.transactions, key=lambda t: t.began_ns) if t.id in wanted]
    return "\n".join([*map(str, found), *(line for t in shown for line in lines(t, start_ns))])


if __name__ == "__main__":
    chosen = {int(name.removeprefix("T")) for name in "".join(sys.argv[2:]).split(",") if name}
    print(report(load(Path(sys.argv[1])), chosen))
