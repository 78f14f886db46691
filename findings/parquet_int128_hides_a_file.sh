#!/usr/bin/env bash
# Parquet, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1.
#
# polars has 128-bit integers and writes them to Parquet. One would guess that a reader without such a type fails on that
# column, or offers it as a decimal. pyarrow cannot open the file at all: not its metadata, not its schema, not another
# column. DuckDB, which has 128-bit integers (HUGEINT), offers the column as BLOB with the bytes in little-endian order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

schema = {"id": pl.Int64, "wide": pl.Int128}
pl.DataFrame({"id": [1, 2], "wide": [1, 2]}, schema=schema).write_parquet("wide.parquet")
print("polars", pl.__version__, "pyarrow", pa.__version__, "duckdb", duckdb.__version__)
print("polars reads:", dict(pl.read_parquet("wide.parquet").schema))
readers = {
    "metadata": lambda: pq.read_metadata("wide.parquet"),
    "schema": lambda: pq.read_schema("wide.parquet"),
    "the other column": lambda: pq.read_table("wide.parquet", columns=["id"]),
}
for what, read in readers.items():
    try:
        read()
    except pa.ArrowNotImplementedError as error:
        print(f"pyarrow, {what}: {error}")
    else:
        raise AssertionError(f"pyarrow reads {what} now")
kinds = {name: kind for name, kind, *_ in duckdb.sql("DESCRIBE SELECT * FROM 'wide.parquet'").fetchall()}
values = [row[0] for row in duckdb.sql("SELECT wide FROM 'wide.parquet' ORDER BY id").fetchall()]
print("duckdb:", kinds, values)
assert kinds == {"id": "BIGINT", "wide": "BLOB"}
assert [int.from_bytes(value, "little") for value in values] == [1, 2]
PYTHON
