"""From PostgreSQL and Kafka into a view and out to Iceberg, exactly once, while the server in between is killed.

`python examples/cdc.py [--seconds 60] [--kills 2]`, or `make demo-cdc`:

- a PostgreSQL server has orders that are placed, changed and taken back,
- a Kafka broker has the clicks of the same customers,
- `headrace serve` follows both, joins what each customer has ordered and clicked, and keeps the result in an Iceberg
  table; now and then it is killed with SIGKILL, and started again,
- in the end the Iceberg table, read by DuckDB, is compared with what was ordered and clicked.

It starts all three itself, on scratch directories; PostgreSQL has to be installed, Kafka comes by Maven.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]

from kafka import Kafka, NoKafka, kafka_server  # noqa: E402
from postgres import HOST, NoPostgres, Postgres, postgres_server  # noqa: E402
from server import Server  # noqa: E402

CUSTOMERS = ("ann", "bob", "cy", "dee", "eve", "fay", "gus", "hal")
WAIT_S = 180.0
console = Console()

Row = tuple[str, Decimal, int, int]
"""Customer, total of the orders, orders, clicks."""


class Traffic(threading.Thread):
    """What customers do, until it is stopped: a transaction of orders and some clicks at a time."""

    def __init__(self, shop: Postgres, kafka: Kafka) -> None:
        super().__init__(name="traffic", daemon=True)
        self._shop, self._kafka = shop, kafka
        self._over = threading.Event()
        self.clicks: Counter[str] = Counter()
        self.transactions = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        pick, numbers = random.Random(7), itertools.count(1)
        producer = self._kafka.producer()
        try:
            with self._shop.connect(autocommit=False) as connection:
                while not self._over.wait(0.02):
                    self._order(connection, pick, next(numbers))
                    for _ in range(pick.randint(1, 5)):
                        customer = pick.choice(CUSTOMERS)
                        page = f"/{pick.randint(1, 9)}"
                        producer.produce("clicks", json.dumps({"customer": customer, "page": page}))
                        self.clicks[customer] += 1
                    producer.poll(0)
            assert producer.flush(60) == 0, "Kafka has not taken all clicks"
        except BaseException as error:
            self.failure = error

    def _order(self, connection: Any, pick: random.Random, number: int) -> None:
        amount = Decimal(pick.randint(100, 9999)) / 100
        connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", [number, pick.choice(CUSTOMERS), amount])
        if number > 5:
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [number - pick.randint(1, 5)])
        if number % 7 == 0:
            connection.execute("DELETE FROM orders WHERE id = %s", [number - pick.randint(1, 6)])
        connection.commit()
        self.transactions += 1

    def stop(self) -> None:
        """End it, and wait until all that it has done is there."""
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def create(server: Server, shop: Postgres, kafka: Kafka, lake: Path) -> None:
    """Both sources, the view, and the sink."""
    server.execute(
        f"CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2)) WITH ("
        f"connector = 'postgres-cdc', hostname = '{HOST}', port = {shop.port}, username = 'root', "
        f"database.name = '{shop.dbname}', table.name = 'orders')",
        f"CREATE SOURCE clicks (customer text, page text) WITH (connector = 'kafka', topic = 'clicks', "
        f"properties.bootstrap.server = '{kafka.servers}', scan.startup.mode = 'earliest') FORMAT PLAIN ENCODE JSON",
        "CREATE MATERIALIZED VIEW customers AS SELECT o.customer, o.total, o.orders, c.clicks FROM "
        "(SELECT customer, sum(amount) AS total, count(*) AS orders FROM orders GROUP BY customer) AS o JOIN "
        "(SELECT customer, count(*) AS clicks FROM clicks GROUP BY customer) AS c ON c.customer = o.customer",
        f"CREATE SINK customers_lake FROM customers WITH (connector = 'iceberg', catalog.type = 'sql', "
        f"catalog.uri = 'sqlite:///{lake}/catalog.db', warehouse.path = 'file://{lake}', database.name = 'shop', "
        "table.name = 'customers', create_table_if_not_exists = true, type = 'upsert', primary_key = 'customer', "
        "checkpoint_interval_ms = 2000)",
    )


def in_lake(lake: Path) -> list[Row]:
    """What DuckDB reads of the Iceberg table."""
    import duckdb
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    with duckdb.connect() as connection:
        connection.register("customers", catalog.load_table("shop.customers").scan().to_arrow())
        return connection.execute("SELECT customer, total, orders, clicks FROM customers ORDER BY 1").fetchall()


def at_sources(shop: Postgres, clicks: Counter[str]) -> list[Row]:
    """What has to come out."""
    with shop.connect() as connection:
        found = connection.execute(
            "SELECT customer, sum(amount), count(*) FROM orders GROUP BY 1 ORDER BY 1"
        ).fetchall()
    return [(customer, total, n, clicks[customer]) for customer, total, n in found if clicks[customer]]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds, for a while."""
    until_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.5)


def show(rows: list[Row]) -> None:
    table = Table("customer", "total", "orders", "clicks")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def restart(server: Server, lake: Path) -> None:
    """Start it, and wait until it has gone on."""
    before = in_lake(lake)
    server.start()
    wait_for(lambda: in_lake(lake) != before)


def run(options: argparse.Namespace, held: ExitStack) -> bool:
    """The whole of it; whether what came out is what went in."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cdc-", ignore_cleanup_errors=True)))
    lake = folder / "lake"
    lake.mkdir()
    with console.status("starting PostgreSQL, Kafka (its jars are fetched the first time) and headrace ..."):
        shop = held.enter_context(postgres_server({"wal_level": "logical"})).new_database("shop")
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2))")
        kafka = held.enter_context(kafka_server())
        kafka.topic("clicks", 2)
        server = Server(folder)
        held.callback(server.close)
        server.start()
    create(server, shop, kafka, lake)
    traffic = Traffic(shop, kafka)
    traffic.start()
    for kill in range(options.kills + 1):
        time.sleep(options.seconds / (options.kills + 1))
        console.print(f"{traffic.transactions} transactions, {sum(traffic.clicks.values())} clicks; in Iceberg:")
        show(in_lake(lake))
        if kill < options.kills:
            console.print("[bold red]kill -9[/] of headrace and its Spark; orders and clicks go on")
            server.kill()
            with console.status("starting it again ..."):
                restart(server, lake)
    traffic.stop()
    wanted = at_sources(shop, traffic.clicks)
    with console.status("waiting for the last epoch ..."):
        wait_for(lambda: in_lake(lake) == wanted)
    found = in_lake(lake)
    show(found)
    if found != wanted:
        console.print("[bold red]that is not what was ordered and clicked:[/]")
        show(wanted)
        return False
    console.print(
        f"[bold green]the same, to the cent and the click[/]: {traffic.transactions} transactions, "
        f"{sum(traffic.clicks.values())} clicks, killed {options.kills} times: nothing lost, nothing doubled"
    )
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long there are orders and clicks")
    parser.add_argument("--kills", type=int, default=2, help="how often the server is killed meanwhile")
    options = parser.parse_args()
    try:
        with ExitStack() as held:
            sys.exit(0 if run(options, held) else 1)
    except (NoPostgres, NoKafka) as error:
        sys.exit(f"this demonstration needs PostgreSQL and Kafka: {error}")


if __name__ == "__main__":
    main()
