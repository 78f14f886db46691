"""PostgreSQL's date and number patterns as Spark's."""

from __future__ import annotations

import re

_PATTERNS = {
    "YYYY": "yyyy", "YYY": "yyy", "YY": "yy", "IYYY": "YYYY", "MONTH": "MMMM", "MON": "MMM", "MM": "MM", "DDD": "DDD",
    "DD": "dd", "DAY": "EEEE", "DY": "EEE", "HH24": "HH", "HH12": "hh", "HH": "hh", "MI": "mm", "SS": "ss",
    "MS": "SSS", "US": "SSSSSS", "AM": "a", "PM": "a", "TZ": "zzz", "OF": "x", "Q": "q",
}  # fmt: skip
_FILLED = {"FMMM": "M", "FMDD": "d", "FMDDD": "D", "FMHH24": "H", "FMHH12": "h", "FMHH": "h", "FMMI": "m", "FMSS": "s",
           "FMMONTH": "MMMM", "FMDAY": "EEEE", "TMMONTH": "MMMM", "TMMON": "MMM", "TMDAY": "EEEE", "TMDY": "EEE",
           "FMYYYY": "yyyy"}  # fmt: skip
_ALL = {**_PATTERNS, **_FILLED}
_TOKEN = re.compile(
    '"([^"]*)"|(' + "|".join(sorted(_ALL, key=len, reverse=True)) + r")|([a-zA-Z']+?)|([^a-zA-Z'\"]+)", re.IGNORECASE
)


def spark_pattern(pattern: str) -> str:
    """The date pattern of `to_char`, `to_date` and `to_timestamp` as Spark writes it."""
    parts: list[str] = []
    for quoted, known, letters, other in _TOKEN.findall(pattern):
        if known:
            parts.append(_ALL[known.upper()])
        elif quoted or letters:
            parts.append("'" + (quoted or letters).replace("'", "''") + "'")
        else:
            parts.append(other)
    return "".join(parts).replace("''", "") if "'" not in pattern else "".join(parts)
