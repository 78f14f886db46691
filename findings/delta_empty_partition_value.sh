#!/usr/bin/env bash
# Delta Lake, deltalake 1.6.6 (delta-rs) and polars 2.1.0.
#
# A table is partitioned by a text column, and one row has an empty text there. One would guess that the row comes back
# as it was written, or that writing it fails. It is written, as the partition value "" in the log. Delta's protocol
# says that an empty string stands for NULL there. deltalake's Arrow reader follows it, so the package does not give
# back what it has written itself; polars gives back the empty text. Two readers of one table disagree, without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa

rows = pa.table({"id": [1, 2, 3], "p": ["a", "", None]})
deltalake.write_deltalake("table", rows, partition_by=["p"])
entries = [json.loads(line) for path in Path("table/_delta_log").glob("*.json") for line in path.read_text().splitlines()]
logged = sorted(repr(entry["add"]["partitionValues"]["p"]) for entry in entries if "add" in entry)
by_arrow = deltalake.DeltaTable("table").to_pyarrow_table().sort_by("id").column("p").to_pylist()
by_polars = pl.read_delta("table").sort("id")["p"].to_list()
print("deltalake", deltalake.__version__, "polars", pl.__version__)
print("written:               ", ["a", "", None])
print("in the log:            ", logged)
print("read by deltalake/Arrow:", by_arrow)
print("read by polars:        ", by_polars)
assert logged == ["''", "'a'", "None"]
assert by_arrow == ["a", None, None]
assert by_polars == ["a", "", None]
PYTHON
