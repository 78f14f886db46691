"""The PostgreSQL wire protocol, version 3: messages, one connection's state machine, and the server around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.server.client import PgClient
    from headrace.server.server import PgServer, ServerThread, run_server_in_thread

__all__ = ["PgClient", "PgServer", "ServerThread", "run_server_in_thread"]


def __getattr__(name: str) -> Any:
    if name == "PgClient":
        from headrace.server.client import PgClient

        return PgClient
    if name in __all__:
        from headrace.server import server

        return getattr(server, name)
    raise AttributeError(f"module 'headrace.server' has no attribute {name!r}")
