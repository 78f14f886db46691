"""The terminal: a live table where there is one, plain lines where there is not."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.demo.board import Board, ViewState

_LINE_EVERY_S: Final = 5.0
_SHOWN_LINES: Final = 8
_SLOW_MS: Final = 10_000


class Screen(Protocol):
    """Prints a board as plain lines whenever it is told to."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def refresh(self) -> None:
        """Show the board as it is now."""


def open_screen(board: Board) -> Screen:
    """The screen that fits where the output goes."""
    console = Console(highlight=False)
    return LiveScreen(board, console) if console.is_terminal and not console.is_dumb_terminal else PlainScreen(board)


class PlainScreen:
    """A line for each thing that happens, and one every few seconds for the progress."""

    def __init__(self, board: Board):
        self._board = board
        self._printed = 0
        self._next_s = 0.0

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events()

    def refresh(self) -> None:
        """See `Screen`."""
        self._events()
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _LINE_EVERY_S
        board = self._board
        lags = [v.lag_ms for v in board.views if v.lag_ms is not None]
        text = f"{board.phase} ..."
        if board.streaming and lags:
            done = f"{board.seen:,} of {board.total:,} flights, up to {board.until or 'nothing yet'}"
            text = f"{done}; {board.rows_per_s:,.0f} rows/s; slowest view {max(lags):,} ms behind"
        print(f"{board.elapsed_s:6.1f} s  {text}", flush=True)

    def _events(self) -> None:
        for line in self._board.lines[self._printed :]:
            print(line, flush=True)
        self._printed = len(self._board.lines)


class LiveScreen:
    """Draws a board again in place, on a terminal."""

    def __init__(self, board: Board, console: Console):
        self._board = board
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=5, transient=False)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """See `Screen`."""
        self._live.refresh()

    def _draw(self) -> Group:
        return draw(self._board)


def draw(board: Board) -> Group:
    """The board as rich draws it."""
    parts: list[object] = [Text("headrace demo: all flights out of New York in 2013", style="bold"), _progress(board)]
    if board.connect:
        parts.append(Text.assemble(("look in:  ", "dim"), (board.connect, "bold cyan")))
    parts += [Text(), _views(board), Text()]
    parts += [Text(line, style=_style(line)) for line in board.lines[-_SHOWN_LINES:]]
    if board.phase:
        parts.append(Text(f"{board.elapsed_s:6.1f} s  {board.phase} ...", style="yellow"))
    return Group(*parts)  # type: ignore[arg-type]


def _progress(board: Board) -> Table:
    row = Table.grid(padding=(0, 2))
    done = f"{board.seen:,} of {board.total:,} flights"
    rate = f"{board.rows_per_s:,.0f} rows/s"
    row.add_row(ProgressBar(total=board.total, completed=board.seen, width=30), done, rate, board.until)
    return row


def _views(board: Board) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("view", no_wrap=True)
    table.add_column("what it tells", style="dim", overflow="ellipsis", no_wrap=True, ratio=1)
    for title in ("rows", "behind", "last epoch"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for view in board.views:
        table.add_row(
            view.name, view.meaning, _count(view.rows), _ms(view.lag_ms), _ms(view.last_epoch_ms), _state(view)
        )
    return table


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _ms(value: int | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:,} ms", style="yellow" if value > _SLOW_MS else "")


def _state(view: ViewState) -> Text:
    if view.verdict:
        return Text(view.verdict, style="green" if view.verdict.startswith("exact") else "bold red")
    style = {"running": "green", "failing": "bold red", "quarantined": "bold red"}.get(view.status, "yellow")
    return Text(view.error or view.status, style=style, overflow="ellipsis")


def _style(line: str) -> str:
    if "SIGKILL" in line or "differs" in line:
        return "bold red"
    return "green" if "exact" in line else ""
