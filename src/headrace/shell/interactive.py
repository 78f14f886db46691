"""The prompt: history, completion, statements over several lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from headrace.errors import HeadraceError
from headrace.shell.script import split_statements
from headrace.shell.shell import RELATION_KINDS, Shell
from headrace.sql.secrets import may_hold_a_secret

_KEYWORD_TEXT: Final = """
select from where group by order having limit offset union all intersect except with as on using join left right
full inner outer cross and or not null is in between like case when then else end distinct create drop alter table
source materialized view index sink subscription connection secret schema function if exists cascade insert into
values update delete set show describe explain flush wait recover begin commit rollback declare cursor for fetch
watermark emit window close tumble hop interval returning primary key pause resume cancel jobs sources tables
views indexes sinks parameters true false cast count sum min max avg
"""
KEYWORDS: Final = sorted(_KEYWORD_TEXT.split())
_COMMANDS: Final = ("\\d", "\\dt", "\\dm", "\\timing", "\\x", "\\?", "\\q")
_WORD = re.compile(r"[A-Za-z_][\w$]*$")
_COMMAND = re.compile(r"\\\w*$")
HISTORY_FILE: Final = Path("~/.headrace_history")
"""Where what was typed is kept."""


class SqlCompleter(Completer):
    """Keywords, relations, and the columns of the relations that the statement names."""

    def __init__(self, shell: Shell):
        self._shell = shell
        self._relations: list[str] = []
        self._columns: dict[str, list[str]] = {}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What may stand at the cursor."""
        before = document.text_before_cursor
        if command := _COMMAND.fullmatch(before):
            return [Completion(c, -len(command[0])) for c in _COMMANDS if c.startswith(command[0])]
        match = _WORD.search(before)
        word = match[0] if match else ""
        if not word and not before.endswith("."):
            return []
        self._refresh()
        names = [*self._columns_in(document.text), *self._relations]
        found = [n for n in dict.fromkeys(names) if n.lower().startswith(word.lower())]
        if before[: len(before) - len(word)].endswith("."):
            return [Completion(name, -len(word)) for name in found]
        keywords = [k.upper() if word.isupper() else k for k in KEYWORDS if k.startswith(word.lower())]
        return [Completion(text, -len(word)) for text in [*found, *keywords]]

    def _refresh(self) -> None:
        if not self._shell.catalog_changed:
            return
        self._shell.catalog_changed = False
        self._columns.clear()
        try:
            self._relations = [name for name, _ in self._shell.relations(list(RELATION_KINDS))]
        except HeadraceError:
            self._relations = []

    def _columns_in(self, text: str) -> list[str]:
        words = set(re.findall(r"[A-Za-z_][\w$]*", text))
        found: list[str] = []
        for relation in self._relations:
            if relation not in words:
                continue
            if relation not in self._columns:
                try:
                    self._columns[relation] = self._shell.columns(relation)
                except HeadraceError:
                    self._columns[relation] = []
            found += self._columns[relation]
        return found


def is_complete(text: str) -> bool:
    """Whether Enter runs `text`: a command, nothing at all, or statements up to their semicolon."""
    return text.lstrip().startswith("\\") or split_statements(text)[1] == ""


def interact(shell: Shell, database: str) -> None:
    """Read from the terminal and run, until the user leaves or the connection is lost."""
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=ThreadedCompleter(SqlCompleter(shell)),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation=lambda width, line, wrapped: f"{database}->".rjust(width - 1) + " ",
    )
    shell.options.stop_on_error = False
    print("Type \\? for help.")
    while not shell.finished:
        mark = {"T": "*", "E": "!"}.get(shell.link.transaction_status, "")
        try:
            text = session.prompt(f"{database}={mark}> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip():
            shell.run_script(text)


def _history() -> History:
    path = HISTORY_FILE.expanduser()
    try:
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _Discreet(str(path))


class _Discreet(FileHistory):
    """A file without statements that may have the value of a secret; up to the end of the session they are known."""

    def store_string(self, string: str) -> None:
        """Keep what was typed."""
        if not may_hold_a_secret(string):
            super().store_string(string)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=Condition(lambda: is_complete(get_app().current_buffer.text)))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings
