"""`to_char`, `to_date` and `to_timestamp`: literal templates, taken apart here and put together by Spark's functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headrace.sql.binder import types as t
from headrace.sql.binder import zone_times
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.parse_tree import NotBound

_WORDS: Final = (
    "A.D. A.M. AD AM B.C. BC CC DAY DDD DD DY Day Dy D FF1 FF2 FF3 FF4 FF5 FF6 FX HH24 HH12 HH IDDD ID IW IYYY IYY IY I "
    "J MI MM MONTH MON MS Month Mon OF P.M. PM Q RM SSSSS SSSS SS TZH TZM TZ US WW W Y,YYY YYYY YYY YY Y "
    "a.d. a.m. ad am b.c. bc cc day ddd dd dy d ff1 ff2 ff3 ff4 ff5 ff6 fx hh24 hh12 hh iddd id iw iyyy iyy iy i "
    "j mi mm month mon ms of p.m. pm q rm sssss ssss ss tzh tzm tz us ww w y,yyy yyyy yyy yy y"
)
_KEYWORDS: Final = sorted(_WORDS.split(), key=len, reverse=True)
_EXTRACT: Final = "EXTRACT({} FROM {{0}})"
_DAY_OF_ERA: Final = "datediff(CAST({0} AS DATE), DATE '1970-01-01')"
_HOUR12: Final = "((EXTRACT(HOUR FROM {0}) + 11) % 12 + 1)"
_SECONDS: Final = (
    "(EXTRACT(HOUR FROM {0}) * 3600 + EXTRACT(MINUTE FROM {0}) * 60 + CAST(floor(EXTRACT(SECOND FROM {0})) AS INT))"
)
_MICROS: Final = "CAST(EXTRACT(SECOND FROM {0}) * CAST(1000000 AS DECIMAL(7,0)) AS INT) % 1000000"
_NUMBERS: Final = {
    "YYYY": (_EXTRACT.format("YEAR"), 4), "IYYY": (_EXTRACT.format("YEAROFWEEK"), 4), "MM": (_EXTRACT.format("MONTH"), 2),
    "DD": (_EXTRACT.format("DAY"), 2), "DDD": (_EXTRACT.format("DOY"), 3), "D": (_EXTRACT.format("DOW"), 1),
    "ID": (_EXTRACT.format("DOW_ISO"), 1), "IW": (_EXTRACT.format("WEEK"), 2), "HH24": (_EXTRACT.format("HOUR"), 2),
    "HH12": (_HOUR12, 2), "HH": (_HOUR12, 2), "MI": (_EXTRACT.format("MINUTE"), 2),
    "SS": ("CAST(floor(EXTRACT(SECOND FROM {0})) AS INT)", 2), "MS": (f"({_MICROS}) div 1000", 3), "US": (_MICROS, 6),
    "Q": (_EXTRACT.format("QUARTER"), 1), "CC": ("((EXTRACT(YEAR FROM {0}) + 99) div 100)", 2),
    "WW": ("((EXTRACT(DOY FROM {0}) - 1) div 7 + 1)", 2), "W": ("((EXTRACT(DAY FROM {0}) - 1) div 7 + 1)", 1),
    "J": (f"({_DAY_OF_ERA} + 2440588)", 1), "SSSS": (_SECONDS, 1), "SSSSS": (_SECONDS, 1),
    **{word: (f"(EXTRACT(YEAR FROM {{0}}) % {10 ** len(word)})", len(word)) for word in ("YYY", "YY", "Y")},
    **{word: (f"(EXTRACT(YEAROFWEEK FROM {{0}}) % {10 ** len(word)})", len(word)) for word in ("IYY", "IY", "I")},
    **{f"FF{i}": (f"({_MICROS}) div {10 ** (6 - i)}", i) for i in range(1, 7)},
}  # fmt: skip
_NAMES: Final = {"MONTH": ("MMMM", 9), "MON": ("MMM", 0), "DAY": ("EEEE", 9), "DY": ("EEE", 0)}
_HALVES: Final = {"AM": ("AM", "PM"), "PM": ("AM", "PM"), "A.M.": ("A.M.", "P.M."), "P.M.": ("A.M.", "P.M.")}
_SIGNED: Final = "concat(CASE WHEN {0} < 0 THEN '-' ELSE '+' END, lpad(CAST(abs({0}) div 3600 AS STRING), {w}, '0'))"
_MINUTES: Final = "lpad(CAST(abs({0}) div 60 % 60 AS STRING), 2, '0')"


def _template(expr: Expr, function: str) -> str:
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound(f"{function} with a template that is no literal")
    return expr.text


def parts(template: str) -> list[tuple[str, str, bool]]:
    """A template as keywords and literal texts: (keyword, text, whether FM stands before it)."""
    found: list[tuple[str, str, bool]] = []
    at, filled = 0, False
    while at < len(template):
        if template[at] == '"':
            end = template.find('"', at + 1)
            if end < 0:
                raise NotBound("a template with an open quote")
            found.append(("", template[at + 1 : end], False))
            at = end + 1
            continue
        if template[at] == "\\":
            raise NotBound("a backslash in a template")
        if template[at : at + 2] in ("FM", "fm", "TM", "tm"):
            filled, at = True, at + 2
            continue
        word = next((w for w in _KEYWORDS if template.startswith(w, at)), None)
        if word is None:
            found.append(("", template[at], False))
            at += 1
            continue
        at += len(word)
        if template[at : at + 2].upper() in ("TH", "SP"):
            raise NotBound("TH or SP in a template")
        found.append((word, "", filled))
        filled = False
    return found


# ---- to_char of times


def time_text(arguments: Sequence[Expr]) -> Expr:
    """`to_char(timestamp, template)`."""
    value = arguments[0]
    found: list[Expr] = [zone_times.clocks(value)]
    joined = ["''"]
    for word, text, filled in parts(_template(arguments[1], "to_char")):
        if word.upper() in ("TZ", "OF", "TZH", "TZM"):
            joined.append(f"{{{len(found)}}}")
            found.append(_of_zone(word, filled, value))
        elif word:
            joined.append(_piece(word, filled))
        else:
            joined.append(f"{{{len(found)}}}")
            found.append(Constant(t.TEXT, text))
    return Call(t.TEXT, f"CASE WHEN {{0}} IS NOT NULL THEN concat({', '.join(joined)}) END", tuple(found))


def _of_zone(word: str, filled: bool, value: Expr) -> Expr:
    """The sign or the offset of the session's zone; a time without zone has none of the one and zero of the other."""
    zoned = value.type.name == "timestamptz"
    if word.upper() == "TZ":
        if not zoned:
            return Constant(t.TEXT, "")
        short = zone_times.short_form(zone_times.current())
        return Call(t.TEXT, short if word.isupper() else f"lower({short})", (value,))
    offset: Expr = zone_times.offset(value) if zoned else Constant(t.INT4, "0")
    signed = _SIGNED.replace("{w}", "2")
    if word.upper() == "TZM":
        return Call(t.TEXT, _MINUTES, (offset,))
    if word.upper() == "TZH":
        return Call(t.TEXT, signed, (offset,))
    hours = (
        "greatest(2, length(CAST(abs({0}) div 3600 AS STRING)))"
        if not filled
        else "length(CAST(abs({0}) div 3600 AS STRING))"
    )
    minutes = f"CASE WHEN {{0}} % 3600 <> 0 THEN concat(':', {_MINUTES}) ELSE '' END"
    return Call(t.TEXT, f"concat({_SIGNED.replace('{w}', hours)}, {minutes})", (offset,))


