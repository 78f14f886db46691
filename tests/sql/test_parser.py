from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import sql as sql_package
from headrace.common.zones import UTC
from headrace.errors import HeadraceError, InvalidText, NotSupported, SyntaxFault
from headrace.sql import statements as st
from headrace.sql.dialect import tokenize
from headrace.sql.not_offered import REFUSED
from headrace.sql.parser import bind, parameter_count, parameter_types, parse, parse_one, parse_query
from headrace.sql.postgres import parse_statement
from headrace.sql.starts import Readers, Start, starts
from headrace.sql.statements import TableName
from headrace.sql.token_cursor import Cursor

DOCS = Path(__file__).parents[2] / "docs" / "sql.md"


def test_script_positions_and_text() -> None:
    script = "-- first\nSELECT 1; ; /* c */ select $$a;b$$ ;\nFLUSH"
    found = parse(script)
    assert [type(s).__name__ for s in found] == ["Select", "Empty", "Select", "Flush"]
    for statement in found:
        if not isinstance(statement, st.Empty):
            assert script[statement.position - 1 :].startswith(statement.text)
    assert found[2].text == "select $$a;b$$"


@pytest.mark.parametrize("script", ["", "  ", "-- nothing", "/* x */"])
def test_empty_scripts(script: str) -> None:
    assert parse(script) == [st.Empty()]


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("selec 1", 'syntax error at or near "selec"', 1),
        ("select a b c d from t", 'syntax error at or near "c"', 12),
        ("select (1", "syntax error at end of input", 10),
        ("select 1 where x = ", "syntax error at end of input", 19),
        ("select 1; select 2 2", 'syntax error at or near "2"', 20),
        ("create table t (a int,, b int)", 'syntax error at or near ","', 23),
        ("create table t (a int b)", 'syntax error at or near "b"', 23),
        ("create materialized view v as", "syntax error at end of input", 30),
        ("drop table", "syntax error at end of input", 11),
        ("drop tabel t", 'syntax error at or near "tabel"', 6),
        ("flush now", 'syntax error at or near "now"', 7),
        ("select 'abc", 'unterminated quoted string at or near "\'abc"', 8),
        ('select "abc', 'unterminated quoted identifier at or near ""abc"', 8),
        ("select /* x", 'unterminated /* comment at or near "/* x"', 8),
        ("set x", "syntax error at end of input", 6),
        ("show create tabel x", 'syntax error at or near "tabel"', 13),
    ],
)
def test_syntax_errors(sql: str, message: str, position: int) -> None:
    with pytest.raises(SyntaxFault) as caught:
        parse(sql)
    assert (caught.value.message, caught.value.position) == (message, position)


