"""Statements whose parameters and columns have the types that PostgreSQL gives them; `KINDS` is what they are about."""

from __future__ import annotations

KINDS = (
    "CREATE TABLE kinds (i2 smallint, i4 int PRIMARY KEY, i8 bigint, f4 real, f8 float8, n numeric(10,2), t text, "
    "v varchar, b bool, d date, ts timestamp, tz timestamptz, iv interval, tm time, j jsonb, y bytea, a4 int[], "
    "at text[])"
)

SAME = """
SELECT $1
SELECT $1::int
SELECT CAST($1 AS numeric)
SELECT $1::text, $2::bigint, $3::bool
SELECT $1::int[]
SELECT $1::timestamptz
SELECT $1::interval + $2::interval
SELECT $1 + 1
SELECT 1 + $1
SELECT 1.5 * $1
SELECT $1 || 'x'
SELECT 'x' || $1
SELECT $1 = 1
SELECT $1 = 'x'
SELECT NOT $1
SELECT $1 AND $2
SELECT -$1::int
SELECT CASE WHEN $1 THEN 1 ELSE 2 END
SELECT CASE WHEN $1 THEN $2 ELSE 3 END
SELECT CASE WHEN true THEN $1 ELSE 'x' END
SELECT COALESCE($1, 1)
SELECT COALESCE($1, 'x')
SELECT COALESCE(NULL, $1)
SELECT NULLIF($1, 1)
SELECT NULLIF(1, $1)
SELECT GREATEST($1, 1.5)
SELECT LEAST(2, $1)
SELECT 1 IN ($1, $2)
SELECT $1 IN (1, 2)
SELECT 'a' IN ($1)
SELECT 1 = ANY($1)
SELECT $1 = ANY(ARRAY[1, 2])
SELECT ARRAY[$1, 1]
SELECT ARRAY['a', $1]
SELECT ARRAY[1, 2]
SELECT $1 BETWEEN 1 AND 10
SELECT 1 BETWEEN $1 AND $2
SELECT $1 LIKE 'a%'
SELECT 'a' LIKE $1
SELECT upper($1)
SELECT length($1)
SELECT substring($1 FROM 2)
SELECT substr('abc', $1, $2)
SELECT abs($1::numeric)
SELECT round($1, 2)
SELECT now() - $1
SELECT extract(year FROM $1::date)
SELECT date_trunc('day', $1::timestamp)
SELECT to_char($1::numeric, '99')
SELECT ($1::int[])[1]
SELECT 1, 2.5, 'x', true, NULL, 1e3
SELECT 1::smallint, 1::bigint, 1::real, 1::float8
SELECT 3000000000
SELECT '2024-01-01'::date, '10:00'::time, '1 day'::interval
SELECT '{}'::jsonb, '\\x00'::bytea
SELECT 1 + 2::bigint, 1 / 2.0, 1::real + 1
SELECT 1 = 1, 1 < 2 AND true
SELECT count(*), sum(i4), sum(i8), sum(f4), sum(f8), avg(i4), avg(f8), min(t), max(d) FROM kinds
SELECT i2, i4, i8 FROM kinds WHERE i4 = $1
SELECT t FROM kinds WHERE i8 = $1
SELECT t FROM kinds WHERE i2 = $1
SELECT t FROM kinds WHERE f8 > $1
SELECT t FROM kinds WHERE f4 < $1
SELECT t FROM kinds WHERE n = $1
SELECT t FROM kinds WHERE t = $1
SELECT t FROM kinds WHERE v = $1
SELECT t FROM kinds WHERE v LIKE $1
SELECT t FROM kinds WHERE b = $1
SELECT t FROM kinds WHERE b AND $1
SELECT t FROM kinds WHERE d >= $1 AND ts < $2 AND tz = $3
SELECT t FROM kinds WHERE iv > $1
SELECT t FROM kinds WHERE tm = $1
SELECT t FROM kinds WHERE j = $1
SELECT t FROM kinds WHERE j @> $1
SELECT t FROM kinds WHERE j ->> $1 = $2
SELECT j -> 'a', j ->> 'a' FROM kinds
SELECT t FROM kinds WHERE y = $1
SELECT t FROM kinds WHERE a4 = $1
SELECT t FROM kinds WHERE $1 = ANY(a4)
SELECT t FROM kinds WHERE $1 = ANY(at)
SELECT t FROM kinds WHERE i4 = ANY($1)
SELECT t FROM kinds WHERE i8 = ANY($1)
SELECT t FROM kinds WHERE t = ANY($1)
SELECT t FROM kinds WHERE v = ANY($1)
SELECT t FROM kinds WHERE i4 <> ALL($1)
SELECT t FROM kinds WHERE i4 IN ($1, $2, $3)
SELECT t FROM kinds WHERE t IN ($1, 'b')
SELECT t FROM kinds WHERE i4 NOT IN ($1)
SELECT t FROM kinds WHERE i4 BETWEEN $1 AND $2
SELECT t FROM kinds WHERE i4 + $1 > i8
SELECT t FROM kinds WHERE i8 + $1 > 3
SELECT t FROM kinds WHERE n * $1 > 3
SELECT t FROM kinds WHERE ts + $1 > now()
SELECT t FROM kinds WHERE d - $1 > 5
SELECT t FROM kinds WHERE (i4, t) = ($1, $2)
SELECT t FROM kinds WHERE ($1::int IS NULL OR i4 = $1)
SELECT t FROM kinds WHERE COALESCE(i4, $1) = $2
SELECT t FROM kinds WHERE lower(t) = lower($1)
SELECT t FROM kinds WHERE EXISTS (SELECT 1 FROM kinds k WHERE k.i8 = $1)
SELECT t FROM kinds WHERE i4 = (SELECT max(i4) FROM kinds WHERE t = $1)
SELECT t FROM kinds ORDER BY i4 LIMIT $1
SELECT t FROM kinds ORDER BY i4 LIMIT $1 OFFSET $2
SELECT i4 FROM kinds UNION ALL SELECT $1
SELECT t, $1 FROM kinds
SELECT t, $1::date AS x FROM kinds GROUP BY t
SELECT i4, count(*) FROM kinds GROUP BY i4 HAVING count(*) > $1
SELECT k.t FROM kinds k JOIN kinds l ON k.i4 = l.i4 AND l.i8 = $1
WITH w AS (SELECT i4 AS x FROM kinds WHERE i8 = $1) SELECT x FROM w WHERE x > $2
SELECT s.x FROM (SELECT i2 AS x FROM kinds) s WHERE s.x = $1
SELECT count(*) FILTER (WHERE i4 > $1) FROM kinds
VALUES ($1::int, 'a'), (2, $2)
VALUES (1, 'a'), ($1, $2)
SELECT * FROM (VALUES (1, $1)) v(a, b)
SELECT * FROM generate_series(1, $1)
SELECT unnest($1::text[])
INSERT INTO kinds (i4, t) VALUES ($1, $2)
INSERT INTO kinds (i4, t) VALUES ($1, $2) RETURNING i4, t
INSERT INTO kinds (i4, n, f8, d, tz, j, a4) VALUES ($1, $2, $3, $4, $5, $6, $7)
INSERT INTO kinds (i4, i8) VALUES ($1, $2 + 1)
INSERT INTO kinds (i4, t) VALUES ($1, upper($2))
INSERT INTO kinds (i4, t) SELECT $1, $2
INSERT INTO kinds (i4, i8) SELECT i4 + $1, $2 FROM kinds
INSERT INTO kinds (i4, t) SELECT i4, $1 FROM kinds WHERE i8 = $2
INSERT INTO kinds (i2, i4) SELECT $1, i4 FROM kinds
INSERT INTO kinds (i4, t) SELECT x, $1 FROM generate_series(1, $2) AS g(x)
INSERT INTO kinds (i4, at) VALUES ($1, ARRAY[$2, 'x'])
UPDATE kinds SET t = $1 WHERE i4 = $2
UPDATE kinds SET n = $1, f4 = $2, b = $3, iv = $4 WHERE i4 = ANY($5)
UPDATE kinds SET i8 = i8 + $1 WHERE i4 = $2
UPDATE kinds SET t = COALESCE($1, t) WHERE i4 = $2 RETURNING t
UPDATE kinds SET t = CASE WHEN b THEN $1 ELSE $2 END
DELETE FROM kinds WHERE i4 = $1
DELETE FROM kinds WHERE tz < $1 RETURNING i4
DELETE FROM kinds WHERE i4 IN ($1, $2)
SELECT oid, relname, relkind, relnatts, relowner FROM pg_class WHERE relname = $1 AND relkind = $2
SELECT relname FROM pg_class WHERE oid = $1
SELECT relname FROM pg_class WHERE oid = ANY($1)
SELECT relname FROM pg_class WHERE relkind IN ($1, $2)
SELECT relname FROM pg_class WHERE oid = $1::regclass
SELECT 'kinds'::regclass, 'kinds'::regclass::oid, 23::regtype, 5::oid, 'x'::name, 'r'::"char"
SELECT $1::oid, $2::regclass
SELECT $1::oid[]
SELECT typname, typinput, typtype, typarray, typlen FROM pg_type WHERE typname = $1
SELECT attname, atttypid::regtype, atttypmod FROM pg_attribute WHERE attrelid = $1 AND attnum > $2
SELECT array_agg(attname), array_agg(atttypid), max(attname), min(atttypid) FROM pg_attribute
SELECT c.oid, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
SELECT COALESCE(c.relname, 'x'), CASE WHEN c.relkind = 'r' THEN c.oid ELSE 0 END FROM pg_class c
SELECT format_type(atttypid, atttypmod), pg_get_userbyid(10), attname || 'x' FROM pg_attribute
SELECT indrelid, indkey, indclass, indisunique FROM pg_index
SELECT proname, proargtypes, prorettype::regtype FROM pg_proc
SELECT table_schema, table_name, column_name, ordinal_position, data_type FROM information_schema.columns
SELECT x.oid FROM (SELECT oid, relname AS n FROM pg_class) x WHERE x.n = $1
SELECT ARRAY(SELECT attname FROM pg_attribute), (SELECT oid FROM pg_class LIMIT 1)
SELECT relname FROM pg_class UNION ALL SELECT nspname FROM pg_namespace
SELECT relacl, reloptions FROM pg_class
SELECT rolname, rolsuper, oid FROM pg_roles WHERE rolname = $1
SELECT datname, datdba, encoding FROM pg_database
""".strip().splitlines()

MEANT = {
    "SELECT 'x'::varchar": ((), (25,)),
    "SELECT v FROM kinds": ((), (25,)),
    "SELECT $1 IS NULL": ((25,), (16,)),
    "SELECT current_database()": ((), (25,)),
    "SELECT lag(t, $1) OVER (ORDER BY i4) FROM kinds": ((25,), (25,)),
}
"""Those that have others, as the reference says, with what they have: types of parameters, and of columns."""
