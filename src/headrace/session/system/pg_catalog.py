"""`pg_catalog`, as far as psql, drivers and SQLAlchemy look into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final

from headrace.catalog.contents import (
    Content,
    FunctionContent,
    IndexContent,
    MaterializedViewContent,
    RoleContent,
    SchemaContent,
    SinkContent,
    SourceContent,
    TableContent,
    ViewContent,
)
from headrace.catalog.records import DATABASE_COMMENT, ObjectRecord
from headrace.coordinator.decide.automatic import is_automatic
from headrace.session.context import Context
from headrace.session.defined import definition_of
from headrace.session.hidden_views import is_part
from headrace.session.rights import acl_items, role_name
from headrace.session.stored_roles import ROOT, ROOT_OID, all_roles
from headrace.session.system import keys
from headrace.session.system.system_relations import Rows, define
from headrace.session.system.without_rows import PG_CATALOG
from headrace.sql.binder.catalogue.listing import listed
from headrace.sql.type_names import pg_type, pg_type_text, typmod

OWNER = "root"
"""The one user."""
NAMESPACES = {"pg_catalog": 11, "public": 2200, "information_schema": 13000, "rw_catalog": 13001,
              "headrace_catalog": 13002, "headrace_internal": 13003}  # fmt: skip
"""Schemas that are always there."""
_RELKINDS: Final[Mapping[type[Content], str]] = {
    TableContent: "r", MaterializedViewContent: "m", ViewContent: "v", SourceContent: "f", SinkContent: "f",
    IndexContent: "i",
}  # fmt: skip
_FOREIGN = tuple(kind for kind, letter in _RELKINDS.items() if letter == "f")
# oid, name, length, category, array oid, delimiter
_TYPES = (
    (16, "bool", 1, "B", 1000), (17, "bytea", -1, "U", 1001), (18, "char", 1, "Z", 1002), (19, "name", 64, "S", 1003),
    (20, "int8", 8, "N", 1016), (21, "int2", 2, "N", 1005), (23, "int4", 4, "N", 1007), (25, "text", -1, "S", 1009),
    (26, "oid", 4, "N", 1028), (114, "json", -1, "U", 199), (700, "float4", 4, "N", 1021),
    (701, "float8", 8, "N", 1022),
    (1042, "bpchar", -1, "S", 1014), (1043, "varchar", -1, "S", 1015), (1082, "date", 4, "D", 1182),
    (1083, "time", 8, "D", 1183), (1114, "timestamp", 8, "D", 1115), (1184, "timestamptz", 8, "D", 1185),
    (1186, "interval", 16, "T", 1187), (1700, "numeric", -1, "N", 1231), (2249, "record", -1, "P", 2287),
    (2950, "uuid", 16, "U", 2951), (3802, "jsonb", -1, "U", 3807), (2205, "regclass", 4, "N", 2210),
)  # fmt: skip
_RECORD: Final = 2249
_ROW_TYPES, _ROW_ARRAYS = 3_000_000, 4_000_000
"""What is added to the oid of a relation for that of the type of its rows, and of their arrays."""
_OIDS = {name: oid for oid, name, *_ in _TYPES}
_INPUTS = {"timestamp": "timestamp_", "timestamptz": "timestamptz_", "interval": "interval_", "date": "date_",
           "time": "time_",
           "numeric": "numeric_", "json": "json_", "jsonb": "jsonb_", "uuid": "uuid_", "record": "record_"}  # fmt: skip
"""What the names of the functions that read and write a type begin with, where that is not its name."""
_BTREE = 403
_RELATIONS, _ROLES, _DATABASES, _SCHEMAS = 1259, 1260, 1262, 2615
_CLASSES_WITH_COMMENTS: Final[Mapping[type[Content], int]] = {FunctionContent: 1255, SchemaContent: _SCHEMAS}
"""The oids of the catalogs that objects with comments are in, where that is not the one of relations."""
_TABLESPACES: Final = {"pg_default": 1663, "pg_global": 1664}
_INTERNAL, _PYTHON = 12, 14_000
"""The oids of the languages in which functions are written."""
_ACCESS_METHODS: Final[Mapping[type[Content], int]] = {IndexContent: _BTREE, ViewContent: 0}
_LONG_NAMES = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "varchar": "character varying", "bpchar": "character",
    "time": "time without time zone", "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}  # fmt: skip


def relations(context: Context) -> list[ObjectRecord]:
    """All relations that are a user's."""
    objects = context.catalog.state.objects.values()
    return [o for o in objects if o.content.relation and not is_part(o) and not is_automatic(o)]


