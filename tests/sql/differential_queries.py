"""Random queries over the table of `differential`, whose rows are the same in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from differential_random import Generator

_KEYS: Final = ("i4", "b", "t", "d", "i2", "n", "ts", "tm", "iv", "j", "a", "by", "f8")
"""Columns that rows are brought together by."""
_JOINS: Final = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_SUMMED: Final = ("int2", "int4", "int8", "numeric", "float8", "interval")
_ORDERED: Final = ("int4", "int8", "numeric", "float8", "text", "date", "timestamp", "timestamptz", "interval", "time")
_ANY: Final = (*_ORDERED, "bool", "bytea", "jsonb", "int4[]", "text[]", "int2", "float4")
_AGGREGATES: Final[dict[str, tuple[str, ...]]] = {
    "count({e})": _ANY, "count(DISTINCT {e})": _ANY, "count(*)": ("int4",), "sum({e})": _SUMMED, "avg({e})": _SUMMED,
    "min({e})": _ORDERED, "max({e})": _ORDERED, "sum({e}) FILTER (WHERE {b})": _SUMMED,
    "count(*) FILTER (WHERE {b})": ("int4",), "sum(DISTINCT {e})": ("int4", "numeric"), "bool_and({e})": ("bool",),
    "bool_or({e}) FILTER (WHERE {b})": ("bool",), "every({e})": ("bool",),
    "string_agg({e}, ',' ORDER BY x.id)": ("text",), "string_agg(DISTINCT {e}, '-')": ("text",),
    "array_agg({e} ORDER BY x.id DESC)": ("int4", "text", "date", "numeric", "bool"),
    "array_agg(DISTINCT {e})": ("int4", "text"), "jsonb_agg({e} ORDER BY x.id)": _ANY,
    "jsonb_object_agg(x.id, {e})": ("int4", "text", "jsonb"), "stddev({e})": ("float8",), "var_pop({e})": ("float8",),
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY {e})": ("int4", "text", "numeric"),
    "percentile_cont(0.25) WITHIN GROUP (ORDER BY {e})": ("float8", "int4"),
    "mode() WITHIN GROUP (ORDER BY {e})": ("int4", "text"), "bit_or({e})": ("int4", "int8"), "bit_and({e})": ("int2",),
    "max({e}) - min({e})": ("int4", "numeric", "date", "timestamp"), "coalesce(sum({e}), 0)": ("int4", "int8"),
}  # fmt: skip
"""Aggregates, and the types of what they take."""
_OVER: Final[dict[str, tuple[str, ...]]] = {
    "sum({e})": _SUMMED, "count({e})": _ANY, "count(*)": ("int4",), "min({e})": _ORDERED, "max({e})": _ORDERED,
    "avg({e})": ("int4", "numeric", "float8"), "bool_or({e})": ("bool",), "sum({e}) FILTER (WHERE {b})": ("int4",),
    "array_agg({e})": ("int4", "text"), "first_value({e})": _ANY, "last_value({e})": _ANY, "nth_value({e}, 2)": _ANY,
}  # fmt: skip
_RANKS: Final[dict[str, tuple[str, ...]]] = {
    "row_number()": ("int4",), "ntile(2)": ("int4",), "lag({e})": _ANY, "lead({e}, 2)": _ANY,
    "lag({e}, 1, {e})": ("int4", "text", "numeric"), "lead({e}, 0)": ("text",), "lag({e}, -1)": ("date",),
}  # fmt: skip
"""What needs an order in which no two rows are equal."""
_PEERS: Final = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
_BOUNDS: Final = ("UNBOUNDED PRECEDING", "2 PRECEDING", "1 PRECEDING", "CURRENT ROW", "1 FOLLOWING",
                  "UNBOUNDED FOLLOWING")  # fmt: skip
_VALUES: Final = "(VALUES (1, 'one'), (2, NULL), (NULL, 'x'), (4, '')) AS v(k, w)"


class Queries:
    """Random queries whose rows are the same in any order; `valid` says whether a query can be asked at all.

    Conditions and values that PostgreSQL cannot compute for each row are drawn again: of a query that fails for it
    nothing can be compared.
    """

    def __init__(self, seed: int, valid: Callable[[str], bool] = lambda sql: True):
        self.random = random.Random(seed)
        self._valid = valid

    def query(self) -> str:
        """A query; no two of its columns have one name."""
        makers = (self._joined, self._grouped, self._windowed, self._nested, self._set_operation, self._first,
                  self._rows, self._made_of_queries, self._grouped, self._windowed, self._joined)  # fmt: skip
        return self.random.choice(makers)()

    def _e(self, relations: str, kind: str | None = None) -> str:
        """An expression over some relations, each of which is the table."""
        found = relations.split()
        generator = Generator(self.random.randrange(2**31), found)
        source = ", ".join(f"d AS {r}" for r in found)
        for _ in range(20):
            expression = generator.expression(kind, self.random.choice((1, 1, 2)))
            if self._valid(f"SELECT {expression} FROM {source}"):
                return expression
        return f"{found[0]}.id IS NOT NULL" if kind == "bool" else f"{found[0]}.id"

    def _b(self, relations: str) -> str:
        return self._e(relations, "bool")

    def _pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def _where(self, relations: str, share: float = 0.4) -> str:
        return f" WHERE {self._b(relations)}" if self.random.random() < share else ""

    # ---- joins

    def _joined(self) -> str:
        kind, key = self._pick(*_JOINS), self._pick("id", *_KEYS)
        on = f"x.{key} = y.{key}" + ("" if kind == "FULL JOIN" else f" AND {self._b('x y')}")
        other, last = self._pick(*_JOINS), self._pick("id", "i4", "b")
        lateral = self._pick("LEFT JOIN LATERAL ({}) AS l ON true", ", LATERAL ({}) AS l", "CROSS JOIN LATERAL ({}) AS l",
                             "JOIN LATERAL ({}) AS l ON l.n > 0")  # fmt: skip
        forms = (
            lambda: f"SELECT x.id AS a, y.id AS b, {self._e('x y')} AS c FROM d AS x {kind} d AS y ON {on}{self._where('x y')}",
            lambda: f"SELECT x.id AS a, y.id AS b, {key} FROM d AS x {kind} d AS y USING ({key})",
            lambda: f"SELECT x.id AS a, y.id AS b, z.id AS c, {self._e('x y z')} AS v FROM d AS x {kind} d AS y "
                    f"ON x.{key} = y.{key} {other} d AS z ON z.{last} = x.{last}",
            lambda: f"SELECT x.id AS a, y.id AS b, {self._e('x y')} AS v FROM d AS x, d AS y WHERE x.id <= y.id AND {self._b('x y')}",
            lambda: f"SELECT * FROM (SELECT id, {key} FROM d AS x{self._where('x')}) AS p NATURAL {kind} "
                    f"(SELECT id, n AS m FROM d AS y{self._where('y')}) AS q",
            lambda: f"SELECT id, {last}, x.i8, y.f8 FROM d AS x {kind} d AS y USING ({last}, id)" if last != "id" else
                    f"SELECT id, x.i8, y.f8 FROM d AS x {kind} d AS y USING (id)",
            lambda: f"SELECT x.id AS a, v.k, v.w, {self._e('x')} AS e FROM d AS x {kind} {_VALUES} ON v.k = x.id",
            lambda: f"SELECT x.id AS a, l.* FROM d AS x "
                    f"{lateral.format(f'SELECT count(*) AS n, max(y.i4) AS m FROM d AS y WHERE y.id <= x.id AND {self._b(chr(121))}')}",
            lambda: f"SELECT x.id AS a, l.* FROM d AS x "
                    f"{self._pick('LEFT JOIN LATERAL ({}) AS l ON true', 'CROSS JOIN LATERAL ({}) AS l').format(f'SELECT y.id AS n, {self._e(chr(121))} AS m FROM d AS y WHERE y.id < x.id')}",
            lambda: f"SELECT x.id AS a, y.id AS b FROM (d AS x {kind} d AS z ON x.{key} = z.{key}) {other} d AS y ON y.id = z.id",
        )  # fmt: skip
        return self.random.choice(forms)()

    # ---- groups

    def _grouped(self) -> str:
        keys = [f"x.{k}" for k in self.random.sample(_KEYS, self.random.choice((1, 2, 2, 3)))]
        if self.random.random() < 0.3:
            keys[0] = f"({self._e('x', self._pick('int4', 'text', 'bool', 'date', 'numeric'))})"
        listed = ", ".join(keys)
        one, rest = keys[0], ", ".join(keys[1:])
        sets = self._pick("{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())").format(listed)
        if rest and self.random.random() < 0.2:
            sets = self._pick(f"GROUPING SETS (({listed}), ({one}), ({rest}))", f"{one}, ROLLUP ({rest})",
                              f"GROUPING SETS (({one}), ({rest}), ())", f"GROUPING SETS ({one}, ROLLUP ({listed}))")  # fmt: skip
        values = [self._aggregate() for _ in range(self.random.choice((1, 2, 3)))]
        if any(word in sets for word in ("ROLLUP", "CUBE", "SETS")) and self.random.random() < 0.5:
            values.append(f"GROUPING({listed})")
        named = ", ".join(f"{v} AS v{i}" for i, v in enumerate(values))
        having = ""
        if self.random.random() < 0.35:
            having = (
                f" HAVING {self._pick('count(*) > 1', 'count(*) = 1', f'{values[0]} IS NOT NULL', 'min(x.id) < 4')}"
            )
        outputs = ", ".join(f"{k} AS k{i}" for i, k in enumerate(keys))
        if self.random.random() < 0.12:
            return f"SELECT {named} FROM d AS x{self._where('x')}"
        return f"SELECT {outputs}, {named} FROM d AS x{self._where('x')} GROUP BY {sets}{having}"

    def _aggregate(self) -> str:
        form, kinds = self.random.choice(list(_AGGREGATES.items()))
        return form.replace("{e}", self._e("x", self._pick(*kinds))).replace("{b}", self._b("x"))

    # ---- windows

    def _windowed(self) -> str:
        items = [self._over() for _ in range(self.random.choice((1, 1, 2)))]
        named = ", ".join(f"{v} AS v{i}" for i, v in enumerate(items))
        text = f"SELECT x.id, {named} FROM d AS x{self._where('x', 0.2)}"
        if self.random.random() < 0.15:
            return (f"SELECT x.id, sum(x.i4 % 100) OVER w AS p, count(x.t) OVER w AS q FROM d AS x "
                    f"WINDOW w AS (PARTITION BY {self._key()} ORDER BY x.id{self._frame()})")  # fmt: skip
        if self.random.random() < 0.15:
            return f"SELECT q.* FROM ({text}) AS q WHERE q.v0 IS NOT NULL OR q.id > 2"
        if self.random.random() < 0.1:
            return "SELECT x.b, sum(sum(x.i4 % 100)) OVER (ORDER BY x.b) AS v, rank() OVER (ORDER BY count(*)) AS r FROM d AS x GROUP BY x.b"
        return text

    def _key(self) -> str:
        return self._pick("x.b", "x.i4 % 2", "x.t", "x.iv", "x.d, x.b", "x.n > 0", "x.j", "x.tm")

    def _over(self) -> str:
        parted = f"PARTITION BY {self._key()} " if self.random.random() < 0.6 else ""
        nulls = self._pick("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST")
        choice = self.random.random()
        if choice < 0.2:
            return f"{self._pick(*_PEERS)} OVER ({parted}ORDER BY {self._e('x', self._pick(*_ORDERED))}{nulls})"
        known = _RANKS if choice < 0.45 else _OVER
        form, kinds = self.random.choice(list(known.items()))
        value = form.replace("{e}", self._e("x", self._pick(*kinds))).replace("{b}", self._b("x"))
        if known is _RANKS:
            return f"{value} OVER ({parted}ORDER BY {self._e('x', 'text')}{nulls}, x.id)"
        if choice < 0.6 and "value" not in value and "array_agg" not in value:
            peers = self._pick("", f"ORDER BY {self._e('x', self._pick(*_ORDERED))}{nulls}")
            return f"{value} OVER ({parted}{peers})"
        return f"{value} OVER ({parted}ORDER BY x.id{self._pick('', ' DESC')}{self._frame()})"

    def _frame(self) -> str:
        if self.random.random() < 0.35:
            return ""
        first, last = sorted(self.random.sample(range(len(_BOUNDS)), 2))
        unit = self._pick("ROWS", "ROWS", "RANGE", "GROUPS")
        if unit == "RANGE" and self.random.random() < 0.5:
            first, last = 0, self.random.choice((3, 5))
        exclude = self._pick(*[""] * 8, " EXCLUDE CURRENT ROW", " EXCLUDE TIES", " EXCLUDE GROUP", " EXCLUDE NO OTHERS")
        return f" {unit} BETWEEN {_BOUNDS[first]} AND {_BOUNDS[last]}{exclude}"

    # ---- queries in queries

    def _nested(self) -> str:
        compared = self._pick("=", "<>", "<", ">=")
        every = self._pick("ANY", "ALL", "SOME")
        kind = self._pick("int4", "text", "date", "numeric", "jsonb", "interval", "timestamp")
        inner, outer = self._e("y", kind), self._e("x", kind)
        c, link = self._b("y"), self._pick("y.id = x.id", "y.id < x.id", "y.b = x.b", "y.i4 >= x.i4", "x.t = y.t")
        aggregate = self._pick("max(y.i4)", "count(*)", "sum(y.n)", "min(y.t)", "avg(y.i2)", "string_agg(y.t, ',' ORDER BY y.id)",
                               "count(DISTINCT y.b)", "bool_or(y.b)")  # fmt: skip
        return self._pick(
            f"SELECT x.id, {outer} IN (SELECT {inner} FROM d AS y WHERE {c}) AS v FROM d AS x",
            f"SELECT x.id, {outer} NOT IN (SELECT {inner} FROM d AS y WHERE {link}) AS v FROM d AS x",
            f"SELECT x.id FROM d AS x WHERE {outer} NOT IN (SELECT {inner} FROM d AS y WHERE {c})",
            f"SELECT x.id FROM d AS x WHERE {outer} IN (SELECT {inner} FROM d AS y WHERE {link})",
            f"SELECT x.id FROM d AS x WHERE EXISTS (SELECT 1 FROM d AS y WHERE {link} AND {c})",
            f"SELECT x.id, NOT EXISTS (SELECT 1 FROM d AS y WHERE {link}) AS v FROM d AS x",
            f"SELECT x.id, (SELECT {aggregate} FROM d AS y WHERE {link}) AS v FROM d AS x",
            f"SELECT x.id, (SELECT {aggregate} FROM d AS y WHERE {c}) AS v FROM d AS x",
            f"SELECT x.id FROM d AS x WHERE (SELECT count(*) FROM d AS y WHERE {link}) {compared} 1",
            f"SELECT x.id, {outer} {compared} {every} (SELECT {inner} FROM d AS y WHERE {c}) AS v FROM d AS x",
            f"SELECT x.id FROM d AS x WHERE {outer} {compared} {every} (SELECT {inner} FROM d AS y WHERE {link})",
            f"SELECT x.id, (x.i4, x.t) IN (SELECT y.i4, y.t FROM d AS y WHERE {c}) AS v FROM d AS x",
            f"SELECT x.id FROM d AS x WHERE (x.id, x.b) NOT IN (SELECT y.id, y.b FROM d AS y WHERE {link})",
            f"SELECT x.id, ARRAY(SELECT y.id FROM d AS y WHERE {link} ORDER BY y.id DESC) AS v FROM d AS x",
            f"SELECT x.id, {outer} {compared} ANY (ARRAY(SELECT {inner} FROM d AS y WHERE {c})) AS v FROM d AS x",
            f"SELECT x.id, array_to_string(ARRAY(SELECT y.t FROM d AS y WHERE {link} ORDER BY y.id), ',') AS v FROM d AS x",
            f"SELECT x.id, CASE WHEN EXISTS (SELECT 1 FROM d AS y WHERE {link}) THEN {outer} END AS v FROM d AS x",
            f"SELECT x.b, count(*) AS n FROM d AS x GROUP BY x.b HAVING count(*) > (SELECT min(y.id) FROM d AS y WHERE {c})",
        )  # fmt: skip

    def _made_of_queries(self) -> str:
        e, w = self._e("x"), self._where("x")
        return self._pick(
            f"SELECT q.v FROM (SELECT {e} AS v FROM d AS x) AS q WHERE q.v IS NOT NULL",
            f"WITH c AS (SELECT x.id AS k, {e} AS v FROM d AS x{w}) SELECT c.v, e.v AS w FROM c JOIN c AS e USING (k)",
            f"WITH c(k, v) AS (SELECT x.id, {e} FROM d AS x), e AS (SELECT k FROM c WHERE v IS NULL) SELECT * FROM e UNION ALL SELECT k + 10 FROM c",
            f"SELECT p.k, p.w, q.id FROM (SELECT x.id, {e} FROM d AS x{w}) AS p(k, w) LEFT JOIN d AS q ON q.id = p.k + 1",
            "WITH RECURSIVE r(n, m) AS (SELECT 1, 1 UNION ALL SELECT n + 1, m * 2 FROM r WHERE n < 6) SELECT r.*, x.t FROM r LEFT JOIN d AS x ON x.id = r.n",
            f"WITH RECURSIVE r(k) AS (SELECT 1 UNION ALL SELECT x.id FROM r JOIN d AS x ON x.id = r.k + 1) SELECT k, {self._e('d')} AS v FROM r JOIN d ON d.id = k",
            "WITH d AS (SELECT id + 1 AS id, t FROM d) SELECT d.id, d.t FROM d WHERE d.id > 2",
            f"SELECT v.k, v.w, count(x.id) AS n FROM {_VALUES} LEFT JOIN d AS x ON x.id >= v.k GROUP BY v.k, v.w",
            f"SELECT q.b, max(q.v) AS m FROM (SELECT x.b, {self._e('x', self._pick('int4', 'text', 'numeric', 'timestamp'))} AS v FROM d AS x{w}) AS q GROUP BY q.b",
            f"SELECT (SELECT count(*) FROM d AS x{w}) AS a, (SELECT max(y.id) FROM d AS y{self._where('y')}) AS b",
        )

    def _set_operation(self) -> str:
        kind = self._pick(*_ANY)
        other = "int8" if kind == "int4" else "float8" if kind == "numeric" and self.random.random() < 0.3 else kind
        words = ("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
        word, last = self._pick(*words), self._pick(*words)
        first, second = self._e("x", kind), self._e("x", other)
        one, two = (f"SELECT {e} AS v FROM d AS x{self._where('x', 0.3)}" for e in (first, second))
        if self.random.random() < 0.3:
            one, two = (f"SELECT x.b AS w, {e} AS v FROM d AS x" for e in (first, second))
        three = one if self.random.random() < 0.5 else two
        return self._pick(
            f"{one} {word} {two}", f"{one} {word} {two}", f"{one} {word} {two} {last} {three}",
            f"({one} {word} {two}) {last} {three}", f"{one} {word} ({two} {last} {three})",
            f"SELECT count(*) AS n FROM ({one} {word} {two}) AS q", f"SELECT q.v FROM ({one} {word} {two}) AS q WHERE q.v IS NULL",
            f"{one} {word} SELECT {'NULL, ' if ' AS w' in one else ''}NULL",
        )  # fmt: skip

    def _first(self) -> str:
        e, key = self._e("x"), self._pick("b", "i4 % 2", "t", "iv", "d")
        order = self._pick("DESC", "ASC", "DESC NULLS LAST", "NULLS FIRST")
        return self._pick(
            f"SELECT DISTINCT {e} AS v FROM d AS x", f"SELECT DISTINCT x.b, {e} AS v FROM d AS x{self._where('x')}",
            f"SELECT DISTINCT ON (x.{key}) x.{key} AS k, x.id FROM d AS x ORDER BY x.{key}, x.id {order}",
            f"SELECT DISTINCT ON (x.b, x.t) x.b, x.t, x.id, {e} AS v FROM d AS x ORDER BY x.b {order}, x.t, x.id",
            f"SELECT x.id, {e} AS v FROM d AS x ORDER BY x.id DESC LIMIT 2 OFFSET 1",
            f"SELECT x.id, {e} AS v FROM d AS x ORDER BY x.{key} {order}, x.id LIMIT {self.random.randint(0, 4)}",
            f"SELECT x.b, x.id FROM d AS x ORDER BY x.b {order} FETCH FIRST 1 ROW WITH TIES",
            f"SELECT (x.{key})::text AS k FROM d AS x ORDER BY 1 {order} OFFSET 1 ROWS FETCH NEXT 2 ROWS ONLY",
            f"SELECT q.id, q.v FROM (SELECT x.id, {e} AS v FROM d AS x ORDER BY x.id LIMIT 3) AS q ORDER BY 2, 1",
        )  # fmt: skip

    def _rows(self) -> str:
        array = self._e("x", self._pick("int4[]", "text[]"))
        document = self._e("x", "jsonb")
        return self._pick(
            f"SELECT x.id, u.v FROM d AS x, unnest({array}) AS u(v)",
            f"SELECT x.id, u.v, u.o FROM d AS x LEFT JOIN LATERAL unnest({array}) WITH ORDINALITY AS u(v, o) ON true",
            f"SELECT x.id, unnest({array}) AS v FROM d AS x",
            f"SELECT x.id, unnest({array}) AS v, generate_series(1, 2) AS w FROM d AS x",
            "SELECT x.id, g FROM d AS x, generate_series(1, x.id) AS g",
            "SELECT g, count(x.id) AS n FROM generate_series(-1, 5, 2) AS g LEFT JOIN d AS x ON x.id = g GROUP BY g",
            "SELECT x.id, g FROM d AS x, generate_series(x.ts, x.ts + interval '2 days', interval '1 day') AS g",
            f"SELECT x.id, p.key, p.value FROM d AS x, jsonb_each({document} || '{{}}') AS p WHERE jsonb_typeof(x.j) = 'object'",
            "SELECT x.id, p.v FROM d AS x, jsonb_array_elements(CASE WHEN jsonb_typeof(x.j) = 'array' THEN x.j END) AS p(v)",
            "SELECT x.id, w FROM d AS x, string_to_table(x.t, ',') AS w",
            f"SELECT x.id, (SELECT count(*) FROM unnest({array}) AS u) AS n FROM d AS x",
            f"SELECT x.id, ARRAY(SELECT u FROM unnest({array}) AS u WHERE u IS NOT NULL ORDER BY 1) AS n FROM d AS x",
        )
