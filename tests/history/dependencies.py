"""Which transactions depend on which: a graph over the committed ones of a history.

An edge from A to B says that A came before B in every order that explains the history:

ww        B replaced, or appended to, what A had written
wr        B saw what A had written
rw        A did not see yet what B wrote (an anti-dependency)
session   B followed A in a session and must build on it
realtime  A had ended before B began, and B must build on it

The order of versions comes from the reads (Adya's version order, inferred as Elle does): a list shows it whole; a
register shows which value it replaced, and a transaction that read one value and wrote another wrote the later one; a
counter's values are its versions; a set tells only who is in it, which is enough for wr and rw.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

import anomalies as names
import networkx as nx
from events import Key, Transaction
from observations import External, Observations, _short, written_value

Graph: TypeAlias = nx.MultiDiGraph


def dependencies(seen: Observations) -> Graph:
    """The graph; nodes are ids of transactions, and tuples for points of time."""
    graph = Graph()
    graph.add_nodes_from(t.id for t in seen.committed)
    by_key: dict[Key, list[External]] = defaultdict(list)
    for each in seen.externals:
        by_key[each.key].append(each)
    for key, reads in by_key.items():
        match key.kind:
            case "list":
                _list_edges(graph, seen, key, reads)
            case "set" | "bank":
                _set_edges(graph, seen, key, reads)
            case "register":
                _register_edges(graph, seen, key, reads)
            case "counter":
                _counter_edges(graph, seen, key, reads)
    _session_edges(graph, seen)
    _time_edges(graph, seen)
    return graph


def _edge(graph: Graph, kind: str, before: Transaction | None, after: Transaction | None, why: str) -> None:
    if before is not None and after is not None and before.id != after.id:
        graph.add_edge(before.id, after.id, kind, why=why)


# ---- by key


def _list_edges(graph: Graph, seen: Observations, key: Key, reads: list[External]) -> None:
    lasting = seen.lasting[key]
    order: tuple[int, ...] = max((r.version for r in reads), key=len)
    for read in reads:
        if read.version != order[: len(read.version)]:
            other = next(r for r in reads if r.version == order)
            text = f"{read.transaction} saw {_short(read.version)} of {key}, {other.transaction} {_short(order)}"
            seen.report(names.INCOMPATIBLE, text, read.transaction, other.transaction)
            return
    writers = [lasting.get(value) for value in order]
    for before, after, value in zip(writers, writers[1:], order[1:]):
        _edge(graph, "ww", before, after, f"{key}: {value} comes next")
    # What nobody was shown comes after all that somebody was.
    later = [(value, writer) for value, writer in lasting.items() if value not in set(order)]
    for value, writer in later:
        _edge(graph, "ww", writers[-1] if writers else None, writer, f"{key}: {value} comes later")
    for read in reads:
        length = len(read.version)
        if length:
            _edge(graph, "wr", writers[length - 1], read.transaction, f"{key}: saw {order[length - 1]}")
        for value, writer in list(zip(order, writers))[length : length + 1] or later:
            _edge(graph, "rw", read.transaction, writer, f"{key}: did not see {value}")


def _set_edges(graph: Graph, seen: Observations, key: Key, reads: list[External]) -> None:
    for read in reads:
        for value, writer in seen.lasting[key].items():
            if value in read.version:
                _edge(graph, "wr", writer, read.transaction, f"{key}: saw {value}")
            else:
                _edge(graph, "rw", read.transaction, writer, f"{key}: did not see {value}")


def _register_edges(graph: Graph, seen: Observations, key: Key, reads: list[External]) -> None:
    lasting = seen.lasting[key]
    versions = _register_versions(seen, key, reads)
    if not nx.is_directed_acyclic_graph(versions):
        cycle = [str(a) for a, _ in nx.find_cycle(versions)]
        return seen.report(names.CYCLIC_VERSIONS, f"{key}: {' before '.join(cycle)} before {cycle[0]}")
    for before, after in versions.edges:
        _edge(graph, "ww", lasting.get(before), lasting.get(after), f"{key}: {after} replaced {before}")
    for read in reads:
        value = read.version
        _edge(graph, "wr", lasting.get(value), read.transaction, f"{key}: saw {value}")
        for later in versions.successors(value) if value in versions else ():
            _edge(graph, "rw", read.transaction, lasting.get(later), f"{key}: did not see {later}")


def _register_versions(seen: Observations, key: Key, reads: list[External]) -> nx.DiGraph:
    """Which values surely came before which."""
    lasting, versions = seen.lasting[key], nx.DiGraph()
    versions.add_edges_from((0, value) for value in lasting)
    for read in reads:
        if read.before is not None and read.version in lasting and (read.before in lasting or read.before == 0):
            versions.add_edge(read.before, read.version)
        if read.before_write and (read.version in lasting or read.version == 0):
            own = [written_value(op) for op in read.transaction.lasting() if op.key == key]
            versions.add_edge(read.version, own[0])
    for writer in {t.id: t for t in lasting.values()}.values():
        own = [written_value(op) for op in writer.lasting() if op.key == key]
        versions.add_edges_from(itertools.pairwise(own))
    return versions


def _counter_edges(graph: Graph, seen: Observations, key: Key, reads: list[External]) -> None:
    made = _counter_writers(seen, key)
    known = sorted(made)
    for before, after in itertools.pairwise(known):
        _edge(graph, "ww", made[before], made[after], f"{key}: {after} comes after {before}")
    for read in reads:
        place = bisect_right(known, read.version)
        if place:
            _edge(graph, "wr", made[known[place - 1]], read.transaction, f"{key}: saw {read.version}")
        if place < len(known):
            _edge(graph, "rw", read.transaction, made[known[place]], f"{key}: did not see {known[place]}")


def _counter_writers(seen: Observations, key: Key) -> dict[int, Transaction]:
    """Who made a counter what: as far as increments were told the new value."""
    return {
        op.result: t
        for t in seen.committed
        for op in t.lasting()
        if op.kind == "increment" and op.key == key and isinstance(op.result, int)
    }


# ---- by session and time


def _session_edges(graph: Graph, seen: Observations) -> None:
    """The next in a session builds on what came before, if it is promised to."""
    last: dict[int, list[Transaction]] = defaultdict(list)
    for t in sorted(seen.committed, key=lambda t: t.began_ns):
        if t.status != "ok":
            continue
        earlier = last[t.session]
        if t.freshness == "newest":
            _edge(graph, "session", earlier[-1] if earlier else None, t, f"session {t.session}")
        elif t.freshness == "session":
            # A session waits for what it has written: what it took back itself is nothing.
            written = next((e for e in reversed(earlier) if any(True for _ in e.lasting())), None)
            _edge(graph, "session", written, t, f"session {t.session}")
        earlier.append(t)


def _time_edges(graph: Graph, seen: Observations) -> None:
    """Whoever began after another had ended comes after it, by way of points of time, so that edges stay few.

    What reads views may be behind the newest, but not behind what anybody was shown of the same relation by a
    transaction that only read. A server that was killed since has forgotten at which epoch that was: then only what
    was seen of the relation must still be there.
    """
    ended = [t for t in seen.committed if t.status == "ok"]
    _chain(graph, "all", _ends(ended), [t for t in seen.committed if t.freshness == "newest"])
    behind = [t for t in seen.committed if t.freshness != "newest"]
    for relation in {r for t in behind for r in _relations(t)}:
        readers = [t for t in ended if t.read_only and relation in _relations(t)]
        late = [t for t in behind if relation in _relations(t)]
        for life in range(len(seen.history.kills_ns) + 1):
            now = [t for t in late if _life(seen, t) == life]
            _chain(graph, (relation, life), _ends([t for t in readers if _life(seen, t) == life]), now)
            earlier = [t for t in readers if _life(seen, t) < life]
            shown = [(t.ended_ns, writer) for t in earlier for writer in _writers_seen(graph, seen, t, relation)]
            _chain(graph, (relation, life, "over a restart"), shown, now)


def _life(seen: Observations, t: Transaction) -> int:
    """How often the server had been killed before it began."""
    return bisect_right(seen.history.kills_ns, t.began_ns)


def _relations(t: Transaction) -> set[tuple[str, str, int]]:
    """What it read, told apart as finely as may be: keys lie in two tables of each kind, by even and odd ids."""
    return {(op.key.kind, op.via, op.key.id % 2) for op in t.reads() if op.key is not None}


def _writers_seen(graph: Graph, seen: Observations, t: Transaction, relation: tuple[str, str, int]) -> list[int]:
    """Whose writes to a relation a reader saw."""
    kind, _, parity = relation
    found = [a for a, _, edge in graph.in_edges(t.id, keys=True) if edge == "wr"]
    writers = (w for w in seen.committed if w.id in found)
    return [w.id for w in writers if any(o.key and (o.key.kind, o.key.id % 2) == (kind, parity) for o in w.lasting())]


def _ends(transactions: Iterable[Transaction]) -> list[tuple[int, int]]:
    return [(t.ended_ns, t.id) for t in transactions]


def _chain(graph: Graph, name: Hashable, ended: Iterable[tuple[int, int]], begun: Iterable[Transaction]) -> None:
    """What is given with a time, by its id, comes before all that began later."""
    order = sorted(ended)
    times = [time_ns for time_ns, _ in order]
    points: list[Any] = [("time", name, place) for place in range(len(order))]
    for (_, i), point in zip(order, points):
        graph.add_edge(i, point, "realtime", why="ended")
    graph.add_edges_from((a, b, "realtime", {"why": "later"}) for a, b in itertools.pairwise(points))
    for t in begun:
        place = bisect_left(times, t.began_ns)
        if place:
            graph.add_edge(points[place - 1], t.id, "realtime", why="began")
