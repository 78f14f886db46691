"""At least one statement of every kind, for tests that go through all of them."""

from __future__ import annotations

from headrace.sql import statements as st

SETUP = """
    CREATE TABLE kinds_t (a int PRIMARY KEY, b text);
    INSERT INTO kinds_t VALUES (1, 'x');
    CREATE TABLE kinds_n (a int);
    CREATE TABLE kinds_log (a int, at timestamp) APPEND ONLY;
    CREATE MATERIALIZED VIEW kinds_v AS SELECT b, count(*) AS n FROM kinds_t GROUP BY b;
    CREATE VIEW kinds_w AS SELECT a FROM kinds_t;
    CREATE INDEX kinds_i ON kinds_t (b);
    CREATE SINK kinds_s FROM kinds_t WITH (connector = 'blackhole');
    CREATE SOURCE kinds_d (k int) WITH (connector = 'datagen', rows_per_second = '1');
    CREATE CONNECTION kinds_k WITH (type = 's3', s3.region = 'eu');
    CREATE SUBSCRIPTION kinds_u FROM kinds_t WITH (retention = '1h');
    CREATE FUNCTION kinds_f(x int) RETURNS int LANGUAGE python AS 'return x + 1';
"""
DROP = """
    DROP SUBSCRIPTION kinds_u; DROP CONNECTION kinds_k;
    DROP SINK kinds_s; DROP MATERIALIZED VIEW kinds_v; DROP VIEW kinds_w; DROP INDEX kinds_i; DROP SOURCE kinds_d;
    DROP FUNCTION kinds_f; DROP TABLE kinds_log; DROP TABLE kinds_n; DROP TABLE kinds_t
"""
PREPARED = """PREPARE kinds_p (int) AS INSERT INTO kinds_t VALUES ($1, 'y') RETURNING b;
DECLARE kinds_c CURSOR WITH HOLD FOR SELECT a FROM kinds_t"""
"""What a session has to run before the samples that use it."""
SAMPLES: dict[type[st.Statement], tuple[str, ...]] = {
    st.Empty: (),
    st.CreateTable: (
        "CREATE TABLE new (a int)", "CREATE TABLE new AS SELECT a FROM kinds_t",
        "CREATE TABLE new (a int) WITH (connector = 'webhook')",
    ),
    st.CreateSource: ("CREATE SOURCE new (k int) WITH (connector = 'datagen', rows_per_second = '1')",),
    st.CreateSink: (
        "CREATE SINK new FROM kinds_t WITH (connector = 'blackhole')",
        "CREATE SINK new INTO kinds_log AS SELECT k FROM kinds_d",
    ),
    st.CreateMaterializedView: ("CREATE MATERIALIZED VIEW new AS SELECT a FROM kinds_t",),
    st.CreateView: ("CREATE VIEW new AS SELECT a FROM kinds_t",),
    st.CreateIndex: ("CREATE INDEX new ON kinds_t (b)",),
    st.CreateSubscription: ("CREATE SUBSCRIPTION new FROM kinds_t WITH (retention = '1 day')",),
    st.CreateFunction: ("CREATE FUNCTION new(x int) RETURNS int LANGUAGE python AS 'return x'",),
    st.CreateSchema: ("CREATE SCHEMA new",),
    st.CreateSecret: ("CREATE SECRET new WITH (backend = 'meta') AS 'x'",),
    st.CreateConnection: ("CREATE CONNECTION new WITH (type = 's3')",),
    st.AlterSecret: ("ALTER SECRET kinds_x AS 'x'",),
    st.CreateRole: ("CREATE ROLE new LOGIN SUPERUSER",),
    st.AlterRole: ("ALTER ROLE root PASSWORD NULL",),
    st.DropRole: ("DROP ROLE IF EXISTS new",),
    st.GrantRole: ("GRANT pg_monitor TO root", "REVOKE pg_monitor FROM root"),
    st.Grant: ("GRANT SELECT ON kinds_t TO PUBLIC", "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC"),
    st.Comment: (
        "COMMENT ON TABLE kinds_t IS 'x'", "COMMENT ON COLUMN kinds_t.b IS 'x'",
        "COMMENT ON FUNCTION kinds_f(int) IS 'x'",
    ),
    st.AlterDefaultPrivileges: ("ALTER DEFAULT PRIVILEGES FOR ROLE root GRANT SELECT ON TABLES TO PUBLIC",),
    st.ReassignOwned: ("REASSIGN OWNED BY kinds_r TO root",),
    st.DropOwned: ("DROP OWNED BY kinds_r",),
    st.SetRole: ("SET ROLE NONE", "RESET SESSION AUTHORIZATION"),
    st.Drop: ("DROP TABLE kinds_log",),
    st.AlterJob: (
        "ALTER MATERIALIZED VIEW kinds_v PAUSE", "ALTER SOURCE kinds_d PAUSE",
        "ALTER SUBSCRIPTION kinds_u SET (retention = '2h')",
    ),
    st.AlterColumns: ("ALTER TABLE kinds_t ADD COLUMN c int",),
    st.AddPrimaryKey: ("ALTER TABLE kinds_n ADD PRIMARY KEY (a)",),
    st.Insert: ("INSERT INTO kinds_t VALUES (2, 'y')", "INSERT INTO kinds_t VALUES (2, 'y') RETURNING a, b"),
    st.Update: ("UPDATE kinds_t SET b = 'z' WHERE a = 1", "UPDATE kinds_t SET b = 'z' WHERE a = 1 RETURNING b AS c"),
    st.Delete: ("DELETE FROM kinds_t WHERE a = 1", "DELETE FROM kinds_t WHERE a = 1 RETURNING *"),
    st.TruncateTables: ("TRUNCATE kinds_t, kinds_n",),
    st.Select: (
        "SELECT 1 AS one, 'x'", "SELECT * FROM kinds_t", "SELECT count(*) FROM kinds_t WHERE a = 1",
        "SELECT b, a * 2 AS c FROM kinds_t", "SELECT * FROM kinds_w", "VALUES (1, 'a'), (2, 'b')",
        "SELECT * FROM headrace_catalog.jobs", "SELECT relname, oid FROM pg_catalog.pg_class",
        "SELECT version(), current_schema()",
    ),
    st.Explain: ("EXPLAIN SELECT a FROM kinds_t", "EXPLAIN CREATE MATERIALIZED VIEW new AS SELECT a FROM kinds_t"),
    st.Show: (
        "SHOW TABLES", "SHOW SOURCES", "SHOW MATERIALIZED VIEWS", "SHOW VIEWS", "SHOW SINKS", "SHOW SCHEMAS",
        "SHOW JOBS", "SHOW CHECKPOINTS", "SHOW PROGRESS", "SHOW COLUMNS FROM kinds_t", "SHOW CREATE TABLE kinds_t",
        "SHOW FUNCTIONS", "SHOW INDEXES", "SHOW INDEXES FROM kinds_t", "SHOW ALL", "SHOW DATABASES", "SHOW search_path",
        "SHOW PARAMETERS LIKE 'max_%'", "SHOW TIME ZONE", "SHOW PARAMETERS",
        "SHOW TRANSACTION ISOLATION LEVEL", "SHOW CONNECTIONS", "SHOW SECRETS", "SHOW SUBSCRIPTIONS",
        "SHOW SUBSCRIPTION CURSORS", "SHOW CREATE SUBSCRIPTION kinds_u", "SHOW CREATE CONNECTION kinds_k",
        "SHOW CURSORS", "SHOW PROCESSLIST", "SHOW CLUSTER",
    ),
    st.Describe: ("DESCRIBE kinds_t", "DESCRIBE FUNCTION kinds_f", "DESCRIBE kinds_s"),
    st.Flush: ("FLUSH",),
    st.Wait: ("WAIT",),
    st.Promote: ("SELECT pg_promote()",),
    st.Recover: ("RECOVER",),
    st.SetVariable: ("SET application_name = 'x'",),
    st.AlterSystem: ("ALTER SYSTEM SET max_result_rows = 5", "ALTER SYSTEM RESET ALL"),
    st.ResetVariable: ("RESET application_name",),
    st.Begin: ("BEGIN",),
    st.SetTransaction: ("SET TRANSACTION READ ONLY",),
    st.Commit: ("COMMIT",),
    st.Rollback: ("ROLLBACK",),
    st.Savepoint: ("SAVEPOINT s",),
    st.Maintain: ("VACUUM kinds_t", "ANALYZE kinds_v"),
    st.CancelJobs: ("CANCEL JOBS 1",),
    st.Kill: ("KILL 0",),
    st.Discard: ("DISCARD PLANS",),
    st.Prepare: ("PREPARE new AS SELECT 1",),
    st.Execute: ("EXECUTE kinds_p(3)",),
    st.Deallocate: ("DEALLOCATE ALL",),
    st.DeclareCursor: ("DECLARE new CURSOR WITH HOLD FOR SELECT a FROM kinds_t",),
    st.DeclareSubscriptionCursor: ("DECLARE new SUBSCRIPTION CURSOR FOR kinds_u FULL",),
    st.FetchCursor: ("FETCH kinds_c",),
    st.CloseCursor: ("CLOSE ALL",),
    st.CopyFrom: ("COPY kinds_t FROM STDIN",),
    st.CopyTo: ("COPY kinds_t TO STDOUT", "COPY (SELECT a FROM kinds_t) TO STDOUT"),
    st.CopyFromFiles: ("COPY kinds_t FROM '/proc/nowhere' (FORMAT csv)",),
    st.CopyToFiles: (
        "COPY kinds_t TO '/proc/nowhere' (FORMAT csv)", "COPY (SELECT a FROM kinds_t) TO '/proc/nowhere' (FORMAT json)",
    ),
    st.CopySubscribe: ("COPY (SUBSCRIBE kinds_t FULL UP TO now()) TO STDOUT",),
    st.Unlisten: ("UNLISTEN *",),
}  # fmt: skip


def kinds() -> set[type[st.Statement]]:
    """Every class of statements."""
    return set(st.Statement.__subclasses__())


def samples() -> list[str]:
    """All of them."""
    return [sql for texts in SAMPLES.values() for sql in texts]
