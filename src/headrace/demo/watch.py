"""Fills the board from the server's own tables."""

from __future__ import annotations

from typing import Final

from headrace.demo.board import Board, ViewState
from headrace.demo.demo_server import DemoServer, select
from headrace.demo.demo_statements import PROGRESS
from headrace.errors import HeadraceError
from headrace.server.simple_client import ConnectionLost, PgClient

_TIMES_EVERY: Final = 5
"""Every how many polls the epochs' times are asked for, which is a query of its own on Spark."""


class Watcher:
    """Asks over a connection of its own, which it opens when there is a server."""

    def __init__(self, board: Board, server: DemoServer):
        self._board = board
        self._server = server
        self._client: PgClient | None = None
        self._polls = 0

    def poll(self) -> None:
        """Look once. Where there is no server the board says so."""
        try:
            if self._client is None:
                self._client = self._server.connect()
            self._jobs(self._client)
            for view in self._board.views:
                if view.status in ("running", "failing", "held", "paused"):
                    self._look(self._client, view)
            self._polls += 1
            if self._polls % _TIMES_EVERY == 0:
                self._times(self._client)
        except ConnectionLost:
            self.forget()

    def forget(self) -> None:
        """Drop the connection; what it told is out of date."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self._board.pause()
        for view in self._board.views:
            view.status = "no server" if view.status else ""
            view.lag_ms = view.last_epoch_ms = None

    def _jobs(self, client: PgClient) -> None:
        found = _by_view(*select(client, "SHOW JOBS"))
        for view in self._board.views:
            job = found.get(view.name, {})
            view.status = job.get("status") or ""
            view.lag_ms = _number(job.get("lag_ms"))
            error = job.get("error") or ""
            if error and error != view.error:
                failing = " is failing, and will be tried again" if view.status == "failing" else ""
                self._board.note(f"{view.name}{failing}: {error}")
            view.error = error

    def _times(self, client: PgClient) -> None:
        found = _by_view(*select(client, "SELECT name, last_epoch_ms FROM headrace_catalog.jobs"))
        for view in self._board.views:
            view.last_epoch_ms = _number(found.get(view.name, {}).get("last_epoch_ms"))

    def _look(self, client: PgClient, view: ViewState) -> None:
        try:
            if view.name == PROGRESS:
                _, rows = select(client, f"SELECT flights, until FROM {PROGRESS}")
                view.rows = len(rows)
                for flights, until in rows:
                    self._board.saw(int(flights or 0), (until or "")[:16])
            else:
                _, rows = select(client, f"SELECT count(*) FROM {view.name}")
                view.rows = _number(rows[0][0])
        except ConnectionLost:
            raise
        except HeadraceError as error:
            view.error = error.message


def _by_view(names: list[str], rows: list[list[str | None]]) -> dict[str, dict[str, str | None]]:
    heads = [name.lower().replace(" ", "_") for name in names]
    found = [dict(zip(heads, row, strict=True)) for row in rows]
    return {(job["name"] or "").rpartition(".")[2]: job for job in found}


def _number(text: str | None) -> int | None:
    return round(float(text)) if text else None
