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
