"""`WITH RECURSIVE`: a query whose rows are made of its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postgast import pg_query_pb2 as pb

from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    Itself,
    JoinedRelation,
    Over,
    Query,
    Recursive,
    Relation,
    SelectQuery,
    walk,
)
from headrace.sql.binder.parse_tree import Nodes, check, inner, kind_of, refuse
from headrace.sql.binder.scope import PendingCte, Scope, Wrong

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder


def recursive_query(binder: Binder, cte: pb.CommonTableExpr, scope: Scope) -> Query | None:
    """What a CTE of `WITH RECURSIVE` means; None if it does not use itself."""
    body = check(cte.ctequery.select_stmt)
    if body.op != pb.SETOP_UNION:
        return None
    first = binder.branch(body.larg, scope)
    names = [inner(n).sval for n in cte.aliascolnames]
    if len(names) > len(first.names):
        available = f"{len(first.names)} columns available but {len(names)} columns specified"
        raise Wrong(f'WITH query "{cte.ctename}" has {available}', "42P10", cte.location)
    columns = (*names, *first.names[len(names) :])
    itself = PendingCte(columns, tuple(first.types), binder.next_id())
    scope.ctes[cte.ctename] = itself
    following = binder.branch(body.rarg, scope)
    if not itself.uses:
        return None
    if not body.all:
        refuse("WITH RECURSIVE by UNION without ALL", cte)
    if body.sort_clause or body.HasField("limit_count") or body.HasField("limit_offset") or itself.uses > 1:
        refuse("this recursion", cte)
    _check_step(following, cte)
    _check_types(first, following, cte)
    return Recursive(columns, first.types, (), None, None, itself.number, first, following)


def _check_step(step: Query, cte: pb.CommonTableExpr) -> None:
    """Refuse a step whose rows are not made of single rows of the one before."""
    plain = isinstance(step, SelectQuery) and not (
        step.grouping or step.distinct or step.order or step.limit or step.offset
    )
    if not plain or not isinstance(step, SelectQuery) or step.having is not None or not _uses(step.source):
        refuse("this recursion", cte)
    if any(isinstance(part, (BoundAggregate, Over)) for output in step.outputs for part in walk(output.value)):
        refuse("this recursion", cte)


def _uses(source: Relation | None) -> bool:
    """Whether a FROM has the query itself where no row of it can be padded."""
    if not isinstance(source, JoinedRelation):
        return isinstance(source, Itself)
    if source.kind == "LEFT OUTER JOIN":
        return _uses(source.left)
    return source.kind in ("INNER JOIN", "CROSS JOIN") and (_uses(source.left) or _uses(source.right))


def _check_types(first: Query, following: Query, cte: pb.CommonTableExpr) -> None:
    if len(first.types) != len(following.types):
        raise Wrong("each UNION query must have the same number of columns", "42601", cte.location)
    for i, (kind, found) in enumerate(zip(first.types, following.types, strict=True)):
        if kind.name != found.name:
            what = f'recursive query "{cte.ctename}" column {i + 1} has type {kind} in non-recursive term'
            hint = "Cast the output of the non-recursive term to the correct type."
            raise Wrong(f"{what} but type {found} overall", "42804", cte.location, hint)
        if kind.spark != found.spark:
            refuse(f"a column of {kind} in a recursive query", cte)


def declare_pending(ctes: Nodes, scope: Scope) -> None:
    """Have the names of a WITH RECURSIVE mean its own queries from the beginning on."""
    for node in ctes:
        cte = inner(node)
        if cte.ctename in scope.ctes:
            raise Wrong(f'WITH query name "{cte.ctename}" specified more than once', "42712", cte.location)
        if kind_of(cte.ctequery) == "SelectStmt":
            scope.ctes[cte.ctename] = PendingCte()
