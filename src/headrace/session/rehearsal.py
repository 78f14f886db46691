"""A first life of Spark, of which nothing is kept but the archive of its classes.

Run as a program it makes the archive where there is none, and yields to all other work of the machine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.config import Settings
from headrace.dataflow import class_archive
from headrace.dataflow.spark import local_session
from headrace.errors import OperationalError
from headrace.plan.catalyst import process
from headrace.session.database import connect

_SCRIPT = """
CREATE TABLE a (k int PRIMARY KEY, v bigint); CREATE TABLE b (k int, w text);
CREATE MATERIALIZED VIEW joined AS SELECT a.k, a.v, b.w FROM a LEFT JOIN b ON a.k = b.k;
CREATE MATERIALIZED VIEW summed AS SELECT w, count(*) AS n, sum(v) AS s, max(v) AS m FROM joined GROUP BY w;
CREATE MATERIALIZED VIEW best AS
    SELECT k, v FROM (SELECT k, v, row_number() OVER (ORDER BY v DESC) AS r FROM a) q WHERE r <= 3;
INSERT INTO a VALUES (1, 10), (2, 20); INSERT INTO b VALUES (1, 'x'), (2, 'y');
FLUSH;
UPDATE a SET v = v + 1 WHERE v < 20; DELETE FROM b WHERE w = 'y';
FLUSH;
SELECT k, v FROM joined WHERE v > 1 ORDER BY k; SELECT w, sum(s) FROM summed GROUP BY w;
"""
_END_S = 300.0
_PATIENT = 19
"""The least of priorities."""


def rehearse() -> Path:
    """Make the archive of Spark's classes, and return its path. Ends this process's Spark.

    Raises `OperationalError` where Java does not write it.
    """
    path = class_archive.archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="new-", dir=path.parent) as folder:
        made = Path(folder) / path.name
        session = local_session(java_options=class_archive.recording(made))
        # Whatever the environment says of a database is about another one.
        with connect(spark=session, settings=Settings.defaults()) as database:
            database.sql(_SCRIPT)
        session.stop()
        process.end(_END_S)
        if not made.is_file():
            raise OperationalError(
                "Java has not written an archive of Spark's classes", hint="Spark starts without one"
            )
        os.replace(made, path)
    return path


def main() -> None:
    """Make the archive, unless somebody has."""
    os.nice(_PATIENT)
    if not class_archive.archive_path().exists():
        rehearse()


if __name__ == "__main__":
    main()
