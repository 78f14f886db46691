-- Queries over the table of differential.py for which the two once had different answers, or one of them an internal error.
SELECT x.by, count(*), sum(x.i2), GROUPING(x.by) FROM d AS x WHERE x.id > 9 GROUP BY ROLLUP (x.by)
SELECT x.tm, x.b, count(*) AS n FROM d AS x WHERE x.t < x.t GROUP BY CUBE (x.tm, x.b) HAVING count(*) < 3 ORDER BY n
SELECT x.n, string_agg(x.t, ',') FROM d AS x WHERE NULL GROUP BY GROUPING SETS ((x.n), ())
SELECT x.n, count(*) FROM d AS x WHERE NULL GROUP BY GROUPING SETS ((x.n), (x.b))
SELECT x.b, x.i2, count(*) FROM d AS x WHERE NULL GROUP BY x.b, ROLLUP (x.i2)
SELECT count(*) FROM d AS x WHERE NULL GROUP BY ()
SELECT x.j, x.i2, count(*), GROUPING(x.j, x.i2) FROM d AS x GROUP BY GROUPING SETS ((x.j, x.i2), ())
SELECT x.iv, x.tm, GROUPING(x.iv, x.tm) FROM d AS x GROUP BY CUBE (x.iv, x.tm)
SELECT GROUPING(x.b), x.b FROM d AS x GROUP BY x.b
SELECT GROUPING(x.i2), count(*) FROM d AS x GROUP BY x.b
SELECT min(x.i4), GROUPING(x.i2 + 1) FROM d AS x WHERE x.b
SELECT 1, date '2020-01-01', count(*) FROM d AS x GROUP BY 1, 2
SELECT count(*) FROM d AS x WHERE false GROUP BY date '2020-01-01'
SELECT x.id, sum(x.i2) FILTER (WHERE false) OVER (PARTITION BY x.t ORDER BY x.id) FROM d AS x
SELECT x.id, count(*) FILTER (WHERE x.b AND false) OVER (ORDER BY x.id), avg(x.n) FILTER (WHERE x.b) OVER () FROM d AS x
SELECT string_agg(DISTINCT concat(x.tz), '-'), string_agg(DISTINCT x.t, ',') FROM d AS x
SELECT x.id, sum(x.i2) OVER (ORDER BY x.b GROUPS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM d AS x
SELECT x.id, count(*) OVER (GROUPS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM d AS x
SELECT DISTINCT x.f8 * x.f8 FROM d AS x
SELECT x.b, string_agg(x.t, ',' ORDER BY x.id), count(DISTINCT x.i2), count(DISTINCT x.i4) FROM d AS x GROUP BY x.b
SELECT x.b, string_agg(x.t, ',' ORDER BY x.id), sum(DISTINCT 0.01) FROM d AS x GROUP BY ROLLUP (x.b)
SELECT string_agg(DISTINCT x.t, ',') FILTER (WHERE x.id > 1), string_agg(x.t, NULL), string_agg(x.t, '') FILTER (WHERE false) FROM d AS x
SELECT x.b, string_agg((SELECT max(y.t) FROM d AS y WHERE y.id = x.id), ',' ORDER BY x.id) AS v FROM d AS x GROUP BY x.b
SELECT string_agg(x.t, ',') FILTER (WHERE x.id IN (SELECT y.id FROM d AS y WHERE y.id = 1)) AS v FROM d AS x
SELECT x.id, count(*) OVER (ORDER BY x.i8 RANGE BETWEEN 9223372036854775807 PRECEDING AND CURRENT ROW) FROM d AS x
SELECT x.id, count(*) OVER (ORDER BY x.n DESC NULLS LAST RANGE BETWEEN 2.125 PRECEDING AND 10 FOLLOWING) FROM d AS x
SELECT x.id, count(*) OVER (PARTITION BY x.b ORDER BY x.ts RANGE BETWEEN '10 days' PRECEDING AND '10000 days' FOLLOWING) FROM d AS x
SELECT x.id, count(*) OVER (ORDER BY x.d RANGE BETWEEN interval '61 days' PRECEDING AND CURRENT ROW) FROM d AS x
SELECT x.id, count(*) OVER (ORDER BY x.n, x.id RANGE 2 PRECEDING) FROM d AS x
SELECT x.id, bool_or((greatest('{}'::jsonb, x.j) > x.j)) OVER (ORDER BY x.id) AS v FROM d AS x
SELECT avg(n), avg(n * n), avg(nullif(ceiling(n), 1)), avg(n::numeric), avg(n / 3) FROM d
SELECT x.b, jsonb_agg(x.f8 / 7 ORDER BY x.id) FROM d AS x GROUP BY x.b
SELECT jsonb_agg(a ORDER BY id), jsonb_agg(ta ORDER BY id), jsonb_object_agg(id, a) FROM d
SELECT x.b, jsonb_agg(x.a ORDER BY x.id) FROM d AS x GROUP BY x.b
SELECT count(*) FROM d AS x JOIN d AS y ON x.t ~ left(y.t, 1)
SELECT x.id FROM d AS x WHERE x.id = ANY (ARRAY(SELECT y.id + 1 FROM d AS y WHERE y.b = x.b))
SELECT x.id, count(*) OVER (ORDER BY x.d RANGE BETWEEN interval '7 months' PRECEDING AND CURRENT ROW) AS v FROM d AS x
SELECT x.id, count(*) OVER (ORDER BY x.ts DESC RANGE BETWEEN interval '2 mons' PRECEDING AND interval '24 years' FOLLOWING) AS v FROM d AS x
SELECT x.id, sum(x.id) OVER (ORDER BY x.tz NULLS FIRST RANGE BETWEEN UNBOUNDED PRECEDING AND '1 year' FOLLOWING) AS v FROM d AS x
SELECT x.b, x.d, count(*) FROM d AS x GROUP BY (x.b, x.d)
SELECT x.b, x.i2, x.d, count(*) FROM d AS x GROUP BY (x.b, (x.i2)), ROLLUP (x.d)
