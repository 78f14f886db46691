"""A bank in PostgreSQL whose tables are followed: the sum of all of its accounts never changes."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.session.database import Database
from postgres import HOST, Postgres

_numbers = itertools.count()
ACCOUNTS = 20
TOTAL = 2 * ACCOUNTS * 100


class Bank:
    """Accounts in two tables of one database, between which money is moved; the sum of all never changes."""

    def __init__(self, logical: Postgres, database: Database, more: str = "") -> None:
        self.number = next(_numbers)
        self.there = logical.new_database(f"bank{self.number}")
        self.database = database
        self.slot = f"slot_{self.number}"
        for name in ("ann", "bob"):
            self.there.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY, amount bigint)",
                f"INSERT INTO {name} SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) AS g(i)",
            )
        self.sql(f"CREATE SOURCE pg# WITH ({self.options()}{more})")

    def options(self) -> str:
        return (
            f"connector = 'postgres-cdc', hostname = '{HOST}', port = {self.there.port}, username = 'root', "
            f"database.name = '{self.there.dbname}', slot.name = '{self.slot}'"
        )

    def sql(self, text: str) -> Any:
        return self.database.sql(text.replace("#", str(self.number)))

    def rows(self, text: str) -> list[Any]:
        return sorted(self.sql(text).rows())

    def follow(self, name: str) -> None:
        self.sql(f"CREATE TABLE {name}# (id int PRIMARY KEY, amount bigint) FROM pg# TABLE 'public.{name}'")

    def ask(self, text: str) -> list[Any]:
        with self.there.connect() as connection:
            return connection.execute(text).fetchall()

    def is_as_there(self, *names: str) -> bool:
        return all(
            self.rows(f"SELECT id, amount FROM {name}#") == sorted(self.ask(f"SELECT id, amount FROM {name}"))
            for name in names
        )

    def transfer(self, connection: Any, chance: random.Random) -> None:
        give, take = chance.sample(("ann", "bob"), 2)
        amount = chance.randrange(1, 50)
        connection.execute(f"UPDATE {give} SET amount = amount - %s WHERE id = %s", (amount, chance.randrange(1, 21)))
        connection.execute(f"UPDATE {take} SET amount = amount + %s WHERE id = %s", (amount, chance.randrange(1, 21)))
        connection.commit()

    @contextmanager
    def busy(self) -> Iterator[Callable[[], int]]:
        """Somebody moves money all the time; how often so far."""
        stop, count, errors = threading.Event(), itertools.count(), list[BaseException]()
        done = [0]

        def move() -> None:
            chance = random.Random(self.number)
            try:
                with self.there.connect(autocommit=False) as connection:
                    while not stop.is_set():
                        self.transfer(connection, chance)
                        done[0] = next(count)
                        time.sleep(0.002)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=move)
        thread.start()
        try:
            yield lambda: done[0]
        finally:
            stop.set()
            thread.join()
        assert not errors

    def drop(self) -> None:
        self.sql("DROP SOURCE pg# CASCADE")
        assert self.ask(f"SELECT FROM pg_replication_slots WHERE slot_name = '{self.slot}'") == []
        assert self.ask("SELECT FROM pg_publication") == []
