"""Anomalies that show without a cycle: in one read, in two reads of a session, in what is left at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import anomalies as names
from events import Key, Op, Transaction
from observations import External, Observations, _short, written_value


def find_direct(seen: Observations) -> None:
    """Add all of them to what was found."""
    for external in seen.externals:
        _check_read(seen, external)
    _check_lost_updates(seen)
    _check_counters(seen)
    _check_sessions(seen)
    if seen.final is not None:
        _check_final(seen, seen.final)


# ---- one read


def _check_read(seen: Observations, external: External) -> None:
    """Every value comes from a committed transaction, and from its last write to the key."""
    values = _values(external)
    for value in values:
        _check_value(seen, external, value)
    if (external.key.kind == "list" and values) or (external.key.kind == "register" and values):
        _check_intermediate(seen, external, values[-1])


def _check_value(seen: Observations, external: External, value: int) -> None:
    reader, key = external.transaction, external.key
    if (key, value) not in seen.writers:
        return seen.report(names.GARBAGE, f"{reader} saw {value} in {key}, which nobody wrote", reader)
    writer, _ = seen.writers[key, value]
    if writer.status == "fail" or value not in seen.lasting[key]:
        how = "failed" if writer.status == "fail" else "took it back"
        seen.report(names.G1A, f"{reader} saw {value} in {key} of {writer}, which {how}", reader, writer)


def _check_intermediate(seen: Observations, external: External, last: int) -> None:
    """The last value shown is the last that its writer wrote to the key."""
    writer = seen.lasting[external.key].get(last)
    if writer is None or writer is external.transaction:
        return
    final = [written_value(op) for op in writer.lasting() if op.key == external.key][-1]
    if final != last:
        text = f"{external.transaction} saw {last} in {external.key}; {writer} had yet to write {final}"
        seen.report(names.G1B, text, external.transaction, writer)


def _values(external: External) -> list[int]:
    """The values of a read that name their writers."""
    match external.key.kind:
        case "list" | "set" | "bank":
            return list(external.version)
        case "register":
            return [external.version] if external.version else []
        case _:
            return []


# ---- two writers of one version


def _check_lost_updates(seen: Observations) -> None:
    """Of two committed transactions that saw one version and replaced it, one has lost what the other did."""
    replaced: dict[tuple[Key, Any], dict[int, Transaction]] = defaultdict(dict)
    for each in seen.externals:
        if each.before_write and each.key.kind in ("list", "register", "counter") and each.via == "table":
            replaced[each.key, each.version][each.transaction.id] = each.transaction
    for key, before, writer in _register_steps(seen):
        replaced[key, before][writer.id] = writer
    for (key, version), transactions in replaced.items():
        if len(transactions) > 1:
            who = ", ".join(map(str, transactions.values()))
            seen.report(names.LOST_UPDATE, f"{who} all replaced {_short(version)} of {key}", *transactions.values())


def _register_steps(seen: Observations) -> set[tuple[Key, int, Transaction]]:
    """What register reads tell: who replaced which value of which register."""
    steps = set()
    for each in seen.externals:
        writer = seen.lasting[each.key].get(each.version) if each.key.kind == "register" else None
        if writer is not None and each.before is not None:
            own = [written_value(op) for op in writer.lasting() if op.key == each.key]
            if each.before not in own:
                steps.add((each.key, each.before, writer))
    return steps


def _check_counters(seen: Observations) -> None:
    """No counter shows more than was begun."""
    begun: Counter[Key | None] = Counter()
    for t in seen.history.transactions:
        if t.status != "fail":
            begun.update(op.key for op in t.lasting() if op.kind == "increment")
    for each in seen.externals:
        if each.key.kind == "counter" and each.version > begun[each.key]:
            text = f"{each.transaction} saw {each.version} in {each.key} after {begun[each.key]} increments at most"
            seen.report(names.DUPLICATED, text, each.transaction)


# ---- two reads of a session


def _check_sessions(seen: Observations) -> None:
    """In a session nothing goes back, and what it has committed is there."""
    by_reader: dict[int, list[External]] = defaultdict(list)
    for each in seen.externals:
        by_reader[each.transaction.id].append(each)
    sessions: dict[int, list[Transaction]] = defaultdict(list)
    for t in sorted(seen.committed, key=lambda t: t.began_ns):
        if t.status == "ok":
            sessions[t.session].append(t)
    for transactions in sessions.values():
        _check_session(seen, transactions, by_reader)


def _check_session(seen: Observations, transactions: list[Transaction], reads: dict[int, list[External]]) -> None:
    newest: dict[tuple[Key, str], External] = {}
    written: dict[Key, list[tuple[int, Transaction]]] = defaultdict(list)
    for t in transactions:
        for each in reads[t.id]:
            before = newest.get((each.key, each.via))
            if before is not None and _older(each, before):
                text = (
                    f"{t} saw {_short(each.version)} of {each.key} after {before.transaction} of the same session had"
                )
                text += f" seen {_short(before.version)}"
                seen.report(names.NON_MONOTONIC, text, t, before.transaction)
            missing = [(v, w) for v, w in written[each.key] if v not in each.version] if _grows(each.key) else []
            if missing and t.freshness != "any":
                value, writer = missing[0]
                text = f"{t} did not see {value} in {each.key}, which {writer} of the same session had committed"
                seen.report(names.OWN_COMMIT_UNSEEN, text, t, writer)
            newest[each.key, each.via] = each
        for op in t.lasting():
            if op.key is not None and _grows(op.key):
                written[op.key].append((written_value(op), t))


def _grows(key: Key) -> bool:
    """Whether all of its writes stay to be seen, each by itself."""
    return key.kind in ("list", "set", "bank")


def _older(read: External, before: External) -> bool:
    """Whether a read surely shows an older state of its key."""
    match read.key.kind:
        case "list":
            return read.version == before.version[: len(read.version)] and len(read.version) < len(before.version)
        case "set" | "bank":
            return bool(before.version - read.version)
        case "counter":
            return bool(read.version < before.version)
        case _:
            return False


# ---- the end


def _check_final(seen: Observations, final: Transaction) -> None:
    """All that was acknowledged is there at the end; of the rest each transaction wholly or not at all."""
    shown = {op.key: op.result for op in final.reads() if op.key is not None}
    for t in seen.committed:
        writes = [op for op in t.lasting() if op.key in shown and op.key is not None and _grows(op.key)]
        missing = [op for op in writes if not _shows(shown[op.key], written_value(op))]
        if missing and t.status == "ok":
            text = f"{t} was acknowledged; of what it wrote is missing: {_list(missing)}"
            seen.report(names.LOST_WRITE, text, t)
        elif missing and len(missing) < len(writes):
            text = f"{t} had no answer, and is there in part; of what it wrote is missing: {_list(missing)}"
            seen.report(names.TORN, text, t)
    acknowledged: Counter[Key | None] = Counter()
    for t in seen.history.transactions:
        if t.status == "ok":
            acknowledged.update(op.key for op in t.lasting() if op.kind == "increment")
    for key, count in acknowledged.items():
        if key in shown and isinstance(shown[key], int) and shown[key] < count:
            text = f"{key} is {shown[key]} after {count} acknowledged increments"
            seen.report(names.LOST_WRITE, text, final)


def _shows(result: Any, value: int) -> bool:
    members = getattr(result, "transfers", result)
    return not isinstance(members, tuple | frozenset) or value in members


def _list(ops: list[Op]) -> str:
    return ", ".join(f"{written_value(op)} of {op.key}" for op in ops[:5])
