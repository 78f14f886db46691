"""The PostgreSQL wire protocol, version 3: messages, one connection's state machine, and the server around them.

Messages, no I/O:

wire.py          integers, strings, frames
frontend.py      what a client sends
backend.py       what the server sends
binary.py        values in PostgreSQL's binary format
binary_numerics.py  decimals in it, many at once
binary_catalog.py  values of the system catalogs' own types in it
row_messages.py  result columns and batches as row descriptions and data rows
message_blocks.py  many messages of one kind at once, by columns

One connection:

connection.py   the state machine: messages in, bytes out, a session behind it
portals.py      prepared statements and portals
encoders.py     rows made into messages ahead of their client, on threads for all connections
short_way.py    one statement that runs at once; reads that come together
copy_in.py      COPY FROM STDIN: bytes to rows, bounded in memory
copy_text.py    text and CSV: bytes to records of fields
copy_binary.py  the binary format: bytes to rows
copy_out.py     COPY TO STDOUT: rows to bytes

Login:

door.py     who is let in, and what encrypts the line, made of the settings
gate.py     one client's login as a state machine. No I/O
guesses.py  how often somebody may be wrong about a password. No I/O
tls.py      certificates, read again when their files change

The server:

server.py         accepts clients, routes cancel requests, stops gracefully
peer.py           one client: bytes between its socket and its connection
worker.py         a thread for each connection's blocking calls
simple_client.py  a small blocking client, for the shell and the tests
readers/          processes beside the server that answer reads of single rows

*Login.* A client gets a session when it is known who it is. `gate.py` goes by the rules of `session/access.py`, the
roles of `session/stored_roles.py` and the exchange of `common/scram.py`. A client whose role does not exist is asked
the same questions as one whose role does. `peer.py` answers a request for TLS itself, before the connection sees it:
nothing that came in plain text may count as said by TLS.

*Threads.* The session's calls block, so a connection's generator runs in its worker. Statements whose work is small
run on the event loop instead, where their bytes arrive: row operations, `BEGIN`, `COMMIT`, `ROLLBACK`, and reads that
`session/reading/at_once.py` answers. For a row operation the state machine yields what is pending and goes on once
its group has been committed, of which the loop is told once for the whole group. One statement whose messages came
together has a shorter way (`Connection.take_quickly`), which says the same; the rows that such reads want are looked up
together once all that has come in a turn of the loop is taken apart (`Gathered`). The event loop
never closes a result: what holds a snapshot is released in the connection's worker.

*COPY.* A connection that copies in remembers what comes after it in its script, and hands all messages to the sink
until `CopyDone`. `tests/server/test_copy_formats.py` has PostgreSQL read the same bytes.

*Rows.* What a client gets next is made while it takes what was made before, by threads that all connections share,
within one bound of memory (`encoders.py`). A block is whole messages, so an error may come behind any. While rows are
sent their statement's time limit counts, and nobody waits for a client longer than that, or than until a cancel: what
holds the rows is let go of, and the client finds the error when it takes what comes before it.

*Cancelling.* A cancel counts for a whole *request*: all that runs between two calls of `begin_request`, which the
server makes when messages reach an idle connection and when it tells the client that it is ready. So a cancel between
two statements of one text stops the second, and one that comes too late stops nothing. What runs in a thread of its
own so that waiting for it can be cancelled (`FLUSH`, filling a view) is given a function that tells whether anybody
still waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.server.server import PgServer, ServerThread, run_server_in_thread
    from headrace.server.simple_client import PgClient

__all__ = ["PgClient", "PgServer", "ServerThread", "run_server_in_thread"]


def __getattr__(name: str) -> Any:
    if name == "PgClient":
        from headrace.server.simple_client import PgClient

        return PgClient
    if name in __all__:
        from headrace.server import server

        return getattr(server, name)
    raise AttributeError(f"module 'headrace.server' has no attribute {name!r}")