@pytest.mark.parametrize(
    "sql",
    [
        "LISTEN c",
        "COPY t FROM PROGRAM 'x'",
        "CREATE DATABASE x",
        "LOCK TABLE t",
        "VACUUM (x) t",
        "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES u",
        "ALTER TABLE t ADD UNIQUE (a)",
        "ALTER TABLE t ADD PRIMARY KEY USING INDEX i",
    ],
)
def test_refusals_name_the_construct(sql: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(sql)
    assert caught.value.sqlstate == "0A000"
    assert caught.value.message.split()[0] in sql


def test_of_the_starts_that_fit_the_longest_reads() -> None:
    def reader(name: str) -> Callable[[Cursor], st.Statement]:
        return lambda cursor: st.SetVariable(name, cursor.word())

    def read(sql: str, *declared: Start) -> st.Statement:
        return Readers(declared).read(Cursor(sql, tokenize(sql)), parse_inner)

    def parse_inner(cursor: Cursor) -> st.Statement:
        raise AssertionError

    short, long = starts(reader("short"), "MAKE"), starts(reader("long"), "MAKE TEA", "BREW")
    for declared in ((short, long), (long, short)):
        assert read("make haste", *declared) == st.SetVariable("short", "haste")
        assert read("make tea now", *declared) == st.SetVariable("long", "now")
        assert read("brew it", *declared) == st.SetVariable("long", "it")
    assert read("make tea", starts(reader("whole"), "MAKE TEA", whole=True)) == st.SetVariable("whole", "make")
    with pytest.raises(SyntaxFault):
        read('"make" tea', short)
    with pytest.raises(ValueError, match="two statements begin with MAKE"):
        Readers((short, short))


def test_the_documentation_has_every_statement() -> None:
    text = re.sub(r"[\[\]`]", "", DOCS.read_text())

    def documented(words: str) -> bool:
        return re.search(rf"\b{re.escape(words.removesuffix(' ('))}\b", text, re.IGNORECASE) is not None

    modules = [importlib.import_module(f"headrace.sql.{m.name}") for m in pkgutil.iter_modules(sql_package.__path__)]
    declared = [start for module in modules for start in getattr(module, "STARTS", ())]
    assert declared
    assert [start.words for start in declared if not any(documented(words) for words in start.words)] == []


def test_a_table_of_a_shared_source() -> None:
    found = parse_one("CREATE TABLE t (*) FROM pg TABLE 'public.T' WITH (on_error = 'null')")
    assert isinstance(found, st.CreateTable) and found.columns == ()
    assert (str(found.origin), found.upstream, found.options) == ("pg", "public.T", {"on_error": "null"})
    found = parse_one("CREATE TABLE s.t (id int PRIMARY KEY) FROM s.pg TABLE 'T'")
    assert isinstance(found, st.CreateTable) and (found.origin, found.primary_key) == (st.TableName("s", "pg"), ("id",))
    for wrong in ("FROM pg", "FROM pg TABLE t", "FROM pg TABLE 't' FROM pg TABLE 't'"):
        with pytest.raises(SyntaxFault):
            parse_one(f"CREATE TABLE t (*) {wrong}")


def test_create_table() -> None:
    found = parse_one(
        "CREATE TABLE IF NOT EXISTS S.T (Id bigint PRIMARY KEY, \"Name\" varchar NOT NULL DEFAULT 'x', "
        "price numeric(10, 2), tags text[], at timestamptz, twice bigint AS (id * 2)) "
        "ON CONFLICT DO UPDATE IF NOT NULL WITH (retention = '1 day', parallelism = 2)"
    )
    assert found == st.CreateTable(
        TableName("s", "t"),
        (
            st.ColumnDef("id", "bigint", True),
            st.ColumnDef("Name", "string", True, "'x'"),
            st.ColumnDef("price", "decimal(10,2)"),
            st.ColumnDef("tags", "array<string>"),
            st.ColumnDef("at", "timestamp"),
            st.ColumnDef("twice", "bigint", generated="(id * 2)"),
        ),
        ("id",),
        on_conflict="do update if not null",
        if_not_exists=True,
        options={"retention": "1 day", "parallelism": "2"},
    )


def test_create_table_variants() -> None:
    found = parse_one("create table t (a int, b int, primary key (a, b)) append only")
    assert isinstance(found, st.CreateTable)
    assert found.append_only and found.primary_key == ("a", "b") and all(c.not_null for c in found.columns)
    made = parse_one("create table t as select 1 as x")
    assert isinstance(made, st.CreateTable) and made.query is not None
    with pytest.raises(HeadraceError, match="specified more than once"):
        parse("create table t (a int, a int)")


def test_what_of_a_record_is_included() -> None:
    included = (
        "INCLUDE key AS k INCLUDE partition INCLUDE offset AS o INCLUDE timestamp AS at INCLUDE header "
        "INCLUDE header 'H' AS h INCLUDE header 'H' varchar AS t INCLUDE header 'B' bytea INCLUDE header 'T' text"
    )
    wanted = {"include.key": "k", "include.partition": "partition", "include.offset": "o", "include.timestamp": "at",
              "include.header": "header", "include.header.H": "h", "include.header_text.H": "t",
              "include.header.B": "header.B", "include.header_text.T": "header.T"}  # fmt: skip
    found = parse_one(f"CREATE SOURCE s (a int) {included}")
    assert isinstance(found, st.CreateSource) and found.options == wanted
    for body in ("(a int, PRIMARY KEY (k))", "(PRIMARY KEY (k))"):
        keyed = parse_one(f"CREATE TABLE t {body} {included}")
        assert isinstance(keyed, st.CreateTable) and (keyed.primary_key, keyed.options) == (("k",), wanted)
    for text, message in (
        ("CREATE TABLE t (a int, PRIMARY KEY (kk)) INCLUDE key AS k", 'column "kk" named in key does not exist'),
        ("CREATE SOURCE s (a int) INCLUDE key AS k INCLUDE key AS kk", "INCLUDE key twice is not supported"),
        ("CREATE SOURCE s (a int) INCLUDE header 'h' int AS h", "INCLUDE header of type integer is not supported"),
        ("CREATE SOURCE s (a int) INCLUDE header 'h' bytea INCLUDE header 'h'", "INCLUDE header.h twice"),
        ("CREATE TABLE t (a int, *) FROM pg TABLE 't'", r"\* beside columns is not supported"),
    ):
        with pytest.raises(HeadraceError, match=message):
            parse(text)


def test_create_source() -> None:
    found = parse_one(
        "CREATE SOURCE s (a int, ts timestamp, WATERMARK FOR ts AS ts - INTERVAL '5 seconds') "
        "WITH (connector = 'kafka', properties.bootstrap.server = 'h:1') FORMAT PLAIN ENCODE JSON"
    )
    assert isinstance(found, st.CreateSource)
    assert found.watermark == st.Watermark("ts", "ts - INTERVAL '5 seconds'", 5000)
    assert found.options == {
        "connector": "kafka",
        "properties.bootstrap.server": "h:1",
        "format": "plain",
        "encode": "json",
    }
    bare = parse_one("create source s with (connector = 'nexmark')")
    assert isinstance(bare, st.CreateSource) and bare.columns == ()


def test_views() -> None:
    found = parse_one(
        "CREATE OR REPLACE MATERIALIZED VIEW v (x, y) WITH (checkpoint_interval_ms = 100) AS SELECT a, b FROM t "
        "EMIT ON WINDOW CLOSE"
    )
    assert isinstance(found, st.CreateMaterializedView)
    assert found.columns == ("x", "y") and found.or_replace and found.emit_on_window_close
    sink = parse_one("CREATE SINK k AS SELECT 1 AS a EMIT ON WINDOW CLOSE WITH (connector = 'blackhole')")
    assert isinstance(sink, st.CreateSink) and sink.emit_on_window_close
    assert sink.query is not None and sink.query.text == "SELECT 1 AS a" and sink.options == {"connector": "blackhole"}
    assert found.options == {"checkpoint_interval_ms": "100"}
    assert found.query.text == "SELECT a, b FROM t"
    assert isinstance(parse_one("create view v as values (1)"), st.CreateView)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "drop materialized view if exists a, s.b cascade",
            st.Drop("materialized view", (TableName(None, "a"), TableName("s", "b")), True, True),
        ),
        ("show tables", st.Show("tables")),
        ("SHOW MATERIALIZED VIEWS FROM s LIKE 'x%'", st.Show("materialized views", schema="s", pattern="x%")),
        ("show columns from s.t", st.Show("columns", name=TableName("s", "t"))),
        ("show create materialized view v", st.Show("create", name=TableName(None, "v"), kind="materialized view")),
        ("show server_version", st.Show("setting", setting="server_version")),
        ("show transaction isolation level", st.Show("setting", setting="transaction_isolation")),
        ("show all", st.Show("all")),
        ("describe t", st.Describe(TableName(None, "t"))),
        ("set search_path = a, 'B'", st.SetVariable("search_path", "a, B")),
        ("set session x to on", st.SetVariable("x", "on")),
        ("set local headrace.y = -1", st.SetVariable("headrace.y", "-1", True)),
        ("set x = default", st.SetVariable("x", None)),
        ("set time zone 'UTC'", st.SetVariable("timezone", "UTC")),
        ("reset all", st.ResetVariable(None)),
        ("begin isolation level repeatable read, read only", st.Begin("repeatable read", True)),
        ("start transaction read write", st.Begin(None, False)),
        ("end", st.Commit()),
        ("abort work", st.Rollback()),
        ("flush", st.Flush()),
        ("cancel jobs 1, 2", st.CancelJobs((1, 2))),
        ("discard all", st.Discard("all")),
        ("alter materialized view v pause", st.AlterJob("materialized view", TableName(None, "v"), "pause")),
        ("alter table t set (a.b = 5)", st.AlterJob("table", TableName(None, "t"), "set", {"a.b": "5"})),
        ("alter table t rename to u", st.AlterJob("table", TableName(None, "t"), "rename", target="u")),
        (
            "alter table only s.t add constraint k primary key (a, b)",
            st.AddPrimaryKey(TableName("s", "t"), ("a", "b")),
        ),
        (
            "truncate table only t, s.u * restart identity cascade",
            st.TruncateTables((TableName(None, "t"), TableName("s", "u"))),
        ),
        ("vacuum (analyze, parallel 2) t(a), u", st.Maintain("VACUUM", (TableName(None, "t"), TableName(None, "u")))),
        ("vacuum full freeze verbose analyze", st.Maintain("VACUUM", ())),
        ("analyze verbose t", st.Maintain("ANALYZE", (TableName(None, "t"),))),
        (
            "alter table t add if not exists a int, add column if int, add column if not exists b text",
            st.AlterColumns(
                "table",
                TableName(None, "t"),
                unless_there=(True, False, True),
                add=(st.ColumnDef("a", "int"), st.ColumnDef("if", "int"), st.ColumnDef("b", "string")),
            ),
        ),
        ("alter table t drop column a", st.AlterColumns("table", TableName(None, "t"), drop=("a",))),
        (
            "create index i on t (a) include (b) distributed by (a)",
            st.CreateIndex(TableName(None, "i"), TableName(None, "t"), ("a",), ("b",), ("a",)),
        ),
        ("close all", st.CloseCursor(None)),
        ("close c", st.CloseCursor("c")),
        ("unlisten *", st.Unlisten()),
        ("create schema if not exists s", st.CreateSchema("s", True)),
    ],
)
def test_statements(sql: str, expected: st.Statement) -> None:
    assert parse_one(sql) == expected


