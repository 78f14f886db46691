"""The steps of a transaction as SQL, and what their rows say.

Everything is plain SQL that PostgreSQL runs as well; there the views are no materialized ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from events import Bank, Broken, Key, Op, Register
from programs import ACCOUNTS, BALANCE, keys_of_round

Rows = list[tuple[Any, ...]]
NOT_KEPT = -1
"""In `before` of a register: the value that was replaced was not kept."""
TABLES = (
    "CREATE TABLE lists (id int PRIMARY KEY, items text NOT NULL)",
    "CREATE TABLE bag_lists (id int, items text NOT NULL)",
    "CREATE TABLE members (owner int, value bigint PRIMARY KEY)",
    "CREATE TABLE bag_members (owner int, value bigint)",
    "CREATE TABLE registers (id int PRIMARY KEY, val bigint NOT NULL, before bigint NOT NULL)",
    "CREATE TABLE counters (id int PRIMARY KEY, n bigint NOT NULL)",
    "CREATE TABLE accounts (bank int, id int, balance bigint NOT NULL, PRIMARY KEY (bank, id))",
    "CREATE TABLE moves (id bigint PRIMARY KEY, bank int, giver int, taker int, amount bigint)",
    "CREATE TABLE ones (id int PRIMARY KEY)",
    "INSERT INTO ones VALUES (1)",
)
VIEWS = {
    "lists_view": "SELECT id, items FROM lists",
    "bag_lists_view": "SELECT id, items FROM bag_lists",
    "members_view": "SELECT owner, value, count(*) AS times FROM members GROUP BY owner, value",
    "bag_members_view": "SELECT owner, value, count(*) AS times FROM bag_members GROUP BY owner, value",
    "counters_view": "SELECT id, sum(n) AS n, count(*) AS times FROM counters GROUP BY id",
    "bank_view": "SELECT a.bank, a.id, a.balance, f.flow FROM accounts a LEFT JOIN (SELECT bank, account, "
    "sum(amount) AS flow FROM (SELECT bank, taker AS account, amount FROM moves UNION ALL SELECT bank, giver, -amount "
    "FROM moves) m GROUP BY bank, account) f ON a.bank = f.bank AND a.id = f.account",
}


class Statement(NamedTuple):
    """A statement with places for values, and those."""

    sql: str
    values: tuple[int | str, ...] = ()

    def literal(self) -> str:
        """The same with the values in it; strings hold no quotes."""
        return self.sql % tuple(f"'{v}'" if isinstance(v, str) else v for v in self.values)


def set_up(materialized: bool) -> list[str]:
    """What makes tables and views."""
    kind = "MATERIALIZED VIEW" if materialized else "VIEW"
    return [*TABLES, *(f"CREATE {kind} {name} AS {query}" for name, query in VIEWS.items())]


def set_up_round(number: int) -> list[str]:
    """The rows that the keys of a round start with."""
    rows: dict[str, list[str]] = {}
    for key in keys_of_round(number):
        match key.kind:
            case "list":
                rows.setdefault(table_of(key), []).append(f"({key.id}, '')")
            case "register":
                rows.setdefault("registers", []).append(f"({key.id}, 0, {NOT_KEPT})")
            case "counter":
                rows.setdefault("counters", []).append(f"({key.id}, 0)")
            case "bank":
                rows.setdefault("accounts", []).extend(f"({key.id}, {a}, {BALANCE})" for a in range(ACCOUNTS))
    return [f"INSERT INTO {table} VALUES {', '.join(each)}" for table, each in rows.items()]


def table_of(key: Key) -> str:
    """The table of a list or set: those with odd ids lie in one without a primary key."""
    name = {"list": "lists", "set": "members", "register": "registers", "counter": "counters"}[key.kind]
    return f"bag_{name}" if key.kind in ("list", "set") and key.id % 2 else name


# ---- writes


def writes(op: Op, alone: bool) -> list[Statement]:
    """The statements of a write."""
    assert op.key is not None
    key = op.key.id
    match op.kind:
        case "append":
            return [_append(op.key, op.value, op.form)]
        case "insert":
            return [_insert(op.key, op.value, op.form)]
        case "write" if op.form == "keep":
            return [Statement("UPDATE registers SET before = val, val = %s WHERE id = %s", (op.value, key))]
        case "write" if op.form == "replace" and not alone:
            insert = Statement("INSERT INTO registers VALUES (%s, %s, %s)", (key, op.value, NOT_KEPT))
            return [Statement("DELETE FROM registers WHERE id = %s", (key,)), insert]
        case "write":
            sql = "UPDATE registers SET before = %s, val = %s WHERE id = %s"
            return [Statement(sql, (NOT_KEPT, op.value, key))]
        case "increment":
            told = " RETURNING n" if op.form == "told" else ""
            return [Statement(f"UPDATE counters SET n = n + 1 WHERE id = %s{told}", (key,))]
        case _:
            return _transfer(key, *op.value)


def _append(key: Key, value: int, form: str) -> Statement:
    table, text = table_of(key), f",{value}"
    update = f"UPDATE {table} SET items = items || %s"
    if form == "by view":
        where = f"WHERE id IN (SELECT id FROM {table}_view WHERE id = %s)"
    elif form == "from" and table == "lists":
        where = f"FROM ones WHERE {table}.id = %s AND ones.id = 1"
    else:
        where = "WHERE id = %s"
    return Statement(f"{update} {where}", (text, key.id))


def _insert(key: Key, value: int, form: str) -> Statement:
    rows = {"plain": "VALUES (%s, %s)", "select": "SELECT %s, %s", "from": "SELECT %s, %s FROM ones WHERE id = 1"}
    return Statement(f"INSERT INTO {table_of(key)} {rows[form]}", (key.id, value))


def _transfer(bank: int, transfer: int, giver: int, taker: int, amount: int) -> list[Statement]:
    return [
        Statement("UPDATE accounts SET balance = balance - %s WHERE bank = %s AND id = %s", (amount, bank, giver)),
        Statement("UPDATE accounts SET balance = balance + %s WHERE bank = %s AND id = %s", (amount, bank, taker)),
        Statement("INSERT INTO moves VALUES (%s, %s, %s, %s, %s)", (transfer, bank, giver, taker, amount)),
    ]


# ---- reads


def reads(op: Op, alone: bool) -> list[Statement]:
    """The statements of a read; one if it stands alone."""
    assert op.key is not None
    key, by_view = (op.key.id,), op.via != "table"
    match op.key.kind:
        case "list":
            return [Statement(f"SELECT items FROM {table_of(op.key)}{'_view' * by_view} WHERE id = %s", key)]
        case "set" if by_view:
            return [Statement(f"SELECT value, times FROM {table_of(op.key)}_view WHERE owner = %s", key)]
        case "set":
            return [Statement(f"SELECT value, 1 FROM {table_of(op.key)} WHERE owner = %s", key)]
        case "register":
            return [Statement("SELECT val, before FROM registers WHERE id = %s", key)]
        case "counter":
            return [Statement(f"SELECT n FROM counters{'_view' * by_view} WHERE id = %s", key)]
        case _ if by_view:
            sql = "SELECT 2, id, balance, coalesce(flow, 0), 0 FROM bank_view WHERE bank = %s"
            return [Statement(sql, key)]
        case _:
            balances = "SELECT 0, id, balance, 0, 0 FROM accounts WHERE bank = %s"
            moves = "SELECT 1, id, giver, taker, amount FROM moves WHERE bank = %s"
            if alone:
                return [Statement(f"{balances} UNION ALL {moves}", key * 2)]
            return [Statement(balances, key), Statement(moves, key)]


def shown(op: Op, rows: Rows) -> Any:
    """What the rows of a read say."""
    assert op.key is not None
    match op.key.kind:
        case "set":
            return _members(rows)
        case "bank":
            return _bank(rows, op.via != "table")
    if not rows and op.via != "table":
        # A view that has yet to take in the first state of the key.
        return () if op.key.kind == "list" else 0
    if len(rows) != 1:
        return Broken(f"{len(rows)} rows where there is one: {rows[:3]}")
    row = rows[0]
    match op.key.kind:
        case "list":
            return tuple(int(item) for item in row[0].split(",") if item)
        case "register":
            return Register(row[0], None if row[1] == NOT_KEPT else row[1])
        case _:
            return int(row[0])


def _members(rows: Rows) -> frozenset[int] | Broken:
    times = Counter[int]()
    for value, count in rows:
        times[value] += count
    twice = [value for value, count in times.items() if count != 1]
    return Broken(f"rows that are there twice: {twice[:3]}") if twice else frozenset(times)


def _bank(rows: Rows, by_view: bool) -> Bank | Broken:
    """Part 0 are balances, part 1 transfers, part 2 balances with what a view has added up."""
    balances, flows, transfers = dict[int, int](), Counter[int](), set[int]()
    for part, row_id, *fields in rows:
        if part == 1:
            giver, taker, amount = fields
            flows[giver] -= amount
            flows[taker] += amount
            transfers.add(row_id)
            continue
        if row_id in balances:
            return Broken(f"account {row_id} is there twice")
        balances[row_id] = int(fields[0])
        flows[row_id] += int(fields[1])
    if not rows and by_view:
        return Bank({}, {})  # a view that has yet to take in the accounts
    if len(balances) != ACCOUNTS:
        return Broken(f"{len(balances)} accounts")
    return Bank(balances, dict(flows), None if by_view else frozenset(transfers))
