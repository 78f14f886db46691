"""Pipelines: relations defined by decorated functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf

from headrace.catalog.contents import TableContent
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.server.server import run_server_in_thread
from headrace.session.database import Database, connect
from headrace.session.pipelines.apply import PipelineChanged, rows_of
from headrace.session.pipelines.definitions import Pipeline
from headrace.session.pipelines.digest import code_parts, digest
from headrace.session.pipelines.loading import load_pipeline
from headrace.session.pipelines.pipeline_graph import PipelineCycle
from headrace.shell.remote_run import ordered, run_remote

SETTINGS = Settings(run_fsync=False, catalog_commit_sync=False, barrier_interval_ms=200)


@pytest.fixture
def db(spark: SparkSession) -> Iterator[Database]:
    with connect(spark=spark, settings=SETTINGS) as found:
        yield found


def shop(factor: int = 2) -> Pipeline:
    """A pipeline whose definitions come in the wrong order."""
    pipe = Pipeline()

    @pipe.materialized_view
    def totals() -> str:
        return "SELECT customer, sum(amount) AS total, plus_one(1) AS one FROM doubled GROUP BY customer"

    @pipe.materialized_view(comment="amounts times something")
    def doubled() -> DataFrame:
        @pandas_udf("bigint")
        def times(x: pd.Series) -> pd.Series:
            return x * factor

        return pipe.table("large").select("customer", times(F.col("amount").cast("bigint")).alias("amount"))

    @pipe.view
    def large() -> DataFrame:
        return pipe.table("orders").where("orders.amount > 1")

    @pipe.table(columns="id int PRIMARY KEY, customer text, amount int")
    def orders() -> list[tuple[int, str, int]]:
        return [(1, "ada", 1), (2, "ada", 5), (3, "bob", 7)]

    @pipe.function(returns="int", args=["int"])
    def plus_one(x: int) -> int:
        return x + 1

    return pipe


def test_a_pipeline_is_found_created_and_left_alone(db: Database) -> None:
    """Dependencies in any order; the same again changes nothing; a change is reported, and made when asked for."""
    plan = db.plan_pipeline(shop())
    assert {s.node.name: s.node.reads for s in plan.steps} == {
        "plus_one": [], "orders": [], "large": ["orders"], "doubled": ["large"], "totals": ["doubled", "plus_one"],
    }  # fmt: skip
    names = [s.node.name for s in plan.steps]
    assert names.index("orders") < names.index("doubled") < names.index("totals")
    assert dict(db.run_pipeline(shop()))["totals"] == "create"
    assert db.sql("SELECT * FROM totals ORDER BY customer").rows() == [("ada", 10, 2), ("bob", 14, 2)]
    db.sql("INSERT INTO orders VALUES (4, 'bob', 2)")
    assert set(dict(db.run_pipeline(shop())).values()) == {"unchanged", "inline"}
    with pytest.raises(PipelineChanged, match="doubled") as raised:
        db.run_pipeline(shop(3))
    assert "totals" not in raised.value.message and "test_pipelines.py" in (raised.value.detail or "")
    done = dict(db.run_pipeline(shop(3), replace=True))
    assert (done["doubled"], done["totals"], done["orders"]) == ("replace", "replace", "unchanged")
    assert db.sql("SELECT * FROM totals ORDER BY customer").rows() == [("ada", 15, 2), ("bob", 27, 2)]


def test_definitions_on_the_database_itself(db: Database) -> None:
    db.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)")

    @db.materialized_view(options={"checkpoint_interval_ms": 200})
    def more() -> DataFrame:
        return db.table("t").selectExpr("a + 1 AS b")

    @db.view
    def most() -> str:
        return "SELECT max(b) AS m FROM more"

    assert dict(db.run_pipeline()) == {"more": "create", "most": "create"}
    assert db.sql("SELECT m FROM most").rows() == [(3,)]
    assert isinstance(db.table("more"), DataFrame)

    @db.materialized_view
    def wrong() -> str:
        return "SELECT nosuch FROM most"

    with pytest.raises(HeadraceError, match="nosuch") as raised:
        db.run_pipeline()
    assert raised.value.sqlstate == "42703" and "test_pipelines.py" in (raised.value.detail or "")


def test_circles_are_refused_by_name(db: Database) -> None:
    pipe = Pipeline()

    @pipe.materialized_view
    def a() -> DataFrame:
        return pipe.table("b")

    @pipe.materialized_view
    def b() -> str:
        return "SELECT * FROM c"

    @pipe.materialized_view
    def c() -> DataFrame:
        return pipe.table("a")

    with pytest.raises(PipelineCycle, match="a -> b -> c -> a"):
        db.run_pipeline(pipe)
    assert db.sql("SHOW MATERIALIZED VIEWS").rows() == []


FILE = """
from headrace import Pipeline

db = Pipeline()
more = Pipeline()

@db.materialized_view
def m():
    return "SELECT a FROM t"

