"""`pg_catalog`, as far as psql, drivers and SQLAlchemy look into it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from headrace.catalog.records import ObjectRecord
from headrace.coordinator.automatic import is_automatic
from headrace.session.parts import is_part
from headrace.session.rights import acl_items, role_name
from headrace.session.roles import all_roles
from headrace.session.system.relations import Rows, define
from headrace.sql.binder.catalogue.listing import listed
from headrace.sql.types import pg_type, pg_type_text, typmod

if TYPE_CHECKING:
    from headrace.session.session import Session

OWNER = "root"
"""The one user."""
NAMESPACES = {"pg_catalog": 11, "public": 2200, "information_schema": 13000, "rw_catalog": 13001,
              "headrace_catalog": 13002, "headrace_internal": 13003}  # fmt: skip
"""Schemas that are always there."""
_OWNER_OID = 10
_RELKINDS = {"table": "r", "materialized_view": "m", "view": "v", "source": "f", "sink": "f", "index": "i"}
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
_OIDS = {name: oid for oid, name, *_ in _TYPES}
_LONG_NAMES = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "varchar": "character varying", "bpchar": "character",
    "time": "time without time zone", "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}  # fmt: skip


def relations(session: Session) -> list[ObjectRecord]:
    """All relations that are a user's."""
    objects = session.database.catalog.state.objects.values()
    return [
        o
        for o in objects
        if o.kind not in ("schema", "function", "secret", "role") and not is_part(o) and not is_automatic(o)
    ]


def _roles(session: Session) -> Rows:
    return [
        {
            "oid": oid, "rolname": role.name, "rolcanlogin": role.can_login, "rolconnlimit": role.connection_limit,
            "rolvaliduntil": _moment(role.valid_until_ms), "rolsuper": role.superuser, "rolinherit": role.inherit,
            "rolcreaterole": role.superuser or role.create_role, "rolcreatedb": role.superuser or role.create_db,
            "rolbypassrls": role.superuser,
        }
        for oid, role in all_roles(session.database.catalog.state).items()
    ]  # fmt: skip


def owner_oid(record: ObjectRecord) -> int:
    """The oid of an object's owner."""
    return record.owner or _OWNER_OID


def _members(session: Session) -> Rows:
    roles = all_roles(session.database.catalog.state)
    return [
        {"roleid": abs(of), "member": oid, "grantor": _OWNER_OID, "admin_option": admin}
        for oid, role in roles.items()
        for of, admin in role.member_of.items() if of < 0 or of in roles
    ]  # fmt: skip


def _users(session: Session) -> Rows:
    return [
        {"usename": role.name, "usesysid": oid, "valuntil": _moment(role.valid_until_ms), "usesuper": role.superuser,
         "usecreatedb": role.superuser or role.create_db}
        for oid, role in all_roles(session.database.catalog.state).items() if role.can_login
    ]  # fmt: skip


def _moment(moment_ms: int | None) -> datetime | None:
    return None if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC).replace(tzinfo=None)


def namespaces(session: Session) -> dict[str, int]:
    """Schema -> oid."""
    made = {o.name: o.id for o in session.database.catalog.state.objects_of("schema")}
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


def _namespaces(session: Session) -> Rows:
    state = session.database.catalog.state
    stored = {name: state.object_named("", name) for name in namespaces(session)}
    return [
        {"oid": i, "nspname": n}
        | ({} if (o := stored[n]) is None else {"nspowner": owner_oid(o), "nspacl": acl_items(state, o)})
        for n, i in namespaces(session).items()
    ]


def _classes(session: Session) -> Rows:
    schemas, state = namespaces(session), session.database.catalog.state
    return [
        {
            "relowner": owner_oid(o), "relacl": acl_items(state, o),
            "oid": o.id, "relname": o.name, "relnamespace": schemas.get(o.schema, 2200), "relkind": _RELKINDS[o.kind],
            "relnatts": len(o.columns),
        }
        for o in relations(session)
    ]  # fmt: skip


def _attributes(session: Session) -> Rows:
    for o in relations(session):
        for number, column in enumerate(o.columns, 1):
            kind = pg_type(column.type)
            yield {
                "attrelid": o.id, "attname": column.name, "atttypid": kind.oid, "attlen": kind.size, "attnum": number,
                "atttypmod": typmod(column.type), "attnotnull": not column.nullable or column.name in o.primary_key,
                "atthasdef": column.name in o.payload.get("defaults", {}), "__format_type": display_type(column.type),
                "attndims": 1 if column.type.startswith("array<") else 0,
            }  # fmt: skip


