from __future__ import annotations

import codecs
import errno
import io
import os
import pty
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from headrace.server import PgClient
from headrace.session.result import Result, ResultColumn
from headrace.shell.interactive import SqlCompleter, is_complete
from headrace.shell.link import EmbeddedLink, Heading, Link, RemoteLink
from headrace.shell.script import split_statements
from headrace.shell.shell import Options, Shell
from headrace.shell.table import aligned, expanded
from support import WAIT_S, wait_for_line


class CatalogSession:
    """A session that has one table and one view to show."""

    transaction_status = "I"
    parameters: dict[str, str] = {}
    answers = {
        "SHOW TABLES": ["orders"],
        "SHOW MATERIALIZED VIEWS": ["totals"],
        "DESCRIBE orders": ["id", "amount"],
    }

    def execute(self, sql):
        import pyarrow as pa

        names = pa.array(self.answers.get(sql, []), pa.string())
        yield Result("SELECT", [ResultColumn("Name", "string")], iter([pa.record_batch([names], ["Name"])]))

    def cancel(self):
        pass

    def close(self):
        pass


def shell_over(link: Link, **options) -> tuple[Shell, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Shell(link, out, err, Options(**options)), out, err


@pytest.fixture(params=["remote", "embedded"])
def link(request, server, database):
    if request.param == "remote":
        made: Link = RemoteLink(PgClient("127.0.0.1", server.port, timeout_s=WAIT_S))
    else:
        made = EmbeddedLink(database.session({}))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("select 1; select 2", ["select 1"], "select 2"),
        ("select ';'; select \";\";", ["select ';'", 'select ";"'], ""),
        ("select 'it''s; '; x", ["select 'it''s; '"], "x"),
        ("select E'\\'; ';", ["select E'\\'; '"], ""),
        ("select $$ ; $$; select $a$ ; $$ ; $a$;", ["select $$ ; $$", "select $a$ ; $$ ; $a$"], ""),
        ("select 1 -- ; \n + 2;", ["select 1 -- ; \n + 2"], ""),
        ("select /* ; /* ; */ ; */ 1;", ["select /* ; /* ; */ ; */ 1"], ""),
        (";; -- nothing\n ;", [], ""),
        ("select 'open ; ", [], "select 'open ; "),
        ("select $$ open ; ", [], "select $$ open ; "),
        ("select $1; select a$b$c;", ["select $1", "select a$b$c"], ""),
    ],
)
def test_statements_end_at_semicolons_outside_of_quotes_and_comments(text, statements, rest):
    assert split_statements(text) == (statements, rest)


