"""Bindings of a source that say only what has moved since the one before.

A source of many splits (a folder of files, say) has most of them stand still from one binding to the next. So what is
stored of a binding, and kept in memory, is what it changes; now and then a whole one comes between, so that a chain of
changes never names more than half as many splits as there are. All bindings together are therefore no more than some
times what ever moved, a look-up never walks further than it takes to copy the result, and bindings that nobody needs
are deleted without writing others anew: those before a whole one.

A chain ends with a whole binding once it names half as many splits as there are. Bindings that were put together last
are cached, and share the entries of all splits that stand still.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headrace.catalog.frozen import Timeline
from headrace.catalog.records import RemapRecord, key_text
from headrace.errors import CorruptObject

CACHED_SPLITS = 400_000
"""Splits of all bindings that are kept put together."""

Positions = dict[str, object]


def shortened(before: RemapRecord, chained: int, binding: RemapRecord) -> RemapRecord:
    """A binding as the change from the whole one `before` it; as it is where its chain is due to end.

    `chained` is how many splits the chain up to `before` names; a change of the watermark alone counts as one.
    """
    moved = _moved(before.offsets, binding.offsets)
    gone = tuple(split for split in before.offsets if split not in binding.offsets)
    chained += max(len(moved) + len(gone), 1)
    if 2 * chained >= len(binding.offsets):
        return binding
    return replace(binding, offsets=moved, base=before.epoch, gone=gone, chained=chained)


def needed(bindings: Timeline[RemapRecord], epoch: int) -> int:
    """The epoch of the oldest binding that tells what holds at `epoch` or later; 0 if all do."""
    at = bindings.up_to(epoch)
    while at is not None and at.base is not None:
        at = _base(bindings, at)
    return 0 if at is None else at.epoch


def moves(bindings: Iterable[RemapRecord], start: Positions) -> Iterator[tuple[int, Positions, Positions]]:
    """Of each stored binding the epoch, and where the splits that it moves stood before and stand then."""
    now = dict(start)
    for binding in bindings:
        to = binding.offsets if binding.base is not None else _moved(now, binding.offsets)
        yield binding.epoch, {split: now[split] for split in to if split in now}, to
        now = dict(binding.offsets) if binding.base is None else _applied(now, binding)


class Wholes:
    """Puts bindings together from what is stored of them, and keeps those that were asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[RemapRecord, RemapRecord]] = OrderedDict()
        self._splits = 0
        self._lock = threading.Lock()

    def of(self, bindings: Timeline[RemapRecord], stored: RemapRecord) -> RemapRecord:
        """A binding of `bindings` with the positions of all splits. Raises `CorruptObject` if a part is missing."""
        if stored.base is None:
            return stored
        with self._lock:
            chain: list[RemapRecord] = []
            at, found = stored, self._find(stored)
            while found is None:
                chain.append(at)
                at = _base(bindings, at)
                found = at if at.base is None else self._find(at)
            if not chain:
                return found
            offsets = dict(found.offsets)
            for step in reversed(chain):
                offsets = _applied(offsets, step)
            made = replace(stored, offsets=offsets, base=None, gone=(), chained=0)
            self._keep(stored, made)
            return made

    def _find(self, stored: RemapRecord) -> RemapRecord | None:
        record, made = self._kept.get(stored.key, (None, None))
        if record is not stored:
            return None
        self._kept.move_to_end(stored.key)
        return made

    def _keep(self, stored: RemapRecord, made: RemapRecord) -> None:
        _, old = self._kept.pop(stored.key, (None, None))
        self._splits += len(made.offsets) - (0 if old is None else len(old.offsets))
        self._kept[stored.key] = (stored, made)
        while self._splits > CACHED_SPLITS and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._splits -= len(oldest.offsets)


def _base(bindings: Timeline[RemapRecord], stored: RemapRecord) -> RemapRecord:
    assert stored.base is not None
    found = bindings.up_to(stored.base)
    if found is None or found.epoch != stored.base:
        raise CorruptObject(
            f"the catalog has lost remap {key_text((stored.source_id, stored.base))}, which others need"
        )
    return found


def _moved(before: Positions, now: Positions) -> Positions:
    """The splits that stand elsewhere, or are new."""
    unknown = object()
    return {split: at for split, at in now.items() if before.get(split, unknown) != at}


def _applied(offsets: Positions, step: RemapRecord) -> Positions:
    """The same dictionary, taken a step further."""
    offsets.update(step.offsets)
    for split in step.gone:
        offsets.pop(split, None)
    return offsets
