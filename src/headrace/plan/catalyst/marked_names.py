"""Names of Python functions by which nodes of ours are known again in Spark's plans, and in nobody else's.

A DataFrame's schema is its user's, and so nothing can be noted there: what reads a snapshot says by its name of which
relation. What runs in an epoch's workers says by its name which stage it is.
"""

from __future__ import annotations

_SNAPSHOT = "headrace_relation_"
_STAGE = "headrace_stage_"


def snapshot_name(relation: int) -> str:
    """The name of a function that reads a snapshot of a relation."""
    return f"{_SNAPSHOT}{relation}"


def relation_read(name: str) -> int | None:
    """The id of the relation that a function of this name reads; None for any other."""
    number = name.removeprefix(_SNAPSHOT)
    return int(number) if name != number and number.isdigit() else None


def stage_name(label: str) -> str:
    """The name of a function that runs stages, of which the last has this label."""
    return f"{_STAGE}{label}"


def stage_label(name: str) -> str | None:
    """The label of the stage that a function of this name runs; None for any other."""
    return name.removeprefix(_STAGE) if name.startswith(_STAGE) else None


__all__ = ["relation_read", "snapshot_name", "stage_label", "stage_name"]
