"""HTTP: requests that put rows into tables (webhooks).

exchange.py     one connection: requests in, answers out, within limits of size and time
receiver.py     what a request comes to: which table, whether it may, its rows, and what it is answered. No network
local.py        which requests may go to a table that asks for no proof
seldom.py       the log, which a flood of requests does not fill
http_server.py  listens, and bounds how much is under way

A request costs no Spark and no session: its rows go to the tables' writer as those of an INSERT do, one request, one
write, which the writer commits in a group with all others that wait. It is answered when that is durable.

*No framework.* There is one kind of request. `h11` reads and writes HTTP/1.1 without I/O; what stands around it is what
frameworks leave to a proxy: how long and how much a client may send, and how many may.

*Bounds.* Whoever reaches the port can send what he likes: a head has `HEAD_BYTES` at most, a body `webhook_body_kb`,
either has to be there within `webhook_timeout_ms`; `webhook_requests` are worked on at once, and those that come on top
are told to come again (429); of connections there are four times as many, more are closed.

*Threads.* The network is the event loop's, in a thread of its own. Signatures and JSON are for a few threads beside it,
and nobody waits for a commit: the writer's thread tells the loop.
"""
