from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import typed_frontend
from wire_line import SECRET, Line

from headrace.errors import QueryCanceled
from headrace.server import backend, frontend
from headrace.server.backend import Report
from headrace.server.encoders import ENCODERS
from headrace.server.frontend import Bind, Close, Describe, Execute, Flush, Opaque, Parse, Query, Sync
from headrace.server.wire import ProtocolViolation
from support import examples


@pytest.fixture
def line() -> Line:
    line = Line()
    line.say(frontend.Startup({"user": "root", "database": "dev"}))
    return line


def state(messages: list) -> str:
    codes = [m.fields["C"] for m in messages if isinstance(m, Report) and m.kind == "E"]
    assert len(codes) == 1
    return codes[0]


def test_startup_reports_settings_and_key():
    line = Line()
    assert list(line.connection.receive([frontend.SslRequest()])) == [b"N"]
    assert list(line.connection.receive([frontend.GssEncRequest()])) == [b"N"]
    said = line.say(frontend.Startup({"user": "root", "database": "dev", "application_name": "me"}))
    settings = {m.name: m.value for m in said if isinstance(m, backend.ParameterStatus)}
    assert settings["server_version"] == "13.14.0"
    assert (settings["client_encoding"], settings["application_name"]) == ("UTF8", "me")
    assert said[0] == backend.AuthenticationOk()
    assert said[-2:] == [backend.BackendKeyData(7, SECRET[:4]), backend.ReadyForQuery("I")]


def test_a_newer_minor_version_is_negotiated_down():
    for asked, granted, key in ((2, 2, SECRET), (9999, 2, SECRET), (1, 1, SECRET[:4]), (0, 0, SECRET[:4])):
        said = Line().say(frontend.Startup({"user": "root", "_pq_.x": "1"}, (3 << 16) + asked))
        assert said[0] == backend.NegotiateProtocolVersion((3 << 16) + granted, ("_pq_.x",))
        assert said[-2:] == [backend.BackendKeyData(7, key), backend.ReadyForQuery("I")]
    assert isinstance(
        Line().say(frontend.Startup({"user": "root"}, frontend.PROTOCOL_3_2))[0], backend.AuthenticationOk
    )


@pytest.mark.parametrize(("parameters", "code"), [({"user": "u", "database": "missing"}, "3D000"), ({}, "28000")])
def test_a_client_is_turned_away(parameters, code):
    line = Line()
    (report,) = line.say(frontend.Startup(parameters))
    assert (report.fields["S"], report.fields["C"]) == ("FATAL", code)
    assert line.connection.closed


def test_a_cancel_request_is_passed_on():
    line = Line()
    assert line.say(frontend.CancelRequest(3, b"wxyz")) == []
    assert line.connection.closed
    assert line.cancelled == [(3, b"wxyz")]


def test_simple_query(line):
    said = line.say(Query("select 1 as a, 'x'::text as b; create table t (a int)"))
    assert [f.name for f in said[0].fields] == ["a", "b"]
    assert [f.type_oid for f in said[0].fields] == [23, 25]
    assert said[1:] == [
        backend.DataRow((b"1", b"x")),
        backend.CommandComplete("SELECT 1"),
        backend.CommandComplete("CREATE_TABLE"),
        backend.ReadyForQuery("I"),
    ]


@pytest.mark.parametrize("sql", ["", " ; ", "-- nothing", "/* nothing */;"])
def test_an_empty_query(line, sql):
    assert line.kinds(Query(sql)) == ["I", "ReadyForQuery"]
    assert line.kinds(Parse("", sql), Bind("", ""), Describe("P", ""), Execute(""), Sync()) == [
        "1", "2", "n", "I", "ReadyForQuery",
    ]  # fmt: skip


def test_an_error_ends_the_script_and_carries_its_fields(line):
    said = line.say(Query("notify 'one'; oops; notify 'two'"))
    assert [m.fields["M"] for m in said if isinstance(m, Report)] == ["one", 'syntax error at or near "oops"']
    error = said[-2].fields
    assert error == {
        "S": "ERROR", "V": "ERROR", "C": "42601", "M": 'syntax error at or near "oops"', "D": "No rule.",
        "H": "See the manual.", "P": "1",
    }  # fmt: skip
    assert said[-1] == backend.ReadyForQuery("I")


