"""What happens in the demonstration, from the first file to the verdict."""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from headrace.demo.board import Board, ViewState
from headrace.demo.data import Inputs, package_directory, prepare
from headrace.demo.demo_server import HOST, DemoServer, Fetched, execute, free_port, select
from headrace.demo.demo_statements import VIEWS, create_view, relations
from headrace.demo.screen import Screen, open_screen
from headrace.demo.verify import Verdict, batch_answers, compare
from headrace.demo.watch import Watcher
from headrace.errors import InvalidParameter, OperationalError

_T = TypeVar("_T")
_POLL_S: Final = 1.0
_KILL_AT: Final = 0.5
_PORT: Final = 4566
_PATIENCE_S: Final = 600.0
"""How long the views may take beyond the replay itself."""


def run(arguments: list[str]) -> int:
    """Run the demonstration; the exit code."""
    options = _parser().parse_args(arguments)
    package_directory()
    port = _choose_port(options.port)
    with _directory(options.data) as directory, _terminable():
        inputs = prepare(directory / "input")
        server = DemoServer(directory / "db", port, directory / "server.log", directory / "scratch")
        board = Board(inputs.flights, [ViewState(view.name, view.meaning) for view in VIEWS])
        try:
            with open_screen(board) as screen:
                verdicts = _Demo(inputs, server, board, screen, options).play()
            print(_summary(verdicts))
            if options.keep:
                _keep(board)
        except KeyboardInterrupt:
            print("stopped")
            return 130
        finally:
            server.stop()
            shutil.rmtree(directory / "scratch", ignore_errors=True)
        if options.data is not None:
            print(f"The database is in {server.data}; `headrace serve --data {server.data}` goes on with it.")
        return 0 if all(v.difference is None for v in verdicts) else 1


class _Demo:
    """The acts, in order."""

    def __init__(self, inputs: Inputs, server: DemoServer, board: Board, screen: Screen, options: argparse.Namespace):
        self._inputs = inputs
        self._server = server
        self._board = board
        self._screen = screen
        self._seconds: float = options.seconds
        self._keep: bool = options.keep
        self._watcher = Watcher(board, server)
        self._watching = True

    def play(self) -> list[Verdict]:
        """Runs everything up to the verdicts."""
        board = self._board
        self._start("starting headrace serve")
        board.connect = f"psql -h {HOST} -p {self._server.port} -d dev -U root"
        board.note(f"the server is up; look in with: {board.connect}")
        self._while("creating tables, sources and views", self._create)
        self._until("waiting for the views", lambda: all(view.status == "running" for view in board.views))
        board.note(f"{len(VIEWS)} materialized views are there; now the year 2013 streams in")
        self._stream()
        self._while("waiting until every view has it all (FLUSH)", self._flush)
        return self._verify()

    def _start(self, phase: str) -> None:
        self._board.phase = phase
        self._server.start(self._screen.refresh)

    def _create(self) -> None:
        with self._server.connect() as client:
            for statement in relations(self._inputs, self._seconds):
                execute(client, statement)
            execute(client, "SET background_ddl = on")
            for view in VIEWS:
                execute(client, create_view(view))

    def _stream(self) -> None:
        board = self._board
        self._inputs.release()
        board.streaming = True
        self._until("streaming", lambda: board.seen >= board.total * _KILL_AT)
        self._crash()
        self._until("streaming", lambda: board.seen >= board.total)
        board.streaming = False
        board.note("the last flight is in")

    def _crash(self) -> None:
        board = self._board
        seen = board.seen
        self._server.kill()
        self._watcher.forget()
        board.note(f"killed the server with SIGKILL at {seen:,} flights, whatever it was doing")
        killed_s = time.monotonic()
        self._start("the server is dead; starting it again")
        board.note(f"the server is up again after {time.monotonic() - killed_s:.1f} s, and goes on where it was")

    def _flush(self) -> None:
        with self._server.connect() as client:
            execute(client, "FLUSH")

    def _verify(self) -> list[Verdict]:
        """Fetch every view, then have Spark compute it anew; the server is gone by then, unless it is kept."""
        found = self._while("fetching the views", self._fetch)
        self._watching = False
        self._watcher.forget()
        if not self._keep:
            self._board.connect = ""
            self._while("stopping the server", self._server.stop)
        log = self._server.log.with_name("batch.log")
        answers = self._while("computing the views with Spark from the files", lambda: batch_answers(self._inputs, log))
        verdicts = []
        for state in self._board.views:
            answer = answers[state.name]
            verdict = compare(state.name, answer.rows, answer.parsed(*found[state.name]))
            state.status, state.rows = "", verdict.rows
            state.verdict = "differs" if verdict.difference else "exact"
            verdicts.append(verdict)
        self._board.phase = ""
        return verdicts

    def _fetch(self) -> dict[str, Fetched]:
        with self._server.connect() as client:
            return {view.name: select(client, f"SELECT * FROM {view.name}") for view in VIEWS}

    def _until(self, phase: str, reached: Callable[[], bool]) -> None:
        board = self._board
        board.phase = phase
        patience_s = self._seconds + _PATIENCE_S
        began_s = time.monotonic()
        while not reached():
            self._watcher.poll()
            self._screen.refresh()
            if time.monotonic() - began_s > patience_s:
                raise OperationalError(f"the views did not get there within {patience_s:g} s", hint=self._hint())
            time.sleep(_POLL_S)

    def _while(self, phase: str, work: Callable[[], _T]) -> _T:
        """Do something that takes a while, and keep the screen up to date meanwhile."""
        self._board.phase = phase
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            done = threading.Event()
            future.add_done_callback(lambda _: done.set())
            while not done.wait(_POLL_S):
                if self._watching:
                    self._watcher.poll()
                self._screen.refresh()
            return future.result()

    def _hint(self) -> str:
        failing = [f"{v.name}: {v.error}" for v in self._board.views if v.error]
        return "; ".join(failing) or f"see {self._server.log}"


