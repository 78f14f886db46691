"""The demonstration: its data, its statements, its comparison, and (a long run) all of it."""

import datetime as dt
import re
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.demo import data, demo_server, demo_statements
from headrace.demo.board import Board, ViewState
from headrace.demo.scenario import run
from headrace.demo.screen import PlainScreen, draw
from headrace.demo.verify import ExpectedRows, compare
from headrace.errors import InvalidParameter, OperationalError
from headrace.sql.parser import parse, parse_query
from headrace.sql.statements import CreateMaterializedView, TableName


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> data.Inputs:
    pytest.importorskip("pyarrow.csv")
    return data.prepare(tmp_path_factory.mktemp("demo"))


def test_the_flights_have_their_scheduled_departure(inputs: data.Inputs) -> None:
    table = pq.read_table(inputs.path("flights"))
    assert table.num_rows == inputs.flights == 336_776
    assert table.column_names == list(data.COLUMNS["flights"])
    first = table.slice(0, 1).to_pylist()[0]
    assert first["sched_dep"] == dt.datetime(2013, 1, 1, 10, 15, tzinfo=dt.UTC)
    assert (first["day"], first["carrier"], first["dep_delay"]) == (dt.date(2013, 1, 1), "UA", 2)
    assert table["dep_delay"].null_count == 8255 and table["tailnum"].null_count == 2512


def test_small_inputs_have_no_invented_values(inputs: data.Inputs) -> None:
    assert len(data.rows_of(inputs, "airlines")) == 16
    planes = data.rows_of(inputs, "planes")
    assert len(planes) == 3322 and sum(p["year"] is None for p in planes) == 70


def test_the_inputs_are_written_once(inputs: data.Inputs) -> None:
    before = {p: p.stat().st_mtime_ns for p in inputs.directory.glob("*.*")}
    assert data.prepare(inputs.directory) == inputs
    assert {p: p.stat().st_mtime_ns for p in inputs.directory.glob("*.*")} == before


def test_releasing_the_flights_puts_them_where_the_source_looks(inputs: data.Inputs) -> None:
    assert list(inputs.stream.iterdir()) == []
    inputs.release()
    assert [p.name for p in inputs.stream.iterdir()] == ["flights.parquet"]


def test_every_statement_is_one(inputs: data.Inputs) -> None:
    for text in demo_statements.relations(inputs, 60):
        assert len(parse(text)) == 1
    for view in demo_statements.VIEWS:
        statement = parse(demo_statements.create_view(view))[0]
        assert isinstance(statement, CreateMaterializedView) and statement.name.name == view.name


def test_views_read_only_what_exists_before_them() -> None:
    known = set(data.COLUMNS)
    for view in demo_statements.VIEWS:
        assert parse_query(view.query).tables() <= {TableName(None, name) for name in known}
        known.add(view.name)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OperationalError) as caught:
        run([])
    assert "pip install 'headrace[demo]'" in (caught.value.hint or "")


def test_a_taken_port_and_a_used_directory_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidParameter, match="is taken"):
        run(["--port", str(taken.getsockname()[1])])
    (tmp_path / "db").mkdir()
    with pytest.raises(OperationalError, match="earlier demo"):
        run(["--data", str(tmp_path)])


def test_the_database_of_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CATALOG_URL", f"file://{tmp_path}/live")
    monkeypatch.setenv("HEADRACE_STATE_URL", str(tmp_path / "live"))
    monkeypatch.setenv("HEADRACE_PARALLELISM", "2")
    started: list[dict[str, str]] = []

    class Started(Exception):
        """As soon as it is."""

    def start(*command: object, env: dict[str, str], **more: object) -> None:
        started.append(env)
        raise Started

    monkeypatch.setattr(demo_server.subprocess, "Popen", start)
    server = demo_server.DemoServer(tmp_path, 1, tmp_path / "log", tmp_path / "scratch")
    with pytest.raises(Started):
        server.start(lambda: None)
    (environment,) = started
    assert [n for n in environment if n.startswith("HEADRACE_") and n.endswith("_URL")] == []
    assert environment["HEADRACE_PARALLELISM"] == "2"


def test_comparison_counts_duplicates() -> None:
    assert compare("v", [(1,), (1,)], [(1,), (1,)]).difference is None
    verdict = compare("v", [(1,), (1,), (2,)], [(1,), (3,)])
    assert verdict.difference == "2 rows missing, such as (1), (2); 1 row too many, such as (3)"


def test_text_becomes_values_in_the_order_of_the_answer() -> None:
    answer = ExpectedRows(("n", "at"), ("bigint", "timestamp"), [])
    rows = answer.parsed(["at", "n"], [["2013-01-01 10:00:00+00", "5"], [None, None]])
    assert rows == [(5, dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)), (None, None)]


def test_plain_lines_say_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(10, [ViewState("v", "meaning", "running", lag_ms=1200)], phase="starting")
    with PlainScreen(board) as screen:
        screen.refresh()
        board.note("up")
    assert re.fullmatch(r" +\d+\.\d s  starting \.\.\.\n +\d+\.\d s  up\n", capsys.readouterr().out)


def test_the_board_can_be_drawn() -> None:
    from rich.console import Console

    board = Board(10, [ViewState("v", "meaning", "failing", rows=3, error="[oops]")], connect="psql")
    board.saw(4, "2013-01-02 03:04")
    console = Console(width=100, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(draw(board))
    text = console.export_text()
    assert "4 of 10 flights" in text and "[oops]" in text and "psql" in text


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_demo_survives_its_crash_and_is_exact() -> None:
    command = [sys.executable, "-m", "headrace.cli", "demo", "--seconds", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL" in done.stdout and f"all {len(demo_statements.VIEWS)} views are exact" in done.stdout
