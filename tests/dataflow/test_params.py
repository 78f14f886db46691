"""What tasks are told of their epoch survives the way there."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.params import EpochParams, SourceInput, StateInput, TableInput, decode
from headrace.state.schema import RunRef

INT64 = st.integers(-(2**63), 2**63 - 1)
REFS = st.lists(
    st.builds(
        RunRef,
        table_id=st.integers(1, 10**6),
        path=st.text(max_size=20),
        offset=st.integers(0, 2**40),
        length=st.integers(1, 2**40),
        rows=st.integers(1, 2**40),
        epoch_lo=INT64,
        epoch_hi=INT64,
        k_min=INT64,
        k_max=INT64,
        crc32=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    ),
    max_size=3,
).map(tuple)
SCALARS: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), INT64, st.text(max_size=5))
SOURCES = st.builds(
    SourceInput,
    tasks=st.lists(st.dictionaries(st.text(max_size=4), SCALARS, max_size=3), max_size=2).map(tuple),
    options=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    columns=st.lists(
        st.tuples(st.text(max_size=5), st.sampled_from(["int", "array<string>"]), st.booleans()), max_size=3
    ).map(tuple),
)
PARAMS = st.builds(
    EpochParams,
    attempt=st.text(max_size=8),
    from_epoch=INT64,
    to_epoch=INT64,
    first=st.booleans(),
    root=st.text(max_size=8),
    prefix=st.text(max_size=8),
    sync=st.booleans(),
    spool=st.text(max_size=8),
    memory_bytes=st.integers(0, 2**40),
    budget_bytes=st.integers(0, 2**40),
    inner=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    tables=st.dictionaries(st.integers(1, 99), st.builds(TableInput, REFS), max_size=2),
    sources=st.dictionaries(st.integers(1, 99), SOURCES, max_size=2),
    state=st.dictionaries(
        st.text(max_size=8), st.builds(StateInput, st.integers(1, 99), REFS, st.none() | st.integers()), max_size=2
    ),
)


@settings(deadline=None)
@given(PARAMS)
def test_round_trip(params: EpochParams) -> None:
    assert decode(params.encode()) == params