def has_row_type(record: ObjectRecord) -> bool:
    """Whether an object has rows of a composite type, as PostgreSQL sees it: an index has none."""
    return record.content.relation and not isinstance(record.content, IndexContent)


def row_types(record: ObjectRecord) -> tuple[int, int]:
    """The oids of that type, and of arrays of it."""
    return record.id + _ROW_TYPES, record.id + _ROW_ARRAYS


def defaults_of(record: ObjectRecord) -> Mapping[str, str]:
    """Column -> the expression of its default; only a table has some."""
    return record.content.defaults if isinstance(record.content, TableContent) else {}


def _roles(context: Context) -> Rows:
    return [
        {
            "oid": oid, "rolname": role.name, "rolcanlogin": role.can_login, "rolconnlimit": role.connection_limit,
            "rolvaliduntil": _moment(role.valid_until_ms), "rolsuper": role.superuser, "rolinherit": role.inherit,
            "rolcreaterole": role.superuser or role.create_role, "rolcreatedb": role.superuser or role.create_db,
            "rolbypassrls": role.superuser,
        }
        for oid, role in all_roles(context.catalog.state).items()
    ]  # fmt: skip


def owner_oid(record: ObjectRecord) -> int:
    """The oid of an object's owner."""
    return record.owner or ROOT_OID


def _members(context: Context) -> Rows:
    roles = all_roles(context.catalog.state)
    return [
        {"roleid": abs(of), "member": oid, "grantor": ROOT_OID, "admin_option": admin}
        for oid, role in roles.items()
        for of, admin in role.member_of.items() if of < 0 or of in roles
    ]  # fmt: skip


def _users(context: Context) -> Rows:
    return [
        {"usename": role.name, "usesysid": oid, "valuntil": _moment(role.valid_until_ms), "usesuper": role.superuser,
         "usecreatedb": role.superuser or role.create_db}
        for oid, role in all_roles(context.catalog.state).items() if role.can_login
    ]  # fmt: skip


def _moment(moment_ms: int | None) -> datetime | None:
    return None if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC).replace(tzinfo=None)


def namespaces(context: Context) -> dict[str, int]:
    """Schema -> oid."""
    made = {o.name: o.id for o in context.catalog.state.objects_of(SchemaContent)}
    return {**made, **NAMESPACES}


def display_type(spark_type: str) -> str:
    """A column's type as psql shows it."""
    return "text" if spark_type == "string" else pg_type_text(spark_type)


def type_names() -> dict[int, str]:
    """Oid of each type -> its name as psql shows it, of array types too."""
    names: dict[int, str] = {}
    for oid, name, _, _, array in _TYPES:
        names[oid] = _LONG_NAMES.get(name, name)
        names[array] = f"{names[oid]}[]"
    return names


def types_by_name() -> dict[str, int]:
    """Oid of each type by every name that it has."""
    found = {name: oid for oid, name in type_names().items()}
    for oid, name, _, _, array in _TYPES:
        found |= {name: oid, f"_{name}": array, f"{name}[]": array}
    return found | {"int": 23, "decimal": 1700}


def function_oids(context: Context) -> dict[str, int]:
    """Oid of the first function of each name."""
    return {str(row["proname"]): int(row["oid"]) for row in reversed(list(functions(context)))}


def indexes_of(context: Context) -> list[keys.Index]:
    """All indexes, and those that PostgreSQL would have for primary keys."""
    return list(keys.indexes(relations(context)))


def named_oids(context: Context) -> Iterator[tuple[str, str, int]]:
    """Schema, name and oid of every relation and index."""
    for o in relations(context):
        yield o.schema, o.name, o.id
    for index in indexes_of(context):
        if index.primary:
            yield index.schema, index.name, index.oid


