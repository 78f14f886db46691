"""What the parts share is made of parts itself."""

from __future__ import annotations

from headrace.coordinator.core import Core
from headrace.coordinator.graph import Graph


def test_the_core_has_a_graph_and_is_none() -> None:
    """Whoever decides something gets the graph; it has neither a lock nor a catalog."""
    assert Core.__bases__ == (object,)
    assert not {name for name in vars(Graph) if not name.startswith("_")} & set(vars(Core))
