"""The durable catalog: the one place whose atomic writes decide what has happened.

Objects, jobs, state tables, runs, bindings, settings and events are typed records. One method changes them,
`Catalog.transact(edits)`: it validates, writes one transaction, and only then updates the image in memory.

The catalog as others use it:

catalog.py   `Catalog`: the handle, its transactions, `reading()`
state.py     the content in memory: look-ups that the rest of headrace needs
records.py   one immutable record type for each collection, with its JSON form
contents.py  what only one kind of object has: a record for each kind, and what such objects can do
encoding.py  typed records in a record that encode to the bytes they were read from
edits.py     what a transaction may change, and the rules it must keep. Pure
bindings.py  bindings of a source, stored as what has moved since the one before
frozen.py    immutable collections: a changed copy shares almost everything with the original
sealing.py   secrets, encrypted by a key that is not in the catalog

Backends:

store.py      `CatalogStore`: what a backend must do
stash.py      two tables of a database: the transactions on them
stash_tables.py  what such a database has to do
stash_file.py    these tables in a SQLite file
stash_server.py  these tables in PostgreSQL
deadlines.py  cuts the line to a database that no longer answers
log_store.py  a log of objects in an object store or directory
journal.py    the bytes and names of that log. No I/O
directory.py  a directory that behaves like an object store
shadow.py     a second backend that gets every transaction too
fence_file.py a look at the fence of a catalog file, from another process

Places:

places.py     the URLs of catalogs, and the backend for each
marks.py      what a place says of itself: moved away, or a copy. Pure
moving.py     moves a catalog, and finds the place that holds the truth
following.py  a read-only handle on a catalog that another server writes

What must hold. Opening a catalog raises a durable fencing token, and every later operation compares it in the same
step: a second server shuts the first one out at once. An opener below the stored deploy generation is refused before
it raises the token, so tokens order by generation, too. Committed epochs only grow, safe epochs and watermarks never
go back; an edit that would break this is refused whole. `Catalog.state` is a snapshot that never changes; `reading()`
keeps the next transaction from being seen until what was found is pinned.
"""