@pytest.mark.parametrize("sql", ["declare c cursor for\x0eselect 1", "copy t\x01 to stdout", "select \x0e 1"])
def test_a_character_of_which_no_word_is_made(sql: str) -> None:
    with pytest.raises(SyntaxFault):
        parse(sql)


def test_explain() -> None:
    found = parse_one("EXPLAIN (verbose, format json) SELECT 1")
    assert isinstance(found, st.Explain) and isinstance(found.statement, st.Select)
    assert found.options == {"verbose": "true", "format": "json"}
    assert (found.statement.text, found.statement.position) == ("SELECT 1", 32)


def test_tables_leave_out_ctes() -> None:
    query = parse_query(
        "WITH c AS (SELECT * FROM a), d AS (SELECT * FROM c JOIN s.b ON true) "
        'SELECT * FROM d, "E" WHERE x IN (SELECT y FROM f) AND EXISTS (WITH f AS (SELECT 1) SELECT * FROM f, public.c)'
    )
    names = {
        TableName(None, "a"),
        TableName("s", "b"),
        TableName(None, "E"),
        TableName(None, "f"),
        TableName("public", "c"),
    }
    assert query.tables() == names
    assert parse_query("SELECT * FROM tumble(bids, at, interval '1 s')").tables() == {TableName(None, "bids")}


