"""The functions that queries over the system catalogs may call: DuckDB's own by name, and macros of ours.

A function that is not listed here is refused. A macro reads relations under the names that `table_name` gives them.
"""

from __future__ import annotations

from typing import Final

from headrace.common.lazy_dataclass import dataclass


def table_name(schema: str, name: str) -> str:
    """The name by which DuckDB knows a system relation."""
    return f"{schema}__{name}"


@dataclass(frozen=True)
class Macro:
    """A function as DuckDB's SQL: the parameters of each of its overloads, and what it reads."""

    overloads: tuple[tuple[str, str], ...]
    """Parameters, with their names, and the expression."""
    reads: tuple[tuple[str, str], ...] = ()

    def text(self, name: str) -> str:
        """The statement that makes it."""
        return f"CREATE OR REPLACE TEMP MACRO {name} " + ", ".join(
            f"({given}) AS {body}" for given, body in self.overloads
        )


def macro_name(name: str) -> str:
    """The name of a macro; DuckDB has functions of its own by many of PostgreSQL's names."""
    return f"hr_{name}"


_NAMESPACE = ("pg_catalog", "pg_namespace")
DEFINITIONS: Final = ("headrace_hidden", "definitions")
"""oid, the text that defines what has it, and of an index the names of its columns."""
TYPE_NAMES: Final = ("headrace_hidden", "type_names")
"""oid, how the type is called in messages and by `format_type`, and its short name."""
NAMES: Final = ("headrace_hidden", "names")
"""oid, name and qualified name of each relation, whether it is found without a schema, and how `regclass` shows it."""
FUNCTION_TYPES: Final = ("headrace_hidden", "function_types")
"""oid of each function, the types of its arguments and of its result."""
RIGHTS: Final = ("headrace_hidden", "rights")
"""role, class, oid of an object, and the letters of what the role may do with it."""
_NO_TEXT = "CAST(NULL AS VARCHAR)"
_NO_NUMBER = "CAST(NULL AS BIGINT)"


def _simple(given: str, body: str, *reads: tuple[str, str]) -> Macro:
    return Macro(((given, body),), reads)


def _constant(body: str, *numbers: int) -> Macro:
    names = ("a", "b", "c", "d")
    return Macro(tuple((", ".join(names[:n]), body) for n in numbers))


def _looked_up(wanted: str, relation: tuple[str, str], condition: str, given: str = "o") -> str:
    """A value from a relation, which is `hr_t` in it. `$o` is the value of the parameter `o`, and so on.

    What a macro is given is put into its text: it is computed in a scope of its own, where no name of the macro's own
    relations stands in its way.
    """
    values = ", ".join(f"{name} AS hr_{name}" for name in given.split(", "))
    for name in given.split(", "):
        wanted, condition = (t.replace(f"${name}", f"hr_p.hr_{name}") for t in (wanted, condition))
    return f"(SELECT {wanted} FROM (SELECT {values}) hr_p, {table_name(*relation)} hr_t WHERE {condition})"


def _lookup(wanted: str, relation: tuple[str, str], condition: str, *more: tuple[str, str], given: str = "o") -> Macro:
    return Macro(((given, _looked_up(wanted, relation, condition, given)),), (relation, *more))


def _text_or(wanted: str, relation: tuple[str, str]) -> Macro:
    """The name of what has an oid; what is no oid of any stays as it is."""
    return _simple("o", f"coalesce({_of_number(wanted, relation)}, CAST(o AS VARCHAR))", relation)


def _of_number(wanted: str, relation: tuple[str, str]) -> str:
    return _looked_up(f"max({wanted})", relation, "hr_t.oid = TRY_CAST($o AS BIGINT)")


def _oid_or(relation: tuple[str, str], condition: str) -> Macro:
    """The oid of what has a name; a number stays as it is."""
    return Macro(
        (("o", f"coalesce(TRY_CAST(o AS BIGINT), {_looked_up('min(hr_t.oid)', relation, condition)})"),), (relation,)
    )


def _described(catalog: str) -> Macro:
    relation = ("pg_catalog", catalog)
    part = " AND hr_t.objsubid = 0" if catalog == "pg_description" else ""
    text = _looked_up("max(hr_t.description)", relation, f"hr_t.objoid = $o{part}")
    return Macro((("o", text), ("o, c", text)), (relation,))


def _typmod(suffix: str) -> str:
    return f"'numeric(' || ((m - 4) // 65536) || ',' || ((m - 4) % 65536) || '){suffix}'"


_SPLIT: Final = (
    "CASE WHEN t = '' THEN [] WHEN s IS NULL THEN string_split(t, '') WHEN s = '' THEN [t] ELSE string_split(t, s) END"
)
_PART: Final = '("([^"]|"")+"|[A-Za-z_][A-Za-z_0-9$]*)'
"""A part of a name: in quotes, or a word."""


def _parts(text: str) -> str:
    """The parts of a qualified name, as SQL that computes them."""
    return (
        f"list_transform(regexp_extract_all({text}, '{_PART}'), lambda e: CASE WHEN starts_with(e, '\"') "
        "THEN replace(e[2:-2], '\"\"', '\"') ELSE lower(e) END)"
    )