def _defaults(session: Session) -> Rows:
    for o in relations(session):
        numbers = {c.name: i for i, c in enumerate(o.columns, 1)}
        for name, text in o.payload.get("defaults", {}).items():
            yield {"oid": o.id * 1000 + numbers[name], "adrelid": o.id, "adnum": numbers[name], "adbin": text}


def _types(session: Session) -> Rows:
    for oid, name, length, category, array in _TYPES:
        long = _LONG_NAMES.get(name, name)
        yield {"oid": oid, "typname": name, "typlen": length, "typcategory": category, "typarray": array,
               "typelem": 0, "typtype": "p" if name == "record" else "b", "__format_type": long}  # fmt: skip
        yield {"oid": array, "typname": "_" + name, "typlen": -1, "typcategory": "A", "typarray": 0, "typelem": oid,
               "typtype": "b", "__format_type": long + "[]"}  # fmt: skip


def _constraints(session: Session) -> Rows:
    for o in relations(session):
        if o.primary_key:
            numbers = {c.name: i for i, c in enumerate(o.columns, 1)}
            yield {"oid": o.id + 1_000_000, "conname": f"{o.name}_pkey", "connamespace": 2200, "contype": "p",
                   "conrelid": o.id, "conkey": [numbers[n] for n in o.primary_key]}  # fmt: skip


def _connectors(session: Session) -> list[str]:
    return sorted({o.options.get("connector", "") for o in relations(session) if o.kind in _FOREIGN})


def _foreign_tables(session: Session) -> Rows:
    servers = _connectors(session)
    return [
        {"ftrelid": o.id, "ftserver": servers.index(o.options.get("connector", "")) + 1}
        for o in relations(session)
        if o.kind in _FOREIGN
    ]


def _foreign_servers(session: Session) -> Rows:
    return [{"oid": i, "srvname": name} for i, name in enumerate(_connectors(session), 1)]


def _settings(session: Session) -> Rows:
    return [{"name": v.name, "setting": value, "short_desc": v.meaning} for v, value in session.variables.all()]


def _indexes(session: Session) -> Rows:
    by_id = {o.id: o for o in relations(session)}
    return [
        {
            "schemaname": o.schema,
            "tablename": by_id[o.payload["on"]].name,
            "indexname": o.name,
            "indexdef": o.definition,
        }
        for o in by_id.values()
        if o.kind == "index"
    ]


def _of_kind(kind: str, prefix: str) -> object:
    def rows(session: Session) -> Rows:
        return [
            {"schemaname": o.schema, f"{prefix}name": o.name, "definition": o.definition,
             f"{prefix}owner": role_name(session.database.catalog.state, o.owner)}
            for o in relations(session)
            if o.kind == kind
        ]  # fmt: skip

    return rows


_EMPTY = {
    "pg_collation": "oid bigint, collname, collnamespace bigint",
    "pg_description": "objoid bigint, classoid bigint, objsubid int, description",
    "pg_shdescription": "objoid bigint, classoid bigint, description",
    "pg_depend": "classid bigint, objid bigint, objsubid int, refclassid bigint, refobjid bigint, "
    "refobjsubid int, deptype",
    "pg_inherits": "inhrelid bigint, inhparent bigint, inhseqno int, inhdetachpending boolean",
    "pg_trigger": "oid bigint, tgrelid bigint, tgname, tgenabled, tgisinternal boolean, tgparentid bigint",
    "pg_policy": "oid bigint, polname, polrelid bigint, polcmd, polpermissive boolean, polroles, polqual, polwithcheck",
    "pg_rewrite": "oid bigint, rulename, ev_class bigint, ev_type, ev_enabled, is_instead boolean",
    "pg_statistic_ext": "oid bigint, stxrelid bigint, stxname, stxnamespace bigint, stxkind array<string>, "
    "stxstattarget int, stxkeys",
    "pg_publication": "oid bigint, pubname, puballtables boolean",
    "pg_publication_rel": "oid bigint, prpubid bigint, prrelid bigint, prqual, prattrs",
    "pg_publication_namespace": "oid bigint, pnpubid bigint, pnnspid bigint",
    "pg_tablespace": "oid bigint, spcname",
    "pg_enum": "oid bigint, enumtypid bigint, enumsortorder float, enumlabel",
    "pg_range": "rngtypid bigint, rngsubtype bigint, rngmultitypid bigint",
    "pg_extension": "oid bigint, extname, extversion, extnamespace bigint",
    "pg_sequence": "seqrelid bigint, seqtypid bigint, seqstart bigint, seqincrement bigint",
    "pg_partitioned_table": "partrelid bigint, partstrat",
    "pg_language": "oid bigint, lanname",
    "pg_opclass": "oid bigint, opcname, opcmethod bigint",
    "pg_stat_activity": "datid bigint, datname, pid int, usename, application_name, state, query",
    "pg_locks": "locktype, database bigint, relation bigint, pid int, mode, granted boolean",
}

