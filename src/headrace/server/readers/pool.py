"""The reading processes of a server: started, given clients, and started again when they have ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.common.loggers import get_logger
from headrace.config import Settings
from headrace.errors import InvalidParameter
from headrace.server.readers.news import ReaderStart, packed
from headrace.server.readers.publisher import VOUCHED_MS, NewsLine, Publisher
from headrace.server.readers.reading_board import ReadingBoard
from headrace.session.context import ReaderStatus

if TYPE_CHECKING:
    from headrace.session.instance import Instance

_log = get_logger("headrace.readers")
_MODULE: Final = "headrace.server.readers.reading_process"
_FIRST_PAUSE_S: Final = 0.2
_LAST_PAUSE_S: Final = 30.0
_SOUND_S: Final = 60.0
"""How long a process has to run before the next pause is a short one again."""
_STOP_S: Final = 5.0
_LOOK_S: Final = 3.0
_VOUCH_S: Final = VOUCHED_MS / 4_000
_SILENT_LOOKS: Final = 5
"""How often in a row a process may be found not to have gone on."""


class ReaderPlace:
    """One place for a reading process, and the process that runs there at present. On the event loop."""

    def __init__(self, number: int, pool: ReaderPool) -> None:
        self.number = number
        self._pool = pool
        self._process: subprocess.Popen[bytes] | None = None
        self._news: socket.socket | None = None
        self._clients: socket.socket | None = None
        self._line: NewsLine | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._since_s = 0.0
        self.ready = False
        """Whether it takes clients."""
        self.clients = 0
        """How many it has."""
        self._beats, self._silent = 0, 0
        """What it had told last of that it goes on, and how often it was looked at since."""

    @property
    def pid(self) -> int | None:
        """The number of its process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def begin(self) -> None:
        """Start a process. One that cannot be started is tried again later."""
        loop, pool = asyncio.get_running_loop(), self._pool
        self._since_s = loop.time()
        try:
            news, its_news = socket.socketpair()
            clients, its_clients = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError as error:
            self._again(f"no socket: {error.strerror}")
            return
        with its_news, its_clients:
            self._news, self._clients = news, clients
            passed = (pool.board.descriptor, its_news.fileno(), its_clients.fileno())
            command = [sys.executable, "-m", _MODULE, *map(str, passed), pool.log_level]
            start = lambda: subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)  # noqa: E731
            try:
                self._process = await loop.run_in_executor(None, start)
            except OSError as error:
                self._let_go()
                self._again(error.strerror or str(error))
                return
        if pool.stopping:
            self.end()
            return
        for line in (news, clients):
            line.setblocking(False)
        self._line = NewsLine(news, self._clogged, self._lost_somewhere)
        self._line.send(packed(pool.start_of(self.number)))
        pool.publisher.join(self._line)
        loop.add_reader(news.fileno(), self._heard)

    def give(self, client: socket.socket, line: socket.socket) -> bool:
        """Hand a client over, with the line to its connection; whether the process has got it."""
        if self._clients is None or not self.ready:
            return False
        try:
            socket.send_fds(self._clients, [b"c"], [client.fileno(), line.fileno()])
        except OSError:
            return False
        self.clients += 1
        return True

    def left(self) -> None:
        """One of its clients is gone."""
        self.clients -= 1

    def end(self) -> None:
        """Have the process end."""
        self._let_go()
        process, self._process = self._process, None
        if process is not None:
            loop = asyncio.get_running_loop()
            self._pool.reaping.add(task := loop.create_task(_reap(process)))
            task.add_done_callback(self._pool.reaping.discard)

    def look(self) -> None:
        """See whether the process goes on. One that is stopped keeps its clients waiting, and would not end by itself:
        it is killed. It is looked at often, so that a machine that was suspended as a whole proves nothing."""
        beats = self._pool.board.beats(self.number)
        self._silent = self._silent + 1 if self.ready and beats == self._beats else 0
        self._beats = beats
        if self._silent >= _SILENT_LOOKS and self._process is not None:
            self._silent = 0
            self._process.kill()
            self._lost("it has not gone on for some time")

    @property
    def status(self) -> ReaderStatus:
        """What is to be seen of it. Any thread."""
        board, pid = self._pool.board, self.pid
        state = "running" if self.ready else "ended" if pid is None else "starting"
        epoch, answered = board.newest(self.number), board.answered(self.number)
        return ReaderStatus(self.number, pid, state, epoch or None, answered, self.clients)

    def _heard(self) -> None:
        """The process has said that it is ready, or it has ended."""
        assert self._news is not None
        try:
            said = self._news.recv(16)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self.ready = True
            _log.info("a reading process takes clients", number=self.number, pid=self.pid)
        else:
            self._lost()

    def _clogged(self) -> None:
        """Something waits on the line. Any thread; the publisher's lock is held."""
        self._pool.post(self._watch_line)

    def _watch_line(self) -> None:
        if self._news is not None and self._line is not None:
            asyncio.get_running_loop().add_writer(self._news.fileno(), self._flush)

    def _flush(self) -> None:
        line, news = self._line, self._news
        if line is not None and news is not None and self._pool.publisher.flush(line):
            asyncio.get_running_loop().remove_writer(news.fileno())

    def _lost_somewhere(self) -> None:
        self._pool.post(self._lost)

    def _lost(self, why: str = "it has ended") -> None:
        """The process has ended, or takes nothing in: another one comes in its place."""
        if self._news is None or self._pool.stopping:
            return
        pid = self.pid
        self.end()
        self._again(why, pid)

    def _again(self, why: str, pid: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._since_s >= _SOUND_S:
            self._pause_s = _FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LAST_PAUSE_S)
        _log.warning("a reading process is started again", number=self.number, pid=pid, why=why, pause_s=pause_s)
        loop.call_later(pause_s, self._pool.begin, self)

    def _let_go(self) -> None:
        self.ready = False
        if self._line is not None:
            self._pool.publisher.leave(self._line)
            self._line = None
        loop = asyncio.get_running_loop()
        if self._news is not None:
            loop.remove_reader(self._news.fileno())
            loop.remove_writer(self._news.fileno())
        for line in (self._news, self._clients):
            if line is not None:
                line.close()
        self._news = self._clients = None