def _namespaces(context: Context) -> Rows:
    state = context.catalog.state
    stored = {name: state.object_named("", name) for name in namespaces(context)}
    return [
        {"oid": i, "nspname": n}
        | ({} if (o := stored[n]) is None else {"nspowner": owner_oid(o), "nspacl": acl_items(state, o)})
        for n, i in namespaces(context).items()
    ]


def _classes(context: Context) -> Rows:
    schemas, state = namespaces(context), context.catalog.state
    indexes = indexes_of(context)
    indexed = {index.on.id for index in indexes}
    for o in relations(context):
        yield {
            "relowner": owner_oid(o), "relacl": acl_items(state, o),
            "oid": o.id, "relname": o.name, "relnamespace": schemas.get(o.schema, 2200),
            "relkind": _RELKINDS[type(o.content)], "relnatts": len(o.columns), "relhasindex": o.id in indexed,
            "reltype": row_types(o)[0] if has_row_type(o) else 0,
            "relam": _ACCESS_METHODS.get(type(o.content), 2), "relhasrules": isinstance(o.content, ViewContent),
        }  # fmt: skip
    for index in indexes:
        if index.primary:
            yield {
                "relowner": owner_oid(index.on), "oid": index.oid, "relname": index.name, "relkind": "i",
                "relnamespace": schemas.get(index.schema, 2200), "relnatts": len(index.columns), "relam": _BTREE,
            }  # fmt: skip


def _attributes(context: Context) -> Rows:
    for o in relations(context):
        for number, column in enumerate(o.columns, 1):
            kind = pg_type(column.type)
            yield {
                "attrelid": o.id, "attname": column.name, "atttypid": kind.oid, "attlen": kind.size, "attnum": number,
                "atttypmod": typmod(column.type), "attnotnull": not column.nullable or column.name in o.primary_key,
                "atthasdef": column.name in defaults_of(o),
                "attndims": 1 if column.type.startswith("array<") else 0,
            }  # fmt: skip


def _key_attributes(context: Context) -> Rows:
    """The columns of the indexes that primary keys have."""
    rows = {(row["attrelid"], row["attname"]): row for row in _attributes(context)}
    for index in indexes_of(context):
        if index.primary:
            for number, name in enumerate(index.columns, 1):
                yield {**rows[index.on.id, name], "attrelid": index.oid, "attnum": number, "atthasdef": False}


def _defaults(context: Context) -> Rows:
    for o in relations(context):
        numbers = {c.name: i for i, c in enumerate(o.columns, 1)}
        for name, text in defaults_of(o).items():
            yield {"oid": o.id * 1000 + numbers[name], "adrelid": o.id, "adnum": numbers[name], "adbin": text}


def _types(context: Context) -> Rows:
    for oid, name, length, category, array in _TYPES:
        stem = _INPUTS.get(name, name)
        yield {"oid": oid, "typname": name, "typlen": length, "typcategory": category, "typarray": array,
               "typelem": 0, "typtype": "p" if name == "record" else "b",
               "typinput": stem + "in", "typoutput": stem + "out", "typreceive": stem + "recv",
               "typsend": stem + "send"}  # fmt: skip
        yield {"oid": array, "typname": "_" + name, "typlen": -1, "typcategory": "A", "typarray": 0, "typelem": oid,
               "typtype": "b"}  # fmt: skip
    schemas = namespaces(context)
    for o in relations(context):
        if has_row_type(o):
            own = {"typnamespace": schemas.get(o.schema, 2200), "typowner": owner_oid(o)}
            row, rows = row_types(o)
            yield own | {"oid": row, "typname": o.name, "typlen": -1, "typcategory": "C", "typarray": rows,
                         "typelem": 0, "typtype": "c", "typrelid": o.id, "typinput": "record_in", "typalign": "d",
                         "typoutput": "record_out", "typreceive": "record_recv", "typsend": "record_send",
                         "typstorage": "x"}  # fmt: skip
            yield own | {"oid": rows, "typname": f"_{o.name}", "typlen": -1, "typcategory": "A", "typarray": 0,
                         "typelem": row, "typtype": "b", "typalign": "d", "typstorage": "x"}  # fmt: skip