def test_an_error_after_rows(line):
    assert line.kinds(Query("select 1/0")) == ["RowDescription", "DataRow", "E", "ReadyForQuery"]


def test_an_unexpected_error_is_an_internal_one_with_its_text(line):
    said = line.say(Query("crash"))
    assert (state(said), said[0].fields["M"]) == ("XX000", "something broke")
    assert line.kinds(Query("select 1"))[-1] == "ReadyForQuery"


def test_changed_settings_are_reported(line):
    assert backend.ParameterStatus("TimeZone", "UTC+1") in line.say(Query("set TimeZone = 'UTC+1'"))
    assert "ParameterStatus" not in line.kinds(Query("set TimeZone = 'UTC+1'"))


def test_transaction_status_follows_the_session(line):
    assert line.say(Query("begin"))[-1] == backend.ReadyForQuery("T")
    assert line.say(Query("oops"))[-1] == backend.ReadyForQuery("E")
    assert state(line.say(Query("select 1"))) == "25P02"
    assert line.say(Query("rollback"))[-1] == backend.ReadyForQuery("I")


def test_extended_query_with_parameters(line):
    number = struct.pack("!i", 41)
    said = line.say(
        Parse("s", "select $1::int as a, $2 as b", (23, 0)),
        Describe("S", "s"),
        Bind("p", "s", (1, 0), (number, b"x"), (1, 0)),
        Describe("P", "p"),
        Execute("p"),
        Sync(),
    )
    assert said[0] == backend.PARSE_COMPLETE
    assert said[1] == backend.ParameterDescription((23, 25))
    assert [(f.name, f.format) for f in said[2].fields] == [("a", 0), ("b", 0)]
    assert said[3] == backend.BIND_COMPLETE
    assert [(f.name, f.format) for f in said[4].fields] == [("a", 1), ("b", 0)]
    assert said[5:] == [
        backend.DataRow((number, b"x")),
        backend.CommandComplete("SELECT 1"),
        backend.ReadyForQuery("I"),
    ]


def test_one_format_code_stands_for_all_and_null_is_null(line):
    line.say(Parse("", "select $1::int, $2::bool"))
    said = line.say(Bind("", "", (), (b"5", None), (1,)), Execute(""), Sync())
    assert said[1] == backend.DataRow((struct.pack("!i", 5), None))


def test_what_a_client_declares_is_what_it_is_told(line):
    said = line.say(Parse("", "select $1", (1043,)), Describe("S", ""), Sync())
    assert said[1] == backend.ParameterDescription((1043,))


def test_a_portal_is_read_in_parts(line):
    line.say(Query("begin"))
    line.say(Parse("", "select generate_series(1, 25000)"), Bind("p", ""), Sync())
    counts, tags = [], []
    while not tags:
        said = line.say(Execute("p", 9000), Flush())
        counts.append(sum(isinstance(m, backend.DataRow) for m in said))
        tags = [m.tag for m in said if isinstance(m, backend.CommandComplete)]
        assert tags or said[-1] == backend.PORTAL_SUSPENDED
    assert (counts, tags) == ([9000, 9000, 7000], ["SELECT 7000"])
    assert line.kinds(Execute("p"), Sync()) == ["CommandComplete", "ReadyForQuery"]


def test_a_portal_that_is_full_at_its_last_row_is_suspended_once_more(line):
    line.say(Query("begin"))
    line.say(Parse("", "select generate_series(1, 2)"), Bind("p", ""))
    assert line.kinds(Execute("p", 2)) == ["DataRow", "DataRow", "s"]
    assert line.say(Execute("p", 2)) == [backend.CommandComplete("SELECT 0")]


def test_portals_end_with_their_transaction_and_statements_do_not(line):
    line.say(Parse("s", "select 1"), Bind("p", "s"), Sync())
    assert state(line.say(Execute("p"), Sync())) == "34000"
    assert line.kinds(Bind("p", "s"), Execute("p"), Sync()) == ["2", "DataRow", "CommandComplete", "ReadyForQuery"]


