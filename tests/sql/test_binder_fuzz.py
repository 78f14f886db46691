"""Mutated statements: the binder binds them, refuses them or does not know them, and never fails in another way."""

from __future__ import annotations

import os
import random
import re

import pytest
from binder_cases import VALUES
from differential_mixed import mixed
from rendering import SCHEMA

from headrace.errors import HeadraceError
from headrace.sql.binder.bind import BindingContext, bind_query
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.spark_text import spark_text
from headrace.sql.postgres import parse_statement
from headrace.sql.statements import TableName

SEEDS = [query for query, _ in VALUES] + [
    "SELECT a, x, count(*) FROM t JOIN u USING (a) GROUP BY GROUPING SETS ((a), (a, x), ()) ORDER BY 1, 2, 3 LIMIT 5",
    "SELECT DISTINCT ON (a) x FROM u ORDER BY a DESC, x LIMIT 1 OFFSET 2",
    "SELECT window_start, sum(b) FROM tumble(t, ts, INTERVAL '1 h') w WHERE s LIKE 'a%' GROUP BY 1 HAVING max(a) > 1",
    "SELECT sum(a) OVER w, lag(s, 1) OVER (PARTITION BY a ORDER BY b) FROM t WINDOW w AS (ORDER BY ts DESC NULLS LAST)",
    "WITH c(k) AS (SELECT a FROM t), d AS (TABLE c) SELECT CASE k WHEN 1 THEN 'x' ELSE NULL END FROM d NATURAL JOIN c",
    "SELECT (a, s) IN (SELECT a, x FROM u), NOT EXISTS (SELECT FROM u WHERE u.a = t.a), a = ANY ('{1,2}') FROM t",
    "WITH RECURSIVE zq(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM zq WHERE n < 9) SELECT n AS \"zq`\", 'zq' FROM zq",
    'SELECT s AS "zq\'`", "zq`".a FROM t AS "zq`" WHERE s = \'zq\\\' OR s LIKE \'zq`%\'',
    "SELECT window_start, zq.a FROM SESSION(t, ts, INTERVAL '1 s', a) AS zq ORDER BY 1",
    "SELECT ts + interval '2' day, d - 3, f::int::text || n, s !~ '^a', a BETWEEN 1 AND b, b IS DISTINCT FROM 2 FROM t",
]
FOUND = [
    "SELECT window_start, sum(b) FROM tumble(t.*, ts, INTERVAL '1 h') w GROUP BY 1",
    "SELECT window_start FROM SESSION(t.*, ts, INTERVAL '1 s', a.*)",
    "WITH RECURSIVE zq(n) AS (SELECT UNION ALL SELECT + 1 FROM zq WHERE n < 9) SELECT n FROM zq",
    "SELECT sum(a) OVER (GROUPS UNBOUNDED PRECEDING) FROM t",
]
"""What once failed in another way."""
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`", re.DOTALL)


def tried(text: str) -> None:
    """What is written by the user, marked by `zq`, stands in quotes in Spark's text."""
    try:
        found = spark_text(
            bind_query(parse_statement(text), BindingContext(lambda n: SCHEMA.get(TableName(None, n.name)))), str
        )
        assert "zq" not in QUOTED.sub("", found).lower(), found
        assert "--" not in QUOTED.sub("", found), found
    except NotBound:
        pass
    except HeadraceError as error:
        assert error.position is None or 1 <= error.position <= len(text) + 1, text
        assert not error.sqlstate.startswith("XX"), text


@pytest.mark.parametrize("text", FOUND)
def test_found_statements(text: str) -> None:
    tried(text)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_statements(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(int(os.environ.get("HEADRACE_MUTATIONS", "250"))):
        text = mixed(chance, chance.choice(SEEDS), chance.choice(SEEDS))
        try:
            tried(text)
        except Exception as error:
            raise AssertionError(text) from error