_PROC, _ROLES = ("pg_catalog", "pg_proc"), ("pg_catalog", "pg_roles")
_TYPE_NAME = _looked_up("max(hr_t.name)", TYPE_NAMES, "hr_t.oid = $o")
_DEFINITION = _looked_up("max(hr_t.definition)", DEFINITIONS, "hr_t.oid = $o")
_KEY_COLUMN = _looked_up("max(hr_t.columns[$n])", DEFINITIONS, "hr_t.oid = $o", "o, n")
_DEFINED = Macro((("o", _DEFINITION), ("o, p", _DEFINITION)), (DEFINITIONS,))

MACROS: Final[dict[str, Macro]] = {
    "format_type": _simple(
        "o, m",
        f"CASE WHEN o IS NULL THEN NULL WHEN o = 1700 AND m >= 4 THEN {_typmod('')} WHEN o = 1231 AND m >= 4 THEN "
        f"{_typmod('[]')} ELSE coalesce({_TYPE_NAME}, '???') END",
        TYPE_NAMES,
    ),
    "pg_get_userbyid": _simple(
        "o", f"coalesce({_of_number('hr_t.rolname', _ROLES)}, 'unknown (OID=' || o || ')')", _ROLES
    ),
    "pg_table_is_visible": _lookup("bool_or(hr_t.visible)", NAMES, "hr_t.oid = $o"),
    "pg_get_expr": Macro((("x, r", "x"), ("x, r, p", "x"))),
    "pg_get_constraintdef": _DEFINED,
    "pg_get_viewdef": _DEFINED,
    "pg_get_indexdef": Macro(
        (("o", _DEFINITION), ("o, n, p", f"CASE WHEN n = 0 THEN {_DEFINITION} ELSE {_KEY_COLUMN} END")), (DEFINITIONS,)
    ),
    "pg_get_function_result": _lookup("max(hr_t.result)", FUNCTION_TYPES, "hr_t.oid = $o"),
    **dict.fromkeys(
        ("pg_get_function_arguments", "pg_get_function_identity_arguments"),
        _lookup("max(hr_t.arguments)", FUNCTION_TYPES, "hr_t.oid = $o"),
    ),
    "obj_description": _described("pg_description"),
    "shobj_description": _described("pg_shdescription"),
    "col_description": _lookup(
        "max(hr_t.description)", ("pg_catalog", "pg_description"), "hr_t.objoid = $o AND hr_t.objsubid = $n",
        given="o, n",
    ),
    "pg_encoding_to_char": _simple("e", "CASE WHEN e = 6 THEN 'UTF8' ELSE '' END"),
    "quote_ident": _simple(
        "x",
        "CASE WHEN regexp_full_match(x, '[a-z_][a-z0-9_$]*') THEN x ELSE '\"' || replace(x, '\"', '\"\"') || '\"' END",
    ),
    "quote_nullable": _simple(
        "x", "CASE WHEN x IS NULL THEN 'NULL' ELSE '''' || replace(CAST(x AS VARCHAR), '''', '''''') || '''' END"
    ),
    "quote_literal": _simple("x", "'''' || replace(CAST(x AS VARCHAR), '''', '''''') || ''''"),
    "pg_size_pretty": _simple(
        "a", "CASE WHEN abs(a) < 10240 THEN a || ' bytes' WHEN abs(a) < 10485760 THEN (a // 1024) || ' kB' "
        "WHEN abs(a) < 10737418240 THEN (a // 1048576) || ' MB' ELSE (a // 1073741824) || ' GB' END",
    ),
    "array_lower": _simple("a, n", "CASE WHEN n = 1 AND len(a) > 0 THEN 1 END"),
    **dict.fromkeys(
        ("array_upper", "array_length"),
        _simple("a, n", "CASE WHEN n = 1 AND len(a) > 0 THEN CAST(len(a) AS INTEGER) END"),
    ),
    "array_ndims": _simple("a", "CASE WHEN len(a) > 0 THEN 1 END"),
    "cardinality": _simple("a", "CAST(len(a) AS INTEGER)"),
    "array_remove": _simple("a, x", "list_filter(a, lambda e: e IS DISTINCT FROM x)"),
    "string_to_array": Macro((
        ("t, s", _SPLIT),
        ("t, s, n", f"list_transform({_SPLIT}, lambda e: CASE WHEN e = n THEN NULL ELSE e END)"),
    )),
    "parse_ident": _simple(
        "t",
        f"CASE WHEN regexp_full_match(trim(t), '{_PART}(\\s*[.]\\s*{_PART})*') THEN {_parts('t')} "
        "ELSE error('string is not a valid identifier: \"' || t || '\"') END",
    ),
    "setting_named": _lookup("max(hr_t.setting)", ("pg_catalog", "pg_settings"), "hr_t.name = $o"),
    "array_position": _simple("a, x", "list_position(a, x)"),
    "array_to_string": Macro((
        ("a, s", "array_to_string(list_filter(a, lambda x: x IS NOT NULL), s)"),
        ("a, s, n", "array_to_string(list_transform(a, lambda x: coalesce(CAST(x AS VARCHAR), n)), s)"),
    )),
    "_pg_expandarray": _simple(
        "a", "unnest(list_transform(a, lambda x, i: {'x': x, 'n': CAST(i AS INTEGER)}))"
    ),
    "regclass_text": _simple(
        "o", f"CASE WHEN TRY_CAST(o AS BIGINT) = 0 THEN '-' ELSE coalesce({_of_number('hr_t.text', NAMES)}, "
        "CAST(o AS VARCHAR)) END",
        NAMES,
    ),
    "regclass_oid": _oid_or(
        NAMES, f"array_to_string({_parts('CAST($o AS VARCHAR)')}, '.') IN (hr_t.qualified, "
        "CASE WHEN hr_t.visible THEN hr_t.name END)"
    ),
    "regtype_text": _text_or("hr_t.name", TYPE_NAMES),
    "regtype_oid": _oid_or(TYPE_NAMES, "CAST($o AS VARCHAR) IN (hr_t.name, hr_t.short)"),
    "regnamespace_text": _text_or("hr_t.nspname", _NAMESPACE),
    "regnamespace_oid": _oid_or(_NAMESPACE, "hr_t.nspname = CAST($o AS VARCHAR)"),
    "regproc_text": _text_or("hr_t.proname", _PROC),
    "regrole_text": _text_or("hr_t.rolname", _ROLES),
    "regrole_oid": _oid_or(_ROLES, "hr_t.rolname = CAST($o AS VARCHAR)"),
    **dict.fromkeys(
        ("pg_type_is_visible", "pg_function_is_visible", "pg_operator_is_visible", "pg_opclass_is_visible",
         "pg_collation_is_visible", "pg_statistics_obj_is_visible", "pg_conversion_is_visible",
         "pg_ts_config_is_visible",
         "pg_ts_dict_is_visible", "pg_ts_parser_is_visible", "pg_ts_template_is_visible", "pg_opfamily_is_visible"),
        _constant("a IS NOT NULL", 1),
    ),
    **dict.fromkeys(
        ("pg_get_ruledef", "pg_get_triggerdef", "pg_get_partkeydef", "pg_get_partition_constraintdef",
         "pg_get_statisticsobjdef_columns", "pg_get_functiondef", "pg_get_function_sqlbody", "pg_get_serial_sequence",
         "pg_tablespace_location", "pg_describe_object", "inet_server_addr", "inet_client_addr",
         "pg_get_statisticsobjdef",
         "pg_get_function_arg_default"),
        _constant(_NO_TEXT, 0, 1, 2, 3),
    ),
    **dict.fromkeys(
        ("pg_table_size", "pg_relation_size", "pg_total_relation_size", "pg_database_size", "pg_indexes_size",
         "pg_stat_get_numscans", "pg_sequence_last_value", "pg_stat_get_live_tuples", "pg_stat_get_dead_tuples",
         "pg_relation_filenode"),
        _constant(_NO_NUMBER, 1, 2),
    ),
    **dict.fromkeys(
        ("pg_relation_is_publishable", "pg_is_other_temp_schema", "pg_index_column_has_property",
         "pg_index_has_property", "pg_indexam_has_property"), _constant("false", 1, 2, 3),
    ),
    "getdatabaseencoding": _constant("'UTF8'", 0),
    "pg_char_to_encoding": _simple("e", "CASE WHEN e = 'UTF8' THEN 6 ELSE -1 END"),
    "pg_my_temp_schema": _constant("0", 0),
    "txid_current": _constant("1", 0),
    "age": _constant("CAST(0 AS INTEGER)", 1),
}  # fmt: skip
"""By PostgreSQL's name."""

_SAME: Final = (
    "count sum min max avg bool_and bool_or array_agg string_agg concat concat_ws lower upper length substring "
    "substr replace regexp_replace split_part strpos left right trim ltrim rtrim overlay md5 reverse "
    "translate abs round floor ceil ceiling mod sign row_number rank dense_rank ntile "
    "first_value last_value lag lead now date_part unnest array_append array_prepend starts_with ascii "
    "chr to_json percent_rank cume_dist date_trunc nth_value "
)
NATIVE: Final[dict[str, str]] = {
    **{name: name for name in _SAME.split()},
    "btrim": "trim", "extract": "date_part", "position": "strpos",
    "every": "bool_and", "char_length": "length", "character_length": "length",
    "octet_length": "strlen",
    "array_cat": "list_concat", "json_build_object": "json_object", "jsonb_build_object": "json_object",
    "json_agg": "json_group_array", "jsonb_agg": "json_group_array", "row_to_json": "to_json", "to_jsonb": "to_json",
    "json_object_agg": "json_group_object", "json_build_array": "json_array",
}  # fmt: skip
"""PostgreSQL's name -> DuckDB's, of functions that mean the same on what the catalogs hold."""
