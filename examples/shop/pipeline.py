"""A café's orders, as a pipeline: a source of files, a table, a function, and views in SQL and as DataFrames.

Run it with `headrace run examples/shop/pipeline.py --data ./shop-data --once`, and again: nothing is made twice.
Without `--once` it goes on; copy another file into `examples/shop/orders` and see the views follow.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf

from headrace import Pipeline

db = Pipeline()


@db.source(
    columns="order_id bigint, customer text, product text, quantity int, price numeric(8,2), ordered_at timestamp"
)
def orders() -> dict[str, str]:
    """Order files as they arrive."""
    return {"connector": "files", "path": str(Path(__file__).parent / "orders"), "format": "csv", "header": "true"}


@db.table(columns="product text PRIMARY KEY, category text")
def products() -> list[tuple[str, str]]:
    """What is sold."""
    return [
        ("espresso", "drink"), ("filter coffee", "drink"), ("green tea", "drink"),
        ("croissant", "food"), ("cheesecake", "food"), ("bagel", "food"),
    ]  # fmt: skip


@db.function(returns="text", args=["text"])
def domain(address: str) -> str:
    """The part of a mail address after the @."""
    return address.rpartition("@")[2].lower()


@db.materialized_view(comment="Sales by category, from the lines below")
def sales() -> str:
    return "SELECT category, sum(amount) AS amount, count(*) AS lines FROM lines GROUP BY category"


@db.materialized_view
def lines() -> DataFrame:
    """Orders with their category and what they come to."""

    @pandas_udf("double")
    def rounded(amount: pd.Series) -> pd.Series:
        return (amount * 20).round() / 20  # cash is rounded to five cents

    amount = (F.col("quantity") * F.col("price")).cast("double")
    return db.table("orders").join(db.table("products"), "product").withColumn("amount", rounded(amount))


@db.materialized_view
def domains() -> str:
    """Who orders from where; `domain` is the function above."""
    return "SELECT domain(customer) AS domain, count(DISTINCT customer) AS customers FROM orders GROUP BY 1"


@db.materialized_view
def favourites() -> DataFrame:
    """What each customer orders most, by a function over all of the customer's orders."""

    def favourite(orders: pd.DataFrame) -> pd.DataFrame:
        counts = orders.groupby("product")["quantity"].sum().sort_index()
        return pd.DataFrame({"customer": [orders["customer"].iloc[0]], "product": [counts.idxmax()]})

    return db.table("orders").groupBy("customer").applyInPandas(favourite, "customer string, product string")
