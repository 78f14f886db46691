#!/usr/bin/env bash
# libpg_query's tree by postgast 0.2.0.
#
# In PostgreSQL's own tree the waiting policy of a locking clause is 0 (block) unless NOWAIT or SKIP LOCKED is written. In
# the protobuf tree 0 is "undefined" and block is 1, so the field is set on every FOR UPDATE. Whoever takes a field that
# is present as something that was written, as one does with the rest of this tree, refuses a plain FOR UPDATE.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check postgast==0.2.0
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import postgast
from postgast import pg_query_pb2 as pb

print("postgast", version("postgast"))
found = {}
for text in ("SELECT 1 FROM t FOR UPDATE", "SELECT 1 FROM t FOR UPDATE NOWAIT"):
    select = postgast.parse(text).stmts[0].stmt.select_stmt
    clause = select.locking_clause[0].locking_clause
    found[text] = pb.LockWaitPolicy.Name(clause.wait_policy)
    print(f"{text}: fields {[field.name for field, _ in clause.ListFields()]}, wait_policy {found[text]}")
    assert "wait_policy" in [field.name for field, _ in clause.ListFields()]
assert list(found.values()) == ["LockWaitBlock", "LockWaitError"]
# The like in the same tree: an absent LIMIT has an option, too, and a SELECT without UNION an operation.
plain = postgast.parse("SELECT 1").stmts[0].stmt.select_stmt
print("SELECT 1: fields", [field.name for field, _ in plain.ListFields()])
assert {"limit_option", "op"} <= {field.name for field, _ in plain.ListFields()}
PYTHON
