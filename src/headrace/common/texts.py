"""Values as texts, for messages and samples: of every value that a column can hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def text_of(value: pa.Scalar) -> str | None:
    """A value as text, which Spark reads as the same value where its type has such; None for null."""
    if not value.is_valid:
        return None
    try:
        found = value.as_py()
    except (ValueError, OverflowError):
        return _beyond_python(value)
    if isinstance(found, bool):
        return str(found).lower()
    return found.hex() if isinstance(found, bytes) else str(found)


def _beyond_python(value: pa.Scalar) -> str:
    """Of a time before the year 1 or after 9999, text that is no UTF-8, or something that holds one."""
    kind, t = value.type, pa.types
    if t.is_timestamp(kind) or t.is_date32(kind):
        found = str(np.datetime64(value.value, kind.unit if t.is_timestamp(kind) else "D"))
        return found if found.startswith("-") or found[4] == "-" else f"+{found}"
    if t.is_string(kind) or t.is_large_string(kind):
        return value.as_buffer().to_pybytes().decode(errors="replace")
    return f"<{kind}>"
