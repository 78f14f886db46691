"""A record without a value of a NOT NULL column is one at fault, whichever columns a view wants of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.session.database import Database
from lakes import DeltaLake


def folder_of(tmp_path: Path, *rows: dict[str, object]) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_null_in_a_not_null_column_of_a_source(database: Database, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 1, "b": "x"}, {"b": "y"}, {"a": 3}, {"a": None, "b": "z"})
    for policy in ("skip", "null"):
        database.sql(
            f"CREATE SOURCE nn_{policy} (a int NOT NULL, b text) "
            f"WITH (connector = 'files', path = '{folder}', format = 'json', on_error = '{policy}')"
        )
        database.sql(f"CREATE MATERIALIZED VIEW nn_{policy}_a AS SELECT a, b FROM nn_{policy}")
        database.sql(f"CREATE MATERIALIZED VIEW nn_{policy}_b AS SELECT count(*) AS n, count(b) AS m FROM nn_{policy}")
        assert sorted(database.sql(f"SELECT a, b FROM nn_{policy}_a").rows()) == [(1, "x"), (3, None)]
        assert database.sql(f"SELECT n, m FROM nn_{policy}_b").rows() == [(2, 1)], "whoever does not read the column"
        assert len(database.sql(f"SELECT * FROM nn_{policy}").rows()) == 2, "a query of the source itself"


def test_it_stops_a_source_that_is_to_fail(database: Database, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": 1, "b": "x"}, {"b": "y"})
    database.sql(
        f"CREATE SOURCE nn_fail (a int NOT NULL, b text) WITH (connector = 'files', path = '{folder}', format = 'json')"
    )
    with pytest.raises(HeadraceError, match=r"a.*NULL in a column that is NOT NULL"):
        database.sql("CREATE MATERIALIZED VIEW nn_fail_v AS SELECT b FROM nn_fail")


def test_the_key_of_a_table_that_a_lake_feeds(database: Database, tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.append([(1, "x", "a"), (2, None, "a")])
    database.sql(f"CREATE TABLE nn_lake (id bigint, v text, PRIMARY KEY (v)) WITH ({lake.sql(on_error='skip')})")
    assert database.sql("SELECT id, v FROM nn_lake").rows() == [(1, "x")]
