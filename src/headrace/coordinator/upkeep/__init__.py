"""Compaction, vacuum, whose state it is, and what is left where dropped sources read.

maintenance.py  the background thread: compaction all the time, vacuum now and then
compaction.py   raises safe epochs, merges runs, drops bindings nobody can read
logs.py         how large unread logs are, and what a limit does
vacuum.py       deletes objects that nothing refers to
leftovers.py    what dropped sources hold still is let go of, by a thread of its own
owner.py        whose state it is: without its mark nothing there is deleted
retention.py    how far back a relation's history is needed
"""
