"""Logical replication messages as changes, by columns, beside a decoder that takes them one by one."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_by_row import Untold, changes

from headrace.connectors.postgres.pgoutput import Decoder, Messages, RowEvents
from headrace.connectors.postgres.unchanged import Told
from headrace.errors import DiskFull, SourceError
from support import examples

OURS, OTHER = 77, 78
NAMES = ["a", "id", "b", "more"]
TEXTS = ["", "1", "x", "é\n\t", "N", "t\0\0\0\1u", "long" * 40, "u"]
Value = str | None


def relation(
    number: int = OURS, names: Sequence[str] = NAMES, told: Sequence[str] = ("id",), identity: bytes = b"d"
) -> bytes:
    flags = [b"\1" if name in told else b"\0" for name in names]
    columns = b"".join(f + name.encode() + b"\0" + struct.pack("!Ii", 25, -1) for f, name in zip(flags, names))
    return b"R" + struct.pack("!I", number) + b"public\0t\0" + identity + struct.pack("!H", len(names)) + columns


def row(tag: bytes, values: Sequence[Any]) -> bytes:
    """A row; `...` is a value that is not told."""
    found = tag + struct.pack("!H", len(values))
    for value in values:
        if value is None or value is ...:
            found += b"n" if value is None else b"u"
        else:
            found += b"t" + struct.pack("!I", len(value.encode())) + value.encode()
    return found


def change(kind: bytes, *rows: bytes, number: int = OURS) -> bytes:
    return kind + struct.pack("!I", number) + b"".join(rows)


def commit(end: int) -> bytes:
    return b"C\0" + struct.pack("!qqq", end - 1, end, 0)


def begin() -> bytes:
    return b"B" + struct.pack("!qqi", 0, 0, 1)


def decoded(
    messages: Sequence[tuple[int, bytes]], cuts: Sequence[int] = (), low: int = 0, high: int = 1 << 40, emptied: int = 0
) -> Any:
    decoder = Decoder(OURS, ["id"], ["id", "a", "b"], low, high, emptied)
    bounds = [0, *sorted(cuts), len(messages)]
    batches = (messages[start:stop] for start, stop in pairwise(bounds))
    found = decoder.changes(Messages(np.array([p for p, _ in b], np.int64), [d for _, d in b]) for b in batches)
    return [told for part in found for told in plain(part)]


def plain(part: RowEvents) -> list[Any]:
    rows = [dict(zip(part.values, values)) for values in zip(*(a.to_pylist() for a in part.values.values()))]
    for name, mask in part.unsaid.items():
        for i in np.flatnonzero(mask):
            assert rows[i][name] is None
            rows[i][name] = ...
    for i in [] if part.moved is None else np.flatnonzero(part.moved).tolist():
        assert part.deletes[i - 1] and part.positions[i - 1] == part.positions[i]
    return [
        ("delete" if d else "upsert", p, r) for d, p, r in zip(part.deletes.tolist(), part.positions.tolist(), rows)
    ]


def history(random: random.Random, length: int) -> list[tuple[int, bytes]]:
    """Transactions with all kinds of messages, the last of which may be open."""
    names, data, ends = list(NAMES), [relation(), relation(OTHER, ["id"])], 2
    full = random.random() < 0.5

    def values(untold: bool = False) -> list[Any]:
        choices = [*TEXTS, None, *([...] if untold else [])]
        return [random.choice(choices if name != "id" else TEXTS) for name in names]

    def old() -> bytes:
        return row(b"O", values()) if full else row(b"K", [v if n == "id" else None for n, v in zip(names, values())])

    for _ in range(length):
        kind = random.choice("IIUUUDDCRxM")
        if kind == "I":
            data.append(change(b"I", row(b"N", values())))
        elif kind == "U":
            before = [old()] if full or random.random() < 0.3 else []
            data.append(change(b"U", *before, row(b"N", values(untold=True))))
        elif kind == "D":
            data.append(change(b"D", old()))
        elif kind == "x":
            data.append(change(b"I", row(b"N", ["1"]), number=OTHER))
        elif kind == "R":
            random.shuffle(names)
            data.append(relation(names=names))
        elif kind == "M":
            data += [b"M\0something"]
        else:
            data += [commit(ends), begin()]
            ends += 5
    return list(enumerate(data))


@settings(max_examples=examples(200), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_all_histories_as_one_by_one(random: random.Random, length: int, low: int, more: int) -> None:
    messages = history(random, length)
    cuts = [random.randrange(len(messages) + 1) for _ in range(random.randrange(6))]
    wanted = list(changes(OURS, ["id"], ["id", "a", "b"], low, low + more, messages))
    assert decoded(messages, cuts, low, low + more) == wanted


@pytest.mark.parametrize(
    ("told", "fails"),
    [
        (change(b"U", row(b"N", ["x", ..., "z", None])), True),
        (change(b"U", row(b"K", [None, "0", None, None]), row(b"N", ["x", ..., "z", None])), False),
        (change(b"U", row(b"N", ["x", "1", ..., None])), False),
        (change(b"U", row(b"K", [None, "0", None, None]), row(b"N", ["x", "1", ..., None])), False),
        (change(b"U", row(b"O", ["y", "0", "z", None]), row(b"N", ["x", "1", ..., None])), False),
        (change(b"U", row(b"N", ["x", "1", "z", ...])), False),
    ],
)
def test_a_value_that_is_not_told(told: bytes, fails: bool) -> None:
    fine = change(b"I", row(b"N", ["x", "1", None, None]))
    messages = list(enumerate([relation(), fine, told, fine, commit(5)]))
    args = OURS, ["id"], ["id", "a", "b"], 0, 9, messages
    if not fails:
        assert decoded(messages) == list(changes(*args))
        return
    with pytest.raises(Untold):
        list(changes(*args))
    with pytest.raises(SourceError, match=r'does not say what "id" of public\.t is'):
        decoded(messages)


def test_whichever_is_wrong_first_is_told() -> None:
    untold = change(b"U", row(b"N", ["x", ..., "1", None]))
    truncated = b"T" + struct.pack("!IbI", 1, 0, OURS)
    renamed = relation(names=["id", "b"])
    for second, third, text in ((untold, truncated, "does not say"), (truncated, renamed, "truncated"),
                                (renamed, untold, 'no column "a" any more')):  # fmt: skip
        with pytest.raises(SourceError, match=text):
            decoded(list(enumerate([relation(), second, third, commit(5)])))
    with pytest.raises(SourceError, match="truncated"):
        decoded(list(enumerate([relation(), truncated, commit(5)])))
    with pytest.raises(SourceError, match="truncated"):
        decoded(list(enumerate([relation(), truncated, commit(5)])), cuts=[2])
    assert decoded(list(enumerate([relation(), truncated, commit(5)])), cuts=[2], high=4) == []
    other = b"T" + struct.pack("!IbI", 1, 0, OTHER)
    assert decoded(list(enumerate([relation(), other, commit(5)]))) == []


def test_rows_from_before_a_column_are_no_fault_where_nobody_asks_for_them() -> None:
    """A table that got the column follows from behind it on, through a slot that still holds what was before."""
    older = change(b"I", row(b"N", ["x", "1", None, None]))
    young = change(b"I", row(b"N", ["x", "1", None, None]))
    without = relation(names=["id", "z", "b", "c"])
    messages = list(enumerate([without, older, commit(5), relation(), young, commit(8)]))
    for cuts in ([], [2], [1, 2, 3], [3], [5]):
        assert [told[1] for told in decoded(messages, cuts, low=5)] == [4], cuts
        with pytest.raises(SourceError, match='no column "a" any more'):
            decoded(messages, cuts, low=4)


def test_what_a_truncation_has_outdated_is_not_told() -> None:
    truncated = b"T" + struct.pack("!IbI", 1, 0, OURS)
    untold = change(b"U", row(b"N", ["x", ..., "1", None]))
    more = change(b"I", row(b"N", ["x", "1", None, None]))
    messages = list(enumerate([relation(), more, untold, truncated, more, commit(6)]))
    for cuts in ([], [3], [4], [1, 2, 3, 4, 5]):
        assert [told[1] for told in decoded(messages, cuts, emptied=3)] == [4]


def test_text_that_is_no_text() -> None:
    broken = change(b"I", b"N" + struct.pack("!H", 4) + b"t\0\0\0\1\xff" + b"t\0\0\0\0011nn")
    with pytest.raises(SourceError, match="not UTF-8"):
        decoded(list(enumerate([relation(), broken, commit(5)])))


def test_a_full_disk_is_told_where_rows_are_kept() -> None:
    told = Told()

    class Full:
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    told._file = cast(Any, Full())
    with pytest.raises(DiskFull, match="what the log has told"):
        told.add(pa.RecordBatch.from_pydict({"a": [1]}))
    assert len(told) == 0


@pytest.mark.parametrize(
    ("told", "identity"), [([], b"d"), ([], b"n"), (["a"], b"i"), (["a", "id"], b"d"), (NAMES, b"i")]
)
def test_rows_that_changed_while_the_key_was_none_are_told(told: Sequence[str], identity: bytes) -> None:
    """That it is one again by the time when it is looked at does not tell which of them became which."""
    insert = change(b"I", row(b"N", ["x", "1", "y", "z"]))
    without = relation(told=told, identity=identity)
    before = [(1, begin()), (2, relation()), (3, insert), (4, commit(5))]
    after = [(14, begin()), (15, relation()), (16, insert), (17, commit(18))]
    assert len(decoded([*before, (6, begin()), (7, without), (9, commit(10)), *after])) == 2, "no row has changed"
    bad = [*before, (6, begin()), (7, without), (8, insert), (9, commit(10)), *after]
    with pytest.raises(SourceError, match=r"have changed while \(id\) was no key of it that changes told"):
        decoded(bad)
    assert len(decoded(bad, high=5)) == 1 and len(decoded(bad, low=10)) == 1, "of others it is nothing"
    assert len(decoded(bad, emptied=9)) == 1, "what came before it was truncated is gone"
    whole = [*before, (6, begin()), (7, relation(told=NAMES, identity=b"f")), (8, insert), (9, commit(10))]
    assert len(decoded(whole)) == 2
