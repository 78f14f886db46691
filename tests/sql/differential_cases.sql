-- Expressions over the table of differential.py for which the two once had different values.
array_cat(a, '{1,NULL}'::int[])
(a || ARRAY[5])
array_append(a, i4)
array_remove(a, i4)
substring(rtrim(t), (i4 % 2), nullif(100, i4))
substring(t, i4)
left(t, i4)
(f4 * (-3)::float4)
nullif('{1,NULL}'::int[], '{1,NULL}'::int[]) || array_append(ARRAY[5], -5)
CASE WHEN i4 < 1000 AND i4 > -1000 THEN date '2024-03-31' + i4 END
-- what used to be wrong by the older translation
i4 / 7
(id + 1) / 2
(n / 2.0)::int
f8::text
f4::text
a::text
a[i4 % 3]
i4 = ANY (a)
5 NOT IN (i4, NULL)
round(f8)
round(n, 1)
trunc(n, 1)
1.0 / 1024
n / 3
left(t, -2)
concat(t, b, i4)
t || i4
extract(second FROM ts)
extract(dow FROM d)
date_trunc('month', ts)
date_trunc('day', tz, 'Europe/Berlin')
tz AT TIME ZONE 'Europe/Berlin'
ts AT TIME ZONE 'Europe/Berlin'
(id, t) = (1, 'one')
row(i4, NULL) IS NULL
-- found by random expressions
array_position(a, nullif(i4, i4))
array_position(array_cat('{1,NULL}'::int[], ARRAY[1, 2, 3]), i2::int4)
array_to_string(a, ',', nullif(t, t))
array_to_string(array_append(a, 100), '12', btrim(t))
cot(ceiling(f8))
1 / ceil(f8 * 0 - 0.5)
1 / (trunc(f4 * 0 - 0.5) - 1e-9)
substring('\x00ff10'::bytea, array_length(a, 1), i4 - 2)
(f4 * (-0.5)::float8) ^ 2.5
-- intervals and documents
interval '1 mon' + i2 * interval '1 sec'
(i2 * interval '-1 mon 2 days -3 sec')::text
(i2 * interval '1 year -1 mon +1 day -0.5 sec')::text
interval '25 hours'
interval '-1 year -2 mons +3 days -04:05:06.5'
interval '1-2'
(ts - timestamp '2020-01-01')::text
greatest(interval '1 mon', i2 * interval '1 day', NULL)
nullif(interval '1 day', interval '24 hours')
i2 * interval '1 day' IN (interval '1 mon', interval '24 hours')
CASE interval '30 days' WHEN interval '1 mon' THEN 1 ELSE 2 END
interval '1 day' IS DISTINCT FROM interval '24 hours'
i2 * interval '1 day' BETWEEN interval '-1 mon' AND interval '1 mon'
ARRAY[interval '1 mon', i2 * interval '1 day']
(to_jsonb(i4))::int
('1.5'::jsonb)::int
('1.5'::jsonb)::numeric
('"x"'::jsonb)::int
('null'::jsonb)::int
('99999999999'::jsonb)::int
('true'::jsonb)::bool
('[1]'::jsonb)::bool
(t || '')::jsonb
('{"a": ' || i4 || '}')::jsonb
'{"b":1,"a":2,"b":3,"aa":1.0}'::jsonb
'{"a":1}'::jsonb::text
'[1, 2'::jsonb
'"\u0000"'::jsonb
nullif('1'::jsonb, '1.0'::jsonb)
to_jsonb(i4) IN ('2', '100.0')
greatest('1'::jsonb, to_jsonb(t))
ARRAY['1'::jsonb, to_jsonb(t)]
to_jsonb(i4) = ANY (ARRAY['2'::jsonb, '0.0'])
jsonb_array_length('{"a": 1}')
jsonb_insert('{"a": 1}', '{a}', '9')
jsonb_set('[1]', '{x}', '3')
'1'::jsonb #- '{a}'
'{"a": 1}'::jsonb - 1
extract(week FROM interval '1 day')
-- times
time '04:05:06.789'
'4:05 PM'::time
'24:00'::time
'24:00:01'::time
'25:00'::time
'12:60'::time
'x'::time
(ts::time)::text
(ts::time)::interval
interval '-1 day -1 hour'::time
(i2 * interval '5 hours')::time
substring(ts::text, 12)::time
t::time
time '12:00' BETWEEN ts::time AND '24:00'
extract(day FROM time '12:00')
coalesce(ts::time, '10:00')
greatest(ts::time, tz::time)
ARRAY[ts::time]
date_part('hour', ts::time)
-- floats that grow too large
f8 * 1e300::float8 * 1e300::float8
'1e308'::float8 * 10
'Infinity'::float8 * f8
'Infinity'::float8 * f8 - 'Infinity'::float8
1e308::float8 + 1e308::float8 - 1e308::float8
f8 + f8 * f4 - f8 / nullif(f8, 0)
f8 / 1e-320::float8
1 / ('1e308'::float8 * f8)
(f8 * 1e38)::float4
f4 * 1e38::float4 * 1e38::float4
f4 / 1e-45::float4
degrees('1e308'::float8)
sqrt(f8 * f8) * f8 + sqrt(f8 * f8) * f4
f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8 + f8
(SELECT max(x.f8) FROM d AS x) * f8
ARRAY['1e40'::float8, f8]::float4[]
'1e40'::float8::text::float4
(f8::text || '0')::float8
-- functions of one row of a window, whose argument fails for others; queries in arithmetic of times
first_value((-3) % nullif(i2, 0)) OVER (PARTITION BY b ORDER BY id)
first_value(100 / (id - 3)) OVER (PARTITION BY id IN (1, 2, 5) ORDER BY id)
first_value(100 / (id - 2)) OVER (ORDER BY id)
lag(1 / (id - 5), 1, 7::int2) OVER (ORDER BY id)
lead(coalesce(t, 'none') || i2) OVER (ORDER BY id) || 'x'
last_value(coalesce(i2, 5)) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING)
nth_value(i2 + id, 2) OVER (ORDER BY id)
(SELECT max(x.ts) FROM d AS x) - ts
tz - (SELECT min(x.tz) FROM d AS x WHERE x.id <= d.id)
array_append(array_remove('{}'::text[], t), ('Hello World'::text)::varchar(3))
-- numbers that only a float can be
1e308 * f8 > 0
'NaN'::float8 * 1e308
-1e-300::float8
f8 < 123456789012345678901234567890123456789012345678901234567890
-- refused before, or an error of Spark's
a || 5
5 || a
ta || ta
ta || NULL
array_prepend(NULL, a)
cardinality(ARRAY[1.5] || 2.25)
(ARRAY[1.5] || 2.25)[2]
(2.25 || ARRAY[1.5])[1]
(ARRAY[n] || ARRAY[0.125])[2]
a @> ARRAY[1]
a && a
a <@ a
ta @> ARRAY[NULL]::text[]
ARRAY[1, 1] <@ a
'{}'::int[] && a
'{}' <@ a
greatest(a, ARRAY[5])
least(ta, '{}')
greatest(a, NULL)
(id, t) < (2, 'x')
(i4, t) >= (0, NULL)
(i2, i4, id) <= (1, 2, 0)
(d, t) > (d, 'a')
t SIMILAR TO '%(o|a)%'
t SIMILAR TO 'o_e'
t NOT SIMILAR TO '[a-z,]+'
t SIMILAR TO 'a.b'
right(t, -2147483648)
left(t, -2147483648)
t LIKE t
t ILIKE t
'a\b%c\\d' LIKE coalesce(t, '') || 'a\\\b\%c\\\\d'
t LIKE '%\o%'
t LIKE 'a!_c' ESCAPE '!'
t NOT ILIKE 'ONe!E' ESCAPE '!'
coalesce(replace(t, '\', ''), 'é')::bytea
'\x0afF'::text::bytea
coalesce((-3)::float4, f4) / (f4 - f4)
least(interval '1 mon', iv)
greatest(iv, interval '1 mon')
least(iv, interval '1 mon', interval '30 days')
-- floats whose shortest text Java does not find; averages of numerics
(f4 * f8)::text
(f4 / 3)::text || (f8 / 7)::text
to_jsonb(ARRAY[f4 * f8])
concat(f8 / 7, f4 / 7, NULL::float8)
avg(n) OVER ()
avg(ceiling(n)) OVER (ORDER BY id)
-- letters beyond ASCII; patterns that come with the row
'naïve' ~ '^\w+$'
'É' ~* 'é'
regexp_replace('naïve café', '\y', '|', 'g')
'a€' ~ '[[:punct:]]'
E'a\u00a0b' ~ '\s'
'ab' ~ '[[:alpha:]-z]'
t ~ t
t !~* left(t, 1)
regexp_replace(t, left(t, 1), '<\&>')
regexp_replace(t || t, left(t, 1), upper(t), 'g')
regexp_replace('foo bar', '(' || chr(110 + id) || ')', '\1\1')
substring(t from left(t, 2))
regexp_count(t, left(t, 1))
regexp_like(t, upper(left(t, 2)), 'i')
t SIMILAR TO left(t, 1) || '%'
'x' ~ repeat('(', id)
regexp_match('foobar', '(o)(.)b')
regexp_replace(t, '(ne|[o-z]w)? ?', '<\1>')
regexp_replace('http://a https://b', 'https?://', '', 'g')
substring(t from '(o|w|,)[a-z]?')
regexp_match('colour', '(colou?r|x)')
-- arrays of queries
i4 = ANY (ARRAY(SELECT y.i4 FROM d AS y))
i4 <> ALL (ARRAY(SELECT y.i4 FROM d AS y WHERE y.id < d.id))
i4 > ANY (ARRAY(SELECT y.id FROM d AS y ORDER BY 1))
array_to_string(ARRAY(SELECT y.t FROM d AS y ORDER BY y.id), ',')
ARRAY(SELECT y.id FROM d AS y ORDER BY y.id)::text
array_remove(ARRAY(SELECT y.id FROM d AS y ORDER BY 1), 3)
3 = ANY (array_remove(ARRAY(SELECT y.id FROM d AS y ORDER BY 1), 3))
-- bounds in any order
i4 BETWEEN SYMMETRIC 100 AND i2
i4 NOT BETWEEN SYMMETRIC 5 AND NULL
n BETWEEN SYMMETRIC 5 AND -1.5
-- in this order no sum is too large, or one is
(i2 + 100) + i4
(id + 2147483647) - 2147483647
(iv - iv) / cot(f8)
iv / '-Infinity'::float8
iv * 'Infinity'::float8
t || extract(epoch FROM d)
extract(epoch FROM d) + 0.5
date_part('epoch', d)
-- the type of a first literal; more than one known element of IN has one type
nullif('5', by)
nullif('04:05', (ts - timestamp '2024-03-31 12:30:45.25'))
nullif(i4, 2.5) / 3
f4 IN (0.1, 0.2), f4 IN (0.5, i4), i4 IN (1, 2.5, i8), t IN ('one', 'two'), i4 IN (1, NULL)
'5' IN (5.0, '5'), '05' IN (5, 6)
-- quotients beyond a bigint
div(n, 2), div(-n, 0.01), div(i8, 3)
-- spellings of intervals
interval '04:05.5', interval '+13-1 week', interval '1 2:03', interval 'P1.5Y2M', interval 'P0001-02-03T04:05:06', interval '4:'
nullif(j, '{}'), nullif(time '10:00', '11:00'), nullif(interval '1 mon', interval '1 day'), nullif(i4, i8), nullif(1::int2, 2)
nullif(ts - timestamp '2020-01-01', interval '1 day'), nullif(date '2024-01-01', ts), nullif(ts, tz), nullif(n, 1.234)
nullif(1, 2.5), nullif(f4, f8), nullif(i4, f8), nullif(n, f8), nullif('a', t)
div(9223372036854775807, 1), div(i8, -1), div(n, 0.5)
n IN (1, 2, 3.5), tz IN (date '2024-03-31', now())
nullif(CASE WHEN b THEN iv ELSE iv END, interval '1 day')
nullif(tm, '00:00')
nullif('[1, 2.50, {"a": true}]', j)
'{1,2}' IN ('1e3', a)