def run_of(name, sql):
    """What runs a statement without rows in a pipeline."""
    return Parse(name, sql), Bind("", name), Execute("")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_suspended_portal_ends_with_its_transaction_within_a_pipeline(line, end):
    line.say(Query("begin"))
    said = line.say(
        Parse("", "select generate_series(1, 20)"), Bind("p", ""), Execute("p", 5),
        *run_of("e", end), *run_of("b", "begin"), Execute("p", 5), Sync(),
    )  # fmt: skip
    assert sum(isinstance(m, backend.DataRow) for m in said) == 5
    assert state(said) == "34000"


def test_a_suspended_portal_does_not_outlive_its_transaction_in_a_text(line):
    line.say(Query("begin"), Parse("", "select generate_series(1, 20)"), Bind("p", ""), Execute("p", 5), Sync())
    assert line.say(Query("commit; begin"))[-1] == backend.ReadyForQuery("T")
    assert state(line.say(Execute("p", 5), Sync())) == "34000"


def test_a_portal_outlives_what_begins_a_transaction_around_it(line):
    said = line.say(
        Parse("", "select generate_series(1, 20)"), Bind("p", ""), Execute("p", 5), *run_of("b", "begin"),
        Execute("p", 15), Sync(),
    )  # fmt: skip
    assert sum(isinstance(m, backend.DataRow) for m in said) == 20


def test_the_portal_that_ends_a_transaction_is_not_run_again(line):
    line.say(Query("begin"), Parse("e", "commit"))
    assert state(line.say(Bind("p", "e"), Execute("p"), Execute("p"), Sync())) == "34000"


def test_a_command_runs_once(line):
    line.say(Query("create table t (a int)"), Parse("", "insert into t values ($1)"))
    said = line.say(Bind("", "", (), (b"1",)), Execute(""), Execute(""), Sync())
    assert said[1] == backend.CommandComplete("INSERT 0 1")
    assert state(said) == "55000"
    assert line.database.tables["t"][1] == [(1,)]


def test_after_an_error_everything_up_to_sync_is_skipped(line):
    line.say(Query("create table t (a int)"))
    said = line.say(
        Parse("", "oops"), Bind("", ""), Execute(""), Query("insert into t values (1)"), Flush(), Describe("S", "x")
    )
    assert state(said) == "42601"
    assert line.say(Sync()) == [backend.ReadyForQuery("I")]
    assert line.database.tables["t"][1] == []
    assert line.kinds(Query("select 1"))[-1] == "ReadyForQuery"


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([Bind("", "nothing")], "26000"),
        ([Describe("S", "nothing")], "26000"),
        ([Describe("P", "nothing")], "34000"),
        ([Execute("nothing")], "34000"),
        ([Parse("s", "select 1"), Parse("s", "select 2")], "42P05"),
        ([Parse("", "select 1"), Bind("p", ""), Bind("p", "")], "42P03"),
        ([Parse("", "select $1"), Bind("", "")], "08P01"),
        ([Parse("", "select $1"), Bind("", "", (0, 0), (b"1",))], "08P01"),
        ([Parse("", "select 1"), Bind("", "", (), (), (0, 0))], "08P01"),
        ([Parse("", "select $1"), Bind("", "", (), (b"\xff",))], "22021"),
        ([Parse("", "select $1"), Bind("", "", (), (b"a\0",))], "22021"),
        ([Parse("", "select $1", (23,)), Bind("", "", (1,), (b"abc",))], "22P03"),
        ([Parse("", "select '\udcff'")], "22021"),
    ],
)
def test_errors_of_the_extended_protocol(line, messages, code):
    assert state(line.say(*messages)) == code
    assert line.say(Sync()) == [backend.ReadyForQuery("I")]
    assert not line.connection.closed


def test_closing_what_is_not_there_is_fine(line):
    assert line.kinds(Close("S", "x"), Close("P", "x"), Sync()) == ["3", "3", "ReadyForQuery"]
    line.say(Parse("s", "select 1"), Close("S", "s"))
    assert state(line.say(Bind("", "s"))) == "26000"


def test_a_plan_whose_columns_have_changed_is_refused(line):
    line.say(Query("create table t (a int)"), Parse("s", "select * from t"))
    line.say(Query("create table t (a int, b text)"))
    assert state(line.say(Bind("", "s"), Execute(""), Sync())) == "0A000"