def _summary(verdicts: list[Verdict]) -> str:
    width = max(len(v.view) for v in verdicts)
    lines = ["", "Every view against Spark's batch answer over the same files:"]
    lines += [f"  {v.view:<{width}}  {v}" for v in verdicts]
    wrong = sum(v.difference is not None for v in verdicts)
    lines.append(f"{wrong} of {len(verdicts)} views differ" if wrong else f"all {len(verdicts)} views are exact")
    return "\n".join(lines)


def _keep(board: Board) -> None:
    print(f"The server stays up; connect with: {board.connect}\nCtrl-C stops it.", flush=True)
    while True:
        time.sleep(3600)


@contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    """The directory of the run; one of its own is removed at the end."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as path:
            yield Path(path)
        return
    if (chosen / "db").exists():
        raise OperationalError(
            f"{chosen} holds the database of an earlier demo", hint=f"remove {chosen / 'db'}, or choose another --data"
        )
    chosen.mkdir(parents=True, exist_ok=True)
    yield chosen.resolve()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the demonstration as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _choose_port(wanted: int | None) -> int:
    port = free_port(_PORT if wanted is None else wanted)
    if port is None and wanted is None:
        port = free_port(0)
    if port is None:
        raise InvalidParameter(f"port {wanted} is taken", hint="choose another --port, or leave it out")
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace demo",
        description="All flights out of New York in 2013 stream through materialized views. In the middle the server "
        "is killed and started again; at the end every view is compared with Spark's batch answer.",
    )
    parser.add_argument("--keep", action="store_true", help="leave the server up afterwards, until Ctrl-C")
    parser.add_argument("--seconds", type=_positive, default=60.0, help="how long the year takes (default 60)")
    parser.add_argument("--port", type=int, help=f"TCP port of the server (default {_PORT}, or a free one)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="directory to use and keep (default: a temporary one)")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("a number of seconds above zero is needed")
    return value
