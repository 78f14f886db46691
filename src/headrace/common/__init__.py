"""Small things that depend on nothing else of headrace.

absent.py          packages that are left out of a process
ambiguity.py       whether a regular expression can be matched in one way only
clock.py           time as a dependency: the real clock, and one that tests move by hand
command_line.py    commands that are functions with annotated parameters
columns.py         columns, Spark's type strings, and Arrow's types for them
epoch.py           epochs: the database's logical time, an int64 that only grows
faults.py          named fault points, where tests crash, fail, hang or delay the code
hosts.py           this host's addresses, as other hosts reach it
identifiers.py     names quoted as PostgreSQL quotes them
java.py            whether there is a Java that Spark can run on
jsonb/             documents of type `jsonb`
lazy_dataclass.py  dataclasses whose methods are made when they are first asked for
last_used.py       a cache of bounded size
loggers.py         loggers that load structlog when there is something to log
niceness.py        lets a process give way to this one
ownership.py       the lock that says a process serves the database in a directory
private_files.py   files and folders that only this user may write to
regular.py         PostgreSQL's regular expressions as Java's
scram.py           SCRAM-SHA-256, both sides. No I/O
shifts.py          functions of the current time that never fall, and when they reach a given time
span.py            intervals: months, days and microseconds
texts.py           any value of a column as text, for messages and samples
time_of_day.py     times of the day, from 00:00:00 to 24:00:00
zones.py           time zones: names, offsets, and what clocks show
"""
