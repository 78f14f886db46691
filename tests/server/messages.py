"""Any message of the protocol, of either side."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.server import backend, frontend

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


filled = text.filter(bool)


oid = st.integers(0, 2**32 - 1)


values = st.lists(st.none() | st.binary(max_size=20), max_size=5).map(tuple)


formats = st.lists(st.sampled_from([0, 1]), max_size=5).map(tuple)


int_32 = st.integers(-(2**31), 2**31 - 1)


target = st.sampled_from("SP")


typed_frontend = st.one_of(
    st.builds(frontend.Query, text),
    st.builds(frontend.Parse, text, text, st.lists(oid, max_size=5).map(tuple)),
    st.builds(frontend.Bind, text, text, formats, values, formats),
    st.builds(frontend.Describe, target, text),
    st.builds(frontend.Close, target, text),
    st.builds(frontend.Execute, text, int_32),
    st.builds(frontend.Sync),
    st.builds(frontend.Flush),
    st.builds(frontend.Terminate),
    st.builds(frontend.Opaque, st.sampled_from("Fpdcf"), st.binary(max_size=30)),
)


startup_frontend = st.one_of(
    st.builds(frontend.CancelRequest, int_32, st.binary(min_size=4, max_size=256)),
    st.builds(frontend.Startup, st.dictionaries(filled, text, max_size=4), st.integers(3 << 16, (3 << 16) + 9)),
)


fields = st.builds(
    backend.Field, text, st.integers(0, 2**31 - 1), st.integers(-2, 100), int_32, st.sampled_from([0, 1])
)


backends = st.one_of(
    st.just(backend.AuthenticationOk()),
    st.builds(backend.NegotiateProtocolVersion, st.integers(0, 9), st.lists(text, max_size=3).map(tuple)),
    st.builds(backend.ParameterStatus, text, text),
    st.builds(backend.BackendKeyData, int_32, st.binary(max_size=32)),
    st.builds(backend.ReadyForQuery, st.sampled_from("ITE")),
    st.builds(backend.RowDescription, st.lists(fields, max_size=4).map(tuple)),
    st.builds(backend.DataRow, values),
    st.builds(backend.ParameterDescription, st.lists(oid, max_size=4).map(tuple)),
    st.builds(backend.CommandComplete, text),
    st.builds(backend.Report, st.sampled_from("EN"), st.dictionaries(st.sampled_from("SVCMDHP"), text)),
    st.sampled_from("123nsI").map(backend.Bare),
)
