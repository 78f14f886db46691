"""The interactive shell: statements and backslash commands in, aligned tables out.

shell.py             runs statements and backslash commands
interactive.py       the prompt: history, completion, statements over several lines
script.py            cuts text into statements
link.py              where statements go: a server, or a database in this process
connecting.py        connections to a server, with libpq's environment variables
table.py             rows as text, the way psql prints them
pipelines.py         `headrace run`
remote_run.py        `headrace run --url`
catalog_commands.py  `headrace catalog`
takeover.py          `headrace catalog takeover`
state_commands.py    `headrace state`
"""
