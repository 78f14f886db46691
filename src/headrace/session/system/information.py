"""`information_schema` and `rw_catalog`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from headrace.catalog.contents import (
    ConnectionContent,
    Content,
    MaterializedViewContent,
    SecretContent,
    SinkContent,
    SourceContent,
    SubscriptionContent,
    TableContent,
    ViewContent,
)
from headrace.session.context import Context
from headrace.session.defined import definition_of
from headrace.session.stored_roles import ROOT_OID
from headrace.session.system.headrace import moment
from headrace.session.system.pg_catalog import OWNER, defaults_of, display_type, namespaces, owner_oid, relations
from headrace.session.system.system_relations import Rows, define
from headrace.session.system.without_rows import INFORMATION_SCHEMA
from headrace.sql.type_names import pg_type

_BITS: Final = {"smallint": 16, "int": 32, "bigint": 64, "float": 24, "double": 53}
_TABLE_TYPES: Final[Mapping[type[Content], str]] = {
    TableContent: "BASE TABLE", ViewContent: "VIEW", MaterializedViewContent: "MATERIALIZED VIEW",
    SourceContent: "FOREIGN",
}  # fmt: skip


def _tables(context: Context) -> Rows:
    for o in relations(context):
        shown = _TABLE_TYPES.get(type(o.content))
        if shown is not None:
            yield {"table_schema": o.schema, "table_name": o.name, "table_type": shown,
                   "is_insertable_into": "YES" if o.content.writable else "NO"}  # fmt: skip


def _columns(context: Context) -> Rows:
    for o in relations(context):
        for number, column in enumerate(o.columns, 1):
            nullable = column.nullable and column.name not in o.primary_key
            yield {
                "table_schema": o.schema, "table_name": o.name, "column_name": column.name, "ordinal_position": number,
                "column_default": defaults_of(o).get(column.name),
                "is_nullable": "YES" if nullable else "NO", "data_type": display_type(column.type).split("(")[0],
                "udt_name": pg_type(column.type).name, "dtd_identifier": str(number),
                "is_updatable": "YES" if o.content.writable else "NO", **_number_columns(column.type),
            }  # fmt: skip


def _schemata(context: Context) -> Rows:
    return [{"schema_name": name} for name in namespaces(context)]


def _views(context: Context) -> Rows:
    for o in relations(context):
        if isinstance(o.content, ViewContent):
            yield {"table_schema": o.schema, "table_name": o.name, "view_definition": o.content.query}


def _constraints(context: Context) -> Rows:
    for o in relations(context):
        if o.primary_key:
            yield {"constraint_schema": o.schema, "constraint_name": f"{o.name}_pkey", "table_schema": o.schema,
                   "table_name": o.name, "constraint_type": "PRIMARY KEY"}  # fmt: skip


def _key_columns(context: Context) -> Rows:
    for o in relations(context):
        for number, name in enumerate(o.primary_key, 1):
            yield {"constraint_schema": o.schema, "constraint_name": f"{o.name}_pkey", "table_schema": o.schema,
                   "table_name": o.name, "column_name": name, "ordinal_position": number}  # fmt: skip


def _of_kind(kind: type[Content]) -> object:
    def rows(context: Context) -> Rows:
        schemas = namespaces(context)
        return [
            {"id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200),
             "definition": definition_of(o, context.catalog.state), "created_at": moment(o.created_ms)}
            for o in relations(context)
            if isinstance(o.content, kind)
        ]  # fmt: skip

    return rows


def _rw_relations(context: Context) -> Rows:
    schemas = namespaces(context)
    for o in relations(context):
        yield {"id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200), "owner": owner_oid(o),
               "definition": definition_of(o, context.catalog.state), "relation_type": o.kind_name,
               "created_at": moment(o.created_ms)}  # fmt: skip


def _rw_columns(context: Context) -> Rows:
    for o in relations(context):
        for number, column in enumerate(o.columns, 1):
            kind = pg_type(column.type)
            yield {"relation_id": o.id, "name": column.name, "position": number, "data_type": display_type(column.type),
                   "is_primary_key": column.name in o.primary_key, "udt_type": kind.name, "type_oid": kind.oid,
                   "is_nullable": column.nullable and column.name not in o.primary_key}  # fmt: skip


def _secrets(context: Context) -> Rows:
    schemas = namespaces(context)
    found = context.catalog.state.objects_of(SecretContent)
    return [{"id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200)} for o in found]


def _connections(context: Context) -> Rows:
    schemas = namespaces(context)
    return [
        {
            "id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200), "definition": o.definition,
            "type_": o.content_as(ConnectionContent).type, "created_at": moment(o.created_ms),
        }
        for o in context.catalog.state.objects_of(ConnectionContent)
    ]  # fmt: skip


def _subscriptions(context: Context) -> Rows:
    state, schemas = context.catalog.state, namespaces(context)
    return [
        {
            "id": o.id, "name": o.name, "schema_id": schemas.get(o.schema, 2200), "definition": o.definition,
            "retention_seconds": o.content_as(SubscriptionContent).retention_ms // 1000,
            "created_at": moment(o.created_ms),
        }
        for o in state.objects_of(SubscriptionContent)
    ]  # fmt: skip


def _number_columns(kind: str) -> dict[str, object]:
    """What `information_schema.columns` says of a number's or time's precision, as PostgreSQL counts it."""
    if kind in _BITS:
        bits = _BITS[kind]
        return {
            "numeric_precision": bits,
            "numeric_precision_radix": 2,
            "numeric_scale": None if bits in (24, 53) else 0,
        }
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
        return {"numeric_precision": int(precision), "numeric_precision_radix": 10, "numeric_scale": int(scale)}
    return {"datetime_precision": 6} if kind.startswith("timestamp") or kind == "time" else {}


@cache
def load() -> None:
    """Define the relations."""
    for name, columns in INFORMATION_SCHEMA.items():
        define("information_schema", name, columns)
    define("information_schema", "tables", "table_catalog name, table_schema name, table_name name, "
           "table_type varchar, self_referencing_column_name name, reference_generation varchar, "
           "user_defined_type_catalog name, user_defined_type_schema name, user_defined_type_name name, "
           "is_insertable_into varchar, is_typed varchar, commit_action varchar",
           _tables, table_catalog="dev", is_typed="NO")  # fmt: skip
    define(
        "information_schema", "columns",
        "table_catalog name, table_schema name, table_name name, column_name name, ordinal_position int, "
        "column_default varchar, is_nullable varchar, data_type varchar, character_maximum_length int, "
        "numeric_precision int, numeric_scale int, datetime_precision int, udt_schema name, udt_name name, "
        "is_identity varchar, is_generated varchar",
        _columns, table_catalog="dev", udt_schema="pg_catalog", is_identity="NO", is_generated="NEVER",
    )  # fmt: skip
    define("information_schema", "schemata", "catalog_name name, schema_name name, schema_owner name, "
           "default_character_set_catalog name, default_character_set_schema name, default_character_set_name name, "
           "sql_path varchar", _schemata, catalog_name="dev",
           schema_owner=OWNER)  # fmt: skip
    define("information_schema", "views", "table_catalog name, table_schema name, table_name name, "
           "view_definition varchar, check_option varchar, is_updatable varchar, is_insertable_into varchar, "
           "is_trigger_updatable varchar, is_trigger_deletable varchar, is_trigger_insertable_into varchar",
           _views, table_catalog="dev", check_option="NONE", is_updatable="NO",
           is_insertable_into="NO", is_trigger_updatable="NO", is_trigger_deletable="NO",
           is_trigger_insertable_into="NO")  # fmt: skip
    define(
        "information_schema", "table_constraints",
        "constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name, "
        "table_schema name, table_name name, constraint_type varchar, is_deferrable varchar, "
        "initially_deferred varchar, enforced varchar, nulls_distinct varchar", _constraints,
        constraint_catalog="dev", table_catalog="dev", is_deferrable="NO", initially_deferred="NO", enforced="YES",
    )  # fmt: skip
    define(
        "information_schema", "key_column_usage",
        "constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name, "
        "table_schema name, table_name name, column_name name, ordinal_position int, position_in_unique_constraint int",
        _key_columns, constraint_catalog="dev",
        table_catalog="dev",
    )  # fmt: skip
    define(
        "information_schema", "constraint_column_usage",
        "table_catalog name, table_schema name, table_name name, column_name name, constraint_catalog name, "
        "constraint_schema name, constraint_name name",
        _key_columns, constraint_catalog="dev", table_catalog="dev",
    )  # fmt: skip
    kinds: dict[str, type[Content]] = {
        "rw_tables": TableContent, "rw_materialized_views": MaterializedViewContent, "rw_sources": SourceContent,
        "rw_views": ViewContent, "rw_sinks": SinkContent,
    }  # fmt: skip
    for name, kind in kinds.items():
        define("rw_catalog", name, "id bigint, name, schema_id bigint, owner bigint, definition, created_at timestamp",
               _of_kind(kind), owner=ROOT_OID)  # type: ignore[arg-type]  # fmt: skip
    define(
        "rw_catalog", "rw_relations",
        "id bigint, name, schema_id bigint, owner bigint, definition, relation_type, acl array<string>, created_at "
        "timestamp",
        _rw_relations,
    )  # fmt: skip
    define(
        "rw_catalog", "rw_columns",
        "relation_id bigint, name, position int, is_hidden boolean, is_primary_key boolean, is_generated boolean, "
        "is_nullable boolean, data_type, type_oid bigint, udt_type", _rw_columns, is_hidden=False, is_generated=False,
    )  # fmt: skip
    define(
        "rw_catalog", "rw_subscriptions",
        "id bigint, name, schema_id bigint, owner bigint, definition, retention_seconds bigint, created_at timestamp",
        _subscriptions, owner=ROOT_OID,
    )  # fmt: skip
    define("rw_catalog", "rw_connections",
           "id bigint, name, schema_id bigint, owner bigint, type_, definition, created_at timestamp", _connections,
           owner=ROOT_OID)  # fmt: skip
    define("rw_catalog", "rw_secrets", "id bigint, name, schema_id bigint, owner bigint", _secrets, owner=ROOT_OID)
    define("rw_catalog", "rw_schemas", "id bigint, name, owner bigint",
           lambda s: [{"id": i, "name": n} for n, i in namespaces(s).items()], owner=ROOT_OID)  # fmt: skip
