"""Queries over the system catalogs: what they mean, what is refused, and who may ask what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from clients import run
from headrace.errors import (
    HeadraceError,
    InvalidParameter,
    NotSupported,
    QueryCanceled,
    TooManyRows,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedObject,
    UndefinedTable,
)
from headrace.session.database import Database
from headrace.session.introspection import asked
from headrace.session.session import Session
from headrace.sql.parser import parse_query


@pytest.fixture(scope="module")
def session(database: Database) -> Iterator[Session]:
    made = database.session()
    run(
        made,
        "CREATE TABLE looked (id int, n numeric(8,3), t text NOT NULL DEFAULT 'x', a int[], PRIMARY KEY (t, id))",
        "CREATE INDEX looked_n ON looked (n) INCLUDE (t)",
        "CREATE MATERIALIZED VIEW looking AS SELECT id, count(*) AS c FROM looked GROUP BY id",
        "CREATE SCHEMA elsewhere",
        'CREATE TABLE elsewhere."Odd one" (x int)',
    )
    yield made
    run(made, "DROP SCHEMA elsewhere CASCADE", "DROP TABLE looked CASCADE")
    made.close()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'looked'::regclass AND attnum > 0 "
         "ORDER BY attnum", [("integer",), ("numeric(8,3)",), ("text",), ("integer[]",)]),
        ("SELECT oid::regclass::text FROM pg_class WHERE relname IN ('looked', 'Odd one') ORDER BY 1",
         [('elsewhere."Odd one"',), ("looked",)]),
        ("SELECT relname FROM pg_class WHERE oid = 'elsewhere.\"Odd one\"'::regclass", [("Odd one",)]),
        ("SELECT indexrelid::regclass::text, indkey, indisprimary, pg_get_indexdef(indexrelid) FROM pg_index WHERE "
         "indrelid = 'looked'::regclass ORDER BY 1", [
             ("looked_n", "2 3", False, "CREATE INDEX looked_n ON public.looked USING btree (n) INCLUDE (t)"),
             ("looked_pkey", "3 1", True, "CREATE UNIQUE INDEX looked_pkey ON public.looked USING btree (t, id)")]),
        ("SELECT i.*, i.indkey AS also FROM (SELECT indkey, indoption FROM pg_index WHERE indisprimary AND "
         "indrelid = 'looked'::regclass) i", [("3 1", "0 0", "3 1")]),
        ("SELECT string_to_array('a,b,', ','), string_to_array('', ','), string_to_array('a', ''), "
         "string_to_array('a,b', ',', 'a') FROM pg_am LIMIT 1", [(["a", "b", ""], [], ["a"], [None, "b"])]),
        ("SELECT parse_ident(' Public . \"Odd \"\"one\"') FROM pg_am LIMIT 1", [(["public", 'Odd "one'],)]),
        ("SELECT format('%s|%I|%L|%%|%L', 'a', 'Odd one', 'it''s', NULL) FROM pg_am LIMIT 1",
         [("a|\"Odd one\"|'it''s'|%|NULL",)]),
        ("SELECT x, s[x] FROM generate_series(1, 2) AS x, string_to_array('a,b', ',') s, pg_am WHERE amname = 'btree' "
         "ORDER BY 1", [(1, "a"), (2, "b")]),
        ("SELECT q.select FROM (SELECT relname AS select FROM pg_class WHERE relname = 'looked') q", [("looked",)]),
        ("SELECT current_setting(name) FROM pg_settings WHERE name = 'standard_conforming_strings'", [("on",)]),
        ("SELECT has_table_privilege('root', '\"' || nspname || '\".\"' || relname || '\"', 'select') FROM pg_class c, "
         "pg_namespace n WHERE n.oid = relnamespace AND relname = 'Odd one'", [(True,)]),
        ("SELECT array_remove(ARRAY['a', 'b', NULL], 'a') FROM pg_am LIMIT 1", [(["b", None],)]),
        ("SELECT i.indkey[0], i.indkey[1] FROM pg_index i WHERE indisprimary AND indrelid = 'looked'::regclass",
         [(3, 1)]),
        ("SELECT unnest(indkey) AS k, generate_subscripts(indkey, 1) AS i FROM pg_index WHERE indisprimary AND "
         "indrelid = 'looked'::regclass ORDER BY i", [(3, 0), (1, 1)]),
        ("SELECT (k).n, (k).x FROM (SELECT information_schema._pg_expandarray(conkey) AS k FROM pg_constraint WHERE "
         "conname = 'looked_pkey') q ORDER BY 1", [(1, 3), (2, 1)]),
        ("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'looked'::regclass",
         [("PRIMARY KEY (t, id)",)]),
        ("SELECT c.relname, (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid) FROM pg_class c WHERE "
         "c.relname ~ '^look(ed|ing)$' ORDER BY 1", [("looked", 4), ("looking", 2)]),
        ("SELECT ARRAY(SELECT attname FROM pg_attribute WHERE attrelid = c.oid ORDER BY attnum) FROM pg_class c WHERE "
         "relname = 'looking'", [(["id", "c"],)]),
        ("SELECT relkind FROM pg_class WHERE relname = ANY('{looked,looking}') ORDER BY relname", [("r",), ("m",)]),
        ("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'else%' ESCAPE '/' OR nspname !~~ '%e%' ORDER BY 1",
         [("elsewhere",), ("pg_catalog",), ("public",), ("rw_catalog",)]),
        ("SELECT pg_get_userbyid(relowner), pg_table_is_visible(oid) FROM pg_class WHERE relname IN ('looked', "
         "'Odd one') ORDER BY relname DESC", [("root", True), ("root", False)]),
        ("SELECT 'looked'::regclass::oid = to_regclass('looked'), to_regclass('nowhere') IS NULL", [(True, True)]),
        ("SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'looked'::regclass", [("'x'",)]),
        ("SELECT typname FROM pg_type WHERE oid = 'timestamp with time zone'::regtype", [("timestamptz",)]),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT max(n) FROM r, "
         "pg_namespace WHERE nspname = 'public'", [(3,)]),
        ("SELECT relname::varchar(3), 'looked'::\"char\", current_setting('no.such', true) IS NULL, "
         "current_setting('timezone') FROM pg_class WHERE relname = 'looked'", [("loo", "l", True, "UTC")]),
        ("SELECT nspname = ANY(current_schemas(true)), nspname = ANY(current_schemas(false)) FROM pg_namespace "
         "WHERE nspname = 'pg_catalog'", [(True, False)]),
        ("SELECT nspname = ANY(f) FROM current_schemas(true) AS t(f), pg_namespace WHERE nspname = 'pg_catalog'",
         [(True,)]),
        ("SELECT nspname = ANY(f) FROM current_schemas(false) AS t(f), pg_namespace WHERE nspname = 'pg_catalog'",
         [(False,)]),
        ("SELECT relnatts / 2, NULL::int FROM pg_class WHERE relname = 'looked'", [(2, None)]),
        ("SELECT x FROM (VALUES (1), (NULL), (2)) v(x), pg_namespace WHERE nspname = 'public' ORDER BY x DESC",
         [(None,), (2,), (1,)]),
        ("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'headrace\\_c%' OR nspname ILIKE 'PUBL_C' ORDER BY 1",
         [("headrace_catalog",), ("public",)]),
        ("WITH pg_class AS (SELECT * FROM pg_namespace WHERE nspname = 'public') SELECT nspname FROM pg_class",
         [("public",)]),
        ("SELECT generate_series(1, cardinality(conkey)) AS n FROM pg_constraint WHERE conname = 'looked_pkey'",
         [(1,), (2,)]),
        ("SELECT position('o' IN relname), extract(year FROM date '2024-01-02') FROM pg_class WHERE relname = 'looked'",
         [(2, 2024)]),
        ("SELECT has_table_privilege('pg_class', 'SELECT'), has_table_privilege('looked', 'INSERT, TRUNCATE')",
         [(True, True)]),
        ("SELECT name, relation_type FROM rw_catalog.rw_relations WHERE name LIKE 'look%' ORDER BY 1",
         [("looked", "table"), ("looked_n", "index"), ("looking", "materialized view")]),
    ],
)  # fmt: skip
def test_what_clients_ask(session: Session, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert asked(session.context, parse_query(sql)) is not None
    assert run(session, sql) == rows


def test_outputs_are_named_as_postgresql_names_them(session: Session) -> None:
    sql = ("SELECT format_type(23, NULL), oid::int8, 1 + 1, CASE WHEN true THEN 1 END, (SELECT relname), ARRAY[1], "
           "current_user, coalesce(relname, 'x') FROM pg_class WHERE relname = 'looked'")  # fmt: skip
    (found,) = session.execute(sql)
    names = [c.name for c in found.columns or ()]
    assert names == ["format_type", "oid", "?column?", "case", "relname", "array", "current_user", "coalesce"]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT nope FROM pg_class", UndefinedColumn),
        ("SELECT getenv('HOME') FROM pg_class", UndefinedFunction),
        ("SELECT read_text('/etc/passwd') FROM pg_class", UndefinedFunction),
        ("SELECT c.* FROM pg_class c, read_csv('/etc/passwd') r", HeadraceError),
        ("SELECT c.* FROM pg_class c, '/etc/passwd' r", HeadraceError),
        ("SELECT * FROM pg_class, duckdb_settings()", UndefinedFunction),
        ("SELECT * FROM pg_class, duckdb_keywords()", UndefinedFunction),
        ("SELECT * FROM pg_catalog.pg_nothing", UndefinedTable),
        ("SELECT 'nowhere'::regclass", UndefinedTable),
        ("SELECT relname FROM pg_class FOR UPDATE", NotSupported),
        ("SELECT relname::point FROM pg_class", NotSupported),
        ("SELECT relname @@ 'x' FROM pg_class", NotSupported),
        ("SELECT (SELECT relname FROM pg_class)", HeadraceError),
        ("SELECT generate_series(1, 100000000000) FROM pg_am", NotSupported),
        ("SELECT generate_series(100000000000, 1, -1) FROM pg_am", NotSupported),
        ("SELECT amname FROM pg_am WHERE 5 = ANY (generate_series(1, 100000000000))", NotSupported),
        ("SELECT amname FROM pg_am ORDER BY generate_series(1, 100000000000)", NotSupported),
        ("SELECT x FROM pg_am, unnest(generate_series(1, 100000000000)) x", NotSupported),
        ("SELECT range(1, 100000000000) FROM pg_am", UndefinedFunction),
        ("SELECT has_table_privilege('nowhere', 'SELECT')", UndefinedTable),
        ("SELECT has_table_privilege('looked', 'SIT')", InvalidParameter),
        ("SELECT has_table_privilege('nobody', 'looked', 'SELECT')", UndefinedObject),
        ("SELECT has_table_privilege(10, 'looked', 'SELECT')", NotSupported),
        ("SELECT * FROM (WITH pg_am AS (SELECT 1) SELECT 1 FROM pg_am) q, pg_am", HeadraceError),
        ("SELECT now() - now() FROM pg_am", NotSupported),
        ("SELECT tableoid, * FROM pg_class", NotSupported),
        ("SELECT relname::timestamp(3) FROM pg_class", NotSupported),
        ("SELECT current_setting('no.such', relname = 'x') FROM pg_class", NotSupported),
        ("SELECT current_setting('no.such') FROM pg_class", UndefinedObject),
        ("SELECT current_setting() FROM pg_class", UndefinedFunction),
        ("SELECT current_schemas() FROM pg_class", UndefinedFunction),
    ],
)
def test_what_is_refused(session: Session, sql: str, error: type[HeadraceError]) -> None:
    with pytest.raises(error) as caught:
        run(session, sql)
    assert "Error:" not in caught.value.message and caught.value.sqlstate != "XX000"


def test_names_of_tables_of_ours_are_no_way_around(session: Session) -> None:
    """What the functions look up cannot be read by name, and other tables are not there."""
    for name in ("headrace_hidden__rights", "pg_catalog__pg_authid", "duckdb_settings", "sqlite_master"):
        with pytest.raises(UndefinedTable):
            run(session, f"SELECT x.* FROM pg_class c, {name} x")


def test_a_lookup_that_does_not_end_is_cancelled(session: Session) -> None:
    run(session, "SET statement_timeout = '500ms'")
    try:
        with pytest.raises(QueryCanceled):
            run(session, "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b, pg_am")
    finally:
        run(session, "SET statement_timeout = 0")
    assert run(session, "SELECT count(*) > 0 FROM pg_am") == [(True,)]


def test_an_answer_that_is_too_large_is_refused(session: Session) -> None:
    with pytest.raises(TooManyRows):
        run(session, "SELECT a.*, b.* FROM pg_proc a, pg_proc b, pg_proc c LIMIT 30000000")


def test_who_may_what_is_asked_of_each_row(database: Database, session: Session) -> None:
    """A column `oid` without a qualifier is the relation's that is asked about."""
    run(session, "CREATE ROLE looker", "GRANT SELECT ON looked TO looker", "CREATE TABLE hidden_one (a int)")
    looker = database.session(user="looker")
    sql = "SELECT relname FROM pg_class WHERE relkind = 'r' AND has_table_privilege(oid, 'SELECT')"
    assert run(looker, sql) == [("looked",)]
    assert run(looker, "SELECT has_table_privilege('root', 'hidden_one', 'SELECT')") == [(True,)]
    looker.close()
    run(session, "DROP TABLE hidden_one", "DROP OWNED BY looker", "DROP ROLE looker")


