"""Reading processes beside the server: they carry reads that need no Spark over more cores.

The server's side:

pool.py       starts them, gives them clients, starts them again when they have ended
publisher.py  tells them of commits, before anybody else can act on these
paired.py     the server's end of a client that one of them has

The processes:

reading_process.py  what one of them runs
reading_client.py   a client's socket, TLS, and the line to the server
own_answers.py      what a client is answered there
own_reads.py        reads of more than a single row
followed.py         the tables, views and indexes as they were told of, and rows in their runs

Between them:

reading_board.py  shared memory: which version is the newest, what was shown
news.py           what is said on their lines

The server accepts all clients. It keeps some and hands others over, each with a line to a connection of the server,
which is an ordinary one: login, session, writes, Spark, cancels and limits are the server's, and what the client sends
goes there byte for byte, and back. Only TLS ends in the process. docs/design/0021 says why.

*What a process answers.* A statement that the server can answer at once, by its name or its text: when the client has
used it there, the server tells the process the plan (`paired.py`). A plan holds as long as neither the session's
settings nor the catalog's objects change, roles and grants among them; and as long as the server has said of the
session that it keeps nothing of what the client has sent up to the last byte: no transaction, no portal, no cursor, no
limit of time. All else is for the server.

*More than a row* is read by the plans, steps and kernels of the server, over the rows of one moment; of views only
while the server vouches that it has nothing to tell of them. What takes long is computed in a thread; what is large is
the server's, which can make a client wait for the rest.

*Never stale.* `Publisher` holds up every change for the moment in which it tells the processes. A process that finds
the newest version on the board, and has the news of it, knows what the server would read at that moment; it also asks
the fence. If anything is in doubt, the server is asked. So nothing needs a pin either: runs that are gone are an error,
which is the server's to answer.

*Floors.* A read notes on the board what it shows before it shows it, and `Reads` goes by that.

*Ends.* A process holds no port and no lock. It ends when its lines to the server close; its clients end with it.
"""
