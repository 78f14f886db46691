"""What the functions over the system catalogs look up, and nobody reads by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

from headrace.catalog.contents import MaterializedViewContent, ViewContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.common.identifiers import shown_name
from headrace.errors import InvalidParameter, UndefinedObject, UndefinedTable
from headrace.session.context import Context
from headrace.session.introspection.macros import DEFINITIONS, FUNCTION_TYPES, NAMES, RIGHTS, TYPE_NAMES
from headrace.session.names import names_of
from headrace.session.rights import PRIVILEGES, Rights
from headrace.session.stored_roles import PREDEFINED, all_roles
from headrace.session.system import pg_catalog
from headrace.session.system.system_lookup import system_relation
from headrace.session.system.system_relations import Rows, SystemRelation
from headrace.sql.statements import TableName

SCHEMA: Final = DEFINITIONS[0]
CATALOGS: Final = {
    "pg_type": 1247, "pg_attribute": 1249, "pg_proc": 1255, "pg_class": 1259, "pg_authid": 1260, "pg_database": 1262,
    "pg_constraint": 2606, "pg_namespace": 2615, "pg_description": 2609, "pg_index": 2610, "pg_attrdef": 2604,
    "pg_rewrite": 2618, "pg_trigger": 2620, "pg_am": 2601, "pg_foreign_server": 1417, "pg_extension": 3079,
}  # fmt: skip
"""The oids of the system catalogs themselves, as `'pg_class'::regclass` gives them."""


def relation(name: str, roles: Collection[str]) -> SystemRelation:
    """A hidden relation; of rights those that some roles have."""
    columns, rows = _RELATIONS[name]
    if rows is _rights:
        rows = lambda context: _rights(context, roles)  # noqa: E731
    made = tuple(Column(name, kind) for name, kind in (part.split(" ") for part in columns.split(", ")))
    return SystemRelation(SCHEMA, name, made, {}, {}, rows)


def _definitions(context: Context) -> Rows:
    for record in pg_catalog.relations(context):
        content = record.content
        if isinstance(content, (ViewContent, MaterializedViewContent)):
            text = content.query if isinstance(content, ViewContent) else _query_of(record)
            yield {"oid": record.id, "definition": f" {text.strip().rstrip(';')};", "columns": None}
    for index in pg_catalog.indexes_of(context):
        yield {"oid": index.oid, "definition": index.text, "columns": list(index.columns)}
        if index.primary:
            keys = ", ".join(shown_name(c) for c in index.columns)
            yield {"oid": index.constraint_oid, "definition": f"PRIMARY KEY ({keys})", "columns": None}


def _query_of(record: ObjectRecord) -> str:
    """The query in the statement that made a view."""
    found = re.search(r"\bAS\b", record.definition, re.IGNORECASE)
    return record.definition if found is None else record.definition[found.end() :]


def _type_names(context: Context) -> Rows:
    short = {oid: name for name, oid in pg_catalog.types_by_name().items()}
    for oid, name in pg_catalog.type_names().items():
        yield {"oid": oid, "name": name, "short": short[oid]}
    path = ("pg_catalog", *context.variables.search_path())
    for record in pg_catalog.relations(context):
        if pg_catalog.has_row_type(record):
            row, rows = pg_catalog.row_types(record)
            text = shown_name(record.name)
            text = text if record.schema in path else f"{shown_name(record.schema)}.{text}"
            yield {"oid": row, "name": text, "short": text}
            yield {"oid": rows, "name": f"{text}[]", "short": f"{text}[]"}


def _names(context: Context) -> Rows:
    path = ("pg_catalog", *context.variables.search_path())
    for schema, name, oid in pg_catalog.named_oids(context):
        text = f"{shown_name(schema)}.{shown_name(name)}"
        visible = schema in path
        yield {"oid": oid, "name": name, "qualified": f"{schema}.{name}", "visible": visible,
               "text": shown_name(name) if visible else text}  # fmt: skip


def _function_types(context: Context) -> Rows:
    names = pg_catalog.type_names()
    for row in pg_catalog.functions(context):
        yield {"oid": row["oid"], "arguments": row["__arguments"], "result": names.get(row["prorettype"])}


def _rights(context: Context, roles: Collection[str] = ()) -> Rows:
    for role in roles:
        if role not in PREDEFINED:
            yield from _rights_of(context, role, Rights(context.rights.state, role))


def _rights_of(context: Context, role: str, rights: Rights) -> Iterator[dict[str, object]]:
    for record in rights.state.objects.values():
        kind = record.content.granted_as
        if kind is not None:
            letters = "".join(letter for letter in PRIVILEGES.values() if rights.may(letter, record))
            yield {"role": role, "class": kind, "oid": record.id, "letters": letters}
    yield from ({"role": role, "class": "relation", "oid": oid, "letters": "r"} for oid in CATALOGS.values())
    for name, oid in pg_catalog.namespaces(context).items():
        letters = "".join(letter for letter in "UC" if rights.may_in(letter, name))
        yield {"role": role, "class": "schema", "oid": oid, "letters": letters}
    for oid in (*all_roles(rights.state), *(PREDEFINED.values())):
        member = ("U" if oid in rights.inherited else "") + ("M" if oid in rights.settable else "")
        yield {"role": role, "class": "role", "oid": abs(oid), "letters": member}


def condition(kind: str, wanted: str | None) -> str:
    """Whether a privilege is held, as a condition over the letters of `RIGHTS`; of which `wanted` may list several."""
    if kind not in ("relation", "schema", "function", "role"):
        return "true"  # on databases, types, languages and the like everybody has what there is
    words = [w.strip().upper().removesuffix(" WITH GRANT OPTION") for w in str(wanted).split(",")]
    if kind == "role":
        known = {"MEMBER": "M", "SET": "M", "USAGE": "U"}
    else:
        known = {**PRIVILEGES, **dict.fromkeys(("TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN"), "")}
    unknown = next((w for w in words if w not in known), None)
    if unknown is not None:
        raise InvalidParameter(f'unrecognized privilege type: "{unknown.lower()}"')
    letters = [known[w] for w in words if known[w]]
    return " OR ".join(f"strpos(hr.letters, '{letter}') > 0" for letter in dict.fromkeys(letters)) or "false"


_RELATIONS: Final[dict[str, tuple[str, Callable[[Context], Rows]]]] = {
    DEFINITIONS[1]: ("oid bigint, definition string, columns array<string>", _definitions),
    TYPE_NAMES[1]: ("oid bigint, name string, short string", _type_names),
    NAMES[1]: ("oid bigint, name string, qualified string, visible boolean, text string", _names),
    FUNCTION_TYPES[1]: ("oid bigint, arguments string, result string", _function_types),
    RIGHTS[1]: ("role string, class string, oid bigint, letters string", _rights),
}


def object_id(context: Context, kind: str, text: str) -> int:
    """The oid of what a literal names. Raises `UndefinedTable`, `UndefinedObject`."""
    parts = _parts(text)
    if kind == "regclass":
        schema, name = (parts[-2] if len(parts) > 1 else None), parts[-1]
        if system_relation(schema, name) is not None:
            return CATALOGS.get(name, 0)
        for index in pg_catalog.indexes_of(context):
            if index.name == name and schema in (None, index.schema):
                return index.oid
        found = names_of(context).find(TableName(schema, name))
        if found is None:
            raise UndefinedTable(f'relation "{text}" does not exist')
        return found.id
    known = _oids_by_name(context, kind)
    name = parts[-1] if kind != "regtype" else text.strip().lower().removeprefix("pg_catalog.").strip('"')
    if kind == "regtype" and name not in known:
        record = names_of(context).find(TableName(parts[-2] if len(parts) > 1 else None, parts[-1]))
        if record is not None and pg_catalog.has_row_type(record):
            return pg_catalog.row_types(record)[0]
    if name not in known:
        what = {"regnamespace": "schema", "regrole": "role", "regtype": "type"}.get(kind, "function")
        raise UndefinedObject(f'{what} "{text}" does not exist')
    return known[name]


def _oids_by_name(context: Context, kind: str) -> dict[str, int]:
    if kind == "regnamespace":
        return pg_catalog.namespaces(context)
    if kind == "regrole":
        return {role.name: oid for oid, role in all_roles(context.rights.state).items()}
    return pg_catalog.types_by_name() if kind == "regtype" else pg_catalog.function_oids(context)


def _parts(text: str) -> list[str]:
    """The parts of a qualified name; those without quotes are in lower case."""
    found, current, quoted = [], "", False
    for c in text.split("(")[0].strip():
        if c == '"':
            quoted = not quoted
        elif c == "." and not quoted:
            found.append(current)
            current = ""
        else:
            current += c if quoted else c.lower()
    return [*found, current]
