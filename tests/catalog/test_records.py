import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.contents import (
    ConnectionContent,
    Content,
    DeclaredWatermark,
    IndexContent,
    MadeBy,
    MaterializedViewContent,
    RoleContent,
    SecretContent,
    SinkContent,
    SubscriptionContent,
    TableContent,
)
from headrace.catalog.records import (
    RECORD_TYPES,
    EventRecord,
    JobPlan,
    JobRecord,
    LeavingRecord,
    ObjectRecord,
    PositionRecord,
    Record,
    RemapRecord,
    RunRecord,
    SettingRecord,
    StateTableRecord,
    decode,
    encode,
    key_text,
)
from headrace.common.columns import Column
from headrace.errors import CorruptObject, OperationalError
from headrace.state.schema import RunRef, TableSchema

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
epochs = st.integers(0, (1 << 63) - 1)
texts = st.text(max_size=12)
options = st.dictionaries(texts, texts, max_size=3)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | i64 | texts | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads = st.dictionaries(texts, json_values, max_size=3)
arrow_types = st.sampled_from(
    [
        pa.int64(),
        pa.string(),
        pa.decimal128(10, 2),
        pa.timestamp("us", tz="UTC"),
        pa.list_(pa.struct([("a", pa.int8())])),
    ]
)
arrow_fields = st.builds(pa.field, texts, arrow_types, nullable=st.booleans())


def tuples(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, max_size=3).map(tuple)


table_schemas = st.builds(
    TableSchema,
    key=tuples(arrow_fields),
    value=tuples(arrow_fields),
    diffs=tuples(st.tuples(arrow_fields, st.sampled_from(["add", "min", "max", "limbs"]))),
)
refs = st.builds(
    RunRef, table_id=i64, path=texts, offset=epochs, length=epochs, rows=epochs, epoch_lo=epochs, epoch_hi=epochs,
    k_min=i64, k_max=i64,
)  # fmt: skip
tables = st.builds(StateTableRecord.from_table_schema, i64, i64, texts, table_schemas)
contents: st.SearchStrategy[Content] = st.one_of(
    st.builds(
        TableContent,
        watermark=st.none() | st.builds(DeclaredWatermark, column=texts, delay_ms=epochs, expression=texts),
        append_only=st.booleans(),
        defaults=options,
        more=st.dictionaries(st.sampled_from(["newer", "newest"]), json_values),
    ),
    st.fixed_dictionaries({}, optional={"newer": json_values, "append_only": st.booleans(), "defaults": options}).map(
        TableContent.from_json
    ),
    st.builds(
        MaterializedViewContent,
        spark_sql=st.none() | texts,
        leaves=st.none() | tuples(i64),
        append_only=st.booleans(),
        pipeline=st.none() | st.builds(MadeBy, digest=texts, comment=texts),
    ),
    st.builds(IndexContent, on=i64, key=tuples(texts), automatic=st.booleans()),
    st.builds(SecretContent, cipher=texts, key_id=texts, sealed=texts),
    st.builds(RoleContent, can_login=st.booleans(), password=st.none() | texts, valid_until_ms=st.none() | epochs),
    st.builds(SubscriptionContent, retention_ms=epochs, since=epochs),
    st.builds(ConnectionContent, type=texts),
)
objects = st.builds(
    ObjectRecord,
    id=i64,
    content=contents,
    schema=texts,
    name=texts,
    columns=tuples(st.builds(Column, texts, texts, st.booleans())),
    definition=texts,
    primary_key=tuples(texts),
    options=options,
    depends_on=tuples(i64),
    created_ms=i64,
    secrets=st.dictionaries(texts, i64, max_size=2),
)
records: st.SearchStrategy[Record] = st.one_of(
    objects,
    st.builds(LeavingRecord, source=objects, secrets=tuples(objects), offsets=payloads, dropped_ms=i64),
    st.builds(
        JobRecord,
        id=i64,
        group=texts,
        status=st.sampled_from(["creating", "created", "paused", "quarantined"]),
        committed_epoch=epochs,
        frontier=epochs,
        plan=st.builds(
            JobPlan,
            fingerprint=st.none() | texts,
            upstreams=st.none() | tuples(i64),
            sharable=tuples(st.tuples(i64, tuples(texts))),
        )
        | st.dictionaries(st.sampled_from(["newer", "newest"]), json_values).map(JobPlan.from_json),
        options=options,
        exact=tuples(st.tuples(epochs, epochs)),
    ),
    st.builds(lambda t, c, s: replace(t, committed_epoch=c, safe_epoch=s), tables, epochs, epochs),
    st.builds(RunRecord, ref=refs, level=st.integers(0, 9), created_ms=i64),
    st.builds(RemapRecord, source_id=i64, epoch=epochs, offsets=payloads, watermark_us=st.none() | i64),
    st.builds(PositionRecord, job_id=i64, upstream_id=i64, epoch=epochs, sequence=epochs),
    st.builds(SettingRecord, name=texts, value=texts),
    st.builds(EventRecord, epochs, i64, texts, st.none() | i64, texts, texts),
)


