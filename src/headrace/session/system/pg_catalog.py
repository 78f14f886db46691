"""`pg_catalog`, as far as psql, drivers and SQLAlchemy look into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final

from headrace.catalog.contents import (
    Content,
    IndexContent,
    MaterializedViewContent,
    SchemaContent,
    SinkContent,
    SourceContent,
    TableContent,
    ViewContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.decide.automatic import is_automatic
from headrace.session.context import Context
from headrace.session.defined import definition_of
from headrace.session.hidden_views import is_part
from headrace.session.rights import acl_items, role_name
from headrace.session.stored_roles import all_roles
from headrace.session.system import keys
from headrace.session.system.system_relations import Rows, define
from headrace.sql.binder.catalogue.listing import listed
from headrace.sql.type_names import pg_type, pg_type_text, typmod

OWNER = "root"
"""The one user."""
NAMESPACES = {"pg_catalog": 11, "public": 2200, "information_schema": 13000, "rw_catalog": 13001,
              "headrace_catalog": 13002, "headrace_internal": 13003}  # fmt: skip
"""Schemas that are always there."""
_OWNER_OID = 10
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
_OIDS = {name: oid for oid, name, *_ in _TYPES}
_INPUTS = {"timestamp": "timestamp_", "timestamptz": "timestamptz_", "interval": "interval_", "date": "date_",
           "time": "time_",
           "numeric": "numeric_", "json": "json_", "jsonb": "jsonb_", "uuid": "uuid_", "record": "record_"}  # fmt: skip
"""What the names of the functions that read and write a type begin with, where that is not its name."""
_BTREE = 403
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
    return record.owner or _OWNER_OID


def _members(context: Context) -> Rows:
    roles = all_roles(context.catalog.state)
    return [
        {"roleid": abs(of), "member": oid, "grantor": _OWNER_OID, "admin_option": admin}
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


def _constraints(context: Context) -> Rows:
    schemas, on = namespaces(context), {o.id: o for o in relations(context)}
    for row in keys.constraint_rows(indexes_of(context)):
        yield {**row, "connamespace": schemas.get(on[row["conrelid"]].schema, 2200)}


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
    return [{"name": v.name, "setting": value, "short_desc": v.meaning} for v, value in context.variables.all()]


def _indexes(context: Context) -> Rows:
    return [
        {"schemaname": i.schema, "tablename": i.on.name, "indexname": i.name, "indexdef": i.text}
        for i in indexes_of(context)
    ]


def _of_kind(kind: type[Content], prefix: str) -> object:
    def rows(context: Context) -> Rows:
        return [
            {"schemaname": o.schema, f"{prefix}name": o.name, "definition": definition_of(o),
             f"{prefix}owner": role_name(context.catalog.state, o.owner)}
            for o in relations(context)
            if isinstance(o.content, kind)
        ]  # fmt: skip

    return rows


_EMPTY = {
    "pg_collation": "oid bigint, collname, collnamespace bigint, collowner bigint, collprovider, "
    "collisdeterministic boolean, collencoding int, collcollate, collctype, colliculocale, collicurules, collversion",
    "pg_description": "objoid bigint, classoid bigint, objsubid int, description",
    "pg_shdescription": "objoid bigint, classoid bigint, description",
    "pg_depend": "classid bigint, objid bigint, objsubid int, refclassid bigint, refobjid bigint, "
    "refobjsubid int, deptype",
    "pg_inherits": "inhrelid bigint, inhparent bigint, inhseqno int, inhdetachpending boolean",
    "pg_trigger": "oid bigint, tgrelid bigint, tgname, tgenabled, tgisinternal boolean, tgparentid bigint",
    "pg_policy": "oid bigint, polname, polrelid bigint, polcmd, polpermissive boolean, polroles array<bigint>, "
    "polqual, polwithcheck",
    "pg_rewrite": "oid bigint, rulename, ev_class bigint, ev_type, ev_enabled, is_instead boolean",
    "pg_statistic_ext": "oid bigint, stxrelid bigint, stxname, stxnamespace bigint, stxkind array<string>, "
    "stxstattarget int, stxkeys array<smallint>, stxowner bigint",
    "pg_publication": "oid bigint, pubname, pubowner bigint, puballtables boolean, pubinsert boolean, "
    "pubupdate boolean, pubdelete boolean, pubtruncate boolean, pubviaroot boolean",
    "pg_publication_rel": "oid bigint, prpubid bigint, prrelid bigint, prqual, prattrs",
    "pg_publication_namespace": "oid bigint, pnpubid bigint, pnnspid bigint",
    "pg_tablespace": "oid bigint, spcname, spcowner bigint, spcacl array<string>, spcoptions array<string>",
    "pg_enum": "oid bigint, enumtypid bigint, enumsortorder float, enumlabel",
    "pg_range": "rngtypid bigint, rngsubtype bigint, rngmultitypid bigint",
    "pg_extension": "oid bigint, extname, extversion, extnamespace bigint",
    "pg_sequence": "seqrelid bigint, seqtypid bigint, seqstart bigint, seqincrement bigint, seqmin bigint, "
    "seqmax bigint, seqcache bigint, seqcycle boolean",
    "pg_partitioned_table": "partrelid bigint, partstrat",
    "pg_language": "oid bigint, lanname, lanowner bigint, lanispl boolean, lanpltrusted boolean, lanplcallfoid bigint, "
    "laninline bigint, lanvalidator bigint, lanacl array<string>",
    "pg_opclass": "oid bigint, opcname, opcmethod bigint, opcnamespace bigint, opcowner bigint, opcfamily bigint, "
    "opcintype bigint, opcdefault boolean, opckeytype bigint",
    "pg_stat_activity": "datid bigint, datname, pid int, usename, application_name, state, query",
    "pg_locks": "locktype, database bigint, relation bigint, pid int, mode, granted boolean",
    "pg_default_acl": "oid bigint, defaclrole bigint, defaclnamespace bigint, defaclobjtype, defaclacl array<string>",
    "pg_event_trigger": "oid bigint, evtname, evtevent, evtowner bigint, evtfoid bigint, evtenabled, "
    "evttags array<string>",
    "pg_ts_config": "oid bigint, cfgname, cfgnamespace bigint, cfgowner bigint, cfgparser bigint",
    "pg_ts_dict": "oid bigint, dictname, dictnamespace bigint, dictowner bigint, dicttemplate bigint, dictinitoption",
    "pg_ts_parser": "oid bigint, prsname, prsnamespace bigint, prsstart, prstoken, prsend, prsheadline, prslextype",
    "pg_ts_template": "oid bigint, tmplname, tmplnamespace bigint, tmplinit, tmpllexize",
    "pg_operator": "oid bigint, oprname, oprnamespace bigint, oprowner bigint, oprkind, oprcanmerge boolean, "
    "oprcanhash boolean, oprleft bigint, oprright bigint, oprresult bigint, oprcom bigint, oprnegate bigint, "
    "oprcode bigint, oprrest bigint, oprjoin bigint",
    "pg_cast": "oid bigint, castsource bigint, casttarget bigint, castfunc bigint, castcontext, castmethod",
    "pg_foreign_data_wrapper": "oid bigint, fdwname, fdwowner bigint, fdwhandler bigint, fdwvalidator bigint, "
    "fdwacl array<string>, fdwoptions array<string>",
    "pg_user_mappings": "umid bigint, srvid bigint, srvname, umuser bigint, usename, umoptions array<string>",
    "pg_db_role_setting": "setdatabase bigint, setrole bigint, setconfig array<string>",
    "pg_subscription": "oid bigint, subdbid bigint, subname, subowner bigint, subenabled boolean, subconninfo, "
    "subslotname, subsynccommit, subpublications array<string>, subbinary boolean, substream, subtwophasestate, "
    "subdisableonerr boolean, subskiplsn",
    "pg_conversion": "oid bigint, conname, connamespace bigint, conowner bigint, conforencoding int, "
    "contoencoding int, conproc bigint, condefault boolean",
    "pg_aggregate": "aggfnoid bigint, aggkind, aggnumdirectargs smallint, aggtransfn bigint, aggfinalfn bigint, "
    "aggtranstype bigint, agginitval",
    "pg_opfamily": "oid bigint, opfmethod bigint, opfname, opfnamespace bigint, opfowner bigint",
    "pg_sequences": "schemaname, sequencename, sequenceowner, data_type, start_value bigint, min_value bigint, "
    "max_value bigint, increment_by bigint, cycle boolean, cache_size bigint, last_value bigint",
    "pg_rules": "schemaname, tablename, rulename, definition",
    "pg_available_extensions": "name, default_version, installed_version, comment",
    "pg_largeobject_metadata": "oid bigint, lomowner bigint, lomacl array<string>",
    "pg_seclabels": "objoid bigint, classoid bigint, objsubid int, objtype, objnamespace bigint, objname, provider, "
    "label",
}


def functions(context: Context) -> Rows:
    """The functions of the binder's catalogue."""
    return [
        {"oid": 100_000 + i, "proname": f.name, "pronamespace": 11, "prokind": f.kind, "pronargs": len(f.arguments),
         "prorettype": _OIDS.get(f.result, 0), "proargtypes": [_OIDS.get(a, 0) for a in f.arguments],
         "__arguments": ", ".join(f.arguments),
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
        "proargtypes array<bigint>, provolatile, proisstrict boolean, proretset boolean, proargnames array<string>, "
        "proargmodes array<string>, proallargtypes array<bigint>, pronargdefaults smallint, proargdefaults, prosrc, "
        "prolang bigint, procost float, prorows float, provariadic bigint, prosecdef boolean, proleakproof boolean, "
        "proparallel, proacl array<string>, proconfig array<string>, probin",
        functions, proowner=_OWNER_OID, proisstrict=False, proretset=False,
        pronargdefaults=0, prosrc="", prolang=12, procost=1, prorows=0, provariadic=0, prosecdef=False,
        proleakproof=False, proparallel="s",
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
        "attfdwoptions array<string>, attacl array<string>",
        lambda context: [*_attributes(context), *_key_attributes(context)], attstattarget=-1, attcacheoff=-1,
        attbyval=False, attstorage="p", attcompression="", attalign="i",
        atthasmissing=False, attidentity="", attgenerated="", attisdropped=False, attislocal=True, attinhcount=0,
        attcollation=0,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_type",
        "oid bigint, typname, typnamespace bigint, typowner bigint, typlen smallint, typbyval boolean, typtype, "
        "typcategory, typispreferred boolean, typisdefined boolean, typdelim, typrelid bigint, typelem bigint, "
        "typarray bigint, typinput, typoutput, typreceive, typsend, typmodin, typmodout, typalign, typstorage, "
        "typacl array<string>, typsubscript, typanalyze, typbasetype bigint, typtypmod int, typnotnull boolean, "
        "typcollation bigint, typdefault, typndims int",
        _types, typnamespace=11, typowner=_OWNER_OID, typbyval=False, typispreferred=False, typisdefined=True,
        typdelim=",", typrelid=0, typinput="array_in", typoutput="array_out", typreceive="array_recv",
        typsend="array_send", typmodin="-", typmodout="-", typalign="i", typstorage="p", typsubscript="-",
        typanalyze="-", typbasetype=0, typtypmod=-1, typnotnull=False,
        typcollation=0, typndims=0,
    )  # fmt: skip
    define("pg_catalog", "pg_foreign_table", "ftrelid bigint, ftserver bigint, ftoptions array<string>",
           _foreign_tables)  # fmt: skip
    define(
        "pg_catalog",
        "pg_foreign_server",
        "oid bigint, srvname, srvoptions array<string>, srvowner bigint, srvfdw bigint, "
        "srvtype, srvversion, srvacl array<string>",
        _foreign_servers,
        srvowner=_OWNER_OID,
        srvfdw=0,
    )
    define("pg_catalog", "pg_attrdef", "oid bigint, adrelid bigint, adnum smallint, adbin", _defaults)
    define(
        "pg_catalog", "pg_index",
        "indexrelid bigint, indrelid bigint, indnatts smallint, indnkeyatts smallint, indisunique boolean, "
        "indisprimary boolean, indisexclusion boolean, indimmediate boolean, indisclustered boolean, "
        "indisvalid boolean, indisready boolean, indislive boolean, indisreplident boolean, "
        "indnullsnotdistinct boolean, indkey array<smallint>, indoption array<smallint>, indclass array<bigint>, "
        "indcollation array<bigint>, indexprs, indpred, indcheckxmin boolean",
        lambda context: keys.index_rows(indexes_of(context)), indisexclusion=False, indimmediate=True,
        indisclustered=False, indisvalid=True, indisready=True, indislive=True, indisreplident=False,
        indnullsnotdistinct=False, indcheckxmin=False,
    )  # fmt: skip
    define(
        "pg_catalog", "pg_constraint",
        "oid bigint, conname, connamespace bigint, contype, condeferrable boolean, condeferred boolean, "
        "convalidated boolean, conrelid bigint, contypid bigint, conindid bigint, conparentid bigint, "
        "confrelid bigint, confupdtype, confdeltype, confmatchtype, conislocal boolean, conkey array<smallint>, "
        "confkey array<smallint>, conpfeqop array<bigint>, connoinherit boolean, coninhcount smallint, conexclop "
        "array<bigint>, confdelsetcols array<smallint>, conbin",
        _constraints, condeferrable=False, condeferred=False, convalidated=True, contypid=0, conindid=0, conparentid=0,
        confrelid=0, confupdtype="", confdeltype="", confmatchtype="", conislocal=True,
        connoinherit=False, coninhcount=0,
    )  # fmt: skip
    define("pg_catalog", "pg_am", "oid bigint, amname, amhandler, amtype",
           lambda s: [{"oid": 2, "amname": "headrace", "amtype": "t"},
                      {"oid": _BTREE, "amname": "btree", "amtype": "i"}])  # fmt: skip
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
           _of_kind(TableContent, "table"), tableowner=OWNER, hasindexes=False)  # type: ignore[arg-type]  # fmt: skip
    define("pg_catalog", "pg_indexes", "schemaname, tablename, indexname, tablespace, indexdef", _indexes)
    define("pg_catalog", "pg_views", "schemaname, viewname, viewowner, definition",
           _of_kind(ViewContent, "view"), viewowner=OWNER)  # type: ignore[arg-type]  # fmt: skip
    define("pg_catalog", "pg_matviews", "schemaname, matviewname, matviewowner, ispopulated boolean, definition",
           _of_kind(MaterializedViewContent, "matview"), matviewowner=OWNER, ispopulated=True)  # type: ignore[arg-type]  # fmt: skip
