"""Names of the functions that PostgreSQL or RisingWave has and that are translated.

Any other name is that of a function which somebody has created, or of none: Spark's own functions cannot be called.
"""

from __future__ import annotations

from typing import Final

_PARSED: Final = """
    abs acos acosh any_value approx_count_distinct arg_max arg_min array array_agg array_append array_cat array_length
    array_position array_prepend array_remove array_to_string ascii asin asinh atan atan2 atanh avg bit_and bit_length
    bit_or bit_xor bool_and bool_or btrim cast cbrt ceil ceiling char_length character_length chr coalesce concat
    concat_ws corr cos cosh cot count count_if covar_pop covar_samp cume_dist current_catalog current_database
    current_date current_schema current_schemas current_timestamp current_user date_part degrees dense_rank div exists
    exp extract first_value floor format gen_random_uuid generate_series greatest grouping grouping_id initcap lag
    last_value lead least left length ln localtimestamp log log10 lower lpad max md5 min mod mode now nth_value ntile
    nullif overlay percent_rank percentile_cont percentile_disc pi position pow power radians random rank regexp_count
    regexp_like regexp_replace repeat replace reverse right round row_number rpad session_user sign sin sinh split_part
    sqrt starts_with stddev stddev_pop stddev_samp string_agg strpos substr substring sum tan tanh translate trim trunc
    unnest upper var_pop var_samp variance version
"""
PARSED: Final = frozenset(_PARSED.split())
"""Those that the parser makes nodes of their own of."""
_CALLED: Final = """
    all array_join bit_count cardinality clock_timestamp date every json_array_length ltrim make_date octet_length
    proctime row rtrim statement_timestamp to_char to_date to_timestamp transaction_timestamp
"""
CALLED: Final = frozenset(_CALLED.split())
"""Those that stay calls by name: a rule translates them, or Spark has them with the same meaning."""
