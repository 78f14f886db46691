"""Queries over the tables of `model_cases.schemas`: a pool with every operator, and a grammar that composes them.

The tables `t` and `s` have a small integer `a`, a column `b` of one type, numbers `n`, and `v` of any type; `n` and `v`
may differ in type between the two. Queries have one right answer: where order decides, they order by all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

POOL: dict[str, str] = {
    # row by row
    "project": "SELECT a, a + 1 AS a1, b, n, v, v IS NULL AS vn, 7 AS seven, 'x' AS x FROM t",
    "filter": "SELECT * FROM t WHERE a > 0 AND v IS NOT NULL",
    "case": "SELECT a, CASE WHEN a = 1 THEN b WHEN n > 0 THEN NULL ELSE b END AS c, coalesce(a, -1) AS d FROM t",
    "nested_values": "SELECT a, array(v, v) AS two, named_struct('a', a, 'v', v) AS s, map(coalesce(a, 0), v) AS m "
    "FROM t",
    "void": "SELECT a, NULL AS nothing FROM t",
    "explode": "SELECT a, i, x FROM t LATERAL VIEW posexplode(array(b, b, NULL)) e AS i, x",
    "explode_outer": "SELECT a, x FROM t LATERAL VIEW OUTER explode(sequence(1, CASE WHEN a > 0 THEN a END)) e AS x",
    "stack": "SELECT k, y FROM t LATERAL VIEW stack(2, 'a', a, 'n', a + 1) e AS k, y",
    "union_all": "SELECT a, b FROM t UNION ALL SELECT a, b FROM s UNION ALL SELECT a, b FROM t WHERE a = 1",
    "union_constant": "SELECT a, 'row' AS w FROM t UNION ALL SELECT 5, 'five' UNION ALL VALUES (6, 'six'), (NULL, "
    "'none')",
    "constant": "SELECT 1 AS one, 'x' AS x",
    "constant_range": "SELECT id, a FROM range(3) r LEFT JOIN t ON r.id = t.a",
    # joins
    "inner": "SELECT t.a, t.v, s.v AS sv FROM t JOIN s ON t.a = s.a",
    "inner_two_keys": "SELECT t.a, t.b, t.n, s.n AS sn FROM t JOIN s ON t.a = s.a AND t.b = s.b",
    "inner_residual": "SELECT t.a, t.n, s.n AS sn FROM t JOIN s ON t.b = s.b AND t.n < s.n",
    "inner_null_safe": "SELECT t.a, t.b, s.v FROM t JOIN s ON t.b <=> s.b AND t.a <=> s.a",
    "cross": "SELECT t.a, s.a AS sa, t.b FROM t CROSS JOIN s",
    "theta": "SELECT t.a, s.a AS sa FROM t JOIN s ON t.a < s.a",
    "left": "SELECT t.a, t.v, s.v AS sv FROM t LEFT JOIN s ON t.b = s.b",
    "left_residual": "SELECT t.a, t.n, s.n AS sn FROM t LEFT JOIN s ON t.a = s.a AND t.n >= s.n",
    "left_theta": "SELECT t.a, s.a AS sa FROM t LEFT JOIN s ON t.a > s.a",
    "right": "SELECT t.v, s.a, s.v AS sv FROM t RIGHT JOIN s ON t.a = s.a AND t.b = s.b",
    "right_residual": "SELECT t.a, s.a AS sa, s.n FROM t RIGHT JOIN s ON t.b <=> s.b AND t.a <> s.a",
    "full": "SELECT t.a, t.v, s.a AS sa, s.v AS sv FROM t FULL JOIN s ON t.a = s.a",
    "full_residual": "SELECT t.a, t.n, s.a AS sa, s.n AS sn FROM t FULL JOIN s ON t.b = s.b AND t.n <= s.n",
    "full_few_columns": "SELECT t.a, s.a AS sa FROM t FULL JOIN s ON t.b <=> s.b",
    "semi": "SELECT * FROM t LEFT SEMI JOIN s ON t.a = s.a",
    "semi_residual": "SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.a = t.a AND s.n > t.n)",
    "anti": "SELECT * FROM t LEFT ANTI JOIN s ON t.b = s.b",
    "anti_residual": "SELECT a, v FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.b = t.b AND s.a >= t.a)",
    "existence": "SELECT a, b FROM t WHERE n > 0 OR a IN (SELECT a FROM s)",
    "existence_residual": "SELECT a, n FROM t WHERE a = 2 OR EXISTS (SELECT 1 FROM s WHERE s.b <=> t.b AND s.a < t.a)",
    "self_join": "SELECT x.a, x.v, y.v AS yv FROM t x JOIN t y ON x.a = y.a",
    "self_left": "SELECT x.a, y.a AS ya, y.b FROM t x LEFT JOIN t y ON x.b = y.b AND x.a < y.a",
    "three_way": "SELECT t.a, s.b, u.n FROM t JOIN s ON t.a = s.a LEFT JOIN t u ON s.b = u.b",
    "using": "SELECT * FROM (SELECT a, n FROM t) JOIN (SELECT a, v FROM s) USING (a)",
    "non_key": "SELECT t.n FROM t JOIN s ON t.a + 1 = s.a * 2",
    # grouping
    "aggregate": "SELECT a, count(*) AS c, count(v) AS cv, sum(n) AS sn, avg(n) AS an FROM t GROUP BY a",
    "aggregate_any_key": "SELECT b, count(*) AS c, sum(n) AS sn FROM t GROUP BY b",
    "aggregate_two_keys": "SELECT a, b, count(*) AS c FROM t GROUP BY a, b",
    "aggregate_expression": "SELECT a % 2 AS odd, sum(n) + count(*) AS x FROM t GROUP BY a % 2",
    "aggregate_global": "SELECT count(*) AS c, sum(n) AS sn, avg(n) AS an, count(v) AS cv FROM t",
    "aggregate_no_columns": "SELECT count(*) AS c FROM t",
    "aggregate_filter": "SELECT a, sum(n) FILTER (WHERE a > 0) AS p, count(*) FILTER (WHERE v IS NULL) AS q FROM t "
    "GROUP BY a",
    "bits": "SELECT b, bit_and(a) AS every, bit_or(a) AS any, bit_xor(a) FILTER (WHERE n > 0) AS odd, count(*) AS c "
    "FROM t GROUP BY b",
    "bits_global": "SELECT bit_and(a) AS every, bit_or(a) AS any, bit_xor(a) AS odd FROM t",
    "min_max": "SELECT a, min(v) AS lo, max(v) AS hi, min(n) AS ln, max(n) AS hn FROM t GROUP BY a",
    "min_max_global": "SELECT min(b) AS lo, max(b) AS hi, count(*) AS c FROM t",
    "distinct_aggregates": "SELECT a, count(DISTINCT b) AS db, sum(DISTINCT n) AS dn, count(*) AS c FROM t GROUP BY a",
    "min_max_filter": "SELECT b, min(n) FILTER (WHERE a > 0) AS lo, max(v) FILTER (WHERE n > 0) AS hi, sum(n) AS sn, "
    "count(*) AS c FROM t GROUP BY b",
    "min_max_join": "SELECT t.a, min(s.v) AS lo, max(t.v) AS hi FROM t LEFT JOIN s ON t.a = s.a GROUP BY t.a",
    "distinct_mixed": "SELECT a, count(DISTINCT b) AS db, count(DISTINCT v) AS dv, sum(DISTINCT n) AS dn, "
    "sum(n) AS sn, max(v) AS hi FROM t GROUP BY a",
    "distinct_filters": "SELECT b, count(DISTINCT v) FILTER (WHERE a > 0) AS p, count(DISTINCT v) AS q, "
    "avg(DISTINCT n) AS an, count(DISTINCT a, n) AS an2 FROM t GROUP BY b",
    "distinct_global": "SELECT count(DISTINCT a) AS da, count(DISTINCT b) AS db, min(v) AS lo FROM t",
    "distinct_beside": "SELECT a, count(*) AS c, sum(n) AS sn, count(DISTINCT b) AS db, count(DISTINCT v) AS dv, "
    "count(DISTINCT b) FILTER (WHERE n > 0) AS bp, sum(DISTINCT n) FILTER (WHERE v IS NOT NULL) AS sv FROM t "
    "GROUP BY a",
    "distinct_filters_global": "SELECT count(*) FILTER (WHERE a > 0) AS p, "
    "count(DISTINCT b) FILTER (WHERE a > 0) AS bp, count(DISTINCT b) FILTER (WHERE n > 0) AS bn, "
    "avg(DISTINCT n) FILTER (WHERE a > 0) AS an, "
    "count(DISTINCT v, a) FILTER (WHERE n IS NULL) AS va FROM t",
    "distinct_and_list": "SELECT a, count(DISTINCT b) AS db, sort_array(collect_set(n)) AS ns, sum(DISTINCT n) AS dn "
    "FROM t GROUP BY a",
    "distinct_subquery": "SELECT a, (SELECT count(DISTINCT b) + count(DISTINCT n) FROM s) AS d FROM t",
    "distinct_constants": "SELECT a, count(DISTINCT x) AS dx, sum(DISTINCT x) AS sx, count(DISTINCT b) AS db, "
    "count(x) AS c FROM (SELECT a, b, 7 AS x FROM t) s GROUP BY a",
    "distinct_constants_global": "SELECT count(DISTINCT 1) FILTER (WHERE a > 1) AS p, sum(DISTINCT 2) AS s, "
    "avg(DISTINCT n) AS an, count(DISTINCT CAST(NULL AS int)) AS z FROM t",
    "distinct_never_null": "SELECT count(DISTINCT named_struct('a', a, 'b', 7)) AS p, count(DISTINCT a) AS q, "
    "count(DISTINCT coalesce(a, 0)) AS c FROM t",
    "count_distinct": "SELECT a, count(DISTINCT b) AS db FROM t GROUP BY a",
    "count_distinct_global": "SELECT count(DISTINCT b) AS db FROM t",
    "count_distinct_pair": "SELECT count(DISTINCT a, b) AS d FROM t",
    "deviation": "SELECT a, stddev(n) AS sd, var_pop(n) AS vp FROM t GROUP BY a",
    "deviation_global": "SELECT stddev(n) AS sd, percentile(n, 0.5) AS p FROM t",
    "percentile": "SELECT a, percentile(n, 0.25) AS p, median(n) AS m FROM t GROUP BY a",
    "collect": "SELECT a, sort_array(collect_list(b)) AS bs, sort_array(collect_set(n)) AS ns FROM t GROUP BY a",
    "listagg": "SELECT b, listagg(CAST(a AS STRING), ',') WITHIN GROUP (ORDER BY a) AS l FROM t GROUP BY b",
    "booleans": "SELECT a, bool_and(v IS NULL) AS e, bool_or(n > 0) AS s, every(n > 0) AS ev, count_if(n > 0) AS ci "
    "FROM t GROUP BY a",
    "having": "SELECT a, count(*) AS c FROM t GROUP BY a HAVING count(*) > 1 AND max(n) > 0",
    "rollup": "SELECT a, b, count(*) AS c, sum(n) AS sn FROM t GROUP BY ROLLUP (a, b)",
    "cube": "SELECT a, b, grouping_id() AS g, count(*) AS c FROM t GROUP BY CUBE (a, b)",
    "grouping_sets": "SELECT a, n, grouping(a) AS ga, count(*) AS c FROM t GROUP BY GROUPING SETS ((a), (n), ())",
    "group_constant": "SELECT 'all' AS k, count(*) AS c FROM t GROUP BY 'all'",
    "distinct": "SELECT DISTINCT a, b FROM t",
    "distinct_any": "SELECT DISTINCT v FROM t",
    "nested_aggregate": "SELECT c, count(*) AS groups, sum(sn) AS s FROM "
    "(SELECT a, count(*) AS c, sum(n) AS sn FROM t GROUP BY a) GROUP BY c",
    "aggregate_of_join": "SELECT t.b, count(*) AS c, sum(s.n) AS sn FROM t LEFT JOIN s ON t.a = s.a GROUP BY t.b",
    "join_of_aggregates": "SELECT x.a, x.c, y.c AS yc FROM (SELECT a, count(*) AS c FROM t GROUP BY a) x "
    "FULL JOIN (SELECT a, count(*) AS c FROM s GROUP BY a) y ON x.a = y.a",
    # windows, cuts
    "row_number": "SELECT *, row_number() OVER (PARTITION BY a ORDER BY b, n, v) AS r FROM t",
    "rank": "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b) AS r, dense_rank() OVER (ORDER BY b) AS d FROM t",
    "lag": "SELECT a, n, lag(a) OVER (PARTITION BY b ORDER BY a, n) AS p, lead(n, 2) OVER (PARTITION BY b "
    "ORDER BY a, n) AS q "
    "FROM t",
    "framed": "SELECT a, n, sum(n) OVER (PARTITION BY a ORDER BY n, b, v ROWS BETWEEN 1 PRECEDING AND CURRENT "
    "ROW) AS f, "
    "count(*) OVER (PARTITION BY a) AS c FROM t",
    "range_frame": "SELECT a, sum(n) OVER (ORDER BY a RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS f FROM t",
    "group_top": "SELECT a, n FROM (SELECT a, n, row_number() OVER (PARTITION BY a ORDER BY n DESC NULLS LAST) AS r "
    "FROM t) WHERE r <= 2",
    "group_first": "SELECT a, b, n, v FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY b DESC, n, v) AS r "
    "FROM t) WHERE r = 1",
    "group_rank": "SELECT * FROM (SELECT a, b, n, rank() OVER (PARTITION BY a ORDER BY n DESC) AS r, "
    "count(*) OVER (PARTITION BY a ORDER BY n DESC) AS c FROM t) WHERE r < 3",
    "group_dense_rank": "SELECT * FROM (SELECT a, v, dense_rank() OVER (PARTITION BY a ORDER BY v NULLS LAST) AS d "
    "FROM t) WHERE d BETWEEN 2 AND 3",
    "global_rank": "SELECT * FROM (SELECT a, n, rank() OVER (ORDER BY a + 1 DESC, n) AS r FROM t) "
    "WHERE 2 >= r AND a > 0",
    "share_of_top": "SELECT * FROM (SELECT a, row_number() OVER (PARTITION BY b ORDER BY a, n) AS r, "
    "count(*) OVER (PARTITION BY b) AS c FROM t) WHERE r <= 1",
    "top": "SELECT * FROM t ORDER BY n DESC NULLS LAST, a, b, v LIMIT 3",
    "top_offset": "SELECT a, b FROM t ORDER BY a NULLS LAST, b DESC LIMIT 2 OFFSET 1",
    "offset": "SELECT a, n FROM t ORDER BY a, n OFFSET 2",
    "top_projected": "SELECT a + 1 AS a1 FROM (SELECT a, n FROM t ORDER BY n, a LIMIT 2)",
    "top_of_groups": "SELECT a, count(*) AS c FROM t GROUP BY a ORDER BY c DESC, a LIMIT 2",
    "top_wide": "SELECT a, v FROM t ORDER BY v DESC, a NULLS LAST LIMIT 2 OFFSET 1",
    "limit_unordered": "SELECT count(*) AS c FROM (SELECT * FROM t LIMIT 3)",
    "limit_zero": "SELECT a FROM t LIMIT 0",
    # subqueries, sets
    "scalar": "SELECT a, n, (SELECT count(*) FROM s) AS c FROM t",
    "scalar_two": "SELECT a, (SELECT max(n) FROM s) AS hi, (SELECT min(n) FROM s) AS lo FROM t",
    "scalar_filter": "SELECT a, n FROM t WHERE n >= (SELECT avg(n) FROM t)",
    "correlated": "SELECT a, (SELECT count(*) FROM s WHERE s.a = t.a) AS c FROM t",
    "correlated_max": "SELECT a, n FROM t WHERE n = (SELECT max(n) FROM t u WHERE u.a = t.a)",
    "scalar_in_aggregate": "SELECT a, sum(n) AS sn FROM t GROUP BY a HAVING count(*) >= (SELECT count(*) / 4 FROM t)",
    "in": "SELECT a, b FROM t WHERE b IN (SELECT b FROM s)",
    "not_in": "SELECT a, n FROM t WHERE a NOT IN (SELECT a FROM s)",
    "not_in_filtered": "SELECT a, b FROM t WHERE a NOT IN (SELECT a FROM s WHERE a IS NOT NULL)",
    "exists_uncorrelated": "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM s WHERE a = 1)",
    "union": "SELECT a, b FROM t UNION SELECT a, b FROM s",
    "except": "SELECT a, b FROM t EXCEPT SELECT a, b FROM s",
    "except_all": "SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM s",
    "intersect": "SELECT a, b FROM t INTERSECT SELECT a, b FROM s",
    "intersect_all": "SELECT a, b FROM t INTERSECT ALL SELECT a, b FROM s",
    "with": "WITH c AS (SELECT a, count(*) AS n FROM t GROUP BY a) SELECT x.a, y.n FROM c x JOIN c y ON x.a = y.a + 1",
    "lateral": "SELECT t.a, x.m FROM t, LATERAL (SELECT max(s.a) AS m FROM s WHERE s.b = t.b) x",
    "pivot": "SELECT * FROM (SELECT a, b FROM t) PIVOT (count(*) FOR a IN (0, 1, 2))",
}  # fmt: skip
"""Queries by name."""


@dataclass(frozen=True)
class Rel:
    """A query with columns `c0`, `c1` ..., each with a token for its type: equal tokens are equal types."""

    sql: str
    columns: tuple[str, ...]

    def named(self, *wanted: str) -> list[str]:
        """Columns with one of these tokens."""
        return [f"c{i}" for i, token in enumerate(self.columns) if token in wanted]

    @property
    def exact(self) -> list[str]:
        """Columns whose values are the same however they are computed."""
        return [f"c{i}" for i, token in enumerate(self.columns) if token != "fuzzy"]

    @property
    def numbers(self) -> list[str]:
        """Columns that may be added up."""
        return [f"c{i}" for i, t in enumerate(self.columns) if t in ("a", "nt", "ns", "int", "long", "sum")]

    def token(self, column: str) -> str:
        """The token of a column."""
        return self.columns[int(column[1:])]


Draw = Callable[[Any], Any]
_BASE = {
    "t": Rel("SELECT a AS c0, b AS c1, n AS c2, v AS c3 FROM t", ("a", "b", "nt", "vt")),
    "s": Rel("SELECT a AS c0, b AS c1, n AS c2, v AS c3 FROM s", ("a", "b", "ns", "vs")),
}


def _select(items: Sequence[tuple[str, str]], rest: str) -> Rel:
    texts = [f"{text} AS c{i}" for i, (text, _) in enumerate(items)]
    return Rel(f"SELECT {', '.join(texts)} {rest}", tuple(token for _, token in items))


def _predicate(draw: Draw, rel: Rel, prefix: str = "") -> str:
    column = draw(st.sampled_from(rel.exact or ["c0"]))
    options = [f"{prefix}{column} IS NULL", f"{prefix}{column} IS NOT NULL"]
    if column in rel.numbers:
        options += [f"{prefix}{column} > 0", f"NOT {prefix}{column} <= 1", f"{prefix}{column} <=> 1"]
    return draw(st.sampled_from(options))


def _project(draw: Draw, rel: Rel, depth: int) -> Rel:
    items = []
    for column in draw(st.lists(st.sampled_from([f"c{i}" for i in range(len(rel.columns))]), min_size=1, max_size=4)):
        token = rel.token(column)
        options = [(column, token), (column, token), (f"{column} IS NULL", "bool")]
        if token in ("a", "int"):
            options += [(f"{column} + 1", "int"), (f"coalesce({column}, 0)", "int"), ("7", "int")]
        if token != "fuzzy":
            options.append((f"CASE WHEN {_predicate(draw, rel)} THEN {column} END", token))
        items.append(draw(st.sampled_from(options)))
    return _select(items, f"FROM ({rel.sql})")


def _filter(draw: Draw, rel: Rel, depth: int) -> Rel:
    return Rel(f"SELECT * FROM ({rel.sql}) WHERE {_predicate(draw, rel)}", rel.columns)


def _distinct(draw: Draw, rel: Rel, depth: int) -> Rel:
    items = [(c, rel.token(c)) for c in rel.exact] or [("1", "int")]
    found = _select(items, f"FROM ({rel.sql})")
    return Rel("SELECT DISTINCT" + found.sql.removeprefix("SELECT"), found.columns)


def _call(draw: Draw, rel: Rel) -> tuple[str, str]:
    options = [("count(*)", "long")]
    for c in rel.exact:
        token = rel.token(c)
        options += [(f"count({c})", "long"), (f"min({c})", token), (f"max({c})", token)]
        options += [(f"count(DISTINCT {c})", "long"), (f"sort_array(collect_list({c}))", f"array({token})")]
    for c in rel.numbers:
        options += [(f"sum({c})", "sum")] * 2 + [(f"avg({c})", "fuzzy"), (f"stddev({c})", "fuzzy")]
        options += [(f"sum(DISTINCT {c})", "sum"), (f"percentile({c}, 0.5)", "fuzzy")]
    call, token = draw(st.sampled_from(options))
    filtered = "DISTINCT" in call and draw(st.booleans())
    return f"{call} FILTER (WHERE {_predicate(draw, rel)})" if filtered else call, token


def _aggregate(draw: Draw, rel: Rel, depth: int) -> Rel:
    keys = draw(st.lists(st.sampled_from(rel.exact or ["c0"]), max_size=2, unique=True)) if rel.exact else []
    calls = [_call(draw, rel) for _ in range(draw(st.integers(1, 3)))]
    items = [*((k, rel.token(k)) for k in keys), *calls]
    having = " HAVING count(*) > 1" if draw(st.integers(0, 4)) == 4 else ""
    group = ""
    if keys:
        how = draw(st.sampled_from(["{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})"]))
        group = f" GROUP BY {how.format(', '.join(keys))}"
    return _select(items, f"FROM ({rel.sql}){group}{having}")


def _join(draw: Draw, rel: Rel, depth: int) -> Rel:
    other = relation(draw, depth - 1)
    how = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]))
    equal = [(x, y) for x in rel.exact for y in other.named(rel.token(x))]
    conditions = []
    if equal:
        for x, y in draw(st.lists(st.sampled_from(equal), min_size=1, max_size=2, unique=True)):
            conditions.append(f"l.{x} {draw(st.sampled_from(['=', '=', '<=>']))} r.{y}")
    numbers = [(x, y) for x in rel.numbers for y in other.numbers]
    if numbers and (not conditions or draw(st.booleans())):
        x, y = draw(st.sampled_from(numbers))
        conditions.append(f"l.{x} {draw(st.sampled_from(['<', '>=', '<>']))} r.{y}")
    condition = " AND ".join(conditions) or "true"
    items = [(f"l.c{i}", token) for i, token in enumerate(rel.columns)]
    if "SEMI" not in how and "ANTI" not in how:
        items += [(f"r.c{i}", token) for i, token in enumerate(other.columns)]
    kept = draw(st.lists(st.sampled_from(items), min_size=1, max_size=5, unique=True))
    return _select(kept, f"FROM ({rel.sql}) l {how} ({other.sql}) r ON {condition}")


def _set(draw: Draw, rel: Rel, depth: int) -> Rel:
    other = relation(draw, depth - 1)
    pairs = [(x, y) for x in rel.exact if rel.token(x) != "sum" for y in other.named(rel.token(x))]
    pairs = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3, unique=True)) if pairs else []
    how = draw(
        st.sampled_from(["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"])
    )
    left = _select([(x, rel.token(x)) for x, _ in pairs] or [("1", "int")], f"FROM ({rel.sql})")
    right = _select([(y, other.token(y)) for _, y in pairs] or [("1", "int")], f"FROM ({other.sql})")
    return Rel(f"({left.sql}) {how} ({right.sql})", left.columns)


def _window(draw: Draw, rel: Rel, depth: int) -> Rel:
    if not rel.exact:
        return rel
    partition = draw(st.lists(st.sampled_from(rel.exact), max_size=1))
    order = ", ".join(rel.exact)
    over = f"({'PARTITION BY ' + partition[0] if partition else ''} ORDER BY {order}"
    number = draw(st.sampled_from(rel.numbers or ["1"]))
    function, token = draw(
        st.sampled_from(
            [
                (f"row_number() OVER {over})", "int"),
                (f"rank() OVER {over})", "int"),
                (f"sum({number}) OVER {over} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)", "sum"),
                (f"count({rel.exact[0]}) OVER {over})", "long"),
                (f"lag({rel.exact[-1]}) OVER {over})", rel.token(rel.exact[-1])),
            ]
        )
    )
    return _select([*((c, rel.token(c)) for c in rel.exact), (function, token)], f"FROM ({rel.sql})")


def _top(draw: Draw, rel: Rel, depth: int) -> Rel:
    if len(rel.exact) != len(rel.columns):
        return rel
    order = ", ".join(f"{c}{draw(st.sampled_from(['', ' DESC', ' NULLS LAST']))}" for c in rel.exact)
    cut = draw(st.sampled_from(["LIMIT 3", "LIMIT 2 OFFSET 1", "OFFSET 2", "LIMIT 1"]))
    return Rel(f"SELECT * FROM ({rel.sql}) ORDER BY {order} {cut}", rel.columns)


def _group_top(draw: Draw, rel: Rel, depth: int) -> Rel:
    """The first of each group, by position in a complete order, or by a rank with its ties."""
    if not rel.exact:
        return rel
    partition = "".join(f"PARTITION BY {c} " for c in draw(st.lists(st.sampled_from(rel.exact), max_size=1)))
    rank = draw(st.sampled_from(["row_number()", "rank()", "rank()", "dense_rank()"]))
    by = rel.exact if rank == "row_number()" else draw(st.lists(st.sampled_from(rel.exact), min_size=1, max_size=2))
    order = ", ".join(f"{c}{draw(st.sampled_from(['', ' DESC', ' NULLS LAST', ' DESC NULLS FIRST']))}" for c in by)
    items = [*((c, rel.token(c)) for c in rel.exact), (f"{rank} OVER ({partition}ORDER BY {order})", "int")]
    found = _select(items, f"FROM ({rel.sql})")
    bound = draw(st.sampled_from(["= 1", "<= 2", "< 3", "BETWEEN 2 AND 3", "<= 5"]))
    return Rel(f"SELECT * FROM ({found.sql}) WHERE c{len(items) - 1} {bound}", found.columns)


def _subquery(draw: Draw, rel: Rel, depth: int) -> Rel:
    other = relation(draw, depth - 1)
    equal = [(x, y) for x in rel.exact for y in other.named(rel.token(x))]
    options = ["(SELECT count(*) FROM ({o})) > 1", "EXISTS (SELECT 1 FROM ({o}) o WHERE {p})"]
    if equal:
        x, y = draw(st.sampled_from(equal))
        options += [f"{x} IN (SELECT {y} FROM ({{o}}) o)", f"{x} NOT IN (SELECT {y} FROM ({{o}}) o)"]
        options += [f"EXISTS (SELECT 1 FROM ({{o}}) o WHERE o.{y} <=> r.{x})"]
        options += [f"(c0 IS NULL OR {x} IN (SELECT {y} FROM ({{o}}) o))"]
    text = draw(st.sampled_from(options)).format(o=other.sql, p=_predicate(draw, other, "o."))
    return Rel(f"SELECT * FROM ({rel.sql}) r WHERE {text}", rel.columns)


_STEPS = [
    _project, _filter, _distinct, _aggregate, _aggregate, _join, _join, _join, _set, _window, _top, _group_top,
    _subquery,
]  # fmt: skip


def relation(draw: Draw, depth: int) -> Rel:
    """A query of at most `depth` operators on the longest way down."""
    if depth <= 0:
        return _BASE[draw(st.sampled_from(["t", "s"]))]
    below = relation(draw, depth - 1)
    return draw(st.sampled_from(_STEPS))(draw, below, depth)


@st.composite
def queries(draw: Draw, max_depth: int = 3) -> str:
    """Compositions of all operators."""
    return str(relation(draw, draw(st.integers(1, max_depth))).sql)