def test_query_facts() -> None:
    query = parse_query("SELECT a FROM t ORDER BY a LIMIT 5")
    assert query.is_ordered and query.limit == 5
    assert parse_query("SELECT now()").uses_now()
    assert parse_query("SELECT * FROM t FOR SYSTEM_TIME AS OF PROCTIME()").as_of().keys() == {TableName(None, "t")}


def test_parameters() -> None:
    statement = parse_one("SELECT $2::int, '$3', $1 FROM t WHERE s = $1 LIMIT $3")
    assert parameter_count(statement) == 3
    assert parameter_types(statement, ["string"]) == ["string", "int", "bigint"]
    bound = bind(statement, ["it's", "5", "10"], ["string", "int", None])
    assert isinstance(bound, st.Select) and bound.text == statement.text
    text = bound.query.to_spark(str)
    assert "CAST('it\\'s' AS string)" in text and "LIMIT 10" in text
    with pytest.raises(InvalidText, match="invalid input syntax for type integer"):
        bind(statement, ["x", "five", "1"], [None, "int", None])
    with pytest.raises(SyntaxFault, match=r"there is no parameter \$3"):
        bind(statement, ["x", "1"], [None, None])
    with pytest.raises(NotSupported):
        statement.query.to_spark(str)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("INSERT INTO t VALUES ($1,$2,$3),($4,$5,$6)", 6),
        ("SELECT * FROM t WHERE a<$1 AND b>$2 AND c=$3::int", 3),
        ("SELECT $1::int,$2::text||$$a $3,$4 b$$,$t$ $5 $t$", 2),
        ("SELECT $1,'$2,$3',\"$4,$5\",E'\\'$6,$7',$2", 2),
        ("SELECT $1,a$2,b$3 FROM t", 1),
        ("SELECT $1,$2 -- $3,$4\n,$3 /* $4 /* $5 */ $6 */ || '*'", 3),
        ("SELECT $12,$1", 12),
    ],
)
def test_parameters_need_no_space_between_them(sql: str, count: int) -> None:
    statement = parse_one(sql)
    assert parameter_count(statement) == count
    bind(statement, ["1"] * count, ["int"] * count)


