"""A view that follows inserts, updates and deletes, in one Python program without a server.

Run it with `python examples/orders.py`; the database is a temporary directory.
"""

import headrace


def main() -> None:
    with headrace.connect() as db:
        db.sql("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount int)")
        db.sql(
            "CREATE MATERIALIZED VIEW spent AS "
            "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
        )
        for change in (
            "INSERT INTO orders VALUES (1, 'Ada', 10), (2, 'Bob', 5), (3, 'Ada', 7)",
            "UPDATE orders SET amount = 50 WHERE id = 2",
            "DELETE FROM orders WHERE id = 1",
        ):
            db.sql(change)
            db.flush()
            print(f"-- {change}")
            print(db.sql("SELECT * FROM spent ORDER BY customer"))


if __name__ == "__main__":
    main()