ALWAYS_EMPTY = frozenset(_EMPTY)
"""Relations that never have rows."""


def _functions(session: Session) -> Rows:
    """The functions of the binder's catalogue."""
    return [
        {"oid": 100_000 + i, "proname": f.name, "pronamespace": 11, "prokind": f.kind, "pronargs": len(f.arguments),
         "prorettype": _OIDS.get(f.result, 0), "proargtypes": ", ".join(f.arguments),
         "provolatile": "v" if f.volatile else "i"}
        for i, f in enumerate(listed())
    ]  # fmt: skip


@cache
def load() -> None:
    """Define the relations."""
    for name, columns in _EMPTY.items():
        define("pg_catalog", name, columns)
    define(
        "pg_catalog", "pg_proc",
        "oid bigint, proname, pronamespace bigint, proowner bigint, prokind, prorettype bigint, pronargs smallint, "
        "proargtypes, provolatile, proisstrict boolean, proretset boolean",
        _functions, proowner=_OWNER_OID, proisstrict=False, proretset=False,
    )  # fmt: skip
    define("pg_catalog", "pg_namespace", "oid bigint, nspname, nspowner bigint, nspacl array<string>", _namespaces,
           nspowner=_OWNER_OID)  # fmt: skip
    define(
        "pg_catalog", "pg_class",
        "oid bigint, relname, relnamespace bigint, reltype bigint, reloftype bigint, relowner bigint, relam bigint, "
        "relfilenode bigint, reltablespace bigint, relpages int, reltuples float, relallvisible int, "
        "reltoastrelid bigint, relhasindex boolean, relisshared boolean, relpersistence, relkind, relnatts smallint, "
        "relchecks smallint, relhasrules boolean, relhastriggers boolean, relhassubclass boolean, "
        "relrowsecurity boolean, relforcerowsecurity boolean, relispopulated boolean, relreplident, "
        "relispartition boolean, relpartbound, reloptions array<string>, relacl array<string>",
        _classes, reltype=0, reloftype=0, relowner=_OWNER_OID, relam=2, relfilenode=0, reltablespace=0, relpages=0,
        reltuples=-1, relallvisible=0, reltoastrelid=0, relhasindex=False, relisshared=False, relpersistence="p",
        relchecks=0, relhasrules=False, relhastriggers=False, relhassubclass=False, relrowsecurity=False,
        relforcerowsecurity=False, relispopulated=True, relreplident="d", relispartition=False,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_attribute",
        "attrelid bigint, attname, atttypid bigint, attstattarget int, attlen smallint, attnum smallint, attndims int, "
        "attcacheoff int, atttypmod int, attbyval boolean, attstorage, attcompression, attalign, attnotnull boolean, "
        "atthasdef boolean, atthasmissing boolean, attidentity, attgenerated, attisdropped boolean, "
        "attislocal boolean, attinhcount int, attcollation bigint, attoptions array<string>, "
        "attfdwoptions array<string>, attacl array<string>, __format_type",
        _attributes, attstattarget=-1, attcacheoff=-1, attbyval=False, attstorage="p", attcompression="", attalign="i",
        atthasmissing=False, attidentity="", attgenerated="", attisdropped=False, attislocal=True, attinhcount=0,
        attcollation=0,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_type",
        "oid bigint, typname, typnamespace bigint, typowner bigint, typlen smallint, typbyval boolean, typtype, "
        "typcategory, typispreferred boolean, typisdefined boolean, typdelim, typrelid bigint, typelem bigint, "
        "typarray bigint, typinput, typoutput, typbasetype bigint, typtypmod int, typnotnull boolean, "
        "typcollation bigint, typdefault, typndims int, __format_type",
        _types, typnamespace=11, typowner=_OWNER_OID, typbyval=False, typispreferred=False, typisdefined=True,
        typdelim=",", typrelid=0, typinput="", typoutput="", typbasetype=0, typtypmod=-1, typnotnull=False,
        typcollation=0, typndims=0,
    )  # fmt: skip
    define("pg_catalog", "pg_foreign_table", "ftrelid bigint, ftserver bigint, ftoptions array<string>",
           _foreign_tables)  # fmt: skip
    define("pg_catalog", "pg_foreign_server", "oid bigint, srvname, srvoptions array<string>", _foreign_servers)
    define("pg_catalog", "pg_attrdef", "oid bigint, adrelid bigint, adnum smallint, adbin", _defaults)
    define(
        "pg_catalog", "pg_index",
        "indexrelid bigint, indrelid bigint, indnatts smallint, indnkeyatts smallint, indisunique boolean, "
        "indisprimary boolean, indisexclusion boolean, indimmediate boolean, indisclustered boolean, "
        "indisvalid boolean, indisready boolean, indislive boolean, indisreplident boolean, "
        "indnullsnotdistinct boolean, indkey array<smallint>, indoption array<smallint>, indclass array<bigint>, "
        "indexprs, indpred",
    )  # fmt: skip
    define(
        "pg_catalog", "pg_constraint",
        "oid bigint, conname, connamespace bigint, contype, condeferrable boolean, condeferred boolean, "
        "convalidated boolean, conrelid bigint, contypid bigint, conindid bigint, conparentid bigint, "
        "confrelid bigint, confupdtype, confdeltype, confmatchtype, conislocal boolean, conkey array<smallint>, "
        "confkey array<smallint>, conbin",
        _constraints, condeferrable=False, condeferred=False, convalidated=True, contypid=0, conindid=0, conparentid=0,
        confrelid=0, confupdtype="", confdeltype="", confmatchtype="", conislocal=True,
    )  # fmt: skip
    define("pg_catalog", "pg_am", "oid bigint, amname, amhandler, amtype", lambda s: [{"oid": 2}], amname="headrace",
           amtype="t")  # fmt: skip
    define(
        "pg_catalog", "pg_database",
        "oid bigint, datname, datdba bigint, encoding int, datcollate, datctype, datistemplate boolean, "
        "datallowconn boolean, datconnlimit int, dattablespace bigint, datacl array<string>, datlocprovider, "
        "daticulocale, daticurules, datcollversion",
        lambda s: [{"oid": 1}], datname="dev", datdba=_OWNER_OID, encoding=6, datcollate="C", datctype="C.UTF-8",
        datistemplate=False, datallowconn=True, datconnlimit=-1, dattablespace=0, datlocprovider="c",
    )  # fmt: skip
    for name in ("pg_roles", "pg_authid"):
        define(
            "pg_catalog", name,
            "oid bigint, rolname, rolsuper boolean, rolinherit boolean, rolcreaterole boolean, rolcreatedb boolean, "
            "rolcanlogin boolean, rolconnlimit int, rolpassword, rolvaliduntil timestamp, rolreplication boolean, "
            "rolbypassrls boolean",
            _roles, rolsuper=True, rolinherit=True, rolcreaterole=True, rolcreatedb=True, rolpassword="********",
            rolreplication=False, rolbypassrls=True,
        )  # fmt: skip
    define("pg_catalog", "pg_auth_members", "roleid bigint, member bigint, grantor bigint, admin_option boolean",
           _members)  # fmt: skip
    define("pg_catalog", "pg_user",
           "usename, usesysid bigint, usecreatedb boolean, usesuper boolean, passwd, valuntil timestamp", _users,
           usecreatedb=True, usesuper=True, passwd="********")  # fmt: skip
    define("pg_catalog", "pg_settings", "name, setting, unit, category, short_desc, vartype, source", _settings,
           vartype="string", source="default")  # fmt: skip
    define("pg_catalog", "pg_tables", "schemaname, tablename, tableowner, hasindexes boolean",
           _of_kind("table", "table"), tableowner=OWNER, hasindexes=False)  # type: ignore[arg-type]  # fmt: skip
    define("pg_catalog", "pg_indexes", "schemaname, tablename, indexname, tablespace, indexdef", _indexes)
    define("pg_catalog", "pg_views", "schemaname, viewname, viewowner, definition",
           _of_kind("view", "view"), viewowner=OWNER)  # type: ignore[arg-type]  # fmt: skip
    define("pg_catalog", "pg_matviews", "schemaname, matviewname, matviewowner, ispopulated boolean, definition",
           _of_kind("materialized_view", "matview"), matviewowner=OWNER, ispopulated=True)  # type: ignore[arg-type]  # fmt: skip