@pytest.mark.parametrize(
    ("sql", "at"), [("SELECT @1", 8), ("SELECT $ 1", 8), ("SELECT \ue0001", 8), ("SELECT 1, $x", 11)]
)
def test_other_signs_are_no_parameters(sql: str, at: int) -> None:
    with pytest.raises(SyntaxFault) as raised:
        parse_one(sql)
    assert raised.value.position == at


def test_bound_insert_is_literal() -> None:
    statement = parse_one("INSERT INTO t VALUES ($1, $2, $3)")
    bound = bind(statement, ["1", None, "{a,b}"], ["bigint", None, "array<string>"])
    assert isinstance(bound, st.Insert)
    assert bound.literal_rows(["bigint", "date", "array<string>"], UTC) == [[1, None, ["a", "b"]]]


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT n.nspname as "Schema", c.relname FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON '
        "n.oid = c.relnamespace WHERE c.relkind IN ('r','p','v','m','S','f','') AND n.nspname !~ '^pg_toast' "
        "AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1,2",
        "SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' "
        "COLLATE pg_catalog.default",
        "select pg_catalog.version()",
        "SELECT current_schema(), current_database(), current_user",
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a "
        "WHERE a.attrelid = '16384' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        "SELECT typname AS name, oid, typarray FROM pg_type t WHERE t.oid = to_regtype('hstore') ORDER BY t.oid",
        "SELECT t.oid, typarray FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'x'",
    ],
)
def test_client_queries_parse(sql: str) -> None:
    found = parse_one(sql)
    assert isinstance(found, st.Select)
    assert found.query.text == sql


