"""Cycles in a graph of dependencies, and their names.

A cycle of ww alone is G0; with wr G1c; with one rw G-single, which is a lost update if its edges are of one key; with
several rw that never follow one another G-nonadjacent; any other G2. Snapshot isolation excludes all but the last
(Cerone and Gotsman). Cycles that close only through the order of a session or of real time are named so; they are
looked for after those that need no such edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any, TypeAlias

import anomalies as names
import networkx as nx
from anomalies import Anomaly

Graph: TypeAlias = nx.MultiDiGraph
Edge = tuple[Any, Any, str]
MOST = 3
"""As many cycles of one name are reported."""
_ORDERS: tuple[frozenset[str], ...] = (
    frozenset(), frozenset({"session"}), frozenset({"session", "realtime"}),
)  # fmt: skip


def find_cycles(graph: Graph, order: str) -> list[Anomaly]:
    """The cycles of a graph by name, a few of each, with as much order as the level has."""
    stages = {"none": 1, "session": 2, "real-time": 3}[order]
    found: list[Anomaly] = []
    for stage, extra in enumerate(_ORDERS[:stages]):
        new = _ORDERS[stage] - _ORDERS[stage - 1] if stage else frozenset()
        kinds = frozenset({"ww", "wr", "rw"}) | extra
        whole = _only(graph, kinds)
        for part in nx.strongly_connected_components(whole):
            if len(part) > 1:
                found += _in_component(whole.subgraph(part).copy(), extra, new)
    return found


def _only(graph: Graph, kinds: frozenset[str]) -> Graph:
    """The edges of some kinds, as a graph of its own: networkx looks through a view anew at every step."""
    made = Graph()
    made.add_nodes_from(graph)
    made.add_edges_from((a, b, kind, data) for a, b, kind, data in graph.edges(keys=True, data=True) if kind in kinds)
    return made


def _in_component(graph: Graph, extra: frozenset[str], new: frozenset[str]) -> Iterator[Anomaly]:
    """Cycles of each kind within a component, none without one of the new edges if there are any."""
    writes, forward = frozenset({"ww"}) | extra, frozenset({"ww", "wr"}) | extra
    searches: tuple[Callable[[], Iterator[list[Edge]]], ...] = (
        lambda: _closed(graph, "ww", writes),
        lambda: _closed(graph, "wr", forward),
        lambda: _closed(graph, "rw", forward),
        lambda: _apart(graph, extra),
        lambda: _closed(graph, "rw", forward | {"rw"}),
    )
    seen: set[frozenset[Any]] = set()
    for search in searches:
        fresh = (c for c in search() if not new or any(kind in new for _, __, kind in c))
        for cycle in islice(fresh, MOST):
            nodes = frozenset(node for node, _, __ in cycle)
            if nodes not in seen:
                seen.add(nodes)
                yield _anomaly(graph, cycle)


def _closed(graph: Graph, kind: str, back: frozenset[str]) -> Iterator[list[Edge]]:
    """For each edge of a kind the shortest way back over edges of the kinds given."""
    view = _only(graph, back)
    reached: dict[Any, set[Any]] = {}
    for a, b, found in graph.edges(keys=True):
        if found != kind:
            continue
        if b not in reached:
            reached[b] = nx.descendants(view, b)
        if a in reached[b]:
            yield [(a, b, kind), *_along(view, nx.shortest_path(view, b, a))]


def _apart(graph: Graph, extra: frozenset[str]) -> Iterator[list[Edge]]:
    """Cycles with rw edges, none of which follows another: each node stands twice, for how it was entered."""
    doubled = nx.DiGraph()
    for a, b, kind in graph.edges(keys=True):
        if kind == "rw":
            doubled.add_edge((a, False), (b, True), kind=kind)
        elif kind in ("ww", "wr") or kind in extra:
            doubled.add_edge((a, False), (b, False), kind=kind)
            doubled.add_edge((a, True), (b, False), kind=kind)
    for part in nx.strongly_connected_components(doubled):
        if len(part) > 1:
            inner = doubled.subgraph(part)
            for a, b in ((a, b) for a, b, kind in inner.edges(data="kind") if kind == "rw"):
                nodes = [a, *nx.shortest_path(inner, b, a)]
                yield [(x[0], y[0], inner.edges[x, y]["kind"]) for x, y in pairwise(nodes)]


def _along(graph: Graph, nodes: list[Any]) -> list[Edge]:
    """The edges of a way, of several between two nodes the strongest."""
    order = ("ww", "wr", "rw", "session", "realtime")
    return [(a, b, min(graph[a][b], key=order.index)) for a, b in pairwise(nodes)]


# ---- names


def _anomaly(graph: Graph, cycle: list[Edge]) -> Anomaly:
    steps = [(a, b, kind, graph.edges[a, b, kind]["why"]) for a, b, kind in cycle]
    name = _name([kind for _, __, kind in cycle], [why for *_, kind, why in steps if kind in ("ww", "wr", "rw")])
    if any(kind == "realtime" for _, __, kind in cycle):
        name += names.BY_TIME
    elif any(kind == "session" for _, __, kind in cycle):
        name += names.BY_SESSION
    transactions = tuple(node for node, _, __ in cycle if isinstance(node, int))
    return Anomaly(name, transactions, "; ".join(_told(steps)))


def _name(kinds: list[str], whys: list[str]) -> str:
    against = [place for place, kind in enumerate(kinds) if kind == "rw"]
    if not against:
        return names.G1C if "wr" in kinds else names.G0
    if len(against) == 1:
        keys = {why.partition(":")[0] for why in whys}
        return names.LOST_UPDATE if len(keys) == 1 and "ww" in kinds and "wr" not in kinds else names.G_SINGLE
    if all(kinds[(place + 1) % len(kinds)] != "rw" for place in against):
        return names.G_NONADJACENT
    predicates = any(why.startswith(("set ", "bank ")) for why in whys)
    return names.G2 if predicates else names.G2_ITEM


def _told(steps: list[tuple[Any, Any, str, str]]) -> Iterator[str]:
    """A cycle in words; ways through points of time as one step."""
    start = next((i for i, (a, *_) in enumerate(steps) if isinstance(a, int)), 0)
    steps = steps[start:] + steps[:start]
    since = None
    for a, b, kind, why in steps:
        since = a if isinstance(a, int) else since
        if isinstance(b, int):
            if kind == "realtime":
                yield f"T{since} had ended before T{b} began"
            else:
                yield f"T{a} -{kind}-> T{b} ({why})"
