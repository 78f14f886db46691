"""Values as they are stored: what is read of text is what a column of its type gives back."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import InvalidDatetime
from headrace.sql.text_values import assign, parse_text


def test_a_real_has_the_precision_of_its_column() -> None:
    """Rows that were just written are looked up without a way through the column."""
    stored = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert parse_text("0.1", "float") == stored
    assert assign(0.1, "float") == stored
    assert assign(16777217, "float") == 16777216.0
    assert parse_text("0.1", "double") == 0.1


def test_a_zone_that_leads_out_of_the_calendar() -> None:
    with pytest.raises(InvalidDatetime):
        parse_text("0001-01-01 00:00:00+14", "timestamp")