def test_copy_data_that_come_too_late_are_left_out(line):
    assert state(line.say(Query("copy nothing from stdin"))) == "42P01"
    assert line.say(Opaque("d", b"1\n"), Opaque("c", b"")) == []


def test_a_function_call_is_refused_and_the_connection_ready(line):
    said = line.say(Opaque("F", b"abc"))
    assert (state(said), said[-1]) == ("0A000", backend.ReadyForQuery("I"))


def test_a_violation_is_told_and_ends_the_connection(line):
    said = line.say(ProtocolViolation("what?"), Query("select 1"))
    assert (len(said), said[0].fields["S"], state(said)) == (1, "FATAL", "08P01")
    assert line.connection.closed


def test_a_password_was_not_asked_for(line):
    assert state(line.say(Opaque("p", b"x\0"))) == "08P01"
    assert line.connection.closed


def test_rows_come_no_faster_than_they_are_taken(line):
    stream = line.connection.receive([Query("select generate_series(1, 1000000)")])
    next(stream)
    assert line.database.produced == 10_000
    next(stream)
    assert line.database.produced == 10_000
    stream.close()
    line.connection.close()
    assert line.database.closed == 1


def test_wide_rows_are_sent_in_bounded_pieces(line):
    for data in line.connection.receive([Query("select wide(20, 100000)")]):
        assert len(data) < 200_000


def stop_sending(line: Line, after: int) -> None:
    """Have rows of the line's session stopped once so many pieces were sent; its errors are told as sessions do."""
    session = line.connection.session
    run = session._run

    @contextmanager
    def sending() -> Iterator[Callable[[], None]]:
        left = after

        def check() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise QueryCanceled("too slow")

        try:
            yield check
        except QueryCanceled as error:
            told = QueryCanceled("canceling statement due to statement timeout")
            raise told from error

    def limited(*given):
        result = run(*given)
        result.sending = sending
        return result

    session._run = limited


@pytest.mark.parametrize("rows", ["generate_series(1, 5)", "wide(3, 100000)"])
def test_what_was_said_before_rows_that_are_stopped_is_not_lost(line, rows):
    stop_sending(line, 0)
    kinds = line.kinds(Query(f"create table t (a int); select {rows}"))
    assert [k for k in kinds if k != "DataRow"] == ["CommandComplete", "RowDescription", "E", "ReadyForQuery"]
    said = (
        Parse("", "insert into t values (1)"), Bind("", ""), Execute(""),
        Parse("", f"select {rows}"), Bind("", ""), Describe("P", ""), Execute(""), Sync(),
    )  # fmt: skip
    assert [k for k in line.kinds(*said) if k != "DataRow"] == [
        "1", "2", "CommandComplete", "1", "2", "RowDescription", "E", "ReadyForQuery",
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [3, 1])
def test_a_statement_behind_one_that_was_stopped_waits_for_the_client(line, rows):
    """Also where that has no other rows: its client is not waited for any longer."""
    stop_sending(line, 2)
    stream = line.connection.receive([Query(f"select wide({rows}, 100000)"), Query("create table t (a int)")])
    said = b""
    while b"statement timeout" not in said:
        said = bytes(next(stream))
    assert "t" not in line.database.tables
    assert b"CREATE_TABLE" in b"".join(stream)


def test_rows_that_are_stopped_leave_their_memory_to_others_at_once(line):
    stop_sending(line, 2)
    left, collects = ENCODERS.left, gc.isenabled()
    gc.disable()
    try:
        assert state(line.say(Query("select generate_series(1, 100000)"))) == "57014"
        assert ENCODERS.left == left
    finally:
        if collects:
            gc.enable()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(typed_frontend, max_size=8))
def test_any_messages_leave_the_connection_ready_or_closed(messages):
    line = Line()
    line.say(frontend.Startup({"user": "root"}))
    line.say(*messages)
    if not line.connection.closed:
        assert isinstance(line.say(Sync())[-1], backend.ReadyForQuery)
        assert line.say(Query("select 1"))[-2] == backend.CommandComplete("SELECT 1")
