"""A reading process: started by the server, gets clients from it, and ends with it.

It has three descriptors: the board, the line on which it is told the news, and the one on which clients come.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from headrace.common.loggers import get_logger
from headrace.server.readers.followed import Followed
from headrace.server.readers.news import ReaderStart, unpacked
from headrace.server.readers.own_answers import Answers, whole_messages
from headrace.server.readers.reading_board import ReadingBoard
from headrace.server.readers.reading_client import ReadingClient, ServerEnd
from headrace.server.server import SWITCH_S, new_loop
from headrace.server.tls import Certificates
from headrace.session.log_output import log_to_stderr
from headrace.session.shared_reads import KEPT_BYTES, SharedReads

_log = get_logger("headrace.readers")
BEAT_S: Final = 1.0
"""How often a process tells that it goes on."""
_BEATS_TO_TIDY: Final = 5
_FAREWELL_S: Final = 2.0
"""How long clients may take what they have not got yet, once the server is gone."""
_GARBAGE: Final = 50_000
READY: Final = b"!"
"""What a reading process says once it takes clients."""


class ReadingProcess:
    """The clients of one process. On its event loop."""

    def __init__(self, start: ReaderStart, board: ReadingBoard, news: socket.socket, clients: socket.socket) -> None:
        self._board, self._number = board, start.number
        self._news = news
        self._clients_line = clients
        self._certificates: Certificates | None = None
        if start.certificate is not None and start.key is not None:
            authorities = None if start.client_authorities is None else Path(start.client_authorities)
            self._certificates = Certificates(Path(start.certificate), Path(start.key), authorities)
        self._followed = Followed(board, start.number, news)
        self._decoder = whole_messages()
        self._shared_reads = SharedReads(KEPT_BYTES // start.processes, 1)
        self._computers = ThreadPoolExecutor(1, "headrace-compute")
        self._clients: set[ReadingClient] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Take clients until the server is gone."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._news.fileno(), self._take_in)
        loop.add_reader(self._clients_line.fileno(), self._meet)
        self._take_in()
        with contextlib.suppress(OSError):
            self._news.send(READY)
        tidying = loop.create_task(self._tidy())
        await self._over.wait()
        tidying.cancel()
        deadline_s = loop.time() + _FAREWELL_S
        while any(not client.gone for client in self._clients) and loop.time() < deadline_s:
            await asyncio.sleep(0.02)

    def _take_in(self) -> None:
        self._followed.take_in()
        if self._followed.ended and not self._over.is_set():
            asyncio.get_running_loop().remove_reader(self._news.fileno())
            self._over.set()

    async def _tidy(self) -> None:
        for beats in itertools.count(1):
            self._board.beat(self._number)
            await asyncio.sleep(BEAT_S)
            if beats % _BEATS_TO_TIDY == 0:
                self._followed.tidy()
                self._clients = {client for client in self._clients if not client.gone}

    def _meet(self) -> None:
        """A client has come, and the line to the connection that the server has for it."""
        while True:
            try:
                _, descriptors, _, _ = socket.recv_fds(self._clients_line, 16, 2)
            except BlockingIOError:
                return
            except OSError:
                descriptors = []
            if len(descriptors) != 2:  # the server is gone
                asyncio.get_running_loop().remove_reader(self._clients_line.fileno())
                return
            client, line = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            asyncio.get_running_loop().create_task(self._serve(client, line))

    async def _serve(self, client: socket.socket, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for end in (client, line):
            end.setblocking(False)
        server = ServerEnd()
        made = server.client = ReadingClient(server, self._certificates, self._computers)
        made.answers = Answers(self._followed, self._decoder, self._shared_reads, made.require_client)
        try:
            await loop.connect_accepted_socket(lambda: server, line)
            await loop.connect_accepted_socket(lambda: made, client)
        except OSError:
            server.abort()
            client.close()
            line.close()
            return
        self._clients.add(made)


def main() -> None:
    """What the process runs; the arguments are its descriptors and the least severity that it logs."""
    board, news, clients = (int(text) for text in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    log_to_stderr(sys.argv[4])
    news_line, clients_line = socket.socket(fileno=news), socket.socket(fileno=clients)
    start = _start(news_line)
    if start is None:
        return
    news_line.setblocking(False)
    clients_line.setblocking(False)
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
    loop = new_loop()
    asyncio.set_event_loop(loop)
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    try:
        loop.run_until_complete(
            ReadingProcess(start, ReadingBoard(board, start.processes), news_line, clients_line).run()
        )  # fmt: skip
    finally:
        os._exit(0)


def _start(line: socket.socket) -> ReaderStart | None:
    """The first word of the server; None if there is none any more."""
    buffer = bytearray()
    while True:
        for message in unpacked(buffer):
            assert isinstance(message, ReaderStart)
            return message
        data = line.recv(1)
        if not data:
            return None
        buffer += data


if __name__ == "__main__":
    main()
