"""Queries that fail on some rows, and what they mean as views that go on past these: queries that never fail."""

from __future__ import annotations

from dataclasses import dataclass

_SOUND_S = "(s IS NULL OR try_cast(s AS int) IS NOT NULL)"
_BY_X = "if(x = 0, NULL, 10 div x)"
_BY_TX = "if(t.x = 0, NULL, 10 div t.x)"
_BY_Y = "if(y = 0, NULL, 10 div y)"
_MOST = 2**63 - 1
_OVER = f"(CAST(coalesce(x, 1) = 0 AS bigint) + {_MOST})"
_OVER_OR_NULL = f"if(coalesce(x, 1) = 0, NULL, {_MOST})"


@dataclass(frozen=True)
class Tolerated:
    """A query over `t (k, x, s)` and `u (k, y)`, and the same by either policy."""

    query: str
    null: str
    skip: str


QUERIES = {
    "projection": Tolerated(
        "SELECT k, k / x AS d, 1 + k / x AS e FROM t",
        "SELECT k, try_divide(k, x) AS d, 1 + try_divide(k, x) AS e FROM t",
        "SELECT k, k / x AS d, 1 + k / x AS e FROM t WHERE x <> 0 OR k IS NULL",
    ),
    "inside of what hides it": Tolerated(
        "SELECT k, coalesce(10 div x, -1) AS d FROM t",
        f"SELECT k, coalesce({_BY_X}, -1) AS d FROM t",
        "SELECT k, 10 div x AS d FROM t WHERE x <> 0",
    ),
    "not computed": Tolerated(
        "SELECT k, CASE WHEN x = 0 THEN 0 ELSE 10 div x END AS d FROM t WHERE x <> 0 OR k = 1",
        "SELECT k, CASE WHEN x = 0 THEN 0 ELSE 10 div x END AS d FROM t WHERE x <> 0 OR k = 1",
        "SELECT k, CASE WHEN x = 0 THEN 0 ELSE 10 div x END AS d FROM t WHERE x <> 0 OR k = 1",
    ),
    "lambda": Tolerated(
        "SELECT k, transform(array(x, 1), v -> 10 div v) AS a FROM t",
        "SELECT k, transform(array(x, 1), v -> if(v = 0, NULL, 10 div v)) AS a FROM t",
        "SELECT k, transform(array(x, 1), v -> 10 div v) AS a FROM t WHERE x <> 0",
    ),
    "filter": Tolerated(
        "SELECT k, x FROM t WHERE 10 / x > 2 OR x = 0",
        "SELECT k, x FROM t WHERE try_divide(10, x) > 2 OR x = 0",
        "SELECT k, x FROM t WHERE try_divide(10, x) > 2",
    ),
    "filter over a projection": Tolerated(
        "SELECT k, d FROM (SELECT k, 10 div x AS d FROM t) WHERE d IS NULL OR d + 1 > 3",
        f"SELECT k, d FROM (SELECT k, {_BY_X} AS d FROM t) WHERE d IS NULL OR d + 1 > 3",
        "SELECT k, d FROM (SELECT k, 10 div x AS d FROM t WHERE x <> 0) WHERE d IS NULL OR d + 1 > 3",
    ),
    "sums": Tolerated(
        "SELECT k, sum(10 div x) AS s, 100 div sum(x) AS r FROM t GROUP BY k",
        f"SELECT k, sum({_BY_X}) AS s, if(sum(x) = 0, NULL, 100 div sum(x)) AS r FROM t GROUP BY k",
        "SELECT k, sum(10 div x) AS s, 100 div sum(x) AS r FROM t WHERE x <> 0 GROUP BY k HAVING sum(x) <> 0",
    ),
    "filtered aggregates": Tolerated(
        "SELECT k, sum(10 div x) FILTER (WHERE x <> 0) AS a, count(*) AS c FROM t GROUP BY k",
        "SELECT k, sum(10 div x) FILTER (WHERE x <> 0) AS a, count(*) AS c FROM t GROUP BY k",
        "SELECT k, sum(10 div x) FILTER (WHERE x <> 0) AS a, count(*) AS c FROM t GROUP BY k",
    ),
    "recomputed aggregates": Tolerated(
        "SELECT k, stddev(10 div x) AS b, count(*) AS c FROM t GROUP BY k",
        f"SELECT k, stddev({_BY_X}) AS b, count(*) AS c FROM t GROUP BY k",
        "SELECT k, stddev(10 div x) AS b, count(*) AS c FROM t WHERE x <> 0 GROUP BY k",
    ),
    "groups": Tolerated(
        "SELECT 10 div x AS g, count(*) AS c, count(DISTINCT 9 div x) AS d, count(DISTINCT s) AS e "
        "FROM t GROUP BY 10 div x",
        f"SELECT {_BY_X} AS g, count(*) AS c, count(DISTINCT if(x = 0, NULL, 9 div x)) AS d, count(DISTINCT s) AS e "
        f"FROM t GROUP BY {_BY_X}",
        "SELECT 10 div x AS g, count(*) AS c, count(DISTINCT 9 div x) AS d, count(DISTINCT s) AS e "
        "FROM t WHERE x <> 0 GROUP BY 10 div x",
    ),
    "a result over a count": Tolerated(
        "SELECT k, coalesce(9223372036854775806 + count(*), 0) AS c FROM t GROUP BY k",
        "SELECT k, if(count(*) > 1, 0, 9223372036854775805 + count(*) + 1) AS c FROM t GROUP BY k",
        "SELECT k, if(count(*) > 1, 0, 9223372036854775805 + count(*) + 1) AS c FROM t GROUP BY k HAVING count(*) < 2",
    ),
    "rollup": Tolerated(
        "SELECT k, max(10 div x) AS m, min(CAST(s AS int)) AS n FROM t GROUP BY ROLLUP(k)",
        f"SELECT k, max({_BY_X}) AS m, min(try_cast(s AS int)) AS n FROM t GROUP BY ROLLUP(k)",
        "SELECT k, max(10 div x) AS m, min(CAST(s AS int)) AS n FROM t "
        f"WHERE x <> 0 AND {_SOUND_S} GROUP BY ROLLUP(k)",
    ),
    "distinct": Tolerated(
        "SELECT DISTINCT 10 div x AS d FROM t",
        f"SELECT DISTINCT {_BY_X} AS d FROM t",
        "SELECT DISTINCT 10 div x AS d FROM t WHERE x <> 0",
    ),
    "window": Tolerated(
        "SELECT k, rank() OVER (PARTITION BY k ORDER BY CAST(s AS int)) AS r, sum(10 div x) OVER (PARTITION BY k) AS z "
        "FROM t",
        f"SELECT k, rank() OVER (PARTITION BY k ORDER BY try_cast(s AS int)) AS r, sum({_BY_X}) OVER (PARTITION BY k) "
        "AS z FROM t",
        "SELECT k, rank() OVER (PARTITION BY k ORDER BY CAST(s AS int)) AS r, sum(10 div x) OVER (PARTITION BY k) AS z "
        f"FROM t WHERE x <> 0 AND {_SOUND_S}",
    ),
    "first rows": Tolerated(
        "SELECT k, 10 div x AS d FROM t ORDER BY 10 div (x - 4), k, x, s LIMIT 3",
        f"SELECT k, {_BY_X} AS d FROM t ORDER BY if(x = 4, NULL, 10 div (x - 4)), k, x, s LIMIT 3",
        "SELECT k, 10 div x AS d FROM (SELECT * FROM t WHERE x NOT IN (0, 4)) ORDER BY 10 div (x - 4), k, x, s LIMIT 3",
    ),
    "key of a join": Tolerated(
        "SELECT t.k, u.y FROM t LEFT JOIN u ON 10 div t.x = u.y",
        f"SELECT t.k, u.y FROM t LEFT JOIN u ON {_BY_TX} = u.y",
        f"SELECT t.k, u.y FROM t LEFT JOIN u ON {_BY_TX} = u.y",
    ),
    "condition of an outer join": Tolerated(
        "SELECT t.k, u.y FROM t LEFT JOIN u ON t.k = u.k AND coalesce(10 div t.x, 1) >= u.y",
        f"SELECT t.k, u.y FROM t LEFT JOIN u ON t.k = u.k AND coalesce({_BY_TX}, 1) >= u.y",
        f"SELECT t.k, u.y FROM t LEFT JOIN u ON t.k = u.k AND {_BY_TX} >= u.y",
    ),
    "condition of an inner join": Tolerated(
        "SELECT t.k, u.y FROM t JOIN u ON t.k = u.k AND coalesce(10 div t.x, 1) >= u.y",
        f"SELECT t.k, u.y FROM t JOIN u ON t.k = u.k AND coalesce({_BY_TX}, 1) >= u.y",
        f"SELECT t.k, u.y FROM t JOIN u ON t.k = u.k AND {_BY_TX} >= u.y",
    ),
    "equal or both null": Tolerated(
        "SELECT t.k, u.y FROM t JOIN u ON 10 div t.x <=> u.y",
        f"SELECT t.k, u.y FROM t JOIN u ON {_BY_TX} <=> u.y",
        f"SELECT t.k, u.y FROM (SELECT * FROM t WHERE x <> 0 OR x IS NULL) t JOIN u ON {_BY_TX} <=> u.y",
    ),
    "exists": Tolerated(
        "SELECT t.k, t.x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND 10 div u.y > t.x)",
        f"SELECT t.k, t.x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND {_BY_Y} > t.x)",
        f"SELECT t.k, t.x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND {_BY_Y} > t.x)",
    ),
    "subquery": Tolerated(
        "SELECT k FROM t WHERE x > (SELECT max(-10 div y) FROM u)",
        "SELECT k FROM t WHERE x > (SELECT max(if(y = 0, NULL, -10 div y)) FROM u)",
        "SELECT k FROM t WHERE x > (SELECT max(if(y = 0, NULL, -10 div y)) FROM u)",
    ),
    "in and union": Tolerated(
        "SELECT k, CAST(s AS int) + 1 AS n FROM t WHERE k IN (SELECT 10 div y FROM u) UNION ALL "
        "SELECT k, 10 div x FROM t",
        f"SELECT k, try_cast(s AS int) + 1 AS n FROM t WHERE k IN (SELECT {_BY_Y} FROM u) UNION ALL "
        f"SELECT k, {_BY_X} FROM t",
        f"SELECT k, CAST(s AS int) + 1 AS n FROM (SELECT * FROM t WHERE {_SOUND_S}) WHERE k IN "
        f"(SELECT {_BY_Y} FROM u) UNION ALL SELECT k, 10 div x FROM t WHERE x <> 0",
    ),
    "generated rows": Tolerated(
        "SELECT k, v FROM t LATERAL VIEW explode(array(1, 10 div x)) AS v",
        f"SELECT k, v FROM t LATERAL VIEW explode(array(1, {_BY_X})) AS v",
        "SELECT k, v FROM t LATERAL VIEW explode(array(1, if(x = 0, 1, 10 div x))) AS v WHERE x <> 0",
    ),
    "the same text": Tolerated(
        "SELECT k, CAST(if(x = 0, concat(s, '1, 2'), s) AS int) AS p, "
        "CAST(if(x = 0, concat(s, '1', '2'), s) AS int) AS q FROM t",
        "SELECT k, try_cast(if(x = 0, concat(s, '1, 2'), s) AS int) AS p, "
        "try_cast(if(x = 0, concat(s, '1', '2'), s) AS int) AS q FROM t",
        f"SELECT k, CAST(s AS int) AS p, CAST(s AS int) AS q FROM t WHERE s IS NULL OR x <> 0 AND {_SOUND_S}",
    ),
    "never null but for the failure, over a union": Tolerated(
        f"SELECT d IS NULL AS n, coalesce(d, -1) AS d FROM (SELECT coalesce(k, 0) AS d FROM t UNION ALL SELECT {_OVER} "
        "FROM t)",
        f"SELECT d IS NULL AS n, coalesce(d, -1) AS d FROM (SELECT k AS d FROM (SELECT coalesce(k, 0) AS k FROM t) "
        f"UNION ALL SELECT {_OVER_OR_NULL} FROM t)",
        f"SELECT false AS n, d FROM (SELECT coalesce(k, 0) AS d FROM t UNION ALL SELECT {_OVER} FROM t "
        "WHERE coalesce(x, 1) <> 0)",
    ),
    "never null but for the failure, by name": Tolerated(
        f"WITH c AS (SELECT k, {_OVER} AS d FROM t) SELECT a.k, a.d IS NULL AS n, coalesce(b.d, -1) AS e FROM c a JOIN "
        "c b ON a.k = b.k",
        f"WITH c AS (SELECT k, {_OVER_OR_NULL} AS d FROM t) SELECT a.k, a.d IS NULL AS n, coalesce(b.d, -1) AS e FROM "
        "c a JOIN c b ON a.k = b.k",
        f"WITH c AS (SELECT k, {_OVER} AS d FROM t WHERE coalesce(x, 1) <> 0) SELECT a.k, a.d IS NULL AS n, "
        "coalesce(b.d, -1) AS e FROM c a JOIN c b ON a.k = b.k",
    ),
    "never null but for the failure, over aggregates and sets": Tolerated(
        f"SELECT d IS NULL AS n, m IS NULL AS o, c FROM (SELECT {_OVER} AS d, max({_OVER}) AS m, count({_OVER}) AS c "
        f"FROM t GROUP BY {_OVER})",
        f"SELECT d IS NULL AS n, m IS NULL AS o, c FROM (SELECT {_OVER_OR_NULL} AS d, max({_OVER_OR_NULL}) AS m, "
        f"count({_OVER_OR_NULL}) AS c FROM t GROUP BY {_OVER_OR_NULL})",
        f"SELECT d IS NULL AS n, m IS NULL AS o, c FROM (SELECT {_OVER} AS d, max({_OVER}) AS m, count({_OVER}) AS c "
        f"FROM t WHERE coalesce(x, 1) <> 0 GROUP BY {_OVER})",
    ),
    "never null but for the failure, in distinct rows and exceptions": Tolerated(
        f"SELECT d IS NULL AS n, coalesce(d, -1) AS d FROM (SELECT DISTINCT {_OVER} AS d FROM t EXCEPT SELECT "
        f"coalesce(y, 0) FROM u)",
        f"SELECT d IS NULL AS n, coalesce(d, -1) AS d FROM (SELECT DISTINCT {_OVER_OR_NULL} AS d FROM t EXCEPT SELECT "
        f"coalesce(y, 0) FROM u)",
        f"SELECT d IS NULL AS n, coalesce(d, -1) AS d FROM (SELECT DISTINCT {_OVER} AS d FROM t WHERE "
        f"coalesce(x, 1) <> 0 EXCEPT SELECT coalesce(y, 0) FROM u)",
    ),
}  # fmt: skip