def _constraints(context: Context) -> Rows:
    schemas, on = namespaces(context), {o.id: o for o in relations(context)}
    for row in keys.constraint_rows(indexes_of(context)):
        yield {**row, "connamespace": schemas.get(on[row["conrelid"]].schema, 2200)}


def _descriptions(context: Context) -> Rows:
    """What COMMENT has said."""
    for o in context.catalog.state.objects.values():
        if not o.comments or is_part(o) or isinstance(o.content, RoleContent):
            continue
        numbers = {"": 0} | {c.name: i for i, c in enumerate(o.columns, 1)}
        of = _CLASSES_WITH_COMMENTS.get(type(o.content), _RELATIONS if o.content.relation else 0)
        for name, text in o.comments.items():
            if name in numbers:
                yield {"objoid": namespaces(context)[o.name] if of == _SCHEMAS else o.id, "classoid": of,
                       "objsubid": numbers[name], "description": text}  # fmt: skip


def _shared_descriptions(context: Context) -> Rows:
    """What COMMENT has said of roles, and of the database."""
    public = context.catalog.state.object_named("", "public")
    if public is not None and DATABASE_COMMENT in public.comments:
        yield {"objoid": 1, "classoid": _DATABASES, "description": public.comments[DATABASE_COMMENT]}
    for o in context.catalog.state.objects_of(RoleContent):
        if "" in o.comments:
            oid = ROOT_OID if o.name == ROOT else o.id
            yield {"objoid": oid, "classoid": _ROLES, "description": o.comments[""]}


def _connectors(context: Context) -> list[str]:
    return sorted({o.options.get("connector", "") for o in relations(context) if isinstance(o.content, _FOREIGN)})


def _foreign_tables(context: Context) -> Rows:
    servers = _connectors(context)
    return [
        {"ftrelid": o.id, "ftserver": servers.index(o.options.get("connector", "")) + 1}
        for o in relations(context)
        if isinstance(o.content, _FOREIGN)
    ]


def _foreign_servers(context: Context) -> Rows:
    return [{"oid": i, "srvname": name} for i, name in enumerate(_connectors(context), 1)]


def _settings(context: Context) -> Rows:
    return [
        {
            "name": v.name, "setting": value, "short_desc": v.meaning, "boot_val": v.default, "reset_val": v.default,
            "context": "internal" if v.fixed else "user", "source": "default" if value == v.default else "session",
        }
        for v, value in context.variables.all()
    ]  # fmt: skip


def _indexes(context: Context) -> Rows:
    return [
        {"schemaname": i.schema, "tablename": i.on.name, "indexname": i.name, "indexdef": i.text}
        for i in indexes_of(context)
    ]


def _of_kind(kind: type[Content], prefix: str) -> object:
    def rows(context: Context) -> Rows:
        indexed = {index.on.id for index in indexes_of(context)}
        return [
            {"schemaname": o.schema, f"{prefix}name": o.name, "definition": definition_of(o, context.catalog.state),
             f"{prefix}owner": role_name(context.catalog.state, o.owner), "hasindexes": o.id in indexed}
            for o in relations(context)
            if isinstance(o.content, kind)
        ]  # fmt: skip

    return rows


def functions(context: Context) -> Rows:
    """The functions of the binder's catalogue, and those that users have made."""
    yield from (
        {"oid": 100_000 + i, "proname": f.name, "pronamespace": 11, "prokind": f.kind, "pronargs": len(f.arguments),
         "prorettype": _OIDS.get(f.result, 0), "proargtypes": [_OIDS.get(a, 0) for a in f.arguments],
         "__arguments": ", ".join(f.arguments),
         "provolatile": "v" if f.volatile else "i"}
        for i, f in enumerate(listed())
    )  # fmt: skip
    schemas, state = namespaces(context), context.catalog.state
    for o in state.objects_of(FunctionContent):
        made = o.content_as(FunctionContent)
        types = made.arguments or ()
        yield {
            "oid": o.id, "proname": o.name, "pronamespace": schemas.get(o.schema, 2200), "proowner": owner_oid(o),
            "prokind": "a" if made.form == "aggregate" else "f", "prolang": _PYTHON, "pronargs": len(types),
            "prorettype": _RECORD if made.returns is None else pg_type(made.returns).oid,
            "proretset": made.returns is None, "proargtypes": [pg_type(t).oid for t in types],
            "proargnames": list(made.names) if made.names else None, "proisstrict": made.strict,
            "provolatile": "i" if made.deterministic else "v", "prosrc": made.source or "",
            "proacl": acl_items(state, o),
            "__arguments": ", ".join(
                f"{name} {display_type(t)}".strip() for name, t in zip(made.names or [""] * len(types), types)
            ),
        }  # fmt: skip


