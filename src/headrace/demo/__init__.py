"""The demonstration: a year of flights through live views, a crash half-way, and the proof that all is exact."""

from __future__ import annotations


def main(args: list[str]) -> int:
    """Run it with command-line arguments; the exit code is 1 if a view differs from the batch answer.

    Raises `OperationalError` where the data or the server cannot be had.
    """
    from headrace.demo.run import run

    return run(args)
