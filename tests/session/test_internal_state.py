"""State tables as relations of `headrace_internal`."""

from __future__ import annotations

import pytest

from headrace.errors import HeadraceError, UndefinedTable
from headrace.session.database import Database


@pytest.fixture(scope="module")
def sales(database: Database) -> Database:
    database.sql("""
        CREATE TABLE sales (id int PRIMARY KEY, shop text, price int);
        INSERT INTO sales VALUES (1, 'a', 10), (2, 'b', 20), (3, 'a', 30);
        CREATE MATERIALIZED VIEW takings AS SELECT shop, sum(price) AS total FROM sales GROUP BY shop;
        FLUSH;
        DELETE FROM sales WHERE id = 2;
        FLUSH;
    """)
    return database


def test_the_list_names_every_state_table(sales: Database) -> None:
    found = sales.sql(
        "SELECT name, relation, operator, runs, committed_epoch >= safe_epoch FROM headrace_internal.state_tables "
        "WHERE relation IN ('sales', 'takings') ORDER BY id"
    ).rows()
    names = [row[0] for row in found]
    assert names[0] == "sales.view.rows" and "takings.view.rows" in names and len(names) >= 3
    assert found[0][1:4] == ("sales", "view/rows", 2) and all(row[4] for row in found)


def test_a_state_table_is_read_like_any_relation(sales: Database) -> None:
    rows = sales.sql('SELECT id, shop, price, __w FROM headrace_internal."sales.view.rows" ORDER BY id').rows()
    assert rows == [(1, "a", 10, 1), (3, "a", 30, 1)], "as of the committed epoch, combined over the runs"
    assert sales.sql('SELECT * FROM headrace_internal."sales.view.rows"').to_arrow().column_names[0] == "__k"
    joined = sales.sql(
        'SELECT t.shop, t.total, s.id FROM takings t JOIN headrace_internal."sales.view.rows" s USING (shop) '
        "WHERE s.price > 10"
    ).rows()
    assert joined == [("a", 40, 3)]


def test_operators_state_can_be_read_by_name_and_by_id(sales: Database) -> None:
    ids = sales.sql(
        "SELECT id, name FROM headrace_internal.state_tables WHERE relation = 'takings' AND operator <> 'view/rows'"
    ).rows()
    for number, name in ids:
        by_name = sales.sql(f'SELECT count(*) FROM headrace_internal."{name}"').rows()
        assert by_name == sales.sql(f'SELECT count(*) FROM headrace_internal."{number}"').rows()
        assert by_name == [(1,)], "one group is left"


def test_what_is_not_there_is_said(sales: Database) -> None:
    with pytest.raises(UndefinedTable, match='no state table "nothing"') as caught:
        sales.sql('SELECT * FROM headrace_internal."nothing"')
    assert caught.value.hint == "headrace_internal.state_tables lists them"
    with pytest.raises(HeadraceError):
        sales.sql('CREATE MATERIALIZED VIEW m AS SELECT * FROM headrace_internal."sales.view.rows"')