@given(records)
def test_every_record_round_trips(record: Record) -> None:
    text = encode(record)
    version = record.VERSION
    if isinstance(record, ObjectRecord):
        by_kind = {"role": 3, "subscription": 5, "connection": 6}
        version = by_kind.get(record.kind, 2 if record.secrets or record.kind == "secret" else 1)
    if isinstance(record, JobRecord):
        version = 3 if record.delivered_epoch else 2
    if isinstance(record, RunRecord):
        version = 4 if record.content_b64 is not None and record.ref.offset else 3
    assert json.loads(text)["v"] == version
    again = decode(record.COLLECTION, key_text(record.key), text)
    assert again == record and type(again) is type(record) is RECORD_TYPES[record.COLLECTION]
    assert encode(again) == text


@given(table_schemas)
def test_table_schema_round_trips(schema: TableSchema) -> None:
    record = StateTableRecord.from_table_schema(1, 2, "join", schema)
    assert decode("state_table", "1", encode(record)) == record
    again = record.to_table_schema()
    assert (again.key, again.value, again.diffs) == (schema.key, schema.value, schema.diffs)


def test_bytes_of_version_1_stay_readable() -> None:
    stored = '{"v":1,"job_id":7,"upstream_id":3,"epoch":12,"sequence":0}'
    assert decode("position", "7:3", stored) == PositionRecord(7, 3, 12, 0)
    stored = (
        '{"v":1,"id":3,"kind":"table","schema":"public","name":"t","columns":[["a","int",false]],"definition":"",'
        '"primary_key":["a"],"options":{},"depends_on":[],"created_ms":5,"payload":{}}'
    )
    columns = (Column("a", "int", False),)
    table = ObjectRecord(3, TableContent(), "public", "t", columns, primary_key=("a",), created_ms=5)
    assert decode("object", "3", stored) == table
    assert encode(decode("object", "3", stored)) == stored


def test_newer_and_broken_records_are_refused_by_name() -> None:
    with pytest.raises(OperationalError, match="setting/x has version 2"):
        decode("setting", "x", '{"v":2,"name":"x","value":"y"}')
    for broken in ("", "[]", "{}", '{"v":1}', '{"v":1,"name":"x"}', '{"v":"1","name":"x","value":"y"}'):
        with pytest.raises(CorruptObject, match="setting/x"):
            decode("setting", "x", broken)
    with pytest.raises(CorruptObject, match="nonsense"):
        decode("nonsense", "x", "{}")


def test_a_sink_into_a_table_is_refused_by_programs_that_know_of_none() -> None:
    """They would take it for one of a connector."""
    plain = ObjectRecord(1, SinkContent(), "public", "s", options={"connector": "blackhole"})
    assert json.loads(encode(plain))["v"] == 1
    assert json.loads(encode(replace(plain, content=SinkContent(into=7))))["v"] == 6
