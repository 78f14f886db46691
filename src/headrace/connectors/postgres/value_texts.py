"""PostgreSQL's texts as values of Arrow's types. No I/O."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.parsed_values import Bad, strings_to_array
from headrace.connectors.postgres.array_texts import arrays_of


def innermost(kind: pa.DataType) -> pa.DataType:
    """The type of the elements of an array, and of those that are arrays themselves."""
    return innermost(kind.value_type) if pa.types.is_list(kind) else kind


def values_of(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    """PostgreSQL's texts as values; one that is none becomes NULL."""
    if pa.types.is_list(kind):
        return arrays_of(texts, kind, values_of)
    return strings_to_array(_readable(texts, kind), kind)


def _readable(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """PostgreSQL's spellings as those that Arrow reads at one go."""
    if pa.types.is_boolean(kind):
        for short, long in (("t", "true"), ("f", "false")):
            texts = pc.if_else(pc.fill_null(pc.equal(texts, short), False), long, texts)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.replace_substring_regex(texts, r"\+00$", "Z")
    return texts