class ReaderPool:
    """The reading processes of one server. `start`, `give` and `stop` belong to its event loop."""

    def __init__(self, publisher: Publisher, board: ReadingBoard, count: int, settings: Settings) -> None:
        self.publisher = publisher
        self.board = board
        self.log_level = settings.log_level
        self._settings = settings
        self._readers = [ReaderPlace(number, self) for number in range(count)]
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopping = False
        self.reaping: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that take clients."""
        return [reader.pid for reader in self._readers if reader.ready and reader.pid is not None]

    @property
    def answered(self) -> int:
        """How many reads the processes have answered."""
        return sum(self.board.answered(reader.number) for reader in self._readers)

    def start(self) -> None:
        """Start the processes. Clients are the server's own as long as none of them is ready."""
        self._loop = asyncio.get_running_loop()
        for reader in self._readers:
            self.begin(reader)
        self._watching = [self._loop.create_task(task) for task in (self._watch(), self._vouch())]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for reader in self._readers:
                reader.look()

    async def _vouch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(None, self.publisher.vouch)
            except Exception:  # of whatever kind: then the server answers
                _log.exception("views are not shown beside the server")
            await asyncio.sleep(_VOUCH_S)

    def status(self) -> list[ReaderStatus]:
        """What is to be seen of the processes. Any thread."""
        return [reader.status for reader in self._readers]

    def begin(self, reader: ReaderPlace) -> None:
        """Start one process."""
        if not self.stopping and self._loop is not None:
            self._starting.add(task := self._loop.create_task(reader.begin()))
            task.add_done_callback(self._starting.discard)

    def give(self, client: socket.socket, own: int) -> tuple[socket.socket, Callable[[], None]] | None:
        """Hand a client over to the process with the fewest, unless the server has fewer with its `own`.

        Returns the server's end of the line to it, and what to call when the client is gone.
        """
        ready = [reader for reader in self._readers if reader.ready]
        chosen = min(ready, key=lambda reader: reader.clients, default=None)
        if chosen is None or chosen.clients > own:
            return None
        try:
            ours, its = socket.socketpair()
        except OSError:
            return None
        with its:
            if not chosen.give(client, its):
                ours.close()
                return None
        return ours, _once(chosen.left)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make a call soon. Any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call)

    def start_of(self, number: int) -> ReaderStart:
        """What a process has to know first."""
        settings = self._settings
        files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        if settings.tls == "off":
            files = (None, None, None)
        certificate, key, authorities = (None if file is None else os.path.abspath(file) for file in files)
        return ReaderStart(number, len(self._readers), certificate, key, authorities)

    async def stop(self) -> None:
        """End all processes, once their clients have got what is on its way to them."""
        self.stopping = True
        for task in self._watching:
            task.cancel()
        if self._starting:
            await asyncio.wait(set(self._starting))
        for reader in self._readers:
            reader.end()
        if self.reaping:
            await asyncio.wait(set(self.reaping))
        _log.info("the reading processes have ended", answered=self.answered)


async def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose lines are closed; one that does not end is killed."""
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, lambda: process.wait(_STOP_S))
    except subprocess.TimeoutExpired:
        process.kill()
        await loop.run_in_executor(None, process.wait)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Makes the call the first time only."""
    left = [call]

    def made() -> None:
        if left:
            left.pop()()

    return made


def reading_processes(instance: Instance) -> ReaderPool | None:
    """The reading processes that are asked for; None for none. Raises `InvalidParameter` where they cannot be."""
    settings = instance.settings
    if not settings.read_processes:
        return None
    why = None
    if not hasattr(socket, "send_fds") or not hasattr(socket, "AF_UNIX"):
        why = "this platform hands no sockets from one process to another"
    elif instance.catalog.file is None:
        why = f"the catalog is no file of this machine: {instance.catalog.location}"
    elif not instance.coordinator.root.is_local:
        why = f"the state is not on a disk of this machine: {instance.coordinator.root.url}"
    if why is not None:
        raise InvalidParameter(
            f"read_processes is {settings.read_processes}, but {why}",
            hint="Set read_processes to 0; standbys carry reads over more machines.",
        )
    board = ReadingBoard.create(settings.read_processes)
    publisher = Publisher(instance.coordinator, instance.catalog, board)
    pool = ReaderPool(publisher, board, settings.read_processes, settings)
    instance.reading_processes = pool.status
    return pool
