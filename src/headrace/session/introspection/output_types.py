"""PostgreSQL's types of what a query over the system catalogs returns and compares, by its syntax tree.

DuckDB computes oids as numbers and names as text, and does not say which they were. Here they are followed from the
columns of system relations and from casts to where they come out. What is not followed is None: it has the type that
DuckDB gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from postgast import pg_query_pb2 as pb

from headrace.common.lazy_dataclass import dataclass
from headrace.session.introspection import syntax_nodes
from headrace.sql.binder.output_names import output_name
from headrace.sql.catalog_types import CATALOG_TYPES, element_of

Output: TypeAlias = tuple[str, str | None]
"""Name and type of a column."""
ColumnsOf: TypeAlias = Callable[[str | None, str], Sequence[Output] | None]
"""The columns of a system relation by schema and name; None where there is none."""
_LITERAL: Final = "literal"
"""The type of a literal, a null or a parameter, which is what its context makes of it."""
_NUMBERS: Final = ("oid", "bigint", "int", "smallint")
_TEXTS: Final = ("string", "name", "varchar")
_HELD: Final = {
    "text": "string", "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float",
    "float8": "double", "bpchar": "string",
}  # fmt: skip
_RESULTS: Final = {
    **dict.fromkeys(
        ("pg_get_userbyid", "current_database", "current_schema", "current_catalog", "current_user", "session_user",
         "user", "current_role", "getdatabaseencoding", "pg_encoding_to_char"), "name",
    ),
    "current_schemas": "array<name>", "to_regclass": "regclass", "to_regtype": "regtype",
    "to_regnamespace": "regnamespace", "pg_my_temp_schema": "oid", "pg_relation_filenode": "oid",
}  # fmt: skip
"""Functions that return a type of the catalogs."""
_SAME: Final = ("first_value", "last_value", "lag", "lead", "nth_value")
_COMPARED: Final = (pb.AEXPR_OP, pb.AEXPR_OP_ANY, pb.AEXPR_OP_ALL, pb.AEXPR_IN, pb.AEXPR_DISTINCT,
                    pb.AEXPR_NOT_DISTINCT, pb.AEXPR_BETWEEN, pb.AEXPR_NOT_BETWEEN)  # fmt: skip
_COMPARISONS: Final = ("=", "<>", "!=", "<", ">", "<=", ">=", "BETWEEN", "NOT BETWEEN")


@dataclass(frozen=True)
class _Scope:
    """What names mean inside of a query."""

    columns_of: ColumnsOf
    named: Mapping[str, Sequence[Output]]
    """The queries in WITH."""
    sources: Sequence[tuple[str, Sequence[Output]]] = ()
    outer: _Scope | None = None

    def column(self, name: str, of: str | None = None) -> str | None:
        """The type of a column."""
        if name == "tableoid":
            return "oid"
        for alias, columns in self.sources:
            if of is None or of == alias:
                for label, kind in columns:
                    if label == name:
                        return kind
        return None if self.outer is None else self.outer.column(name, of)


def output_types(tree: pb.Node, columns_of: ColumnsOf) -> list[str | None]:
    """The types of a query's outputs."""
    return [kind for _, kind in _outputs(tree.select_stmt, _Scope(columns_of, {}))]


def parameter_types(tree: pb.Node, columns_of: ColumnsOf) -> dict[int, str]:
    """The types of parameters that are compared with what has a type of the catalogs."""
    found: dict[int, str] = {}
    _find_parameters(tree.select_stmt, _Scope(columns_of, {}), found)
    return found


# ---- queries


def _outputs(select: pb.SelectStmt, outer: _Scope) -> list[Output]:
    scope = _inside(select, outer)
    if select.op != pb.SETOP_NONE:
        left, right = _outputs(select.larg, scope), _outputs(select.rarg, scope)
        return [(name, _common([kind, other])) for (name, kind), (_, other) in zip(left, right)]
    if select.values_lists:
        rows = [list(row.list.items) for row in select.values_lists]
        return [(f"column{i}", _common([_type(v, scope) for v in column])) for i, column in enumerate(zip(*rows), 1)]
    found: list[Output] = []
    for item in select.target_list:
        target = item.res_target
        if _is_star(target.val):
            found += _all_columns(target.val, scope, _merged(select))
        else:
            kind = _type(target.val, scope)
            found.append((target.name or output_name(target.val), "string" if kind == _LITERAL else kind))
    return found


