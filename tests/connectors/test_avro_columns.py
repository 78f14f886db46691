"""Records in Avro by columns give what they give one by one, whatever their schema, and whatever is wrong with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors.kafka import avro
from headrace.connectors.kafka.avro_columns import RecordColumns
from headrace.connectors.kafka.message_rows import RecordShape
from headrace.errors import HeadraceError
from schema_registry import SchemaRegistry, framed, schema_registry
from support import examples

UTC = dt.UTC
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))


def decimal(precision: int, scale: int) -> tuple[Any, Any]:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    most = 10**precision - 1
    return kind, st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale))


LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
KINDS: dict[str, tuple[Any, Any, str]] = {
    "long": ("long", LONGS, "bigint"),
    "int": ("int", st.integers(-(2**31), 2**31 - 1), "int"),
    "narrow": ("long", LONGS, "smallint"),
    "real": ("double", st.floats(), "double"),
    "single": ("float", st.floats(width=32), "double"),
    "truth": ("boolean", st.booleans(), "boolean"),
    "text": ("string", st.text(max_size=9), "string"),
    "raw": ("bytes", st.binary(max_size=9), "binary"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC"), "string"),
    "fixed": ({"type": "fixed", "name": "F", "size": 3}, st.binary(min_size=3, max_size=3), "binary"),
    "day": ({"type": "int", "logicalType": "date"}, st.dates(), "date"),
    "millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        MOMENTS.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=UTC)), "timestamp",
    ),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS.map(lambda t: t.replace(tzinfo=UTC)),
               "timestamp"),
    "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, MOMENTS, "timestamp_ntz"),
    "small": (*decimal(9, 2), "decimal(9,2)"),
    "wide": (*decimal(18, 0), "decimal(20,0)"),
    "huge": (*decimal(30, 5), "decimal(30,5)"),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids(), "string"),
    "list": ({"type": "array", "items": "long"}, st.lists(LONGS, max_size=3), "array<bigint>"),
    "inner": (
        {"type": "record", "name": "I", "fields": [{"name": "x", "type": "string"}, {"name": "y", "type": "long"}]},
        st.fixed_dictionaries({"x": st.text(max_size=3), "y": LONGS}), "struct<x:string,y:bigint>",
    ),
}  # fmt: skip
OFTEN = [k for k in KINDS if k not in ("list", "uuid", "huge", "fixed")]


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[Column], list[bytes]]:
    """A writer's schema, the columns that are read, and records, some of which are damaged."""
    names = draw(st.lists(st.sampled_from(OFTEN), unique=True, max_size=5))
    names += draw(
        st.lists(st.sampled_from([*KINDS]), unique=True, max_size=1).filter(lambda n: not set(n) & set(names))
    )
    fields, values = [], {}
    for name in names:
        kind, value, _ = KINDS[name]
        form = draw(st.integers(0, 2))
        fields.append({"name": name, "type": [kind, ["null", kind], [kind, "null"]][form]})
        values[name] = value if form == 0 else st.none() | value
    schema = {"type": "record", "name": "R", "fields": fields}
    wanted = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    columns = [Column(n, KINDS[n][2]) for n in wanted] + [Column("absent", draw(st.sampled_from(["int", "string"])))]
    records = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=12))
    data = [framed(1, schema, record)[5:] for record in records]
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[at] = draw(damaged(data[at]))
    return schema, columns, data


@st.composite
def damaged(draw: st.DrawFn, record: bytes) -> bytes:
    at = draw(st.integers(0, len(record)))
    match draw(st.integers(0, 2)):
        case 0:
            return record[:at]
        case 1:
            return record[:at] + draw(st.binary(min_size=1, max_size=3)) + record[at:]
    return record[:at] + draw(st.binary(min_size=1, max_size=1)) + record[at + 1 :]


def read(
    registry: SchemaRegistry, columns: Sequence[Column], records: Sequence[bytes], on_error: str
) -> tuple[Any, ...]:
    options = {"encode.schema.registry": registry.url, "topic": "t"}
    shape = RecordShape.of("t", "plain", "avro", columns, options)
    messages: list[Any] = [
        SimpleNamespace(value=lambda v=v: v, key=lambda: None, offset=lambda i=i: i) for i, v in enumerate(records)
    ]
    try:
        found = shape.rows(messages, 0, on_error)
    except HeadraceError as error:
        return (str(error),)
    found.batch.validate(full=True)
    return repr(found.batch.to_pydict()), found.batch.schema, found.errors, found.error_count


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases(), st.sampled_from(["fail", "skip", "null"]))
def test_columns_at_once_are_those_one_by_one(
    registry: SchemaRegistry, case: tuple[Any, list[Column], list[bytes]], on_error: str
) -> None:
    schema, columns, data = case
    number = registry.add("t-value", schema)
    records = [b"\x00" + number.to_bytes(4, "big") + each for each in data]
    at_once = read(registry, columns, records, on_error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordColumns, "of", classmethod(lambda *_: None))
        assert at_once == read(registry, columns, records, on_error)


def test_plain_records_are_decoded_by_columns(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two schemas in turn, and with one record at fault among many: that one and its neighbours go one by one."""
    one = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
    other = {"type": "record", "name": "R", "fields": [{"name": "b", "type": ["null", "string"]}]}
    first, second = registry.add("t-value", one), registry.add("t-value", other)
    records = [
        framed(first, one, {"a": i, "b": str(i)}) if i % 3 else framed(second, other, {"b": None if i % 2 else "x"})
        for i in range(2000)
    ]
    columns, seen = [Column("a", "bigint"), Column("b", "string")], list[bytes]()
    alone = avro.AvroReader.record
    monkeypatch.setattr(avro.AvroReader, "record", lambda self, data: (seen.append(data), alone(self, data))[1])
    found = read(registry, columns, records, "fail")
    assert not seen
    wanted = {
        "a": [i if i % 3 else None for i in range(2000)],
        "b": [str(i) if i % 3 else None if i % 2 else "x" for i in range(2000)],
    }
    assert found[0] == repr(wanted)
    records[1500] = records[1500][:-1] + b"\xff"
    assert read(registry, columns, records, "skip")[3] == 1
    assert 0 < len(seen) <= 250