def test_a_lookup_sees_what_was_made_just_now(session: Session) -> None:
    for number in range(3):
        run(session, f"CREATE TABLE fresh_{number} (a int)")
        assert run(session, "SELECT count(*) FROM pg_class WHERE relname LIKE 'fresh%'") == [(number + 1,)]
    run(session, *(f"DROP TABLE fresh_{number}" for number in range(3)))


def test_columns_of_one_name_keep_it(session: Session) -> None:
    found = session.prepare("SELECT c.oid, c.relname, c.* FROM pg_class c WHERE relname = $1")
    names = [column.name for column in found.columns or ()]
    assert names[:3] == ["oid", "relname", "oid"] and [n for n in names if n.endswith("_1")] == []


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT parse_ident('a b') FROM pg_am", HeadraceError),
        ("SELECT format('%s') FROM pg_am", InvalidParameter),
        ("SELECT format('%1$s', amname) FROM pg_am", NotSupported),
        ("SELECT format(amname) FROM pg_am", NotSupported),
    ],
)
def test_texts_that_are_not_understood(session: Session, sql: str, error: type[HeadraceError]) -> None:
    with pytest.raises(error):
        run(session, sql)


_COMMENTS = "SELECT objsubid, description, classoid::regclass::text FROM pg_description ORDER BY 2"


