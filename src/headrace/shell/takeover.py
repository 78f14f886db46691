"""`headrace catalog takeover`: a standby is told, over its clients' protocol, to become the active server."""

from __future__ import annotations

from headrace.errors import OperationalError
from headrace.server.simple_client import PgClient, texts


def take_over(client: PgClient, wait_s: int) -> None:
    """Return once the server has taken over; prints from whom. Raises `OperationalError` if it has not in time."""
    answers = [texts(row) for reply in client.query(f"SELECT pg_promote(true, {wait_s})") for row in reply.rows]
    if answers != [["t"]]:
        raise OperationalError(
            f"the standby has not taken over within {wait_s} s",
            hint="SELECT * FROM headrace_catalog.server there tells what it knows, and what keeps it",
        )
    told = [
        texts(row)[0]
        for reply in client.query(
            "SELECT message FROM headrace_catalog.events WHERE kind = 'took_over' ORDER BY sequence DESC LIMIT 1"
        )
        for row in reply.rows
    ]
    print(told[0] if told else "the standby has taken over")