def _inside(select: pb.SelectStmt, outer: _Scope) -> _Scope:
    """What names mean in a query: its own relations, and those of the queries around it."""
    named = dict(outer.named)
    for item in select.with_clause.ctes:
        cte = item.common_table_expr
        query = cte.ctequery.select_stmt
        scope = _Scope(outer.columns_of, named, outer.sources, outer.outer)
        if select.with_clause.recursive and query.op != pb.SETOP_NONE:  # of what it begins with
            scope, query = _inside(query, scope), query.larg
        named[cte.ctename] = _renamed(_outputs(query, scope), [n.string.sval for n in cte.aliascolnames])
    sources: list[tuple[str, Sequence[Output]]] = []
    for item in select.from_clause:
        sources += _sources(item, _Scope(outer.columns_of, named, tuple(sources), outer))
    return _Scope(outer.columns_of, named, tuple(sources), outer)


def _sources(node: pb.Node, scope: _Scope) -> Iterator[tuple[str, Sequence[Output]]]:
    kind = node.WhichOneof("node")
    if kind == "join_expr":
        yield from _sources(node.join_expr.larg, scope)
        yield from _sources(node.join_expr.rarg, scope)
    elif kind == "range_var":
        table = node.range_var
        columns = None if table.schemaname else scope.named.get(table.relname)
        if columns is None:
            columns = scope.columns_of(table.schemaname or None, table.relname) or ()
        yield table.alias.aliasname or table.relname, _renamed(columns, _labels(table.alias))
    elif kind == "range_subselect":
        query = node.range_subselect
        found = _outputs(query.subquery.select_stmt, scope)
        yield query.alias.aliasname, _renamed(found, _labels(query.alias))
    elif kind == "range_function":
        yield from _of_function(node.range_function, scope)


def _of_function(relation: pb.RangeFunction, scope: _Scope) -> Iterator[tuple[str, Sequence[Output]]]:
    call = relation.functions[0].list.items[0]
    name = syntax_nodes.function_name(call)
    alias = relation.alias.aliasname or name
    if len(relation.functions) == 1 and name == "_pg_expandarray":
        yield alias, _renamed([("x", _element(_argument(call, scope))), ("n", "int")], _labels(relation.alias))
    elif len(relation.functions) == 1:
        kind = _element(_argument(call, scope)) if name == "unnest" else _type(call, scope)
        yield alias, _renamed([(alias, kind), ("ordinality", "bigint")], _labels(relation.alias))


def _labels(alias: pb.Alias) -> list[str]:
    return [name.string.sval for name in alias.colnames]


def _renamed(columns: Sequence[Output], labels: Sequence[str]) -> list[Output]:
    return [(labels[i] if i < len(labels) else name, kind) for i, (name, kind) in enumerate(columns)]


def _is_star(node: pb.Node) -> bool:
    return node.WhichOneof("node") == "column_ref" and node.column_ref.fields[-1].HasField("a_star")


def _all_columns(node: pb.Node, scope: _Scope, merged: bool) -> list[Output]:
    of = node.column_ref.fields[-2].string.sval if len(node.column_ref.fields) > 1 else None
    found: list[Output] = []
    for alias, columns in scope.sources:
        if of in (None, alias):
            found += [c for c in columns if not (merged and of is None and c[0] in dict(found))]
    return found


def _merged(select: pb.SelectStmt) -> bool:
    """Whether joined relations have columns in common that come out once."""
    return any(j.is_natural or j.using_clause for j in syntax_nodes.messages(select, pb.JoinExpr, within_queries=True))


# ---- expressions


def _type(node: pb.Node, scope: _Scope) -> str | None:
    kind = node.WhichOneof("node")
    known = _EXPRESSIONS.get(kind or "")
    return None if known is None else known(node, scope)


def _column(node: pb.Node, scope: _Scope) -> str | None:
    names = [field.string.sval for field in node.column_ref.fields]
    return scope.column(names[-1], names[-2] if len(names) > 1 else None)


def _cast(node: pb.Node, scope: _Scope) -> str | None:
    of = node.type_cast.type_name
    name = of.names[-1].string.sval
    if of.array_bounds:
        return f"array<{name}>" if f"array<{name}>" in CATALOG_TYPES else None
    return name if name in CATALOG_TYPES else _HELD.get(name)


def _call(node: pb.Node, scope: _Scope) -> str | None:
    name = syntax_nodes.function_name(node)
    if name in ("min", "max"):
        kind = _argument(node, scope)
        return "string" if kind in _TEXTS else kind
    if name in _SAME:
        return _argument(node, scope)
    if name == "unnest":
        return _element(_argument(node, scope))
    if name == "array_agg":
        return _array(_argument(node, scope))
    if name in ("array_remove", "array_append", "array_cat"):
        return _argument(node, scope)
    return _RESULTS.get(name)


def _argument(node: pb.Node, scope: _Scope) -> str | None:
    given = node.func_call.args
    return _type(given[0], scope) if given else None


def _array(element: str | None) -> str | None:
    made = f"array<{element}>"
    return made if made in CATALOG_TYPES else None