def test_comments(session: Session) -> None:
    run(
        session,
        "COMMENT ON TABLE looked IS 'a table'", "COMMENT ON COLUMN public.looked.t IS 'c column'",
        "COMMENT ON MATERIALIZED VIEW looking IS 'b''s view'", "COMMENT ON SCHEMA elsewhere IS 'd schema'",
        'COMMENT ON COLUMN elsewhere."Odd one".x IS \'e\'',
    )  # fmt: skip
    assert [row[:2] for row in run(session, _COMMENTS)] == [
        (0, "a table"), (0, "b's view"), (3, "c column"), (0, "d schema"), (1, "e")]  # fmt: skip
    assert run(
        session, "SELECT obj_description('looked'::regclass, 'pg_class'), col_description('looked'::regclass, 3)"
    ) == [("a table", "c column")]
    run(session, "COMMENT ON TABLE looked IS ''", "COMMENT ON COLUMN looked.t IS NULL")
    assert [text for _, text, _ in run(session, _COMMENTS)] == ["b's view", "d schema", "e"]
    run(session, "COMMENT ON MATERIALIZED VIEW looking IS NULL")


def test_a_comment_on_the_database(database: Database, session: Session) -> None:
    shown = "SELECT shobj_description(oid, 'pg_database') FROM pg_database"
    run(session, "COMMENT ON SCHEMA public IS 'the schema'", "COMMENT ON DATABASE dev IS 'all of it'")
    assert run(session, shown) == [("all of it",)]
    assert run(session, "SELECT objoid FROM pg_shdescription WHERE classoid = 'pg_database'::regclass") == [(1,)]
    assert [text for _, text, _ in run(session, _COMMENTS)] == ["b's view", "d schema", "e", "the schema"][-3:]
    run(session, "CREATE ROLE commenter")
    with closing(database.session(user="commenter")) as other, pytest.raises(HeadraceError) as refused:
        run(other, "COMMENT ON DATABASE dev IS 'mine'")
    assert (refused.value.sqlstate, refused.value.message) == ("42501", "must be owner of database dev")
    run(session, "COMMENT ON DATABASE dev IS NULL", "COMMENT ON SCHEMA public IS NULL", "DROP ROLE commenter")
    assert run(session, shown) == [(None,)]


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("COMMENT ON TABLE nothing IS 'x'", "42P01"),
        ("COMMENT ON VIEW looked IS 'x'", "42809"),
        ("COMMENT ON COLUMN looked.nothing IS 'x'", "42703"),
        ("COMMENT ON SCHEMA nothing IS 'x'", "3F000"),
        ("COMMENT ON DATABASE other IS 'x'", "3D000"),
        ("COMMENT ON TABLESPACE dev IS 'x'", "0A000"),
        ("COMMENT ON COLUMN looked IS 'x'", "42601"),
        ("COMMENT ON TABLE looked IS x", "42601"),
        ("COMMENT ON TABLE looked IS 'x' y", "42601"),
    ],
)
def test_comments_that_are_refused(session: Session, sql: str, sqlstate: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        run(session, sql)
    assert caught.value.sqlstate == sqlstate


def test_root_owns_what_it_owns_after_it_is_stored(session: Session) -> None:
    owner = "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class"
    before = set(run(session, "SELECT oid FROM pg_class"))
    run(session, "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
    assert run(session, owner) == [("root",)]
    defaults = "SELECT defaclobjtype, defaclacl, rolname FROM pg_default_acl d JOIN pg_roles r ON r.oid = defaclrole"
    assert run(session, defaults) == [("r", ["root=arwd/root", "=r/root"], "root")]
    run(session, "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC")
    assert set(run(session, "SELECT oid FROM pg_class")) == before


def test_functions_of_users_are_listed(session: Session) -> None:
    run(session, "CREATE FUNCTION made(x int, y text) RETURNS int LANGUAGE python AS 'return x'")
    assert run(
        session, "SELECT pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), l.lanname, n.nspname "
        "FROM pg_proc p JOIN pg_language l ON l.oid = prolang JOIN pg_namespace n ON n.oid = pronamespace "
        "WHERE proname = 'made'",
    ) == [("x integer, y text", "integer", "python", "public")]  # fmt: skip
    run(session, "DROP FUNCTION made")


def test_what_is_built_on_a_table(session: Session) -> None:
    assert run(
        session, "SELECT DISTINCT v.relname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class v ON "
        "v.oid = r.ev_class WHERE d.refobjid = 'looked'::regclass AND d.deptype = 'n'",
    ) == [("looking",)]  # fmt: skip
