"""The system catalogs' own types in binary: what PostgreSQL sends of the same values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import NotSupported, UndefinedFunction
from headrace.server.binary import render_binary
from headrace.sql.catalog_types import CATALOG_TYPES
from headrace.sql.type_names import pg_type
from postgres import Postgres

VALUES = {
    "oid": 4_000_000_000, "xid": 7, "name": "relname", "char": "r", "int2vector": "1 2 3", "oidvector": "23 25",
    "array<oid>": [23, 4_000_000_000], "array<name>": ["a", "b"], "array<char>": ["i", "o"], "regproc": "0",
    "regclass": "-", "varchar": "x", "array<varchar>": ["x", None],
}  # fmt: skip
"""By type, as values are held here."""


def test_values_are_sent_as_postgresql_sends_them(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        for kind, value in VALUES.items():
            told = pg_type(kind)
            literal = (
                str(value) if not isinstance(value, list) else "{" + ",".join(str(v or "NULL") for v in value) + "}"
            )
            spelled = f'"{told.name}"' if told.name == "char" else told.name
            found = connection.execute(f"SELECT '{literal}'::{spelled}".encode(), binary=True)
            wanted = found.pgresult.get_value(0, 0) if found.pgresult is not None else None
            assert render_binary(pa.array([value]), kind) == [wanted], kind
            assert found.pgresult is not None and found.pgresult.ftype(0) == told.oid


def test_every_type_is_told_as_postgresql_tells_it(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        known = {row[0]: row[1:] for row in connection.execute("SELECT oid, typname, typlen FROM pg_type")}
    for name in CATALOG_TYPES:
        kind = pg_type(name)
        assert known[kind.oid] == (kind.name, kind.size), name


def test_what_has_no_binary_format() -> None:
    with pytest.raises(NotSupported, match="regproc has no binary format"):
        render_binary(pa.array(["boolin"]), "regproc")
    with pytest.raises(UndefinedFunction, match="no binary output function available for type aclitem"):
        render_binary(pa.array(["root=r/root"]), "aclitem")
