"""Where the shell's statements go: a server, or a database in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Protocol

from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import Zone
from headrace.errors import NotSupported
from headrace.server.simple_client import PgClient, Reply, texts
from headrace.session.result import Notice, Result, SessionLike, shown_zone

_RIGHT_ALIGNED_OIDS = frozenset((20, 21, 23, 26, 700, 701, 1700))


@dataclass(frozen=True)
class Heading:
    """A column of a result as the shell shows it."""

    name: str
    numeric: bool = False


@dataclass
class StatementOutcome:
    """One statement's outcome. `headings` is None where there are no rows; `notices` is complete after the rows."""

    headings: list[Heading] | None
    rows: Iterator[list[str | None]]
    tag: str
    notices: list[Notice] = field(default_factory=list)


class Link(Protocol):
    """Runs statements for the shell, wherever the database is."""

    @property
    def transaction_status(self) -> str:
        """`I`, `T` or `E`."""
        ...

    def run(self, sql: str) -> Iterator[StatementOutcome]:
        """Run a script; one outcome for each statement. Closing the iterator cancels the rest."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class RemoteLink:
    """Sends statements to a server."""

    def __init__(self, client: PgClient):
        self._client = client

    @property
    def transaction_status(self) -> str:
        """`I`, `T` or `E`."""
        return self._client.transaction_status

    def run(self, sql: str) -> Iterator[StatementOutcome]:
        """Run a script."""
        for reply in self._client.query(sql):
            yield _outcome_of_reply(reply)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class EmbeddedLink:
    """Runs statements in a session of this process."""

    def __init__(self, session: SessionLike):
        self._session = session

    @property
    def transaction_status(self) -> str:
        """`I`, `T` or `E`."""
        return self._session.transaction_status

    def run(self, sql: str) -> Iterator[StatementOutcome]:
        """Run a script."""
        finished = False
        try:
            for result in self._session.execute(sql):
                if result.copy is not None or result.sink is not None:
                    raise NotSupported("COPY is not for the shell", hint="Use psql, or a driver that copies.")
                yield _outcome_of_result(result, shown_zone(self._session))
            finished = True
        except Exception:
            finished = True
            raise
        finally:
            if not finished:
                self._session.cancel()

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _outcome_of_reply(reply: Reply) -> StatementOutcome:
    if reply.description is None:
        return StatementOutcome(None, iter(()), reply.tag, reply.notices)
    headings = [Heading(f.name, f.type_oid in _RIGHT_ALIGNED_OIDS) for f in reply.description.fields]
    return StatementOutcome(headings, map(texts, reply.rows), reply.tag, reply.notices)


def _outcome_of_result(result: Result, zone: Zone) -> StatementOutcome:
    from headrace.sql.type_names import pg_type

    if result.columns is None:
        return StatementOutcome(None, iter(()), result.tag, result.notices)
    headings = [Heading(c.name, pg_type(c.type).oid in _RIGHT_ALIGNED_OIDS) for c in result.columns]
    return StatementOutcome(headings, _text_rows(result, zone), result.tag, result.notices)


def _text_rows(result: Result, zone: Zone) -> Iterator[list[str | None]]:
    from headrace.sql.type_names import render_text

    columns = result.columns or []
    for batch in result.batches:
        rendered = [render_text(batch.column(i), column.type, zone) for i, column in enumerate(columns)]
        for row in zip(*rendered, strict=True):
            yield texts(row)
