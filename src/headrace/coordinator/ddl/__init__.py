"""Creating, altering, dropping, and what is taken up and planned at a start.

lifecycle.py  relations and jobs are created, altered, dropped
planning.py   what the catalog holds is taken up at a start, and planned in the Spark that runs
lasting.py    by what it is told that a view would be planned as before
recovered.py  relations and jobs as the catalog has them
grouping.py   which checkpoint group a job may be in
replacing.py  tables that take the place of others, and what is left of them
renaming.py   objects get other names
succeeding.py tables that get columns take the place of those before, which go on for their readers
letting_go.py what sources hold where they read, and that a drop has to let go of
undecided.py  DDL of which nobody knows yet whether it is durable
place.py      opens the catalog where the settings say, or moves it there first
location.py   where the state lies, as the catalog remembers it
secrets.py    `Vault`: secrets, decrypted when a connector is opened
"""
