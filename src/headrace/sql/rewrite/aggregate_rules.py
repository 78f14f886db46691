"""Rules for aggregates."""

from __future__ import annotations

from sqlglot import exp

from headrace.sql.rewrite.tree_building import Types, cast, fn, number, raw
from headrace.sql.sort_comparators import array_comparator

_D = exp.DType


def array_agg(node: exp.Expr, types: Types) -> exp.Expr:
    """`array_agg` keeps NULLs, honours `ORDER BY` and `DISTINCT`, and is NULL over no rows.

    Values travel in a struct, since Spark's `collect_list` drops bare NULLs.
    """
    where = None
    aggregate = node
    if isinstance(node, exp.Filter):
        aggregate, where = node.this, node.expression
    value, keys, distinct = _parts(aggregate.this)
    fields = [exp.alias_(value.copy(), _name("v"))]
    fields += [exp.alias_(key.this.copy(), _name(f"k{i}")) for i, key in enumerate(keys)]
    collected: exp.Expr = fn("COLLECT_SET" if distinct else "COLLECT_LIST", fn("STRUCT", *fields))
    if where is not None:
        collected = exp.Filter(this=collected, expression=where)
    if keys or distinct:
        order = [(f"k{i}", bool(key.args.get("desc")), bool(key.args.get("nulls_first"))) for i, key in enumerate(keys)]
        collected = fn("ARRAY_SORT", collected, raw(array_comparator(order or [("v", False, False)])))
    return fn("NULLIF", fn("TRANSFORM", collected, raw("`__s` -> `__s`.`v`")), fn("ARRAY"))


def _parts(inner: exp.Expr) -> tuple[exp.Expr, list[exp.Expr], bool]:
    """The aggregated value, the sort keys and whether it is distinct."""
    keys: list[exp.Expr] = []
    if isinstance(inner, exp.Order):
        keys, inner = list(inner.expressions), inner.this
    if isinstance(inner, exp.Distinct):
        return inner.expressions[0], keys, True
    return inner, keys, False


def _name(text: str) -> exp.Identifier:
    return exp.to_identifier(text, quoted=True)


def string_agg(node: exp.Expr, types: Types) -> exp.Expr:
    """`string_agg(value, separator ORDER BY ...)` becomes `listagg`."""
    inner, separator = node.this, node.args.get("separator") or exp.Literal.string("")
    order = None
    if isinstance(inner, exp.Order):
        order, inner = inner, inner.this
    elif isinstance(separator, exp.Order):
        order, separator = separator, separator.this
    distinct = isinstance(inner, exp.Distinct)
    value = inner.expressions[0] if distinct else inner
    text: exp.Expr = cast(value.copy(), _D.TEXT)
    call: exp.Expr = fn("LISTAGG", exp.Distinct(expressions=[text]) if distinct else text, separator.copy())
    if order is not None:
        keys = [key.copy() for key in order.expressions]
        if distinct:
            for key in keys:
                if key.this == value:
                    key.set("this", text.copy())
        call = exp.WithinGroup(this=call, expression=exp.Order(expressions=keys))
    return call


def is_array_agg(node: exp.Expr) -> bool:
    """Whether `node` is an `array_agg`, with its `FILTER` if it has one."""
    if isinstance(node, exp.ArrayAgg):
        return not isinstance(node.parent, (exp.Filter, exp.Window, exp.WithinGroup))
    return isinstance(node, exp.Filter) and isinstance(node.this, exp.ArrayAgg)


def distinct_on(select: exp.Select) -> exp.Select:
    """`SELECT DISTINCT ON (keys) ... ORDER BY ...`: the first row of each key, in the order given."""
    distinct = select.args["distinct"]
    keys = distinct.args["on"].expressions
    order, with_ = select.args.get("order"), select.args.get("with_")
    names = [item.alias_or_name for item in select.expressions]
    wanted = {item.alias: item.this for item in select.expressions if isinstance(item, exp.Alias)}
    ordered = [item.copy() for item in order.expressions] if order is not None else []
    for item in ordered:
        _resolve(item, wanted, select)
    ranks = [exp.alias_(item.this.copy(), _name(f"__k{i}")) for i, item in enumerate(ordered)]
    partition = [_resolved(key.copy(), wanted, select) for key in keys]
    window = exp.Window(
        this=exp.RowNumber(),
        partition_by=partition,
        order=exp.Order(expressions=ordered or [exp.Ordered(this=key.copy()) for key in partition]),
    )
    inner = select.copy()
    for key in ("distinct", "order", "limit", "offset", "with_"):
        inner.set(key, None)
    inner.set("expressions", [*inner.expressions, exp.alias_(window, _name("__rank")), *ranks])
    hidden = [_name("__rank"), *(_name(f"__k{i}") for i in range(len(ranks)))]
    stars = any(item.is_star for item in select.expressions)
    outputs = [exp.Star(except_=hidden)] if stars else [exp.Column(this=_name(name)) for name in names]
    outer = exp.Select(
        expressions=outputs,
        from_=exp.From(this=exp.Subquery(this=inner, alias=exp.TableAlias(this=_name("__ranked")))),
        where=exp.Where(this=exp.EQ(this=exp.Column(this=_name("__rank")), expression=number(1))),
        limit=select.args.get("limit"),
        offset=select.args.get("offset"),
        with_=with_,
    )
    if ordered:
        outer.set("order", exp.Order(expressions=[_by_rank(item, i) for i, item in enumerate(ordered)]))
    return outer


def _by_rank(item: exp.Expr, i: int) -> exp.Expr:
    key = item.copy()
    key.set("this", exp.Column(this=_name(f"__k{i}")))
    return key


def _resolve(item: exp.Expr, wanted: dict[str, exp.Expr], select: exp.Select) -> None:
    item.set("this", _resolved(item.this, wanted, select))


def _resolved(key: exp.Expr, wanted: dict[str, exp.Expr], select: exp.Select) -> exp.Expr:
    """The expression that an output name or an output number stands for."""
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(select.expressions):
        found: exp.Expr = select.expressions[int(key.name) - 1].unalias().copy()
        return found
    if isinstance(key, exp.Column) and not key.table and key.name in wanted:
        return wanted[key.name].copy()
    return key
