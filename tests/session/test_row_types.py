"""Relations have a composite type for their rows, as drivers look for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.types.composite import CompositeInfo
from sqlalchemy import create_engine
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import Session

from headrace.server import ServerThread


@pytest.fixture
def client(server: ServerThread) -> Iterator[psycopg.Connection[Any]]:
    at = f"host=127.0.0.1 port={server.port} dbname=dev user=root"
    with psycopg.connect(at, autocommit=True) as found:
        found.execute('DROP TABLE IF EXISTS pairs; DROP TABLE IF EXISTS aside."Odd"; DROP SCHEMA IF EXISTS aside')
        found.execute("CREATE TABLE pairs (a int PRIMARY KEY, b text); CREATE SCHEMA aside")
        found.execute('CREATE TABLE aside."Odd" (x bigint)')
        yield found


def test_psycopg_finds_the_type_of_rows(client: psycopg.Connection[Any]) -> None:
    info = CompositeInfo.fetch(client, "pairs")
    assert info is not None
    assert (info.field_names, info.field_types) == (("a", "b"), (23, 25))
    names = "SELECT typname, typtype, typcategory FROM pg_type WHERE oid = ANY(%s) ORDER BY oid"
    rows = client.execute(names, ([info.oid, info.array_oid],)).fetchall()
    assert rows == [("pairs", "c", "C"), ("_pairs", "b", "A")]


def test_types_relations_and_names_go_together(client: psycopg.Connection[Any]) -> None:
    joined = (
        "SELECT c.relname, format_type(t.oid, NULL), t.oid = %s::regtype, n.nspname, e.typelem = t.oid "
        "FROM pg_class c JOIN pg_type t ON t.oid = c.reltype AND t.typrelid = c.oid "
        "JOIN pg_type e ON e.oid = t.typarray "
        "JOIN pg_namespace n ON n.oid = t.typnamespace WHERE c.relname = %s"
    )
    odd = client.execute(joined.replace("%s::regtype", "'aside.\"Odd\"'::regtype"), ("Odd",)).fetchall()
    assert odd == [("Odd", 'aside."Odd"', True, "aside", True)]
    pairs = client.execute(joined.replace("%s::regtype", "'pairs'::regtype"), ("pairs",)).fetchall()
    assert pairs == [("pairs", "pairs", True, "public", True)]
    keys = client.execute("SELECT reltype FROM pg_class WHERE relname = 'pairs_pkey'").fetchall()
    assert keys == [(0,)]


def test_what_is_no_relation_has_no_type(client: psycopg.Connection[Any]) -> None:
    client.execute("DROP SECRET IF EXISTS word; CREATE SECRET word AS 'x'")
    with pytest.raises(psycopg.errors.UndefinedObject, match='type "word" does not exist'):
        client.execute("SELECT 'word'::regtype")
    client.execute("DROP SECRET word")


def test_asyncpg_and_automap_read_such_tables(server: ServerThread, client: psycopg.Connection[Any]) -> None:
    client.execute("INSERT INTO pairs VALUES (1, 'x')")

    async def introspected() -> Any:
        other = await asyncpg.connect(host="127.0.0.1", port=server.port, user="root", database="dev")
        try:
            return await other.fetchrow("SELECT a, b FROM pairs WHERE a = $1", 1)
        finally:
            await other.close()

    assert tuple(asyncio.run(introspected())) == (1, "x")
    engine = create_engine(f"postgresql+psycopg://root@127.0.0.1:{server.port}/dev")
    base = automap_base()
    base.prepare(engine)
    with Session(engine) as session:
        assert session.get(base.classes.pairs, 1).b == "x"
    engine.dispose()
