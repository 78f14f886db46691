"""Event time in a plan: where watermarks go, what state they bound, what EMIT ON WINDOW CLOSE waits for.

The marks themselves are in `watermarks`, how Catalyst's expressions move them in `marks`; what an operator does to
them, and which of its state they bound, its node says (`Operator.marks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.plan import tree
from headrace.plan.closing import closed
from headrace.plan.mark_rules import Marks
from headrace.plan.tree import Operator
from headrace.plan.watermark_rules import NO_EVENT_TIME, EventTime


def with_event_time(
    root: Operator, watermarks: Mapping[int, str], on_window_close: bool, names: Sequence[str]
) -> tuple[Operator, EventTime]:
    """The plan, bounded by the watermarks of the relations that have one (id to column); `names` are the view's.

    Only a plan with an operator that needs a watermark has to do with event time: then rows that are late at a source
    that bounds it are not taken in, and every state that can be bounded is. Raises `NotSupported` where
    `on_window_close` is asked for and no column of the result has a watermark.
    """
    marks = _through(root, watermarks)
    closing = closed(root, marks) if on_window_close else None
    root = closing or root
    needed = {i for op in tree.walk(root) for mark in op.marks_needed() for i in mark.relations}
    for op in tree.walk(root):
        op.forget_event_time()
    if not needed:
        return root, NO_EVENT_TIME
    _through(root, {i: column for i, column in watermarks.items() if i in needed})
    tree.number(root)
    expiry = {f"{op.id}/{name}": mark for op in tree.walk(root) for name, mark in op.expiry.items()}
    if closing is None:
        return root, EventTime(frozenset(needed), expiry)
    return root, EventTime(frozenset(needed), expiry, closing.mark, names[closing.position])


def _through(op: Operator, watermarks: Mapping[int, str]) -> Marks:
    """The marks of an operator's output, from the leaves up; operators note what they do by them."""
    return op.marks([_through(child, watermarks) for child in op.children], watermarks)
