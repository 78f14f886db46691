"""Records without a value: a deletion by key, and no row of a format that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.common.columns import Column
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.errors import SourceError

COLUMNS = [Column("a", "int"), Column("op", "string")]


def message(value: bytes | None, key: bytes | None = None) -> Any:
    return SimpleNamespace(value=lambda: value, key=lambda: key, offset=lambda: 0)


def test_a_record_without_value() -> None:
    messages = [message(b'{"a": 1}'), message(None, b'{"a": 1}')]
    plain = RecordShape.of("t", "plain", "json", COLUMNS[:1], {})
    with pytest.raises(SourceError, match="without value"):
        plain.rows(messages, 0, "fail")
    found = plain.rows(messages, 0, "skip")
    assert (found.batch.to_pylist(), found.error_count) == ([{"a": 1}], 1)
    upsert = RecordShape.of("t", "upsert", "json", COLUMNS, {"include.operation": "op"})
    rows = upsert.rows(messages, 0, "fail").batch.to_pylist()
    assert rows == [{"a": 1, "op": "upsert"}, {"a": 1, "op": "delete"}]