def _piece(word: str, filled: bool) -> str:
    """Spark's text of a keyword."""
    upper = word.upper()
    if upper in _NUMBERS:
        form, width = _NUMBERS[upper]
        shown = f"CAST({form} AS STRING)"
        return shown if filled else f"lpad({shown}, greatest(length({shown}), {width}), '0')"
    if upper in _NAMES:
        pattern, width = _NAMES[upper]
        shown = f"date_format({{0}}, '{pattern}')"
        shown = f"upper({shown})" if word.isupper() else f"lower({shown})" if word.islower() else shown
        return f"rpad({shown}, {width}, ' ')" if width and not filled else shown
    if upper in _HALVES:
        first, second = (h if word.isupper() else h.lower() for h in _HALVES[upper])
        return f"CASE WHEN EXTRACT(HOUR FROM {{0}}) < 12 THEN '{first}' ELSE '{second}' END"
    raise NotBound(f"{word} in a template")


# ---- to_char of numbers

_NUMBER: Final = re.compile(r"(FM)?(S|MI)?([09,]*)(?:[.D]([09]*))?(S|MI)?", re.ASCII)


def number_text(arguments: Sequence[Expr]) -> Expr:
    """`to_char(number, template)` of digits, groups, a point and a sign."""
    from headrace.sql.binder.catalogue import numbers

    value, template = arguments[0], _template(arguments[1], "to_char")
    match = _NUMBER.fullmatch(template)
    if match is None or value.type.name in t.FLOATS or (match[2] and match[5]) or match[2] == "MI":
        raise NotBound("this template for a number")
    whole, places = match[3], match[4] or ""
    digits = len(whole.replace(",", ""))
    if not digits or whole.startswith(",") or (places and "9" in places and "0" in places and match[1]):
        raise NotBound("this template for a number")
    if match[4] is not None and not places:
        raise NotBound("this template for a number")
    found = numbers.round_to("round")([value, Constant(t.INT4, str(len(places)))])  # type: ignore[operator]
    return _number(found, match, whole, places, digits)


