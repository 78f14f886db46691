"""What PostgreSQL's functions and operators make of documents. All raise `JsonbFault` where PostgreSQL has an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from headrace.common.jsonb.document import (
    JsonbFault,
    in_order,
    known,
    number_text,
    pretty,
    read,
    without_scale,
    written,
)

MISSING: Final = object()
"""What stands for no value at all, which SQL shows as NULL; None is the `null` of JSON."""
_PLACE: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)


def kind(found: Any) -> str:
    """`jsonb_typeof`."""
    if found is None:
        return "null"
    if isinstance(found, bool):
        return "boolean"
    names = ((str, "string"), (Decimal, "number"), (list, "array"), (dict, "object"))
    return next(name for of, name in names if isinstance(found, of))


def text_of(found: Any) -> str | None:
    """What `->>` shows: strings without quotes, NULL for null."""
    if found is None or found is MISSING:
        return None
    return found if isinstance(found, str) else written(found)


def field(found: Any, name: str) -> Any:
    """`-> 'name'`."""
    return found.get(name, MISSING) if isinstance(found, dict) else MISSING


def element(found: Any, at: int) -> Any:
    """`-> place`, from 0, or from the end."""
    if isinstance(found, dict):
        return MISSING
    found = found if isinstance(found, list) else [found]  # PostgreSQL keeps a scalar as an array of one
    at = at + len(found) if at < 0 else at
    return found[at] if 0 <= at < len(found) else MISSING


def at_path(found: Any, path: Sequence[str | None]) -> Any:
    """`#>`."""
    for step in path:
        if step is None:
            return MISSING
        if isinstance(found, dict):
            found = field(found, step)
        elif isinstance(found, list) and _PLACE.fullmatch(step):
            found = element(found, int(step))
        else:
            return MISSING
        if found is MISSING:
            return MISSING
    return found


# ---- tests


def contains(whole: Any, part: Any) -> bool:
    """`@>`: an array contains a scalar, too, at the top."""
    if isinstance(whole, list) and not isinstance(part, (list, dict)):
        return any(_same(item, part) for item in whole)
    return _contains(whole, part)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(k in whole and _contains(whole[k], v) for k, v in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_contains(item, wanted) for item in whole) for wanted in part)
    return _same(whole, part)


def _same(left: Any, right: Any) -> bool:
    """Whether two scalars are equal."""
    return kind(left) == kind(right) and not isinstance(left, (dict, list)) and bool(left == right)


def has(found: Any, name: str) -> bool:
    """`?`: a key of an object, or a string in an array."""
    if isinstance(found, dict):
        return name in found
    return any(isinstance(i, str) and i == name for i in (found if isinstance(found, list) else [found]))


# ---- changes


def joined(left: Any, right: Any) -> Any:
    """`||`."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {**left, **right}
    return [*(left if isinstance(left, list) else [left]), *(right if isinstance(right, list) else [right])]


def without(found: Any, names: Iterable[str | None]) -> Any:
    """`-`: without keys, or without strings in an array."""
    gone = {name for name in names if name is not None}
    if isinstance(found, dict):
        return {k: v for k, v in found.items() if k not in gone}
    if isinstance(found, list):
        return [i for i in found if not (isinstance(i, str) and i in gone)]
    raise JsonbFault("22023", "cannot delete from scalar")


def without_place(found: Any, at: int) -> Any:
    """`- place`."""
    if isinstance(found, dict):
        raise JsonbFault("22023", "cannot delete from object using integer index")
    if not isinstance(found, list):
        raise JsonbFault("22023", "cannot delete from scalar")
    at = at + len(found) if at < 0 else at
    return [item for i, item in enumerate(found) if i != at]


def without_path(found: Any, path: Sequence[str | None]) -> Any:
    """`#-`."""
    if not isinstance(found, (dict, list)):
        raise JsonbFault("22023", "cannot delete path in scalar")
    return _changed(found, path, 0, _removed) if path and found else found


def with_value(found: Any, path: Sequence[str | None], value: Any, create: bool) -> Any:
    """`jsonb_set`."""
    if not isinstance(found, (dict, list)):
        raise JsonbFault("22023", "cannot set path in scalar")

    def put(holder: Any, step: str | int) -> Any:
        if isinstance(holder, dict):
            return {**holder, step: value} if create or step in holder else holder
        assert isinstance(step, int)
        if 0 <= step < len(holder):
            return [*holder[:step], value, *holder[step + 1 :]]
        return holder if not create else [value, *holder] if step < 0 else [*holder, value]

    return _changed(found, path, 0, put) if path and (found or create) else found


def with_inserted(found: Any, path: Sequence[str | None], value: Any, after: bool) -> Any:
    """`jsonb_insert`."""
    if not isinstance(found, (dict, list)):
        raise JsonbFault("22023", "cannot set path in scalar")

    def put(holder: Any, step: str | int) -> Any:
        if isinstance(holder, dict):
            if step in holder:
                raise JsonbFault("22023", "cannot replace existing key")
            return {**holder, step: value}
        assert isinstance(step, int)
        at = step + 1 if after and 0 <= step < len(holder) else max(step, 0)
        return [*holder[:at], value, *holder[at:]]

    return _changed(found, path, 0, put) if path else found