@settings(deadline=None)
@given(st.text(alphabet="ab;'\"$-/* \n\\"))
def test_splitting_takes_any_text(text):
    statements, rest = split_statements(text)
    assert all(statement in text for statement in statements)
    assert rest in text


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
@pytest.mark.parametrize("switch", ["", "\\x\n"])
def test_tables_look_like_those_of_psql(server, switch):
    sql = switch + (
        "select 1 as a, 'x' as name, null as c, -12.5::numeric(5,2) as d;\n"
        "select 'two\nlines' as first, 'b' as second, 'c\nd' as third;\n"
        "select generate_series(1, 3);\nselect generate_series(1, 0);\nselect 'größe 漢字' as wide, 1 as n;\n"
    )
    command = ["psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(server.port), "-d", "dev", "-U", "root"]
    done = subprocess.run(command, input=sql, capture_output=True, text=True, timeout=WAIT_S, check=True)
    client = PgClient("127.0.0.1", server.port, timeout_s=WAIT_S)
    shell, out, _ = shell_over(RemoteLink(client), quiet=True)
    assert shell.run_script(sql)
    expected = done.stdout.replace("Expanded display is on.\n", "")
    assert out.getvalue().replace("Expanded display is on.\n", "") == expected
    client.close()


def test_long_results_are_printed_as_they_arrive():
    taken = 0

    def rows():
        nonlocal taken
        for taken in range(1, 50_001):
            yield [str(taken)]

    lines = aligned([Heading("n", numeric=True)], rows())
    assert [next(lines) for _ in range(3)] == ["   n   ", "-------", "     1"]
    assert taken == 10_000
    assert list(lines)[-1] == "(50000 rows)"
    assert list(expanded([Heading("n")], iter([]))) == ["(0 rows)"]


def test_outcomes_are_the_same_from_a_server_and_from_this_process(link):
    shell, out, err = shell_over(link)
    assert shell.run_script(
        "create table t (a int, b text); insert into t values (1, null);\nselect * from t; notify 'hey'"
    )
    assert out.getvalue() == "CREATE_TABLE\nINSERT 0 1\n a | b \n---+---\n 1 | \n(1 row)\n\nNOTIFY\n"
    assert err.getvalue() == "NOTICE:  hey\n"


def test_an_error_shows_its_place_and_stops_a_script(link):
    shell, out, err = shell_over(link)
    assert not shell.run_script("notify 'a';\nselect\n  nonsense;\nnotify 'b';")
    assert out.getvalue() == "NOTIFY\n"
    lines = err.getvalue().splitlines()
    assert lines[:2] == ["NOTICE:  a", 'ERROR:  syntax error at or near "nonsense"']
    assert lines[2].startswith("LINE ")
    assert lines[3].endswith("^")
    assert shell.run_script("select 1")


def test_an_error_does_not_stop_a_prompt_and_is_red_there(link):
    shell, out, err = shell_over(link, stop_on_error=False, colour=True)
    assert not shell.run_script("oops; notify 'b';")
    assert out.getvalue() == "NOTIFY\n"
    assert "\x1b[31mERROR:  syntax error" in err.getvalue()
    assert "DETAIL:  No rule.\nHINT:  See the manual.\n" in err.getvalue()


def test_commands_switch_timing_and_the_expanded_form(link):
    shell, out, err = shell_over(link)
    assert shell.run_script("\\timing\n\\x on\nselect 1 as one;\n\\timing off\n\\x\n\\?\n")
    lines = out.getvalue().splitlines()
    assert lines[:5] == ["Timing is on.", "Expanded display is on.", "-[ RECORD 1 ]", "one | 1", ""][:2] + lines[2:5]
    assert "one | 1" in lines
    assert any(line.startswith("Time: ") and line.endswith(" ms") for line in lines)
    assert "Expanded display is off." in lines
    assert not shell.run_script("\\nonsense")
    assert "invalid command \\nonsense" in err.getvalue()
    shell.run_script("\\q\nselect 2;")
    assert shell.finished


def test_commands_list_relations_and_columns():
    shell, out, _ = shell_over(EmbeddedLink(CatalogSession()))
    assert shell.run_script("\\d\n")
    assert out.getvalue().splitlines()[2:] == [" orders | table", " totals | materialized view", "(2 rows)", ""]
    out.truncate(0)
    assert shell.run_script("\\dm\n\\d orders;\n")
    assert "totals" in out.getvalue()
    assert "amount" in out.getvalue()


def test_a_lost_connection_ends_the_shell(database):
    from headrace.server import run_server_in_thread

    with run_server_in_thread(database.session) as server:
        shell, _, err = shell_over(RemoteLink(PgClient("127.0.0.1", server.port, timeout_s=WAIT_S)))
    assert not shell.run_script("select 1;")
    assert not shell.run_script("select 1;")
    assert shell.finished
    assert "ERROR" in err.getvalue()


def test_completion_knows_keywords_relations_and_columns():
    shell, _, _ = shell_over(EmbeddedLink(CatalogSession()))
    completer = SqlCompleter(shell)

    def complete(text: str) -> list[str]:
        return [c.text for c in completer.get_completions(Document(text), CompleteEvent())]

    assert "select" in complete("sel")
    assert "SELECT" in complete("SEL")
    assert complete("select * from ord") == ["orders", "order"]
    assert complete("select * from orders where am") == ["amount"]
    assert complete("select orders.") == ["id", "amount", "orders", "totals"]
    assert complete("\\d") == ["\\d", "\\dt", "\\dm"]
    assert complete("") == []


@pytest.mark.parametrize(
    ("text", "complete"), [("select 1", False), ("select 1;", True), ("\\d", True), ("", True), ("select ';", False)]
)
def test_enter_runs_complete_input(text, complete):
    assert is_complete(text) is complete


class Terminal:
    """A program at a terminal; what it says is given out piece by piece, in order, and nothing of it is lost."""

    def __init__(self, command: list[str], environ: dict[str, str]):
        self._control, terminal = pty.openpty()
        try:
            self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
        finally:
            os.close(terminal)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._control)

    def type(self, text: str) -> None:
        os.write(self._control, text.encode())

    def read_until(self, text: str) -> str:
        """What it has said since the last call, up to `text`; what follows is kept for the next call."""
        while text not in self._rest:
            assert self._read(), f"the program ended before it said {text!r}: {self._rest!r}"
        end = self._rest.index(text) + len(text)
        said, self._rest = self._rest[:end], self._rest[end:]
        return said

    def finish(self) -> int:
        """Wait until it has ended; its exit code."""
        while self._read():
            pass
        return self.process.wait(WAIT_S)

    def _read(self) -> bool:
        """Wait until it says something more; False at the end."""
        assert wait_for_line(self._control), f"nothing more is said after {self._rest!r}"
        try:
            said = os.read(self._control, 4096)
        except OSError as error:  # how Linux says that nobody has the terminal open any more
            if error.errno != errno.EIO:
                raise
            said = b""
        self._rest += self._decoder.decode(said)
        return bool(said)


def test_the_prompt_takes_statements_over_several_lines_and_keeps_history(server, tmp_path):
    command = [sys.executable, "-m", "headrace.cli", "sql", "--port", str(server.port)]
    environ = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"}
    with Terminal(command, environ) as terminal:
        terminal.read_until("dev=>")
        terminal.type("select 12 as a,\r34 as b;\r")
        rows = terminal.read_until("dev=>")
        terminal.type("oops;\r")
        error = terminal.read_until("dev=>")
        terminal.type("\\q\r")
        assert terminal.finish() == 0
    assert " 12 | 34" in rows
    assert "Time: " in rows
    assert "\x1b[31mERROR:  syntax error" in error
    assert "HINT" in error
    history = (tmp_path / ".headrace_history").read_text()
    assert "+select 12 as a,\n+34 as b;" in history
