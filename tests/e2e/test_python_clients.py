"""Python's drivers and what is built on them, against a real server: psycopg2, SQLAlchemy, pandas, ADBC."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from postgres import Postgres
from server import HOST, Server, served

psycopg2 = pytest.importorskip("psycopg2")
pytest.importorskip("psycopg2.extras")
pd = pytest.importorskip("pandas")
URLS = ("postgresql+psycopg2", "postgresql+psycopg", "risingwave+psycopg2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("python")) as found:
        yield found


# ---- psycopg2


@pytest.fixture
def connection(server: Server) -> Iterator[Any]:
    made = psycopg2.connect(host=HOST, port=server.port, user="root", dbname="dev")
    yield made
    made.close()


def test_psycopg2_writes_and_reads(connection: Any) -> None:
    row = (1, "it's \\", Decimal("1.50"), dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, 3, 4, 5), [1, 2], 1.5, True)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE p2 (id int PRIMARY KEY, t text, n numeric(10,2), d date, at timestamp, a int[], f float8, "
            "b bool)"
        )
        psycopg2.extras.execute_values(cursor, "INSERT INTO p2 VALUES %s", [row, (2, *row[1:]), (3, *row[1:])])
        psycopg2.extras.execute_batch(cursor, "UPDATE p2 SET t = %s WHERE id = %s", [("x", 2), ("y", 3)])
        connection.commit()
        cursor.execute("SELECT * FROM p2 WHERE id = %s", (1,))
        assert cursor.fetchall() == [row]
        cursor.execute("SELECT %s, %s::json", (psycopg2.extras.register_uuid() and uuid.UUID(int=5),
                                               psycopg2.extras.Json({"a": 1})))  # fmt: skip
        assert str(cursor.fetchone()[0]) == str(uuid.UUID(int=5))
        with pytest.raises(psycopg2.errors.UndefinedColumn):
            cursor.execute("SELECT nope FROM p2")
        connection.rollback()
    with connection.cursor("by_pieces") as pieces:
        pieces.itersize = 2
        pieces.execute("SELECT id FROM p2 ORDER BY id")
        assert [row[0] for row in pieces] == [1, 2, 3]


def test_psycopg2_copies(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE p2c (id int PRIMARY KEY, t text)")
        cursor.copy_expert("COPY p2c FROM STDIN WITH (FORMAT csv)", io.StringIO("1,a\n2,\n"))
        connection.commit()
        out = io.StringIO()
        cursor.copy_expert("COPY (SELECT * FROM p2c ORDER BY id) TO STDOUT", out)
        assert out.getvalue() == "1\ta\n2\t\\N\n"


# ---- SQLAlchemy


class Base(DeclarativeBase):
    """The tables of the mapper."""


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str | None]
    tags: Mapped[list[int] | None] = mapped_column(sa.ARRAY(sa.Integer))
    orders: Mapped[list[Order]] = relationship(
        back_populates="customer", primaryjoin="Customer.id == foreign(Order.customer_id)"
    )


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    customer_id: Mapped[int | None]
    amount: Mapped[Decimal | None] = mapped_column(sa.Numeric(10, 2))
    customer: Mapped[Customer | None] = relationship(
        back_populates="orders", primaryjoin="Customer.id == foreign(Order.customer_id)"
    )


@pytest.fixture(params=URLS)
def engine(server: Server, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    if request.param.startswith("risingwave"):
        pytest.importorskip("sqlalchemy_risingwave")
    made = sa.create_engine(f"{request.param}://root@{HOST}:{server.port}/dev")
    Base.metadata.drop_all(made)
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def test_sqlalchemy_maps_objects(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(
            Customer(id=1, name="a", tags=[1, 2], orders=[Order(id=1, amount=Decimal("2.50")), Order(id=2, amount=3)])
        )
        session.add(Customer(id=2))
        session.commit()
        found = session.get(Customer, 1)
        assert found is not None and sorted(o.id for o in found.orders) == [1, 2]
        found.name = "b"
        session.delete(session.get(Customer, 2))
        session.commit()
        large = sa.select(Customer.name).join(Customer.orders).where(Order.amount > Decimal("2.7"))
        assert session.scalars(large).all() == ["b"]
        assert session.scalar(sa.select(sa.func.sum(Order.amount))) == Decimal("5.50")
    with engine.begin() as connection:
        again = insert(Customer.__table__).values(id=1, name="c").on_conflict_do_nothing()
        assert connection.execute(again.returning(Customer.__table__.c.id)).all() == []
    with Session(engine) as session:
        upsert = insert(Customer)
        upsert = upsert.on_conflict_do_update(
            index_elements=[Customer.id], set_={"name": upsert.excluded.name}, where=Customer.name != "kept"
        ).returning(Customer)
        for name in ("d", "kept", "e"):
            values = [{"id": 1, "name": name}, {"id": 3, "name": "f"}]
            found = session.scalars(upsert, values, execution_options={"populate_existing": True}).all()
            assert sorted((c.id, c.name) for c in found) == [(1, name), (3, "f")][name == "e" :]
        session.commit()
        assert sorted(session.execute(sa.select(Customer.id, Customer.name))) == [(1, "kept"), (3, "f")]


def test_sqlalchemy_inspects(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("DROP INDEX IF EXISTS orders_of"))
        connection.execute(sa.text("CREATE INDEX orders_of ON orders (customer_id)"))
    inspector = sa.inspect(engine)
    assert {"customers", "orders"} <= set(inspector.get_table_names())
    columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns("orders")}
    assert columns == {
        "id": ("INTEGER", False), "customer_id": ("INTEGER", True), "amount": ("NUMERIC(10, 2)", True)
    } or engine.dialect.name == "risingwave"  # fmt: skip
    if engine.dialect.name != "risingwave":
        assert inspector.get_pk_constraint("orders")["constrained_columns"] == ["id"]
        assert [(i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes("orders")] == [
            ("orders_of", ["customer_id"], False)
        ]
        assert inspector.get_foreign_keys("orders") == [] and inspector.get_unique_constraints("orders") == []
        assert inspector.get_check_constraints("orders") == [] and inspector.get_table_comment("orders") == {
            "text": None
        }
        assert inspector.get_sequence_names() == []
    reflected = sa.MetaData()
    reflected.reflect(engine, only=["customers", "orders"])
    assert set(reflected.tables) == {"customers", "orders"}


def test_indexes_are_shown_as_postgresql_shows_them(server: Server, postgres: Postgres) -> None:
    """The same inspector, the same table: what it says of both is the same."""
    script = ("CREATE TABLE shown (a int, b text NOT NULL, c numeric(8,3), d timestamptz, PRIMARY KEY (b, a))",
              "CREATE INDEX shown_c ON shown (c)")  # fmt: skip
    found = []
    for url in (f"postgresql+psycopg://root@{HOST}:{server.port}/dev",
                f"postgresql+psycopg://root@{HOST}:{postgres.port}/{postgres.dbname}"):  # fmt: skip
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE IF EXISTS shown"))
            for statement in script:
                connection.execute(sa.text(statement))
        inspector = sa.inspect(engine)
        columns = [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in inspector.get_columns("shown")]
        indexes = [(i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes("shown")]
        found.append((columns, indexes, inspector.get_pk_constraint("shown"), inspector.has_table("shown")))
        engine.dispose()
    assert found[0] == found[1]


# ---- pandas and ADBC


def _frame() -> Any:
    return pd.DataFrame(
        {"a": [1, 2, 3], "b": ["x", "y", None], "c": [1.5, None, 3.5], "e": [True, False, True],
         "d": pd.to_datetime(["2024-01-01", "2024-01-02", None])}
    )  # fmt: skip


def test_pandas_writes_and_reads(server: Server) -> None:
    engine = sa.create_engine(f"postgresql+psycopg2://root@{HOST}:{server.port}/dev")
    frame = _frame()
    frame.to_sql("frames", engine, if_exists="replace", index=False)
    frame.to_sql("frames", engine, if_exists="append", index=False, method="multi")
    assert pd.read_sql("SELECT * FROM frames", engine).shape == (6, 5)
    assert list(pd.read_sql_table("frames", engine).columns) == list(frame.columns)
    streamed = pd.read_sql("SELECT * FROM frames", engine.execution_options(stream_results=True), chunksize=4)
    assert [len(part) for part in streamed] == [4, 2]
    engine.dispose()


def test_adbc_moves_arrow(server: Server) -> None:
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    pa = pytest.importorskip("pyarrow")
    with adbc.connect(f"postgresql://root@{HOST}:{server.port}/dev") as connection, connection.cursor() as cursor:
        rows = pa.table({"x": [1, 2, 3], "s": ["a", None, "c"]})
        assert cursor.adbc_ingest("arrows", rows, mode="create") == 3
        connection.commit()
        cursor.execute("SELECT * FROM arrows ORDER BY x")
        assert cursor.fetch_arrow_table().to_pylist() == rows.to_pylist()
        cursor.execute("SELECT s FROM arrows WHERE x = $1", (3,))
        assert cursor.fetchall() == [("c",)]
        assert connection.adbc_get_table_schema("arrows").names == ["x", "s"]
        objects = connection.adbc_get_objects(depth="columns", table_name_filter="arrows").read_all().to_pylist()
        tables = [t["table_name"] for c in objects for s in c["catalog_db_schemas"] for t in s["db_schema_tables"]]
        assert tables == ["arrows"]