def _removed(holder: Any, step: str | int) -> Any:
    if isinstance(holder, dict):
        return {k: v for k, v in holder.items() if k != step}
    assert isinstance(step, int)
    return [*holder[:step], *holder[step + 1 :]] if 0 <= step < len(holder) else holder


def _changed(found: Any, path: Sequence[str | None], depth: int, change: Callable[[Any, str | int], Any]) -> Any:
    """The document with a change of what holds the last step of a path; as it is where the path leads nowhere.

    Places in arrays are from 0, or negative where they lie before the first element.
    """
    step, last = path[depth], depth == len(path) - 1
    if step is None:
        raise JsonbFault("22004", f"path element at position {depth + 1} is null")
    if isinstance(found, dict):
        if last:
            return change(found, step)
        return {**found, step: _changed(found[step], path, depth + 1, change)} if step in found else found
    if not isinstance(found, list):
        return found
    if not _PLACE.fullmatch(step):
        raise JsonbFault("22P02", f'path element at position {depth + 1} is not an integer: "{step}"')
    at = int(step) + len(found) if int(step) < 0 else int(step)
    if last:
        return change(found, at)
    if not 0 <= at < len(found):
        return found
    return [*found[:at], _changed(found[at], path, depth + 1, change), *found[at + 1 :]]


def stripped(found: Any) -> Any:
    """`jsonb_strip_nulls`: objects without pairs whose value is null."""
    if isinstance(found, dict):
        return {k: stripped(v) for k, v in found.items() if v is not None}
    return [stripped(v) for v in found] if isinstance(found, list) else found


# ---- parts


def elements(found: Any) -> list[Any]:
    """`jsonb_array_elements`."""
    if isinstance(found, dict):
        raise JsonbFault("22023", "cannot extract elements from an object")
    if not isinstance(found, list):
        raise JsonbFault("22023", "cannot extract elements from a scalar")
    return found


def length(found: Any) -> int:
    """`jsonb_array_length`."""
    if not isinstance(found, list):
        what = "a non-array" if isinstance(found, dict) else "a scalar"
        raise JsonbFault("22023", f"cannot get array length of {what}")
    return len(found)


def pairs(found: Any, function: str) -> list[tuple[str, Any]]:
    """The pairs of an object, for `jsonb_each` and its like."""
    if not isinstance(found, dict):
        what = "an array" if isinstance(found, list) else "a scalar"
        if function != "jsonb_object_keys":
            raise JsonbFault("22023", f"cannot call {function} on a non-object")
        raise JsonbFault("22023", f"cannot call {function} on {what}")
    return in_order(found)


def number(found: Any, type_name: str) -> str:
    """The text of a number, for a cast."""
    if not isinstance(found, Decimal):
        what = "array" if isinstance(found, list) else "object" if isinstance(found, dict) else kind(found)
        raise JsonbFault("22023", f"cannot cast jsonb {what} to type {type_name}")
    if type_name in ("smallint", "integer", "bigint"):
        whole = found.to_integral_value(ROUND_HALF_UP)
        size = {"smallint": 15, "integer": 31, "bigint": 63}[type_name]
        if not -(1 << size) <= whole < 1 << size:
            raise JsonbFault("22003", f"{type_name} out of range")
        return format(whole, "f") if whole else "0"
    return number_text(found)


def boolean(found: Any) -> bool:
    """A cast to boolean."""
    if not isinstance(found, bool):
        what = "array" if isinstance(found, list) else "object" if isinstance(found, dict) else kind(found)
        raise JsonbFault("22023", f"cannot cast jsonb {what} to type boolean")
    return found


# ---- values of SQL


def of_value(spelling: str, value: Any) -> Any:
    """A value of SQL as a document: `s` for text, `n` for a number's text, `b` for a boolean, `j` for a document.

    With `a` in front it is a list of such.
    """
    if value is None:
        return None
    if spelling[0] == "a":
        return [of_value(spelling[1:], item) for item in value]
    if spelling == "j":
        return known(value)
    if spelling == "n":
        return Decimal(value) if value[-1].isdigit() else value
    return value


def array_of(values: Sequence[Any]) -> list[Any]:
    """`jsonb_build_array` of spellings and values by turns."""
    return [of_value(values[i], values[i + 1]) for i in range(0, len(values), 2)]


def object_of(values: Sequence[Any]) -> dict[str, Any]:
    """`jsonb_build_object` of keys, spellings and values by turns."""
    made: dict[str, Any] = {}
    for i in range(0, len(values), 3):
        if values[i] is None:
            raise JsonbFault("22023", f"argument {2 * (i // 3) + 1}: key must not be null")
        made[values[i]] = of_value(values[i + 1], values[i + 2])
    return made


def aggregated(spelling: str, rows: Sequence[Any]) -> dict[str, Any]:
    """`jsonb_object_agg`."""
    made: dict[str, Any] = {}
    for row in rows:
        if row["k"] is None:
            raise JsonbFault("22023", "field name must not be null")
        made[row["k"]] = of_value(spelling, row["v"])
    return made


__all__ = ["pretty", "read", "without_scale"]
