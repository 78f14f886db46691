"""Processes that may be killed, forked from one that has loaded all that they need: each would load it anew."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Nursery:
    """One process, without threads, and a fork of it for each call; a context manager."""

    def __enter__(self) -> Nursery:
        spawn = multiprocessing.get_context("spawn")  # a fork of this process would have its clients and their locks
        self._line, its_end = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(its_end,), daemon=True)
        self._process.start()
        its_end.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()  # which ends it
        self._process.join()

    def run(self, call: Callable[..., object], *arguments: object) -> int:
        """Call a function in a new process, in this one's environment; how that ended: -9 if it was killed."""
        self._line.send((call, arguments, dict(os.environ)))
        code: int = self._line.recv()
        return code


def _serve(line: Connection) -> None:
    while True:
        try:
            call, arguments, environment = line.recv()
        except EOFError:
            return
        child = os.fork()
        if not child:
            line.close()
            _run(call, arguments, environment)
        line.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _run(call: Callable[..., object], arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        call(*arguments)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
