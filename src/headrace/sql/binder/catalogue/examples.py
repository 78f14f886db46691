"""An example or more for each name in the catalogue, which a test runs here and by PostgreSQL.

They are expressions over a table with the columns `i2`, `i4`, `i8`, `f4`, `f8`, `n`, `t`, `b`, `d`, `ts`, `tz`, `a` (of
type `int[]`) and `id`; those of aggregates have one row, those of window functions one for each.
"""

from __future__ import annotations

from typing import Final

_FUNCTIONS: Final = r"""
abs: abs(i2), abs(id), abs(i8), abs(n), abs(f4), abs(f8)
age: age(ts, timestamp '2001-03-31 12:00'), age(timestamp '2001-03-31 12:00', ts), age(tz, timestamptz '1999-02-28 23:59:59.5+00'), age(timestamp '2024-03-01', timestamp '2024-01-31'), age(d, date '2020-02-29'), age(ts) = age(current_date::timestamp, ts), age(tz) = age(current_date::timestamptz, tz)
acos: acos(0.5)
acosh: acosh(2)
array_append: array_append(a, 9), array_append(a, NULL)
array_cat: array_cat(a, ARRAY[1]), array_cat(NULL, a)
array_length: array_length(a, 1), array_length(a, 2)
array_position: array_position(a, 5)
array_prepend: array_prepend(9, a)
array_remove: array_remove(a, 2), array_remove(a, NULL)
array_replace: array_replace(a, 2, 7), array_replace(a, NULL, 0)
array_to_string: array_to_string(a, ','), array_to_string(a, ',', '?')
ascii: ascii(t), ascii('é')
asin: asin(0.5)
asinh: asinh(2)
atan: atan(2)
atan2: atan2(1, 2)
atanh: atanh(0.5)
bit_length: bit_length(t), bit_length('\x01ff'::bytea)
btrim: btrim('  x '), btrim('xyx', 'x'), trim(BOTH 'x' FROM 'xax')
cardinality: cardinality(a)
cbrt: cbrt(27)
ceil: ceil(n), ceil(f8)
ceiling: ceiling(n), ceiling(f8)
char_length: char_length(t)
character_length: character_length(t)
chr: chr(9731)
concat: concat(t, b, i4, NULL, ts)
concat_ws: concat_ws('-', t, NULL, i4)
convert_from: convert_from('\x41c3a9'::bytea, 'UTF8'), convert_from(convert_to(t, 'utf-8'), 'utf-8'), convert_from(NULL, 'UTF8')
convert_to: convert_to(t, 'UTF8'), convert_to('aé', 'Unicode')
cos: cos(1)
cosh: cosh(1)
cot: cot(1)
date: date(d), date(ts), date(tz)
date_part: date_part('year', d), date_part('epoch', ts), date_part('second', tz), date_part('epoch', interval '90 minutes'), date_part('hour', ts::time)
date_trunc: date_trunc('hour', ts), date_trunc('century', ts), date_trunc('decade', tz), date_trunc('day', tz, 'Europe/Berlin')
degrees: degrees(1)
div: div(7, 2), div(-7, 2), div(n, 2)
encode: encode('\x01ff'::bytea, 'hex'), encode(convert_to(t, 'UTF8'), 'base64'), encode(convert_to(repeat('x', 56), 'UTF8'), 'base64'), encode(convert_to(repeat('x', 57), 'UTF8'), 'Base64'), encode(convert_to(repeat('x', 200), 'UTF8'), 'base64')
exp: exp(1)
extract: extract(timezone FROM tz), extract(timezone_hour FROM tz), extract(timezone_minute FROM tz), extract(hour FROM ts::time), extract(minute FROM ts::time), extract(second FROM ts::time), extract(milliseconds FROM ts::time), extract(microseconds FROM ts::time), extract(epoch FROM ts::time), extract(year FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(month FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(day FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(hour FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(minute FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(second FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(milliseconds FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(microseconds FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(quarter FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(decade FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(century FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(millennium FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(epoch FROM i2 * interval '14 mons -3 days 4:05:06.789'), extract(dow FROM d), extract(second FROM ts), extract(isoyear FROM tz), extract(epoch FROM interval '1 day')
floor: floor(n), floor(f8)
format: format('%s is %L%%', t, t), format('%s', NULL), format('plain')
initcap: initcap('foo-bar bAZ 1st'), initcap(t)
isfinite: isfinite(interval '1 day')
justify_days: justify_days(interval '35 days'), justify_days(interval '1 mon -35 days'), justify_days(i2 * interval '1 day')
justify_hours: justify_hours(interval '27 hours'), justify_hours(interval '1 day -27 hours'), justify_hours(i2 * interval '5 hours 1 sec')
justify_interval: justify_interval(interval '1 mon -1 hour'), justify_interval(interval '-1 mon 40 days 50 hours'), justify_interval(i2 * interval '1 mon -40 days 30 hours')
left: left(t, 2), left(t, -2)
length: length(t), length('\x01ff'::bytea)
ln: ln(2)
log: log(100)
log10: log10(1000)
jsonb_array_length: jsonb_array_length('[1, 2]'), jsonb_array_length('[]')
jsonb_build_array: jsonb_build_array(), jsonb_build_array(i4, t, b, n, f8, NULL, d, ts, tz, a), jsonb_build_array('{"b":1}'::jsonb)
jsonb_build_object: jsonb_build_object(), jsonb_build_object('k', i4, t || 'x', f4), jsonb_build_object(i4, b), jsonb_build_object('a', 1, 'a', 2)
jsonb_contains: jsonb_contains('[1]', '1')
jsonb_exists: jsonb_exists('{"a": 1}', 'a')
jsonb_exists_all: jsonb_exists_all('{"a": 1}', ARRAY['a', 'b'])
jsonb_exists_any: jsonb_exists_any('{"a": 1}', ARRAY['a', 'b'])
jsonb_extract_path: jsonb_extract_path('{"a": [1, {"b": 2.0}]}', 'a', '1', 'b'), jsonb_extract_path('{"a": null}', 'a')
jsonb_extract_path_text: jsonb_extract_path_text('{"a": [1, {"b": "x"}]}', 'a', '1', 'b'), jsonb_extract_path_text('{"a": null}', 'a')
jsonb_insert: jsonb_insert('{"a": [0, 1]}', '{a,1}', '9'), jsonb_insert('{"a": [0, 1]}', '{a,-1}', '9', true), jsonb_insert('{"a": 1}', '{b}', '9'), jsonb_insert('[1]', '{7}', '2'), jsonb_insert('[1, 2]', '{-9}', '0')
jsonb_pretty: jsonb_pretty('{"b": [1, {"c": []}], "a": {}}'), jsonb_pretty('1.0')
jsonb_set: jsonb_set('{"a": [1, 2]}', '{a,1}', '{"x": 1}'), jsonb_set('{"a": 1}', '{b}', '2', false), jsonb_set('{"a": 1}', '{b,c}', '2'), jsonb_set('[1, 2]', '{-1}', '3'), jsonb_set('[1, 2]', '{9}', '3'), jsonb_set('[1, 2]', '{-9}', '3'), jsonb_set('{}', '{a}', '3'), jsonb_set('{"a":1}', '{}', '3')
jsonb_strip_nulls: jsonb_strip_nulls('{"a": null, "b": [null, {"c": null}]}')
jsonb_typeof: jsonb_typeof('1'), jsonb_typeof('null'), jsonb_typeof('"x"'), jsonb_typeof('[]'), jsonb_typeof('{}'), jsonb_typeof('true')
lower: lower(t)
lpad: lpad(t, 5), lpad(t, 5, 'xy')
ltrim: ltrim('  x '), ltrim('xxa', 'x')
make_date: make_date(2024, 2, 29)
make_timestamp: make_timestamp(2024, 2, 29, 1, 2, 3.5)
make_timestamptz: make_timestamptz(2024, 2, 29, 1, 2, 3.5), make_timestamptz(2024, 10, 27, 2, 30, 0, 'Europe/Berlin'), make_timestamptz(2024, 2, 29, 1, 2, 3, '-03:30')
make_interval: make_interval(), make_interval(1, 2, 3, 4, 5, 6, 7.5), make_interval(i2, i2), make_interval(0, 0, i2), make_interval(0, 0, 0, i2), make_interval(0, 0, 0, 0, 30), make_interval(1, -2, 3, -4, 5, i2)
make_time: make_time(8, 15, 23.5), make_time(24, 0, 0)
md5: md5(t), md5('\x01ff'::bytea)
mod: mod(i2, 2::int2), mod(i4, 7), mod(i8, 7::int8), mod(n, 2)
octet_length: octet_length(t), octet_length('\x01ff'::bytea)
overlay: overlay(t placing 'zz' from 2), overlay(t placing 'zz' from 2 for 1)
pi: pi()
position: position('o' in t)
pow: pow(2, 10)
power: power(2, 0.5), power(-2, 3)
quote_literal: quote_literal(t)
quote_nullable: quote_nullable(t)
radians: radians(180)
regexp_count: regexp_count(t, '[a-z]')
regexp_like: regexp_like(t, '^o'), regexp_like(t, 'ONE', 'i')
regexp_match: regexp_match(t, '([a-z])([a-z])'), regexp_match(t, 'T.'), regexp_match(t, 'ONE', 'i')
regexp_replace: regexp_replace(t, 'o', '0'), regexp_replace(t, '[A-Z]', '<\&>', 'gi'), regexp_replace(t, '(.)(.)', '\2\1'), regexp_replace(t, 'o', '0', 2), regexp_replace(t, '[[:lower:]]', '', 1, 0), regexp_replace(t, '[(]', 'x'), regexp_replace(t, 'O', 'x', 1, 0, 'i')
repeat: repeat(t, 2)
replace: replace(t, 'o', '00'), replace(t, '', 'x')
reverse: reverse(t)
right: right(t, 2), right(t, -2)
round: round(n), round(n, 1), round(f8), round(-2.5)
rpad: rpad(t, 5), rpad(t, 5, 'xy')
rtrim: rtrim(' x  '), rtrim('axx', 'x')
sha224: sha224('abc')
sha256: sha256('abc')
sha384: sha384('abc')
sha512: sha512('abc')
sign: sign(n), sign(f8)
sin: sin(1)
sinh: sinh(1)
split_part: split_part(t, ',', 2), split_part('a,b,c', ',', -1), split_part('a', '', 1)
sqrt: sqrt(2)
starts_with: starts_with(t, 'o')
string_to_array: string_to_array(t, ','), string_to_array('', ','), string_to_array('a.b', '.')
strpos: strpos(t, 'o')
substr: substr(t, 2), substr(t, 0, 3), substr('\x010203'::bytea, 2), substr('\x010203'::bytea, 0, 2)
substring: substring(t, 2), substring(t from 0 for 3), substring(t from 'o.'), substring(t from 'o(.)'), substring('\x010203'::bytea from 2), substring('\x010203'::bytea from 2 for 1)
tan: tan(1)
tanh: tanh(1)
timezone: tz AT TIME ZONE interval '-03:30', ts AT TIME ZONE interval '02:00', timestamp '2024-10-27 02:30' AT TIME ZONE 'Europe/Berlin', tz AT TIME ZONE 'europe/berlin', tz AT TIME ZONE 'Europe/Berlin', ts AT TIME ZONE 'America/New_York', tz AT TIME ZONE '+02', tz AT TIME ZONE 'UTC'
to_char: to_char(ts, 'TZ|tz|OF|TZH:TZM'), to_char(tz, 'HH24 TZ tz OF TZH TZM'), to_char(ts, 'YYYY-MM-DD HH24:MI:SS.US'), to_char(ts, 'Month DD, FMHH12 AM Day dy Q DDD IYYY-IW WW W D ID J CC'), to_char(ts, 'FMMonth FMDD "of" YY p.m. MS SSSS'), to_char(i4, 'FM999999999990'), to_char(-5, 'FM999'), to_char(n, '999,999,999.99'), to_char(12345.678, '99,999.99'), to_char(5, '000'), to_char(123456, '999'), to_char(tz, 'DD.MM.YYYY'), to_char(5::int8, '000')
to_date: to_date('31/12/99', 'DD/MM/YY'), to_date('2024-2-3', 'YYYY-MM-DD'), to_date('03 Feb 2024', 'DD Mon YYYY')
to_hex: to_hex(i4), to_hex(i8)
to_timestamp: to_timestamp(1.5), to_timestamp('2024-02-03 04:05:06.789', 'YYYY-MM-DD HH24:MI:SS.MS')
translate: translate(t, 'on', 'x')
trunc: trunc(n), trunc(n, 1), trunc(f8)
to_jsonb: to_jsonb(ts::time), to_jsonb(interval '1 mon -1 sec'), to_jsonb(i4), to_jsonb(t), to_jsonb(n), to_jsonb(f8), to_jsonb(b), to_jsonb(ts), to_jsonb(tz), to_jsonb(d), to_jsonb(a), to_jsonb('NaN'::float8), to_jsonb(1e30::float8), to_jsonb(ARRAY[true, NULL])
upper: upper(t)
"""
_OPERATORS: Final = r"""
!~~: t NOT LIKE 'o%', t NOT LIKE '%\e'
!~~*: t NOT ILIKE 'O%'
#: i4 # 5
%: i4 % 7, n % 2
&: i4 & 5
&&: a && ARRAY[3, NULL], a && '{}', a && NULL
*: real '86' * interval '849884', f8 * interval '1 mon', interval '1 year 2 mons 3 days 4:05:06.7' * i2, interval '1 mon' * 0.5, interval '1 day' * f4, i2 * 2, n * n, interval '1 hour' * 2
+: time '23:30' + interval '1 day 01:00', interval '-1 hour' + ts::time, d + time '01:02:03.5', ts::time + d, interval '1 mon' + interval '1 day', interval '1 mon' + i2 * interval '1 sec', ts + i2 * interval '1 mon 1 day 1 sec', d + interval '1 mon', tz + make_interval(1), i2 + id, n + 1, f8 + f4, d + 1, d + interval '1 day', ts + interval '1 month'
-: time '00:30' - interval '1 hour', ts::time - tz::time, ts - tz::timestamp, tz - timestamptz '2020-01-01', interval '1 mon' - interval '1 day', - (i2 * interval '1 mon 1 day'), - interval '1 mon -1 day', ts - i2 * interval '1 mon 1 day 1 sec', d - interval '1 mon', '{"a": 1, "b": 2}'::jsonb - 'a', '["a", 1, "a"]'::jsonb - 'a', '[1, 2, 3]'::jsonb - -1, '[1]'::jsonb - 4, '{"a": 1, "b": 2, "c": 3}'::jsonb - ARRAY['a', 'c'], i2 - 1, d - date '2024-01-01', ts - timestamp '2024-01-01', d - interval '1 year', - i2, - n
/: interval '1 mon' / 2, interval '1 year 1 day' / i2, interval '7 days' / f4, i4 / 2, n / 3, f8 / 2, interval '1 day' / 2
->: '{"b": 1.50, "a": [1, {"x": null}]}'::jsonb -> 'a', '[1, "a", null]'::jsonb -> 1, '[1]'::jsonb -> -1, '[1]'::jsonb -> 5, '{"a": 1}'::jsonb -> 0, '1'::jsonb -> 0, '"x"'::jsonb -> 'x', ('{"a": 1}'::jsonb)['a'], '{"a": null}'::jsonb -> 'a'
->>: '{"a": "x", "b": {"c": 1}}'::jsonb ->> 'a', '{"b": {"c": 1.0, "a":2}}'::jsonb ->> 'b', '[null]'::jsonb ->> 0, '{"a": true}'::jsonb ->> 'a', '"x"'::jsonb ->> 0
#>: '{"a": [1, {"x": 2}]}'::jsonb #> '{a,1,x}', '[1]'::jsonb #> '{}', '[1]'::jsonb #> '{x}', '1'::jsonb #> '{0}', '[[5]]'::jsonb #> '{-1,0}'
#>>: '{"a": [1, {"x": "y"}]}'::jsonb #>> '{a,1,x}', '{"a": null}'::jsonb #>> '{a}'
#-: '{"a": [1, 2]}'::jsonb #- '{a,0}', '{"a": 1}'::jsonb #- '{b}'
@>: a @> ARRAY[1, 1], a @> ARRAY[NULL]::int[], a @> '{}', '{"a": 1, "b": 2}'::jsonb @> '{"a": 1.0}', '[1, [2, 3]]'::jsonb @> '[[2]]', '["a"]'::jsonb @> '"a"', '"a"'::jsonb @> '["a"]', '[[1]]'::jsonb @> '1', '{"a": [1,2]}'::jsonb @> '{"a": 1}', '[]'::jsonb @> '{}'
<@: ARRAY[1, 3] <@ a, a <@ ARRAY[7], '1'::jsonb <@ '[1]', '[]'::jsonb <@ '[1]'
?: '{"a": 1}'::jsonb ? 'a', '["a"]'::jsonb ? 'a', '"a"'::jsonb ? 'a', '[1]'::jsonb ? '1'
?|: '{"a": 1}'::jsonb ?| ARRAY['b', 'a'], '{"a": 1}'::jsonb ?| ARRAY[NULL, 'b']
?&: '{"a": 1}'::jsonb ?& ARRAY['b', 'a'], '{"a": 1}'::jsonb ?& ARRAY[]::text[]
<: ts::time < '12:00', tz::time < ts::time, interval '1 mon' < interval '31 days', i2 * interval '1 hour' < interval '1 day', '[]'::jsonb < '1', '[1]'::jsonb < '1', '{}'::jsonb < '[1, 2]', '"z"'::jsonb < '-5', 'true'::jsonb < '9', '-10'::jsonb < '-9.99', '1e3'::jsonb < '999', '{"b": 1}'::jsonb < '{"aa": 0}', 'null'::jsonb < '""', '[1, 2]'::jsonb < '[3]', '{"a": 0.001}'::jsonb < '{"a": 0.01}', i4 < n, t < 'p', a < ARRAY[2], b < true
<<: i4 << 2
<=: i8 <= f8, d <= ts
<>: t <> 'one', a <> '{5}'
=: interval '1 mon' = interval '30 days', interval '1 day' = interval '24 hours', i2 * interval '1 mon' = interval '30 days', '{"a": 1, "b": 2.0}'::jsonb = '{"b": 2, "a": 1.00}', '1'::jsonb = '"1"', i4 = i8, a = ARRAY[NULL, 5], n = 3.25
>: tz > ts, a > ARRAY[1, NULL]
>=: f4 >= 1.5
>>: i4 >> 1
@: @ f8
^: 2 ^ 3, f4 ^ 2
|: i4 | 8
||: '{"a": 1}'::jsonb || '{"a": 2, "b": 3}', '[1]'::jsonb || '2', '{"a": 1}'::jsonb || '[2]', t || '{"a":1}'::jsonb, t || i4, t || 'x', a || ARRAY[1], a || id, i4 || a, a || NULL, '\x01'::bytea || '\x02'::bytea
~: ~ i4, t ~ '^o', t ~ '[[:digit:]]', t ~ '\yone\y', 'a1' ~ '\d$'
~*: t ~* 'ONE'
!~: t !~ 'x'
!~*: t !~* 'TWO'
~~: t LIKE 'o_e', t LIKE t, t LIKE '\o%', t LIKE 'a!_c' ESCAPE '!'
~~*: t ILIKE 'O%'
"""
_AGGREGATES: Final = r"""
array_agg: array_agg(i4 ORDER BY id), array_agg(DISTINCT b)
avg: avg(i2 * interval '1 mon 3 days 1 sec'), avg(i4), avg(n), avg(f8)
bit_and: bit_and(i4)
bit_or: bit_or(i4)
bit_xor: bit_xor(i2)
bool_and: bool_and(b)
bool_or: bool_or(b)
corr: corr(f8, f4)
jsonb_agg: jsonb_agg(i4 ORDER BY id), jsonb_agg(t ORDER BY id DESC) FILTER (WHERE b), jsonb_agg(i4) FILTER (WHERE id > 9)
jsonb_object_agg: jsonb_object_agg(id, t), jsonb_object_agg(t, i4)
count: count(*), count(t), count(DISTINCT b)
covar_pop: covar_pop(f4, f4)
covar_samp: covar_samp(f4, f4)
every: every(b)
max: max(ts::time), max(ts - tz::timestamp), max(i2 * interval '1 mon'), max(i4), max(t), max(n), max(ts)
min: min(tz::time), min(i2 * interval '1 mon -29 days'), min(i4), min(t), min(d)
stddev: stddev(f4)
stddev_pop: stddev_pop(f4)
stddev_samp: stddev_samp(f4)
string_agg: string_agg(t, '-' ORDER BY id), string_agg(DISTINCT t, ',' ORDER BY t DESC)
sum: sum(i2 * interval '1 mon 3 days 1 sec'), sum(i2), sum(i4), sum(n), sum(i4) FILTER (WHERE b)
var_pop: var_pop(f4)
var_samp: var_samp(f4)
variance: variance(f4)
percentile_cont: percentile_cont(0.5) WITHIN GROUP (ORDER BY f4)
percentile_disc: percentile_disc(0.5) WITHIN GROUP (ORDER BY i4), percentile_disc(0.3) WITHIN GROUP (ORDER BY t DESC)
mode: mode() WITHIN GROUP (ORDER BY b)
"""
_WINDOWS: Final = r"""
cume_dist: cume_dist() OVER (ORDER BY id)
dense_rank: dense_rank() OVER (ORDER BY b)
first_value: first_value(i4) OVER (ORDER BY id), array_agg(i4) OVER (ORDER BY id)
lag: lag(i4) OVER (ORDER BY id), lag(i4, 2) OVER (ORDER BY id), lag(i4, 2, 0) OVER (ORDER BY id)
last_value: last_value(i4) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)
lead: lead(t) OVER (ORDER BY id), lead(t, 2) OVER (ORDER BY id), lead(i4, 2, 0) OVER (ORDER BY id)
nth_value: nth_value(i4, 2) OVER (ORDER BY id)
ntile: ntile(2) OVER (ORDER BY id)
percent_rank: percent_rank() OVER (ORDER BY id)
rank: rank() OVER (ORDER BY b), rank() OVER ()
row_number: row_number() OVER (ORDER BY id)
"""
OWN: Final = frozenset(
    ("any_value", "approx_count_distinct", "arg_max", "arg_min", "count_if", "proctime", "now", "clock_timestamp", "random",
     "statement_timestamp", "transaction_timestamp", "gen_random_uuid")
)  # fmt: skip
"""Names of which PostgreSQL 15 has none, or that are never the same twice."""


def _read(text: str) -> dict[str, list[str]]:
    found = {}
    for line in text.strip().splitlines():
        name, _, examples = line.partition(": ")
        found[name] = _split(examples)
    return found


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside of brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(text):
        if c == "'":
            quoted = not quoted
        elif not quoted and c in "([":
            depth += 1
        elif not quoted and c in ")]":
            depth -= 1
        elif c == "," and not quoted and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


EXAMPLES: Final = _read(_FUNCTIONS)
OPERATOR_EXAMPLES: Final = _read(_OPERATORS)
AGGREGATE_EXAMPLES: Final = _read(_AGGREGATES)
WINDOW_EXAMPLES: Final = _read(_WINDOWS)