def test_prepare_and_execute() -> None:
    found = parse_one("PREPARE p (int, numeric(5,2), unknown) AS SELECT $1,$2,$3")
    assert isinstance(found, st.Prepare) and isinstance(found.statement, st.Select)
    assert (found.name, found.types, found.statement.text) == ("p", ("int", "decimal(5,2)", None), "SELECT $1,$2,$3")
    assert parse_one("EXECUTE p") == st.Execute("p")
    assert parse_one("EXECUTE p()") == st.Execute("p")
    assert parse_one("EXECUTE p(1, -2.5, 'a''b', true, NULL)") == st.Execute("p", ("1", "-2.5", "a'b", "true", None))
    assert parse_one("DEALLOCATE PREPARE ALL") == st.Deallocate(None)
    assert parse_one('DEALLOCATE "All"') == st.Deallocate("All")
    for sql in ("EXECUTE p(1+1)", "EXECUTE p(now())", "EXECUTE p('1'::int)", "PREPARE TRANSACTION 'x'"):
        with pytest.raises(NotSupported):
            parse_one(sql)
    for sql in ("EXECUTE p(1", "EXECUTE p(1,", "PREPARE p AS", "PREPARE p AS DROP TABLE t", "DEALLOCATE"):
        with pytest.raises(SyntaxFault):
            parse_one(sql)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1 FROM t FOR SYSTEM_TIME AS OF", "SELECT 1 FROM t FOR SYSTEM_TIME AS OF -", "FOR SYSTEM_TIME AS OF"],
)
def test_what_is_added_may_end_with_the_text(text: str) -> None:
    with contextlib.suppress(SyntaxFault):
        parse_statement(text)


@pytest.mark.parametrize(("sql", "message"), [
    ("COPY (SUBSCRIBE v", 'near "SUBSCRIBE"'), ("COPY (SUBSCRIBE v) FROM STDIN", 'near "FROM"'),
    ("COPY (SUBSCRIBE v FULL WITH (snapshot = false)) TO STDOUT", "snapshot contradicts"),
    ("COPY (SUBSCRIBE v SINCE begin() WITH (snapshot)) TO STDOUT", "snapshot contradicts"),
    ("COPY (SUBSCRIBE v WITH (progress, progress)) TO STDOUT", "option progress"),
    ("COPY (SUBSCRIBE v WITH (speed)) TO STDOUT", "option speed"),
    ("COPY (SUBSCRIBE v UP TO then()) TO STDOUT", 'near "then"'), ("SUBSCRIBE v", 'near "SUBSCRIBE"'),
    ("FETCH 1 FROM c WITH (wait = 1)", "one option: timeout"), ("CREATE SUBSCRIPTION s", "end of input"),
    ("DECLARE c SUBSCRIPTION CURSOR FOR s SINCE tomorrow()", "SINCE tomorrow"),
    ("CREATE OR REPLACE SUBSCRIPTION s FROM v", "CREATE SUBSCRIPTION"),
])  # fmt: skip
def test_subscriptions_that_are_not_understood(sql: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        parse(sql)


def test_what_follows_the_changes_of_a_relation() -> None:
    (copy,) = parse(
        "COPY (SUBSCRIBE TO a.v SINCE 1789000000000 UP TO now() WITH (progress = on)) TO STDOUT (FORMAT csv)"
    )
    assert isinstance(copy, st.CopySubscribe) and copy.format.form == "csv"
    assert (str(copy.target), copy.ends, copy.progress) == ("a.v", True, True)
    assert copy.since == st.Since("at_ms", at_ms=1_789_000_000_000)
    (whole,) = parse("COPY (SUBSCRIBE v WITH (SNAPSHOT, PROGRESS = false)) TO STDOUT")
    assert isinstance(whole, st.CopySubscribe) and (whole.since, whole.progress) == (st.Since("full"), False)
    (changes,) = parse("COPY (SUBSCRIBE v WITH (snapshot = false)) TO STDOUT")
    assert isinstance(changes, st.CopySubscribe) and changes.since == st.Since()
    (declared,) = parse('DECLARE "C" SUBSCRIPTION CURSOR FOR s SINCE 11631264789659648')
    assert declared == st.DeclareSubscriptionCursor(
        "C", st.TableName(None, "s"), st.Since("position", position="11631264789659648")
    )
    (fetched,) = parse("FETCH FORWARD ALL FROM c WITH (timeout = '1 minute')")
    assert fetched == st.FetchCursor("c", "forward", None, timeout_s=60.0)


@pytest.mark.parametrize("words", REFUSED)
def test_what_there_is_not_is_refused_with_what_to_do(words: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(f"{words} x")
    assert caught.value.message == f"{words} is not supported" and caught.value.hint == REFUSED[words]
    assert caught.value.sqlstate == "0A000" and caught.value.position == 1
