"""What Grafana, Metabase, Superset and DBeaver ask the system catalogs, in the forms in which they do.

Each query says which of its columns a tool goes by: `same` are those whose rows must be PostgreSQL's. A parameter that
begins with `$` is the oid of the relation of that name, `$schema` that of `public`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ToolQuery:
    """A query, and what of its answer is compared."""

    tool: str
    name: str
    sql: str
    given: tuple[Any, ...] = ()
    same: str | None = None
    """The columns that are compared, all of them by default; "" for none."""
    only: Callable[[Row], bool] = field(default=lambda row: True)
    """The rows that are compared: PostgreSQL has columns, types and tables of its own."""
    more: bool = False
    """Whether there may be rows that PostgreSQL does not have: materialized views in `information_schema`."""


TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text, city text)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount float8 DEFAULT 1.5, placed timestamptz, "
    "note text NOT NULL)",
    "CREATE VIEW big AS SELECT amount, customer FROM orders WHERE amount > 10",
    "CREATE MATERIALIZED VIEW totals AS SELECT customer, count(*) AS n FROM orders GROUP BY customer",
    "COMMENT ON TABLE orders IS 'what was ordered'",
    "COMMENT ON COLUMN orders.note IS 'as it was written'",
    "COMMENT ON SCHEMA public IS 'all of it'",
    "INSERT INTO customers VALUES (1, 'a', 'x'), (2, 'b', 'y')",
    "INSERT INTO orders VALUES (1, 1, 5, '2024-01-01 10:00Z', 'n'), (2, 1, 15, '2024-01-01 12:00Z', 'm')",
)

_IN_PATH = """quote_ident(table_schema) IN (
    SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
    FROM generate_series(
        array_lower(string_to_array(current_setting('search_path'), ','), 1),
        array_upper(string_to_array(current_setting('search_path'), ','), 1)
    ) AS i, string_to_array(current_setting('search_path'), ',') s)"""


def _columns_of(table: str) -> str:
    return f"""SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns WHERE
        CASE WHEN array_length(parse_ident('{table}'), 1) = 2
        THEN quote_ident(table_schema) = (parse_ident('{table}'))[1]
            AND quote_ident(table_name) = (parse_ident('{table}'))[2]
        ELSE quote_ident(table_name) = '{table}' AND {_IN_PATH} END"""


GRAFANA = (
    ToolQuery("grafana", "version", "SELECT current_setting('server_version_num')::int / 100 AS version", same=""),
    ToolQuery("grafana", "timescale", "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'"),
    ToolQuery(
        "grafana", "schemas",
        """SELECT schema_name AS "name" FROM information_schema.schemata
        WHERE schema_name NOT IN ('information_schema', 'pg_catalog', 'pg_toast', '_timescaledb_cache')
        ORDER BY schema_name""",
        more=True,
    ),
    ToolQuery(
        "grafana", "tables in the path",
        f"""SELECT CASE WHEN {_IN_PATH} THEN quote_ident(table_name)
        ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
        FROM information_schema.tables
        WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache')
        ORDER BY CASE WHEN {_IN_PATH} THEN 0 ELSE 1 END, 1""",
        more=True,
    ),
    ToolQuery(
        "grafana", "tables of a schema",
        """SELECT quote_ident(table_name) AS "table" FROM information_schema.tables
        WHERE quote_ident(table_schema) = 'public' ORDER BY 1""",
        more=True,
    ),
    ToolQuery("grafana", "columns", _columns_of("orders")),
    ToolQuery("grafana", "columns by schema", _columns_of("public.orders")),
    ToolQuery(
        "grafana", "a series",
        """SELECT floor(extract(epoch from placed) / 3600) * 3600 AS "time", count(*) AS "value" FROM orders
        WHERE placed BETWEEN '2024-01-01T00:00:00Z' AND '2024-01-02T00:00:00Z' GROUP BY 1 ORDER BY 1""",
    ),
)  # fmt: skip

_QUOTED = """'"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"'"""
METABASE = (
    ToolQuery(
        "metabase", "tables",
        """SELECT "n"."nspname" AS "schema", "c"."relname" AS "name", CASE "c"."relkind" WHEN 'r' THEN 'TABLE'
            WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE'
            WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE NULL END AS "type",
            "d"."description" AS "description", "stat"."n_live_tup" AS "estimated_row_count"
        FROM "pg_catalog"."pg_class" AS "c"
        INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid"
        LEFT JOIN "pg_catalog"."pg_description" AS "d"
            ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = 0) AND ("d"."classoid" = 'pg_class'::regclass)
        LEFT JOIN "pg_stat_user_tables" AS "stat"
            ON ("n"."nspname" = "stat"."schemaname") AND ("c"."relname" = "stat"."relname")
        WHERE ("n"."nspname" !~ '^pg_') AND ("n"."nspname" <> 'information_schema')
            AND c.relkind in ('r', 'p', 'v', 'f', 'm') AND ("n"."nspname" IN (%s))
        ORDER BY "type" ASC, "schema" ASC, "name" ASC""",
        ("public",), "schema name type description",
    ),
    ToolQuery(
        "metabase", "fields",
        """SELECT "c"."column_name" AS "name", CASE WHEN "c"."udt_schema" IN ('public', 'pg_catalog')
            THEN FORMAT('%%s', "c"."udt_name") ELSE FORMAT('"%%s"."%%s"', "c"."udt_schema", "c"."udt_name")
            END AS "database-type", "c"."ordinal_position" - 1 AS "database-position",
            "c"."table_schema" AS "table-schema", "c"."table_name" AS "table-name",
            "pk"."column_name" IS NOT NULL AS "pk?",
            COL_DESCRIPTION(CAST(CAST(FORMAT('%%I.%%I', CAST("c"."table_schema" AS TEXT),
                CAST("c"."table_name" AS TEXT)) AS REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment",
            (("column_default" IS NULL) OR (LOWER("column_default") = 'null')) AND ("is_nullable" = 'NO') AND NOT
                ((("column_default" IS NOT NULL) AND ("column_default" LIKE '%%nextval(%%'))
                OR ("is_identity" <> 'NO')) AS "database-required",
            (("column_default" IS NOT NULL) AND ("column_default" LIKE '%%nextval(%%')) OR ("is_identity" <> 'NO')
                AS "database-is-auto-increment"
        FROM "information_schema"."columns" AS "c" LEFT JOIN
            (SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name"
            FROM "information_schema"."table_constraints" AS "tc"
            INNER JOIN "information_schema"."key_column_usage" AS "kc" ON ("tc"."constraint_name" =
                "kc"."constraint_name") AND ("tc"."table_schema" = "kc"."table_schema")
                AND ("tc"."table_name" = "kc"."table_name")
            WHERE "tc"."constraint_type" = 'PRIMARY KEY') AS "pk"
            ON ("c"."table_schema" = "pk"."table_schema") AND ("c"."table_name" = "pk"."table_name")
                AND ("c"."column_name" = "pk"."column_name")
        WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND ("c"."table_schema" IN (%s))
        UNION ALL SELECT "pa"."attname" AS "name", CASE WHEN "ptn"."nspname" IN ('public', 'pg_catalog')
            THEN FORMAT('%%s', "pt"."typname") ELSE FORMAT('"%%s"."%%s"', "ptn"."nspname", "pt"."typname")
            END AS "database-type", "pa"."attnum" - 1 AS "database-position", "pn"."nspname" AS "table-schema",
            "pc"."relname" AS "table-name", FALSE AS "pk?", NULL AS "field-comment", FALSE AS "database-required",
            FALSE AS "database-is-auto-increment"
        FROM "pg_catalog"."pg_class" AS "pc"
        INNER JOIN "pg_catalog"."pg_namespace" AS "pn" ON "pn"."oid" = "pc"."relnamespace"
        INNER JOIN "pg_catalog"."pg_attribute" AS "pa" ON "pa"."attrelid" = "pc"."oid"
        INNER JOIN "pg_catalog"."pg_type" AS "pt" ON "pt"."oid" = "pa"."atttypid"
        INNER JOIN "pg_catalog"."pg_namespace" AS "ptn" ON "ptn"."oid" = "pt"."typnamespace"
        WHERE ("pc"."relkind" = 'm') AND ("pa"."attnum" >= 1) AND ("pn"."nspname" IN (%s))
        ORDER BY "table-schema" ASC, "table-name" ASC, "database-position" ASC""",
        ("public", "public"),
    ),
    ToolQuery(
        "metabase", "foreign keys",
        """SELECT "fk_ns"."nspname" AS "fk-table-schema", "fk_table"."relname" AS "fk-table-name",
            "fk_column"."attname" AS "fk-column-name", "pk_ns"."nspname" AS "pk-table-schema",
            "pk_table"."relname" AS "pk-table-name", "pk_column"."attname" AS "pk-column-name"
        FROM "pg_constraint" AS "c" INNER JOIN "pg_class" AS "fk_table" ON "c"."conrelid" = "fk_table"."oid"
        INNER JOIN "pg_namespace" AS "fk_ns" ON "c"."connamespace" = "fk_ns"."oid"
        INNER JOIN "pg_attribute" AS "fk_column" ON "c"."conrelid" = "fk_column"."attrelid"
        INNER JOIN "pg_class" AS "pk_table" ON "c"."confrelid" = "pk_table"."oid"
        INNER JOIN "pg_namespace" AS "pk_ns" ON "pk_table"."relnamespace" = "pk_ns"."oid"
        INNER JOIN "pg_attribute" AS "pk_column" ON "c"."confrelid" = "pk_column"."attrelid"
        WHERE fk_ns.nspname !~ '^information_schema|catalog_history|pg_' AND ("c"."contype" = 'f'::char)
            AND ("fk_column"."attnum" = ANY(c.conkey)) AND ("pk_column"."attnum" = ANY(c.confkey))
        ORDER BY "fk-table-schema" ASC, "fk-table-name" ASC""",
    ),
    ToolQuery(
        "metabase", "indexes",
        """SELECT "tmp"."table-schema", "tmp"."table-name",
            TRIM(BOTH '"' FROM pg_catalog.pg_get_indexdef("tmp"."ci_oid", "tmp"."pos", FALSE)) AS "field-name"
        FROM (SELECT "n"."nspname" AS "table-schema", "ct"."relname" AS "table-name", "ci"."oid" AS "ci_oid",
            (information_schema._pg_expandarray("i"."indkey")).n AS "pos"
            FROM "pg_catalog"."pg_class" AS "ct"
            INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "ct"."relnamespace" = "n"."oid"
            INNER JOIN "pg_catalog"."pg_index" AS "i" ON "ct"."oid" = "i"."indrelid"
            INNER JOIN "pg_catalog"."pg_class" AS "ci" ON "ci"."oid" = "i"."indexrelid"
            WHERE (pg_catalog.pg_get_expr("i"."indpred", "i"."indrelid") IS NULL)
                AND n.nspname !~ '^information_schema|catalog_history|pg_' AND ("n"."nspname" IN (%s))) AS "tmp"
        WHERE "tmp"."pos" = 1""",
        ("public",),
    ),
    ToolQuery(
        "metabase", "enumerations",
        """SELECT nspname, typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE t.oid IN (SELECT DISTINCT enumtypid FROM pg_enum e)""",
    ),
    ToolQuery(
        "metabase", "privileges",
        f"""with table_privileges as (select NULL as role, t.schemaname as schema, t.objectname as table,
            pg_catalog.has_any_column_privilege(current_user, {_QUOTED}, 'update') as update,
            pg_catalog.has_any_column_privilege(current_user, {_QUOTED}, 'select') as select,
            pg_catalog.has_any_column_privilege(current_user, {_QUOTED}, 'insert') as insert,
            pg_catalog.has_table_privilege(current_user, {_QUOTED}, 'delete') as delete
        from (select schemaname, tablename as objectname from pg_catalog.pg_tables
            union select schemaname, viewname as objectname from pg_catalog.pg_views
            union select schemaname, matviewname as objectname from pg_catalog.pg_matviews) t
        where t.schemaname !~ '^pg_' and t.schemaname <> 'information_schema'
            and pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage'))
        select t.* from table_privileges t where t.select or t.update or t.insert or t.delete""",
    ),
    ToolQuery("metabase", "time zone", "show timezone", same=""),
    ToolQuery(
        "metabase", "values",
        """SELECT SUBSTRING("public"."customers"."name", 1, 1234) AS "name", "public"."customers"."id" AS "id"
        FROM "public"."customers" LIMIT 10000""",
    ),
    ToolQuery(
        "metabase", "by month",
        """SELECT DATE_TRUNC('month', "public"."orders"."placed") AS "placed", COUNT(*) AS "count"
        FROM "public"."orders" GROUP BY DATE_TRUNC('month', "public"."orders"."placed")
        ORDER BY DATE_TRUNC('month', "public"."orders"."placed") ASC""",
    ),
)  # fmt: skip

SUPERSET = (
    ToolQuery(
        "superset", "schemas",
        """SELECT pg_catalog.pg_namespace.nspname FROM pg_catalog.pg_namespace
        WHERE pg_catalog.pg_namespace.nspname NOT LIKE %s ORDER BY pg_catalog.pg_namespace.nspname""",
        ("pg_%",), more=True,
    ),
    ToolQuery(
        "superset", "tables",
        """SELECT pg_catalog.pg_class.relname FROM pg_catalog.pg_class
        JOIN pg_catalog.pg_namespace ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
        WHERE pg_catalog.pg_class.relkind = ANY (ARRAY['r', 'p', 'f', 'v', 'm'])
            AND pg_catalog.pg_class.relpersistence != 't' AND pg_catalog.pg_namespace.nspname = %s""",
        ("public",),
    ),
    ToolQuery(
        "superset", "databases", "SELECT datname FROM pg_database WHERE datistemplate = false",
        only=lambda row: row["datname"] == "dev",
    ),
    ToolQuery(
        "superset", "by day",
        """SELECT DATE_TRUNC('day', placed) AS __timestamp, sum(amount) AS "SUM(amount)"
        FROM (SELECT * FROM orders) AS virtual_table
        WHERE placed >= TO_TIMESTAMP('2023-01-01 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US')
        GROUP BY DATE_TRUNC('day', placed) ORDER BY "SUM(amount)" DESC LIMIT 1000""",
    ),
    ToolQuery("superset", "estimate", "EXPLAIN SELECT * FROM orders", same=""),
)  # fmt: skip

_ATTRIBUTES = """SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,
    dsc.description,dep.objid FROM pg_catalog.pg_attribute a
    INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid)
    LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum)
    LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)
    LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i'
        and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid
    WHERE NOT a.attisdropped AND """
_ATTRIBUTE = "relname attname atttypid attnum atttypmod attnotnull atthasdef def_value description objid"
_USERS = lambda row: row["attnum"] > 0  # noqa: E731
_NAMED = ("customers", "orders", "big", "totals")
DBEAVER = (
    ToolQuery("dbeaver", "version", "select version()", same=""),
    ToolQuery("dbeaver", "session", "SELECT current_database(), current_schema(),session_user"),
    ToolQuery("dbeaver", "path", "SHOW search_path"),
    ToolQuery(
        "dbeaver", "keywords",
        "select string_agg(word, ',') from pg_catalog.pg_get_keywords() where word <> ALL ('{a,abs,ada}'::text[])",
        same="",
    ),
    ToolQuery(
        "dbeaver", "databases",
        """SELECT db.oid,db.* FROM pg_catalog.pg_database db
        WHERE datallowconn AND NOT datistemplate OR db.datname =%s ORDER BY db.datname""",
        ("dev",), "datname datallowconn datistemplate encoding dattablespace", lambda row: row["datname"] == "dev",
    ),
    ToolQuery(
        "dbeaver", "roles",
        """SELECT a.oid,a.*,pd.description FROM pg_catalog.pg_roles a
        left join pg_catalog.pg_shdescription pd on a.oid = pd.objoid ORDER BY a.rolname""",
        (), "rolname rolsuper rolinherit rolcanlogin rolconnlimit", lambda row: row["rolname"] == "root",
    ),
    ToolQuery("dbeaver", "members", "SELECT * FROM pg_catalog.pg_auth_members WHERE roleid=%s", (10,)),
    ToolQuery(
        "dbeaver", "a setting", "select * from pg_catalog.pg_settings where name=%s", ("standard_conforming_strings",),
        "name setting",
    ),
    ToolQuery("dbeaver", "settings", "select * from pg_catalog.pg_settings", same=""),
    ToolQuery(
        "dbeaver", "access methods", "SELECT am.oid,am.* FROM pg_catalog.pg_am am ORDER BY am.oid",
        same="oid amname amtype", only=lambda row: row["amname"] == "btree",
    ),
    ToolQuery(
        "dbeaver", "encodings",
        """SELECT c.contoencoding as encid,pg_catalog.pg_encoding_to_char(c.contoencoding) as encname
        FROM pg_catalog.pg_conversion c GROUP BY c.contoencoding ORDER BY 2""",
        same="",
    ),
    ToolQuery(
        "dbeaver", "languages", "SELECT l.oid,l.* FROM pg_catalog.pg_language l ORDER BY l.oid",
        same="oid lanname lanispl lanpltrusted", only=lambda row: row["lanname"] == "internal",
    ),
    ToolQuery(
        "dbeaver", "tablespaces",
        "SELECT t.oid,t.*,pg_catalog.pg_tablespace_location(t.oid) loc FROM pg_catalog.pg_tablespace t ORDER BY t.oid",
        same="oid spcname",
    ),
    ToolQuery(
        "dbeaver", "wrappers",
        """SELECT l.oid,l.*,p.pronamespace as handler_schema_id FROM pg_catalog.pg_foreign_data_wrapper l
        LEFT OUTER JOIN pg_catalog.pg_proc p ON p.oid=l.fdwhandler ORDER BY l.fdwname""",
    ),
    ToolQuery("dbeaver", "servers", "SELECT l.oid,l.* FROM pg_catalog.pg_foreign_server l ORDER BY l.srvname"),
    ToolQuery(
        "dbeaver", "extensions",
        """SELECT e.oid, cfg.tbls, n.nspname as schema_name, e.* FROM pg_catalog.pg_extension e
        join pg_catalog.pg_namespace n on n.oid =e.extnamespace left join (
            select ARRAY_AGG(ns.nspname || '.' || cls.relname) tbls, oid_ext from (
                select unnest(e1.extconfig) oid , e1.oid oid_ext from pg_catalog.pg_extension e1) c
            join pg_catalog.pg_class cls on cls.oid = c.oid
            join pg_catalog.pg_namespace ns on ns.oid = cls.relnamespace group by oid_ext
        ) cfg on cfg.oid_ext = e.oid ORDER BY e.oid""",
        same="",
    ),
    ToolQuery(
        "dbeaver", "extensions to be had",
        "SELECT name,default_version,installed_version,comment FROM pg_catalog.pg_available_extensions ORDER BY name",
        same="",
    ),
    ToolQuery(
        "dbeaver", "event triggers",
        """SELECT pet.oid, pet.*, pp.proname, pp.pronamespace, d.description FROM pg_catalog.pg_event_trigger pet
        LEFT JOIN pg_catalog.pg_proc pp ON pet.evtfoid = pp.oid
        LEFT JOIN pg_catalog.pg_description d ON pet.oid = d.objoid""",
    ),
    ToolQuery(
        "dbeaver", "schemas",
        """SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0
            AND d.classoid='pg_namespace'::regclass ORDER BY nspname""",
        same="oid nspname description", only=lambda row: row["nspname"] == "public",
    ),
    ToolQuery(
        "dbeaver", "types",
        """SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name,
            d.description FROM pg_catalog.pg_type t
        LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem
        LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid
        LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid=d.objoid
        WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c')
            AND (et.typcategory IS NULL OR et.typcategory <> 'C')""",
        same="oid typname typlen typtype typelem typarray base_type_name",
        only=lambda row: row["typname"] in ("int4", "_int4", "text", "_text", "numeric", "timestamptz", "jsonb"),
    ),
    ToolQuery("dbeaver", "enumerations", "SELECT e.* FROM pg_catalog.pg_enum e WHERE e.enumtypid=%s", (0,)),
    ToolQuery(
        "dbeaver", "tables",
        """SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr,
            pg_catalog.pg_get_partkeydef(c.oid) as partition_key FROM pg_catalog.pg_class c
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0
            AND d.classoid='pg_class'::regclass
        WHERE c.relnamespace=%s AND c.relkind not in ('i','I','c')""",
        ("$schema",), "relname relkind relpersistence relnatts relhasindex description partition_expr partition_key",
    ),
    ToolQuery(
        "dbeaver", "a table",
        """SELECT c.oid,c.*,d.description,
            (select array_agg(i.inhparent) from pg_catalog.pg_inherits i where i.inhrelid = c.oid) parents
        FROM pg_catalog.pg_class c LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0
        WHERE c.relnamespace=%s AND c.relkind not in ('i','c') AND relname=%s""",
        ("$schema", "orders"), "relname relkind description parents",
    ),
    ToolQuery(
        "dbeaver", "columns", f"{_ATTRIBUTES}c.relnamespace=%s AND c.relkind not in ('i','I','c') ORDER BY a.attnum",
        ("$schema",), _ATTRIBUTE, _USERS,
    ),
    ToolQuery("dbeaver", "columns of a table", f"{_ATTRIBUTES}c.oid=%s ORDER BY a.attnum", ("$orders",), _ATTRIBUTE,
              _USERS),
    ToolQuery(
        "dbeaver", "constraints",
        """SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description,
            case when c.contype='c' then "substring"(pg_get_constraintdef(c.oid), 7) else null end consrc_copy
        FROM pg_catalog.pg_constraint c INNER JOIN pg_catalog.pg_class t ON t.oid=c.conrelid
        LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid=c.confrelid
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0
            AND d.classoid='pg_constraint'::regclass WHERE t.relnamespace=%s ORDER BY c.oid""",
        ("$schema",), "conname contype condeferrable tabrelname conkey confkey description consrc_copy",
    ),
    ToolQuery(
        "dbeaver", "indexes",
        """SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,
            dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,
            pg_catalog.pg_get_expr(i.indexprs, i.indrelid, true) as expr,
            pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,
            pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans
        FROM pg_catalog.pg_index i INNER JOIN pg_catalog.pg_class c ON c.oid=i.indexrelid
        INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid
        LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid
        WHERE i.indrelid=%s ORDER BY tabrelname, c.relname""",
        ("$orders",), "indkey keys indoption indisunique indisprimary relname tabrelname relam pred_expr expr",
    ),
    ToolQuery(
        "dbeaver", "functions",
        """SELECT p.oid as poid,p.*,pg_catalog.pg_get_expr(p.proargdefaults, 0) as arg_defaults,d.description
        FROM pg_catalog.pg_proc p LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=p.oid
        WHERE p.pronamespace=%s ORDER BY p.proname""",
        ("$schema",),
    ),
    ToolQuery(
        "dbeaver", "aggregates",
        """SELECT p.oid AS proc_oid,p.proname,a.* FROM pg_catalog.pg_aggregate a,pg_catalog.pg_proc p
        WHERE p.oid=a.aggfnoid AND p.pronamespace=%s""",
        ("$schema",),
    ),
    ToolQuery("dbeaver", "collations", "SELECT c.oid,c.* FROM pg_catalog.pg_collation c WHERE c.collnamespace=%s",
              ("$schema",)),
    ToolQuery(
        "dbeaver", "parents",
        """SELECT i.*,c.relnamespace FROM pg_catalog.pg_inherits i,pg_catalog.pg_class c
        WHERE i.inhrelid=%s AND c.oid=i.inhparent ORDER BY i.inhseqno""",
        ("$orders",),
    ),
    ToolQuery(
        "dbeaver", "triggers",
        """SELECT x.oid,x.*,p.pronamespace as func_schema_id,d.description,pg_catalog.pg_get_triggerdef(x.oid)
        FROM pg_catalog.pg_trigger x LEFT OUTER JOIN pg_catalog.pg_proc p ON p.oid=x.tgfoid
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=x.oid AND d.objsubid=0
        WHERE x.tgrelid=%s AND NOT x.tgisinternal""",
        ("$orders",),
    ),
    ToolQuery(
        "dbeaver", "rules",
        """SELECT r.oid,r.*, pg_catalog.pg_get_ruledef(r.oid) AS definition FROM pg_catalog.pg_rewrite r
        WHERE r.ev_class=%s""",
        ("$big",), "rulename ev_type ev_enabled is_instead",
    ),
    ToolQuery(
        "dbeaver", "policies", "SELECT * FROM pg_catalog.pg_policies WHERE schemaname=%s AND tablename=%s",
        ("public", "orders"),
    ),
    ToolQuery("dbeaver", "sequences", "SELECT * FROM pg_catalog.pg_sequences WHERE schemaname=%s", ("public",)),
    ToolQuery(
        "dbeaver", "what is built on a table",
        """SELECT DISTINCT dep.deptype, dep.classid, dep.objid, cl.relkind,
            CASE WHEN cl.relkind IS NOT NULL THEN cl.relkind::text || COALESCE(dep.objsubid::text, '')
                WHEN ns.oid IS NOT NULL THEN 'n'::text WHEN pr.oid IS NOT NULL THEN 'P'::text
                WHEN la.oid IS NOT NULL THEN 'l'::text WHEN rw.oid IS NOT NULL THEN 'R'::text
                WHEN co.oid IS NOT NULL THEN 'C'::text || contype::text ELSE '' END AS type,
            COALESCE(coc.relname, clrw.relname) AS ownertable,
            CASE WHEN cl.relname IS NOT NULL AND att.attname IS NOT NULL THEN cl.relname || '.' || att.attname
                ELSE COALESCE(cl.relname, co.conname, pr.proname, la.lanname, rw.rulename, ns.nspname) END AS refname,
            COALESCE(nsc.nspname, nso.nspname, nsp.nspname, nsrw.nspname) AS nspname
        FROM pg_depend dep LEFT JOIN pg_class cl ON dep.objid=cl.oid
        LEFT JOIN pg_attribute att ON dep.objid=att.attrelid AND dep.objsubid=att.attnum
        LEFT JOIN pg_namespace nsc ON cl.relnamespace=nsc.oid LEFT JOIN pg_proc pr ON dep.objid=pr.oid
        LEFT JOIN pg_namespace nsp ON pr.pronamespace=nsp.oid LEFT JOIN pg_constraint co ON dep.objid=co.oid
        LEFT JOIN pg_class coc ON co.conrelid=coc.oid LEFT JOIN pg_namespace nso ON co.connamespace=nso.oid
        LEFT JOIN pg_rewrite rw ON dep.objid=rw.oid LEFT JOIN pg_class clrw ON clrw.oid=rw.ev_class
        LEFT JOIN pg_namespace nsrw ON clrw.relnamespace=nsrw.oid LEFT JOIN pg_language la ON dep.objid=la.oid
        LEFT JOIN pg_namespace ns ON dep.objid=ns.oid WHERE dep.refobjid=%s ORDER BY type""",
        ("$orders",), "deptype classid type ownertable refname nspname", lambda row: row["type"] in ("R", "Cp"),
    ),
    ToolQuery(
        "dbeaver", "sizes",
        """select c.oid,pg_catalog.pg_total_relation_size(c.oid) as total_rel_size,
            pg_catalog.pg_relation_size(c.oid) as rel_size FROM pg_class c WHERE c.relnamespace=%s""",
        ("$schema",), "",
    ),
    ToolQuery("dbeaver", "text of a view", "SELECT pg_catalog.pg_get_viewdef(%s, true)", ("$big",), ""),
    ToolQuery(
        "dbeaver", "who may what", """SELECT * FROM information_schema.table_privileges
        WHERE table_schema=%s AND table_name=%s""",
        ("public", "orders"), "grantor grantee table_schema table_name privilege_type is_grantable with_hierarchy",
        lambda row: row["privilege_type"] in ("SELECT", "INSERT", "UPDATE", "DELETE"),
    ),
    ToolQuery(
        "dbeaver", "who may what on columns", """SELECT * FROM information_schema.column_privileges
        WHERE table_schema=%s AND table_name=%s""",
        ("public", "orders"), "grantee column_name privilege_type is_grantable",
        lambda row: row["privilege_type"] in ("SELECT", "INSERT", "UPDATE"),
    ),
    ToolQuery("dbeaver", "sessions", "SELECT sa.* FROM pg_catalog.pg_stat_activity sa", same=""),
    ToolQuery(
        "dbeaver", "own session",
        """SELECT usename, datname, application_name, state, backend_type FROM pg_stat_activity
        WHERE datname=current_database() AND pid=pg_backend_pid()""",
    ),
    ToolQuery("dbeaver", "locks", "SELECT l.*, l.relation::regclass FROM pg_catalog.pg_locks l", same=""),
    ToolQuery(
        "dbeaver", "counts", "SELECT datid, datname, numbackends, xact_commit FROM pg_catalog.pg_stat_database "
        "WHERE datname=%s", ("dev",), "datname",
    ),
    ToolQuery("dbeaver", "counts of a table", "SELECT s.* FROM pg_catalog.pg_stat_all_tables s WHERE s.relid=%s",
              ("$orders",), ""),
    ToolQuery(
        "dbeaver", "search",
        """SELECT x.oid,x.relname,x.relnamespace,x.relkind FROM pg_catalog.pg_class x
        WHERE x.relkind IN('r','v','m','f','p') AND (x.relname ILIKE %s) AND x.relnamespace IN (%s)
        ORDER BY x.relname LIMIT 100""",
        ("%ORD%", "$schema"), "relname relkind",
    ),
    ToolQuery(
        "dbeaver", "search of columns",
        """SELECT x.attname,x.attrelid,x.atttypid,c.relname FROM pg_catalog.pg_attribute x, pg_catalog.pg_class c
        WHERE c.oid=x.attrelid AND x.attname LIKE %s AND c.relnamespace IN (%s) ORDER BY x.attname LIMIT 100""",
        ("%ount%", "$schema"), "attname atttypid relname",
    ),
    ToolQuery(
        "dbeaver", "names",
        """SELECT c.oid::regclass::text AS name, n.nspname::text AS schema, c.relkind::text AS kind FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = %s""",
        ("orders",),
    ),
    ToolQuery("dbeaver", "whether superuser", "SELECT usesuper FROM pg_catalog.pg_user WHERE usename = current_user"),
    ToolQuery("dbeaver", "a page", "SELECT x.id, x.note FROM public.orders x WHERE x.id > 1 LIMIT 200 OFFSET 0"),
)  # fmt: skip

QUERIES = (*GRAFANA, *METABASE, *SUPERSET, *DBEAVER)