@cache
def load() -> None:
    """Define the relations."""
    for name, columns in PG_CATALOG.items():
        define("pg_catalog", name, columns)
    define(
        "pg_catalog", "pg_proc",
        "oid oid, proname name, pronamespace oid, proowner oid, prokind char, prorettype oid, pronargs smallint, "
        "proargtypes oidvector, provolatile char, proisstrict boolean, proretset boolean, proargnames array<string>, "
        "proargmodes array<char>, proallargtypes array<oid>, pronargdefaults smallint, proargdefaults pg_node_tree, "
        "prosrc, prolang oid, procost float, prorows float, provariadic oid, prosecdef boolean, proleakproof boolean, "
        "proparallel char, proacl array<aclitem>, proconfig array<string>, probin, prosupport regproc, "
        "protrftypes array<oid>, prosqlbody pg_node_tree",
        functions, proowner=ROOT_OID, proisstrict=False, proretset=False,
        pronargdefaults=0, prosrc="", prolang=_INTERNAL, procost=1, prorows=0, provariadic=0, prosecdef=False,
        proleakproof=False, proparallel="s", prosupport="-",
    )  # fmt: skip
    define("pg_catalog", "pg_namespace", "oid oid, nspname name, nspowner oid, nspacl array<aclitem>", _namespaces,
           nspowner=ROOT_OID)  # fmt: skip
    define(
        "pg_catalog", "pg_class",
        "oid oid, relname name, relnamespace oid, reltype oid, reloftype oid, relowner oid, relam oid, "
        "relfilenode oid, reltablespace oid, relpages int, reltuples float, relallvisible int, reltoastrelid oid, "
        "relhasindex boolean, relisshared boolean, relpersistence char, relkind char, relnatts smallint, "
        "relchecks smallint, relhasrules boolean, relhastriggers boolean, relhassubclass boolean, "
        "relrowsecurity boolean, relforcerowsecurity boolean, relispopulated boolean, relreplident char, "
        "relispartition boolean, relrewrite oid, relfrozenxid xid, relminmxid xid, relpartbound pg_node_tree, "
        "reloptions array<string>, relacl array<aclitem>",
        _classes, reltype=0, reloftype=0, relowner=ROOT_OID, relam=2, relfilenode=0, reltablespace=0, relpages=0,
        reltuples=-1, relallvisible=0, reltoastrelid=0, relhasindex=False, relisshared=False, relpersistence="p",
        relchecks=0, relhasrules=False, relhastriggers=False, relhassubclass=False, relrowsecurity=False,
        relforcerowsecurity=False, relispopulated=True, relreplident="d", relispartition=False, relrewrite=0,
        relfrozenxid=0, relminmxid=0,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_attribute",
        "attrelid oid, attname name, atttypid oid, attstattarget int, attlen smallint, attnum smallint, attndims int, "
        "attcacheoff int, atttypmod int, attbyval boolean, attstorage char, attcompression char, attalign char, "
        "attnotnull boolean, atthasdef boolean, atthasmissing boolean, attidentity char, attgenerated char, "
        "attisdropped boolean, attislocal boolean, attinhcount int, attcollation oid, attoptions array<string>, "
        "attfdwoptions array<string>, attacl array<aclitem>, attmissingval",
        lambda context: [*_attributes(context), *_key_attributes(context)], attstattarget=-1, attcacheoff=-1,
        attbyval=False, attstorage="p", attcompression="", attalign="i",
        atthasmissing=False, attidentity="", attgenerated="", attisdropped=False, attislocal=True, attinhcount=0,
        attcollation=0,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_type",
        "oid oid, typname name, typnamespace oid, typowner oid, typlen smallint, typbyval boolean, typtype char, "
        "typcategory char, typispreferred boolean, typisdefined boolean, typdelim char, typrelid oid, typelem oid, "
        "typarray oid, typinput regproc, typoutput regproc, typreceive regproc, typsend regproc, typmodin regproc, "
        "typmodout regproc, typalign char, typstorage char, typacl array<aclitem>, typsubscript regproc, "
        "typanalyze regproc, typbasetype oid, typtypmod int, typnotnull boolean, typcollation oid, typdefault, "
        "typdefaultbin pg_node_tree, typndims int",
        _types, typnamespace=11, typowner=ROOT_OID, typbyval=False, typispreferred=False, typisdefined=True,
        typdelim=",", typrelid=0, typinput="array_in", typoutput="array_out", typreceive="array_recv",
        typsend="array_send", typmodin="-", typmodout="-", typalign="i", typstorage="p", typsubscript="-",
        typanalyze="-", typbasetype=0, typtypmod=-1, typnotnull=False,
        typcollation=0, typndims=0,
    )  # fmt: skip
    define("pg_catalog", "pg_foreign_table", "ftrelid oid, ftserver oid, ftoptions array<string>",
           _foreign_tables)  # fmt: skip
    define(
        "pg_catalog",
        "pg_foreign_server",
        "oid oid, srvname name, srvoptions array<string>, srvowner oid, srvfdw oid, "
        "srvtype, srvversion, srvacl array<aclitem>",
        _foreign_servers,
        srvowner=ROOT_OID,
        srvfdw=0,
    )
    define("pg_catalog", "pg_attrdef", "oid oid, adrelid oid, adnum smallint, adbin pg_node_tree", _defaults)
    define(
        "pg_catalog", "pg_index",
        "indexrelid oid, indrelid oid, indnatts smallint, indnkeyatts smallint, indisunique boolean, "
        "indisprimary boolean, indisexclusion boolean, indimmediate boolean, indisclustered boolean, "
        "indisvalid boolean, indisready boolean, indislive boolean, indisreplident boolean, "
        "indnullsnotdistinct boolean, indkey int2vector, indoption int2vector, indclass oidvector, "
        "indcollation oidvector, indexprs pg_node_tree, indpred pg_node_tree, indcheckxmin boolean",
        lambda context: keys.index_rows(indexes_of(context)), indisexclusion=False, indimmediate=True,
        indisclustered=False, indisvalid=True, indisready=True, indislive=True, indisreplident=False,
        indnullsnotdistinct=False, indcheckxmin=False,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_constraint",
        "oid oid, conname name, connamespace oid, contype char, condeferrable boolean, condeferred boolean, "
        "convalidated boolean, conrelid oid, contypid oid, conindid oid, conparentid oid, confrelid oid, "
        "confupdtype char, confdeltype char, confmatchtype char, conislocal boolean, conkey array<smallint>, "
        "confkey array<smallint>, conpfeqop array<oid>, connoinherit boolean, coninhcount int, "
        "conexclop array<oid>, conppeqop array<oid>, conffeqop array<oid>, confdelsetcols array<smallint>, "
        "conbin pg_node_tree",
        _constraints, condeferrable=False, condeferred=False, convalidated=True, contypid=0, conindid=0, conparentid=0,
        confrelid=0, confupdtype="", confdeltype="", confmatchtype="", conislocal=True,
        connoinherit=False, coninhcount=0,
    )  # fmt: skip
    define("pg_catalog", "pg_description", "objoid oid, classoid oid, objsubid int, description", _descriptions)
    define("pg_catalog", "pg_shdescription", "objoid oid, classoid oid, description", _shared_descriptions)
    define("pg_catalog", "pg_tablespace",
           "oid oid, spcname name, spcowner oid, spcacl array<aclitem>, spcoptions array<string>",
           lambda s: [{"oid": oid, "spcname": name} for name, oid in _TABLESPACES.items()],
           spcowner=ROOT_OID)  # fmt: skip
    define(
        "pg_catalog", "pg_language",
        "oid oid, lanname name, lanowner oid, lanispl boolean, lanpltrusted boolean, lanplcallfoid oid, "
        "laninline oid, lanvalidator oid, lanacl array<aclitem>",
        lambda s: [{"oid": _INTERNAL, "lanname": "internal", "lanispl": False},
                   {"oid": _PYTHON, "lanname": "python", "lanispl": True}],
        lanowner=ROOT_OID, lanpltrusted=False, lanplcallfoid=0, laninline=0, lanvalidator=0,
    )  # fmt: skip
    define("pg_catalog", "pg_am", "oid oid, amname name, amhandler regproc, amtype char",
           lambda s: [{"oid": 2, "amname": "headrace", "amtype": "t"},
                      {"oid": _BTREE, "amname": "btree", "amtype": "i"}])  # fmt: skip
    define(
        "pg_catalog", "pg_database",
        "oid oid, datname name, datdba oid, encoding int, datcollate, datctype, datistemplate boolean, "
        "datallowconn boolean, datconnlimit int, dattablespace oid, datacl array<aclitem>, datlocprovider char, "
        "daticulocale, daticurules, datcollversion, datfrozenxid xid, datminmxid xid",
        lambda s: [{"oid": 1}], datname="dev", datdba=ROOT_OID, encoding=6, datcollate="C", datctype="C.UTF-8",
        datistemplate=False, datallowconn=True, datconnlimit=-1, dattablespace=_TABLESPACES["pg_default"],
        datlocprovider="c", datfrozenxid=0, datminmxid=0,
    )  # fmt: skip
    for name in ("pg_roles", "pg_authid"):
        define(
            "pg_catalog", name,
            "oid oid, rolname name, rolsuper boolean, rolinherit boolean, rolcreaterole boolean, rolcreatedb boolean, "
            "rolcanlogin boolean, rolconnlimit int, rolpassword, rolvaliduntil timestamp, rolreplication boolean, "
            "rolbypassrls boolean, rolconfig array<string>",
            _roles, rolsuper=True, rolinherit=True, rolcreaterole=True, rolcreatedb=True, rolpassword="********",
            rolreplication=False, rolbypassrls=True,
        )  # fmt: skip
    define("pg_catalog", "pg_auth_members", "roleid oid, member oid, grantor oid, admin_option boolean",
           _members)  # fmt: skip
    define("pg_catalog", "pg_user",
           "usename name, usesysid oid, usecreatedb boolean, usesuper boolean, userepl boolean, usebypassrls boolean, "
           "passwd, valuntil timestamp, useconfig array<string>", _users, userepl=False, usebypassrls=False,
           usecreatedb=True, usesuper=True, passwd="********")  # fmt: skip
    define(
        "pg_catalog", "pg_settings",
        "name, setting, unit, category, short_desc, extra_desc, context, vartype, source, min_val, max_val, "
        "enumvals array<string>, boot_val, reset_val, sourcefile, sourceline int, pending_restart boolean",
        _settings, vartype="string", source="default", category="headrace", pending_restart=False,
    )  # fmt: skip
    define("pg_catalog", "pg_tables", "schemaname name, tablename name, tableowner name, tablespace name, "
           "hasindexes boolean, hasrules boolean, hastriggers boolean, rowsecurity boolean",
           _of_kind(TableContent, "table"),  # type: ignore[arg-type]
           tableowner=OWNER, hasrules=False, hastriggers=False, rowsecurity=False)  # fmt: skip
    define("pg_catalog", "pg_indexes",
           "schemaname name, tablename name, indexname name, tablespace name, indexdef", _indexes)  # fmt: skip
    define("pg_catalog", "pg_views", "schemaname name, viewname name, viewowner name, definition",
           _of_kind(ViewContent, "view"), viewowner=OWNER)  # type: ignore[arg-type]  # fmt: skip
    define("pg_catalog", "pg_matviews", "schemaname name, matviewname name, matviewowner name, tablespace name, "
           "hasindexes boolean, ispopulated boolean, definition",
           _of_kind(MaterializedViewContent, "matview"), matviewowner=OWNER, ispopulated=True)  # type: ignore[arg-type]  # fmt: skip
