"""What is taken for an INSERT of many rows that differ in the numbers of their parameters alone."""

from __future__ import annotations

import pytest

from headrace.sql.repeated_rows import FEW_ROWS, repeated_rows

ROWS = FEW_ROWS + 1


def written(row: str = "({}, {})", comma: str = ",", rows: int = ROWS) -> str:
    numbers, width = iter(range(1, 10_000)), row.count("{}")
    return comma.join(row.format(*[f"${next(numbers)}" for _ in range(width)]) for _ in range(rows))


@pytest.mark.parametrize(("sql", "first"), [
    (f"INSERT INTO t VALUES {written()}", "INSERT INTO t VALUES ($1, $2)"),
    (f'insert into "S".t (a, "b c") values{written("( {}::numeric(10,2),{} )", " , ")} RETURNING a;',
     'insert into "S".t (a, "b c") values( $1::numeric(10,2),$2 ) RETURNING a;'),
    (f"INSERT INTO t VALUES {written('({}, 5 * ({} + 1), DEFAULT)')} ON CONFLICT DO NOTHING",
     "INSERT INTO t VALUES ($1, 5 * ($2 + 1), DEFAULT) ON CONFLICT DO NOTHING"),
])  # fmt: skip
def test_one_row_stands_for_all(sql: str, first: str) -> None:
    found = repeated_rows(sql)
    assert found is not None and (found.sql, found.width, found.rows) == (first, 2, ROWS)
    assert list(found.of_each(["int"]))[:2] == [("int", None), (None, None)]


@pytest.mark.parametrize("sql", [
    f"INSERT INTO t VALUES {written(rows=FEW_ROWS)}",
    f"INSERT INTO t VALUES {written()}, (1, 2)",
    f"INSERT INTO t VALUES (1, 2), {written()}",
    f"INSERT INTO t VALUES {written()}, ($1, $2)",
    f"INSERT INTO t VALUES {written().replace('$3', '$4')}",
    f"INSERT INTO t VALUES {written().replace('$5, $6', '$5, 1 + $6')}",
    f"INSERT INTO t VALUES {written().replace('($5, $6)', '($5), ($6)')}",
    f"INSERT INTO t VALUES {written().replace('$5, $6)', '$5, $6, 7)')}",
    f"INSERT INTO t VALUES {written().replace(',(', '/* */,(')}",
    f"INSERT INTO t VALUES {written(chr(40) + '{}, ' + repr(')') + ', {})')}",
    f"INSERT INTO t VALUES {written()} ON CONFLICT (a) DO UPDATE SET b = $1",
    f"INSERT INTO t VALUES {written()[:-1]}",
    f"INSERT INTO t /* VALUES */ VALUES {written()}",
    f"INSERT INTO t SELECT * FROM (VALUES {written()}) AS v",
    f"WITH w AS (SELECT 1) INSERT INTO t VALUES {written()}",
    "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES", "SELECT $1", "",
])  # fmt: skip
def test_others_are_parsed_whole(sql: str) -> None:
    assert repeated_rows(sql) is None
