"""Small writes of many clients at once over the wire, without Spark: what was acknowledged holds, once."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from write_world import Tables, in_threads

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.server.server import ServerThread, run_server_in_thread
from headrace.session.session import Session
from homes import Home

ACCOUNTS, CLIENTS, EACH = 12, 8, 40
BUSY = (psycopg.errors.SerializationFailure, psycopg.errors.TransactionRollback)


class Bank:
    """A server over tables of accounts and entries."""

    def __init__(self, folder: Path) -> None:
        self.db = Tables(folder)
        home = Home(self.db.c, self.db.catalog, self.db.settings)
        columns = (Column("id", "int"), Column("v", "bigint"))
        self.account, self.entry = (
            self.db.c.create_relation(ObjectRecord(0, TableContent(), "public", name, columns, primary_key=("id",)))
            for name in ("account", "entry")
        )
        self.server: ServerThread = run_server_in_thread(lambda parameters: Session(home))
        with self.connect() as line:
            for i in range(ACCOUNTS):
                line.execute(f"INSERT INTO account VALUES ({i}, 0)")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.server.port, user="root", dbname="dev", autocommit=True, prepare_threshold=0
        )

    def close(self) -> None:
        self.server.stop()
        self.db.close()


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path)
    yield made
    made.close()


def transfer(line: psycopg.Connection[Any], pick: random.Random) -> None:
    a, b, amount = pick.randrange(ACCOUNTS), pick.randrange(ACCOUNTS), pick.randrange(1, 50)
    with line.transaction():
        line.execute("UPDATE account SET v = v - %s WHERE id = %s", (amount, a))
        line.execute("UPDATE account SET v = v + %s WHERE id = %s", (amount, b))


def test_transfers_and_counts_of_many_clients(bank: Bank) -> None:
    """Prepared and plain statements, in transactions and by themselves; a client now and then leaves in the middle."""
    counted = [0] * CLIENTS

    def client(number: int) -> None:
        pick, line = random.Random(number), bank.connect()
        for step in range(EACH):
            kind = pick.random()
            try:
                if kind < 0.4:
                    transfer(line, pick)
                elif kind < 0.6:
                    line.execute("UPDATE account SET v = v + 0 WHERE id = %s", (pick.randrange(ACCOUNTS),))
                elif kind < 0.7:
                    # Left in the middle of a transaction: nothing of it is ever seen.
                    line.execute("BEGIN")
                    line.execute("UPDATE account SET v = v + 1000000 WHERE id = %s", (pick.randrange(ACCOUNTS),))
                    line.close()
                    line = bank.connect()
                elif kind < 0.85:
                    line.execute(f"INSERT INTO entry VALUES ({1000 * number + step}, {step})")
                    counted[number] += 1
                else:
                    line.execute("INSERT INTO entry VALUES (%s, %s)", (1000 * number + step, step))
                    counted[number] += 1
            except BUSY:
                line.rollback()  # where it met another one after its own BEGIN
        line.close()

    in_threads(CLIENTS, client)
    balances = dict(bank.db.content(bank.account))
    assert sum(balances.values()) == 0 and len(balances) == ACCOUNTS
    assert len(bank.db.content(bank.entry)) == sum(counted)
    assert bank.db.writer.groups < bank.db.writer.requests


def test_increments_that_were_acknowledged_are_there_once(bank: Bank) -> None:
    done = [0] * CLIENTS

    def client(number: int) -> None:
        pick, line = random.Random(number), bank.connect()
        while done[number] < EACH // 2:
            try:
                if pick.random() < 0.5:
                    line.execute("UPDATE account SET v = v + 1 WHERE id = 1")
                else:
                    with line.transaction():
                        line.execute("UPDATE account SET v = v + 1 WHERE id = %s", (1,))
                done[number] += 1
            except BUSY:
                pass
        line.close()

    in_threads(CLIENTS, client)
    assert dict(bank.db.content(bank.account))[1] == sum(done)


def test_clients_that_vanish_with_a_write_under_way_do_no_harm(bank: Bank) -> None:
    """Their bytes come with the end of the line: each write happens once or not at all, and the others go on."""
    for number in range(30):
        line = bank.connect()
        raw = socket.socket(fileno=socket.dup(line.fileno()))
        sql = f"INSERT INTO entry VALUES ({number}, 1)".encode()
        raw.sendall(b"Q" + (len(sql) + 5).to_bytes(4, "big") + sql + b"\0")
        raw.shutdown(socket.SHUT_RDWR)
        raw.close()
        line.close()
    with bank.connect() as line:
        line.execute("INSERT INTO entry VALUES (1000, 1)")
    found = [k for k, _ in bank.db.content(bank.entry)]
    assert 1000 in found and len(set(found)) == len(found)