def _element(kind: str | None) -> str | None:
    found = None if kind is None else element_of(kind)
    return None if found == kind else found


def _sublink(node: pb.Node, scope: _Scope) -> str | None:
    link = node.sub_link
    if link.sub_link_type not in (pb.EXPR_SUBLINK, pb.ARRAY_SUBLINK):
        return "boolean"
    found = _outputs(link.subselect.select_stmt, scope)
    kind = found[0][1] if found else None
    return _array(kind) if link.sub_link_type == pb.ARRAY_SUBLINK else kind


def _case(node: pb.Node, scope: _Scope) -> str | None:
    results = [item.case_when.result for item in node.case_expr.args]
    if node.case_expr.HasField("defresult"):
        results.append(node.case_expr.defresult)
    return _common([_type(r, scope) for r in results])


def _element_of_array(node: pb.Node, scope: _Scope) -> str | None:
    return _element(_type(node.a_indirection.arg, scope))


def _operation(node: pb.Node, scope: _Scope) -> str | None:
    if node.a_expr.kind == pb.AEXPR_NULLIF:
        return _type(node.a_expr.lexpr, scope)
    return None


def _constant(node: pb.Node, scope: _Scope) -> str | None:
    value = node.a_const.WhichOneof("val")
    return {"ival": "int", "boolval": "boolean"}.get(value or "", None if value == "fval" else _LITERAL)


def _values(given: Callable[[pb.Node], Sequence[pb.Node]]) -> Callable[[pb.Node, _Scope], str | None]:
    return lambda node, scope: _common([_type(value, scope) for value in given(node)])


_EXPRESSIONS: Final[Mapping[str, Callable[[pb.Node, _Scope], str | None]]] = {
    "column_ref": _column, "type_cast": _cast, "func_call": _call, "sub_link": _sublink, "case_expr": _case,
    "a_indirection": _element_of_array, "a_expr": _operation, "a_const": _constant,
    "coalesce_expr": _values(lambda node: node.coalesce_expr.args),
    "min_max_expr": _values(lambda node: node.min_max_expr.args),
    "a_array_expr": lambda node, scope: _array(_common([_type(v, scope) for v in node.a_array_expr.elements])),
    "collate_clause": lambda node, scope: _type(node.collate_clause.arg, scope),
    "param_ref": lambda node, scope: _LITERAL,
    "sqlvalue_function": lambda node, scope: "name" if output_name(node) in _RESULTS else None,
    "bool_expr": lambda node, scope: "boolean", "null_test": lambda node, scope: "boolean",
}  # fmt: skip


def _common(types: Sequence[str | None]) -> str | None:
    """The type of what may be any of some: PostgreSQL prefers oids to numbers, and text to names."""
    known = {kind for kind in types if kind != _LITERAL}
    if not known:
        return _LITERAL
    if len(known) == 1:
        return known.pop()
    if "oid" in known and all(kind in _NUMBERS for kind in known):
        return "oid"
    return "string" if "string" in known and all(kind in _TEXTS for kind in known) else None


# ---- parameters


def _find_parameters(select: pb.SelectStmt, outer: _Scope, found: dict[int, str]) -> None:
    """Find those of a query, and of the queries in it."""
    for item in select.with_clause.ctes:
        _find_parameters(item.common_table_expr.ctequery.select_stmt, _inside(select, outer), found)
    if select.op != pb.SETOP_NONE:
        for side in (select.larg, select.rarg):
            _find_parameters(side, _inside(select, outer), found)
        return
    scope = _inside(select, outer)
    for expression in syntax_nodes.messages_of_query(select, pb.A_Expr):
        _compare(expression, scope, found)
    for query in syntax_nodes.queries_of_query(select):
        _find_parameters(query, scope, found)


def _compare(expression: pb.A_Expr, scope: _Scope, found: dict[int, str]) -> None:
    name = expression.name[-1].string.sval if expression.name else ""
    if expression.kind not in _COMPARED or name not in _COMPARISONS:
        return
    sides = [[side] if side.WhichOneof("node") != "list" else list(side.list.items)
             for side in (expression.lexpr, expression.rexpr)]  # fmt: skip
    kinds = [_common([_type(value, scope) for value in side]) for side in sides]
    for values, kind in zip(sides, reversed(kinds)):
        if kind in CATALOG_TYPES:
            many = expression.kind in (pb.AEXPR_OP_ANY, pb.AEXPR_OP_ALL) and values is sides[1]
            wanted = f"array<{kind}>" if many else kind
            for value in values:
                if value.WhichOneof("node") == "param_ref" and wanted in CATALOG_TYPES:
                    found.setdefault(value.param_ref.number, wanted)