def _number(found: Expr, match: re.Match[str], whole: str, places: str, digits: int) -> Expr:
    filled, sign = bool(match[1]), match[2] or match[5]
    if sign is not None:
        raise NotBound("a sign in a template for a number")
    text = "CAST(abs({0}) AS STRING)"
    before = f"split_part({text}, '.', 1)"
    zero = whole.replace(",", "").find("0")
    fixed = digits - zero if zero >= 0 else 0
    shown = f"lpad({before}, greatest(length({before}), {fixed}), '0')" if fixed else before
    if places and not fixed:
        # A zero before the point is shown as nothing; without places it is shown.
        shown = f"CASE WHEN {before} = '0' THEN '' ELSE {before} END"
    grouped = shown
    if "," in whole:
        if re.fullmatch(r"[09]{1,3}(,[09]{3})+", whole) is None or fixed:
            raise NotBound("these groups of digits")
        grouped = f"regexp_replace({shown}, '(?<=[0-9])(?=([0-9][0-9][0-9])+$)', ',')"
    behind = ""
    if places:
        behind = f", '.', split_part({text}, '.', 2)"
        if filled and "9" in places:
            behind = f", '.', regexp_replace(split_part({text}, '.', 2), '0+$', '')"
    sign_text = "CASE WHEN {0} < 0 THEN '-' ELSE '' END"
    body = f"concat({sign_text}, {grouped}{behind})"
    if not filled:
        width = len(whole) + 1 + (len(places) + 1 if places else 0)
        body = f"lpad({body}, {width}, ' ')"
    hashes = re.sub("[09]", "#", whole) + ("." + "#" * len(places) if places else "")
    over = f"CASE WHEN length({before}) > {digits} THEN concat(CASE WHEN {{0}} < 0 THEN '-' ELSE {chr(39)}{'' if filled else ' '}{chr(39)} END, '{hashes}') ELSE {body} END"
    return Call(t.TEXT, f"CASE WHEN {{0}} IS NOT NULL THEN {over} END", (found,))


# ---- to_date and to_timestamp

_READ: Final = {
    "YYYY": r"(\d{4})", "YY": r"(\d{1,2})", "MM": r"(\d{1,2})", "DD": r"(\d{1,2})", "HH24": r"(\d{1,2})",
    "MI": r"(\d{1,2})", "SS": r"(\d{1,2})", "MS": r"(\d{3})", "US": r"(\d{6})", "MON": r"([A-Za-z]{3})",
}  # fmt: skip
_MONTHS: Final = "array('jan','feb','mar','apr','may','jun','jul','aug','sep','oct','nov','dec')"


def read_time(arguments: Sequence[Expr]) -> Expr:
    """`to_timestamp(text, template)`: text that is written as the template says; other text is an error."""
    return plain(_read(arguments, "to_timestamp"), t.TIMESTAMPTZ)


def read_date(arguments: Sequence[Expr]) -> Expr:
    """`to_date(text, template)`."""
    return plain(_read(arguments, "to_date"), t.DATE)


def _read(arguments: Sequence[Expr], function: str) -> Expr:
    template = _template(arguments[1], function)
    java = r"^\s*"
    places: dict[str, int] = {}
    for word, text, _ in parts(template):
        if not word:
            if text.isalnum():
                raise NotBound(f"letters in a template of {function}")
            java += r"\s+" if text.isspace() else "".join(f"\\{c}" if not c.isspace() else r"\s+" for c in text)
            continue
        if word.upper() not in _READ or word.upper() in places:
            raise NotBound(f"{word} in a template of {function}")
        places[word.upper()] = len(places) + 1
        java += _READ[word.upper()]
    if not ("YYYY" in places or "YY" in places) or {"YYYY", "YY"} <= set(places) or {"MM", "MON"} <= set(places):
        raise NotBound(f"a template of {function} without a year, or with several")
    pattern = Constant(t.TEXT, java + r"\s*\z")

    def number(word: str, default: int) -> str:
        at = places.get(word)
        return str(default) if at is None else f"CAST(regexp_extract({{0}}, {{1}}, {at}) AS INT)"

    year = number("YYYY", 0)
    if "YY" in places:
        year = f"({number('YY', 0)} + CASE WHEN {number('YY', 0)} < 70 THEN 2000 ELSE 1900 END)"
    month = number("MM", 1)
    if "MON" in places:
        month = f"CAST(array_position({_MONTHS}, lower(regexp_extract({{0}}, {{1}}, {places['MON']}))) AS INT)"
    seconds = (
        f"CAST({number('SS', 0)} AS DECIMAL(8,6)) + CAST({number('MS', 0)} AS DECIMAL(9,6)) / 1000"
        f" + CAST({number('US', 0)} AS DECIMAL(16,6)) / 1000000"
    )
    made = (
        f"make_timestamp_ntz({year}, {month}, {number('DD', 1)}, {number('HH24', 0)}, {number('MI', 0)}, "
        f"CAST({seconds} AS DECIMAL(16,6)))"
    )
    wrong = "raise_error(concat('headrace.errors.InvalidDatetime: invalid value \"', {0}, '\" for the template'))"
    form = (
        f"CASE WHEN {{0}} IS NULL THEN NULL WHEN rlike({{0}}, {{1}}) THEN "
        f"{made} ELSE CAST({wrong} AS TIMESTAMP_NTZ) END"
    )
    return Call(t.TIMESTAMP, form, (arguments[0], pattern))
