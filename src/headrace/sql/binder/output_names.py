"""How PostgreSQL names an output that has no name of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.sql.binder.parse_tree import kind_of

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

_VALUES = {
    "SVFOP_CURRENT_DATE": "current_date", "SVFOP_CURRENT_TIMESTAMP": "current_timestamp",
    "SVFOP_LOCALTIMESTAMP": "localtimestamp",
    "SVFOP_CURRENT_USER": "current_user", "SVFOP_USER": "user", "SVFOP_SESSION_USER": "session_user",
    "SVFOP_CURRENT_CATALOG": "current_catalog", "SVFOP_CURRENT_SCHEMA": "current_schema",
}  # fmt: skip


def output_name(node: pb.Node) -> str:
    """The name of a target's expression."""
    return _named(node)[0] or "?column?"


def _named(node: pb.Node) -> tuple[str | None, int]:
    """The name and how good it is: 2 for a column's or a function's, 1 for a type's."""
    kind = kind_of(node)
    if kind == "ColumnRef":
        last = node.column_ref.fields[-1]
        return (last.string.sval, 2) if kind_of(last) == "String" else (None, 0)
    if kind == "A_Indirection":
        for part in reversed(node.a_indirection.indirection):
            if kind_of(part) == "String":
                return part.string.sval, 2
        return _named(node.a_indirection.arg)
    if kind == "FuncCall":
        return node.func_call.funcname[-1].string.sval, 2
    if kind == "A_Expr":
        from postgast import pg_query_pb2 as pb

        return ("nullif", 2) if node.a_expr.kind == pb.AEXPR_NULLIF else (None, 0)
    if kind == "TypeCast":
        found = _named(node.type_cast.arg)
        return found if found[1] == 2 else (node.type_cast.type_name.names[-1].string.sval, 1)
    if kind == "CollateClause":
        return _named(node.collate_clause.arg)
    if kind == "SQLValueFunction":
        from postgast import pg_query_pb2 as pb

        name = pb.SQLValueFunctionOp.Name(node.sqlvalue_function.op)
        return _VALUES.get(name.removesuffix("_N")), 2
    if kind == "CaseExpr":
        if node.case_expr.HasField("defresult"):
            found = _named(node.case_expr.defresult)
            if found[1] == 2:
                return found
        return "case", 1
    if kind == "SubLink":
        return _of_subquery(node.sub_link)
    if kind == "MinMaxExpr":
        return ("greatest", "least")[node.min_max_expr.op - 1], 2
    simple = {"CoalesceExpr": "coalesce", "A_ArrayExpr": "array", "RowExpr": "row", "GroupingFunc": "grouping"}
    return (simple[kind], 2) if kind in simple else (None, 0)


def _of_subquery(link: pb.SubLink) -> tuple[str | None, int]:
    from postgast import pg_query_pb2 as pb

    if link.sub_link_type == pb.EXISTS_SUBLINK:
        return "exists", 2
    if link.sub_link_type == pb.ARRAY_SUBLINK:
        return "array", 2
    if link.sub_link_type != pb.EXPR_SUBLINK or kind_of(link.subselect) != "SelectStmt":
        return None, 0
    select = link.subselect.select_stmt
    while select.HasField("larg"):
        select = select.larg
    if not select.target_list:
        return None, 0
    target = select.target_list[0].res_target
    return (target.name, 2) if target.name else _named(target.val)
