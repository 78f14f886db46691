"""What an epoch's changes come to."""

import pyarrow as pa

from headrace.connectors.netting import taken, without


def test_names_that_differ_in_case_alone_are_different_columns() -> None:
    schema = pa.schema([("id", pa.int32()), ("K", pa.int32()), ("k", pa.int32()), ("__w", pa.int64())])
    rows = [{"id": 1, "K": 1, "k": 2, "__w": -1}, {"id": 1, "K": 1, "k": 3, "__w": 1}]
    found = taken([pa.RecordBatch.from_pylist(rows, schema=schema)], 3, ("id",))
    assert found.rows.to_pylist() == [{"id": 1, "K": 1, "k": 3}]
    rows = [{"id": 1, "K": 1, "k": 2, "__w": 1}, {"id": 1, "K": 1, "k": 3, "__w": 1}]
    found = taken([pa.RecordBatch.from_pylist(rows, schema=schema)], 3, ("K", "k"))
    assert found.keys is not None and found.keys.num_rows == 2
    assert without(found.keys, found.keys.slice(0, 1)).to_pylist() == [{"K": 1, "k": 3}]
