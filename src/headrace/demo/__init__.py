"""The demonstration: a year of flights through live views, a crash half-way, and the proof that all is exact.

scenario.py         what happens, from the first file to the verdict
data.py             the input: flights out of New York in 2013
demo_statements.py  the statements
demo_server.py      the server: a child process that is killed and started again
board.py            what is known while it runs
watch.py            fills the board from the server's system relations
screen.py           shows the board: a live table, or plain lines
verify.py           compares every view with its query, computed by Spark from the files
"""

from __future__ import annotations


def main(args: list[str]) -> int:
    """Run it with command-line arguments; the exit code is 1 if a view differs from the batch answer.

    Raises `OperationalError` where the data or the server cannot be had.
    """
    from headrace.demo.scenario import run

    return run(args)
