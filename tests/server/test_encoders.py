"""Messages are made ahead of a client: all of them, in order, and within the memory that there is for that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server import encoders as encoders_module
from headrace.server.encoders import PIECE_ROWS, Data, Encoders, cut
from support import WAIT_S, eventually, examples


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(np.arange(start, start + count))], ["n"])


def shown(rows: pa.RecordBatch) -> Iterable[Data]:
    yield b"".join(b"%d " % n for n in rows.column(0).to_pylist())


def text_of(messages: Iterable[Iterable[Data]]) -> bytes:
    return b"".join(bytes(data) for piece in messages for data in piece)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(0, 3 * PIECE_ROWS), max_size=6), st.sampled_from([0, 100_000, 1 << 20, 64 << 20]),
    st.integers(1, 3),
)  # fmt: skip
def test_all_rows_come_in_order_whatever_memory_there_is(sizes: list[int], most_bytes: int, threads: int) -> None:
    encoders, starts = Encoders(most_bytes, threads), np.cumsum([0, *sizes])
    batches = [numbers(int(at), size) for at, size in zip(starts, sizes, strict=False)]
    assert text_of(encoders.encoded(batches, shown)) == b"".join(b"%d " % n for n in range(sum(sizes)))
    assert encoders.left == most_bytes


def test_a_client_that_is_slow_has_little_made_for_it() -> None:
    encoders, read = Encoders(64 << 20, 2), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for i in range(1000):
            read += 1
            yield numbers(i * 4096, 4096)

    made = encoders.encoded(batches(), shown)
    for i in range(1, 50):
        next(made)
        assert read - i <= 3  # those for each thread, and one more
    taken = (64 << 20) - encoders.left
    assert taken <= 4 * 2 * 4096 * 8
    made.close()
    assert encoders.left == 64 << 20


def test_the_first_piece_waits_for_no_other_rows() -> None:
    encoders = Encoders(64 << 20, 2)

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 5000)
        raise AssertionError("more rows were read")

    assert text_of([next(iter(encoders.encoded(batches(), shown)))]).startswith(b"0 1 2 ")


def test_pieces_are_made_side_by_side() -> None:
    encoders, both = Encoders(64 << 20, 2), threading.Barrier(2, timeout=WAIT_S)

    def together(rows: pa.RecordBatch) -> Iterable[Data]:
        if rows.column(0)[0].as_py():  # but for the first, which is alone
            both.wait()
        yield from shown(rows)

    batches = [numbers(i * 5000, 5000) for i in range(5)]
    assert text_of(encoders.encoded(batches, together)) == b"".join(b"%d " % n for n in range(25_000))


def test_many_slow_clients_stay_within_the_memory_that_there_is() -> None:
    most = 4 << 20
    encoders, sizes = Encoders(most, 2), []

    def counted(rows: pa.RecordBatch) -> Iterable[Data]:
        sizes.append(rows.num_rows)
        yield from shown(rows)

    clients = [encoders.encoded((numbers(j * 8192, 8192) for j in range(50)), counted) for _ in range(200)]
    for _ in range(3):
        for client in clients:
            next(client)
        assert 0 <= encoders.left <= most
    assert sizes.count(512) > 3 * len(sizes) // 4  # small pieces, each made when it is asked for
    for client in clients:
        client.close()
    assert encoders.left == most


def test_an_error_comes_to_who_takes_the_rows_and_leaves_nothing() -> None:
    encoders = Encoders(64 << 20, 2)

    def wrong(rows: pa.RecordBatch) -> Iterable[Data]:
        if rows.column(0)[0].as_py() >= 20_000:
            raise ValueError("no")
        yield from shown(rows)

    made = encoders.encoded((numbers(i * 5000, 5000) for i in range(100)), wrong)
    with pytest.raises(ValueError, match="no"):
        list(made)
    eventually(lambda: encoders.left == 64 << 20)


def test_without_threads_rows_are_made_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThreads:
        def __init__(self, *given: object) -> None:
            pass

        def submit(self, make: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(encoders_module, "ThreadPoolExecutor", NoThreads)
    encoders = Encoders(64 << 20, 2)
    assert text_of(encoders.encoded([numbers(0, 20_000)], shown)) == b"".join(b"%d " % n for n in range(20_000))


def test_systems_that_do_not_tell_which_cores_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert text_of(Encoders(64 << 20).encoded([numbers(0, 20_000)], shown)).endswith(b" 19999 ")


def test_pieces_are_about_as_large_as_each_other() -> None:
    assert [p.num_rows for p in cut([numbers(0, 10_000), numbers(0, 0), numbers(0, 3)])] == [5000, 5000, 3]
    wide = pa.record_batch([pa.array(["x" * 600_000] * 3)], ["t"])
    assert [p.num_rows for p in cut([wide])] == [1, 1, 1]
