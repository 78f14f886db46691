"""Runs statements and backslash commands and prints what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError
from headrace.server.simple_client import ConnectionLost
from headrace.session.result import Notice
from headrace.shell.link import Heading, Link, StatementOutcome
from headrace.shell.script import split_statements
from headrace.shell.table import Row, aligned, expanded

_RED, _RESET = "\x1b[31m", "\x1b[0m"
RELATION_KINDS: Final = {
    "source": "SHOW SOURCES",
    "table": "SHOW TABLES",
    "materialized view": "SHOW MATERIALIZED VIEWS",
    "view": "SHOW VIEWS",
    "index": "SHOW INDEXES",
    "sink": "SHOW SINKS",
}
"""What `\\d` lists, and the statement that lists it; names are in the first column."""
HELP: Final = """\
  \\d              relations of every kind
  \\d NAME         columns of a relation
  \\dt, \\dm        tables, materialized views
  \\timing         print how long each statement took, or not
  \\x              one line for each value, or tables
  \\?              this list
  \\q              leave
A statement ends with a semicolon. Ctrl-C cancels what runs."""


@dataclass
class Options:
    """How the shell prints results."""

    timing: bool = False
    expanded: bool = False
    colour: bool = False
    stop_on_error: bool = True
    quiet: bool = False
    """Leave out command tags."""


class Shell:
    """Runs statements over a link and prints the answers."""

    def __init__(self, link: Link, out: TextIO, err: TextIO, options: Options | None = None):
        self.link = link
        self.options = options or Options()
        self.finished = False
        """Whether the user asked to leave, or the connection is lost."""
        self.catalog_changed = True
        """Whether a statement ran since somebody last looked at which relations there are."""
        self._out = out
        self._err = err

    def run_script(self, text: str) -> bool:
        """Run statements and lines with backslash commands; a last semicolon may be missing. False after an error."""
        pending, good = "", True
        for line in text.splitlines(keepends=True):
            if not pending.strip() and line.lstrip().startswith("\\"):
                good = self.run_command(line.strip()) and good
            else:
                statements, pending = split_statements(pending + line)
                good = self._run_all(statements) and good
            if self.finished or (not good and self.options.stop_on_error):
                return good
        return self._run_all([pending] if pending.strip() else []) and good

    def _run_all(self, statements: list[str]) -> bool:
        good = True
        for statement in statements:
            good = self.run_statement(statement) and good
            if self.finished or (not good and self.options.stop_on_error):
                break
        return good

    def run_statement(self, sql: str) -> bool:
        """Run one statement and print its outcome. False after an error."""
        self.catalog_changed = True
        started = time.perf_counter()
        good = self._guard(sql, lambda: self._print_all(self.link.run(sql)))
        if self.options.timing:
            self._print(f"Time: {(time.perf_counter() - started) * 1000:.3f} ms")
        return good

    def run_command(self, line: str) -> bool:
        """Run a backslash command. False if there is no such command, or it failed."""
        name, _, argument = line.rstrip(";").partition(" ")
        argument = argument.strip()
        match name:
            case "\\q":
                self.finished = True
            case "\\?" | "\\h":
                self._print(HELP)
            case "\\timing":
                self.options.timing = _switch(argument, self.options.timing)
                self._print(f"Timing is {'on' if self.options.timing else 'off'}.")
            case "\\x":
                self.options.expanded = _switch(argument, self.options.expanded)
                self._print(f"Expanded display is {'on' if self.options.expanded else 'off'}.")
            case "\\d" if argument:
                sql = f"DESCRIBE {argument}"
                return self._guard(sql, lambda: self._print_all(self.link.run(sql)))
            case "\\d" | "\\dt" | "\\dm":
                kinds = {"\\dt": ["table"], "\\dm": ["materialized view"]}.get(name, list(RELATION_KINDS))
                return self._guard("", lambda: self._print_relations(kinds))
            case _:
                self._error_line(f"invalid command {name}", "\\? lists the commands.")
                return False
        return True

    def relations(self, kinds: list[str]) -> list[tuple[str, str]]:
        """Names and kinds of the relations, sorted."""
        found = []
        for kind in kinds:
            for outcome in self.link.run(RELATION_KINDS[kind]):
                found += [(row[0] or "", kind) for row in outcome.rows if row]
        return sorted(found)

    def columns(self, relation: str) -> list[str]:
        """Names of a relation's columns."""
        outcomes = self.link.run(f"DESCRIBE {relation}")
        return [row[0] or "" for outcome in outcomes for row in outcome.rows if row]

    def _print_relations(self, kinds: list[str]) -> None:
        rows: list[Row] = [[name, kind] for name, kind in self.relations(kinds)]
        self._print_rows([Heading("Name"), Heading("Type")], iter(rows))

    def _guard(self, sql: str, action: Callable[[], None]) -> bool:
        """Run `action` and print its error, if there is one."""
        try:
            action()
            return True
        except ConnectionLost as error:
            self.finished = True
            self.print_error(error, sql)
        except HeadraceError as error:
            self.print_error(error, sql)
        except KeyboardInterrupt:
            self._error_line("cancelled")
        return False

    def _print_all(self, outcomes: Iterator[StatementOutcome]) -> None:
        for outcome in outcomes:
            self._print_notices(outcome.notices)
            told = len(outcome.notices)
            if outcome.headings is not None:
                self._print_rows(outcome.headings, outcome.rows)
            elif not self.options.quiet:
                self._print(outcome.tag)
            self._print_notices(outcome.notices[told:])

    def _print_rows(self, headings: list[Heading], rows: Iterator[Row]) -> None:
        for line in (expanded if self.options.expanded else aligned)(headings, rows):
            self._print(line)
        self._print("")

    def _print_notices(self, notices: list[Notice]) -> None:
        for notice in notices:
            print(f"{notice.severity}:  {notice.message}", file=self._err)

    def _print(self, line: str) -> None:
        print(line, file=self._out)

    def _error_line(self, message: str, hint: str | None = None) -> None:
        self.print_error(HeadraceError(message, hint=hint), "")

    def print_error(self, error: HeadraceError, sql: str) -> None:
        """Print an error with its place in the statement, its detail and its hint."""
        red, reset = (_RED, _RESET) if self.options.colour else ("", "")
        print(f"{red}ERROR:  {error.message}{reset}", file=self._err)
        for line in (*_marker(sql, error.position), *_extras(error)):
            print(line, file=self._err)


def _extras(error: HeadraceError) -> list[str]:
    return [f"{name}:  {text}" for name, text in (("DETAIL", error.detail), ("HINT", error.hint)) if text]


def _marker(sql: str, position: int | None) -> list[str]:
    """The line of the statement that a 1-based position is in, and a caret under it."""
    if position is None or not 1 <= position <= len(sql) + 1:
        return []
    start = sql.rfind("\n", 0, position - 1) + 1
    end = sql.find("\n", position - 1)
    label = f"LINE {sql.count(chr(10), 0, start) + 1}: "
    line = sql[start : len(sql) if end < 0 else end].replace("\t", " ")
    return [label + line, " " * (len(label) + position - 1 - start) + "^"]


def _switch(argument: str, current: bool) -> bool:
    return {"on": True, "off": False}.get(argument.lower(), not current)