@more.table(columns="a int")
def t():
    pass
"""


def test_files_are_loaded_and_ordered(tmp_path: Path) -> None:
    path = tmp_path / "flow.py"
    path.write_text(FILE)
    found = ordered(load_pipeline(path).definitions)
    assert found == {
        "t": ("TABLE", 'CREATE TABLE "t" (a int)'),
        "m": ("MATERIALIZED VIEW", 'CREATE MATERIALIZED VIEW "m" AS SELECT a FROM t'),
    }
    path.write_text("from headrace import Pipeline\n1 / 0\n")
    with pytest.raises(HeadraceError, match="ZeroDivisionError") as raised:
        load_pipeline(path)
    assert "line 2" in (raised.value.detail or "")
    path.write_text("x = 1\n")
    with pytest.raises(HeadraceError, match="defines nothing"):
        load_pipeline(path)
    with pytest.raises(HeadraceError, match="no pipeline file"):
        load_pipeline(tmp_path / "nosuch.py")


REMOTE = """
from headrace import Pipeline

db = Pipeline()

@db.materialized_view(options={"checkpoint_interval_ms": 200})
def m():
    return "SELECT a, count(*) AS n FROM t GROUP BY a"

@db.table(columns="a int")
def t():
    pass

@db.source(columns="k bigint")
def s():
    return {"connector": "datagen", "rows_per_second": "1"}
"""


def test_a_pipeline_of_sql_on_a_server(db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "remote.py"
    path.write_text(REMOTE)
    with run_server_in_thread(lambda parameters: db.session(), "127.0.0.1", 0) as server:
        url = f"postgresql://root@127.0.0.1:{server.port}/dev"
        run_remote(path, url, replace=False, once=False)
        assert "created table t\ncreated materialized view m" in capsys.readouterr().out
        db.sql("INSERT INTO t VALUES (1), (1)")
        db.sql("ALTER SOURCE s SET source_rate_limit = 5; ALTER SOURCE s SET on_error = 'null'")
        run_remote(path, url, replace=False, once=True)
        told = capsys.readouterr().out
        assert "unchanged materialized view m" in told and "unchanged source s" in told, (
            "it is its pace that was altered"
        )
        assert db.sql("SELECT * FROM m").rows() == [(1, 2)]
        path.write_text(REMOTE.replace("count(*)", "sum(a)"))
        with pytest.raises(PipelineChanged, match="what is there: m"):
            run_remote(path, url, replace=False, once=False)
        run_remote(path, url, replace=True, once=True)
        assert db.sql("SELECT * FROM m").rows() == [(1, 2)]
        path.write_text(REMOTE.replace('return "SELECT', 'return 1 or "'))
        with pytest.raises(HeadraceError, match="m on a server: it is not SQL"):
            run_remote(path, url, replace=False, once=False)


def test_definitions_are_checked() -> None:
    pipe = Pipeline()
    with pytest.raises(HeadraceError, match="needs its columns"):
        pipe.table()
    with pytest.raises(HeadraceError, match="only inside"):
        pipe.read("t")
    pipe.view(name="v")(lambda: "SELECT 1 AS a")
    with pytest.raises(HeadraceError, match="defined twice"):
        pipe.materialized_view(name="v")(lambda: "SELECT 2 AS a")
    with pytest.raises(HeadraceError, match="no name"):
        pipe.view(lambda: "SELECT 1 AS a")


def test_digests_follow_code_and_not_its_place() -> None:
    def compiled(text: str) -> str:
        names: dict[str, object] = {}
        exec(text, names)
        return digest(code_parts(names["f"]))

    base = compiled("def f(x):\n    return x + 1")
    assert compiled("\n\n\ndef f(x):\n    # moved\n    return x + 1") == base
    assert compiled("def f(x):\n    return x + 2") != base
    assert compiled("def f(x, y=1):\n    return x + 1") != base
    used = compiled("N = 1\ndef g(x):\n    return x + N\ndef f(x):\n    return g(x)")
    assert compiled("N = 2\ndef g(x):\n    return x + N\ndef f(x):\n    return g(x)") != used
    assert compiled("def f(x):\n    return f(x - 1) if x else 0") == compiled(
        "def f(x):\n    return f(x - 1) if x else 0"
    )


def test_rows_that_do_not_fit_are_refused() -> None:
    from headrace.catalog.records import ObjectRecord
    from headrace.common.columns import Column

    record = ObjectRecord(1, TableContent(), "public", "t", (Column("a", "int"), Column("b", "string")))
    assert rows_of(record, [(1, "x"), {"a": 2, "b": None}]).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert rows_of(record, pd.DataFrame({"b": ["x"], "a": [1]})).to_pylist() == [{"a": 1, "b": "x"}]
    for wrong in ([(1,)], [("x", "y")], pd.DataFrame({"a": [1]})):
        with pytest.raises(HeadraceError, match="do not fit") as raised:
            rows_of(record, wrong)
        assert raised.value.sqlstate == "42804"
