"""A parsed query in one shape: names folded, table functions made plain, outputs named as PostgreSQL names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError

from headrace.errors import NotSupported
from headrace.sql.dialect import Headrace
from headrace.sql.statements import TableName

OWN = "hr_own"
"""Marks a call of one of Spark's functions that is not the user's."""

_SPECIAL_NAMES: dict[type[exp.Expr], str] = {
    exp.CurrentTimestamp: "now",
    exp.CurrentDate: "current_date",
    exp.Case: "case",
    exp.Coalesce: "coalesce",
    exp.Exists: "exists",
    exp.ArrayAgg: "array_agg",
    exp.Array: "array",
    exp.Extract: "extract",
    exp.GroupConcat: "string_agg",
    exp.TimestampTrunc: "date_trunc",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.Explode: "unnest",
    exp.ExplodingGenerateSeries: "generate_series",
    exp.Trim: "btrim",
    exp.StrPosition: "position",
    exp.RegexpReplace: "regexp_replace",
    exp.Ceil: "ceil",
    exp.Pow: "power",
    exp.CurrentVersion: "version",
    exp.AtTimeZone: "timezone",
    exp.Interval: "interval",
    exp.Boolean: "bool",
    exp.If: "case",
    exp.StddevSamp: "stddev_samp",
    exp.Length: "length",
    exp.ArraySize: "array_length",
    exp.VariancePop: "var_pop",
    exp.Variance: "var_samp",
    exp.Stddev: "stddev",
    exp.StddevPop: "stddev_pop",
    exp.Rand: "random",
    exp.SplitPart: "split_part",
}


def fold_names(tree: exp.Expr) -> None:
    """Lower-case every unquoted identifier and quote all of them."""
    for identifier in tree.find_all(exp.Identifier):
        if not identifier.args.get("quoted"):
            identifier.set("this", identifier.this.lower())
            identifier.set("quoted", True)


def iter_tables(tree: exp.Expr) -> Iterator[exp.Table]:
    """The references to relations, without those to a CTE that is in scope there."""
    stack: list[tuple[exp.Expr, frozenset[str]]] = [(tree, frozenset())]
    while stack:
        node, visible = stack.pop()
        named = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier)
        if isinstance(node, exp.Table) and named and (node.args.get("db") is not None or node.name not in visible):
            yield node
        with_ = node.args.get("with_")
        if with_ is not None:
            names = [cte.alias for cte in with_.expressions]
            for i, cte in enumerate(with_.expressions):
                recursive = with_.args.get("recursive")
                stack.append((cte.this, visible | frozenset(names if recursive else names[:i])))
            visible = visible | frozenset(names)
        stack.extend((child, visible) for child in node.iter_expressions() if child is not with_)


def table_name(table: exp.Table) -> TableName:
    """The name a reference gives."""
    return TableName(table.db or None, table.name)


def output_name(node: exp.Expr) -> str:
    """The column name PostgreSQL gives an expression without an alias."""
    while isinstance(node, (exp.Paren, exp.Filter, exp.Window, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)):
        node = node.this
    if isinstance(node, (exp.Column, exp.Dot)):
        return str(node.name) or "?column?"
    if isinstance(node, exp.Cast):
        inner = output_name(node.this)
        if inner != "?column?":
            return inner
        return _type_name(node.to)
    if isinstance(node, exp.Subquery):
        query = node.this
        return output_name(query.expressions[0]) if isinstance(query, exp.Select) and query.expressions else "?column?"
    if isinstance(node, exp.Alias):
        return str(node.alias)
    if isinstance(node, exp.Bracket):
        return output_name(node.this)
    if type(node) in _SPECIAL_NAMES:
        return _SPECIAL_NAMES[type(node)]
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.Func) and not isinstance(node, (exp.And, exp.Or, exp.Not, exp.Binary)):
        return node.sql_name().lower()
    return "?column?"


def _type_name(kind: exp.DataType) -> str:
    names = {exp.DType.INT: "int4", exp.DType.BIGINT: "int8", exp.DType.SMALLINT: "int2", exp.DType.DOUBLE: "float8",
             exp.DType.FLOAT: "float4", exp.DType.BOOLEAN: "bool", exp.DType.DECIMAL: "numeric",
             exp.DType.VARBINARY: "bytea"}  # fmt: skip
    return names.get(kind.this) or str(getattr(kind.this, "value", kind.this)).lower()


def name_outputs(tree: exp.Expr) -> None:
    """Give every output without a name of its own PostgreSQL's name for it."""
    for select in list(tree.find_all(exp.Select)):
        for item in list(select.expressions):
            if isinstance(item, (exp.Alias, exp.Aliases, exp.Column, exp.Star)) or item.is_star:
                continue
            name = output_name(item)
            item.replace(exp.alias_(item.copy(), exp.to_identifier(name, quoted=True)))


def strip_catalog(tree: exp.Expr) -> exp.Expr:
    """Drop `pg_catalog.` before functions, types and operators, and collations."""

    def step(node: exp.Expr) -> exp.Expr:
        if (
            isinstance(node, exp.Dot)
            and isinstance(node.this, exp.Identifier)
            and isinstance(node.expression, exp.Func)
        ):
            return _plain_function(node.expression)
        if isinstance(node, exp.DataType) and isinstance(node.args.get("kind"), exp.Dot):
            return exp.DataType.build(node.args["kind"].expression.name, dialect="postgres", udt=True)
        if isinstance(node, exp.Collate):
            return node.this
        if isinstance(node, exp.Operator):
            return _plain_operator(node)
        return node

    for node in list(tree.walk(bfs=False))[::-1]:
        new = step(node)
        if new is not node:
            if node.parent is None:
                tree = new
                new.pop()
            else:
                node.replace(new)
    for cast in tree.find_all(exp.Cast):
        cast.type = cast.to
    return tree


def _plain_function(call: exp.Func) -> exp.Expr:
    """A function that was written with its schema, which hides from the parser that it is one that it knows."""
    if isinstance(call, exp.Anonymous) and not call.args.get("distinct"):
        arguments = [argument.copy() for argument in call.expressions]
        with suppress(ParseError, IndexError, TypeError, ValueError):
            return exp.func(call.name, *arguments, dialect=Headrace)
    return call


def _plain_operator(node: exp.Operator) -> exp.Expr:
    symbol = str(node.args["operator"]).rsplit(".", 1)[-1].strip()
    left, right = node.this, node.expression
    kinds: dict[str, type[exp.Expr]] = {
        "~": exp.RegexpLike, "=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, ">": exp.GT, "<=": exp.LTE, ">=": exp.GTE,
        "~~": exp.Like, "~*": exp.RegexpILike, "+": exp.Add, "-": exp.Sub, "*": exp.Mul, "||": exp.DPipe,
    }  # fmt: skip
    if symbol in kinds:
        return kinds[symbol](this=left, expression=right)
    if symbol == "!~":
        return exp.Not(this=exp.Paren(this=exp.RegexpLike(this=left, expression=right)))
    raise NotSupported(f"OPERATOR({node.args['operator']}) is not supported")


def plain_functions(tree: exp.Expr) -> None:
    """Turn `TUMBLE`, `HOP`, `SESSION`, `generate_series` and `unnest` in `FROM` into subqueries."""
    for table in list(tree.find_all(exp.Table)):
        call = table.this
        if isinstance(call, exp.Anonymous) and call.name.lower() in ("tumble", "hop"):
            table.replace(_window_table(call, table.args.get("alias")))
        elif isinstance(call, exp.Anonymous) and call.name.lower() == "session":
            table.replace(_session_table(call, table.args.get("alias")))
        elif isinstance(call, (exp.ExplodingGenerateSeries, exp.GenerateSeries)):
            table.replace(_rows_of(call.copy(), "generate_series", table.args.get("alias")))
        elif isinstance(call, exp.Explode):
            table.replace(_rows_of(call.copy(), "unnest", table.args.get("alias")))
    for unnest in list(tree.find_all(exp.Unnest)):
        if len(unnest.expressions) != 1 or unnest.args.get("offset"):
            raise NotSupported("unnest of several arrays or WITH ORDINALITY is not supported")
        unnest.replace(_rows_of(exp.Explode(this=unnest.expressions[0].copy()), "unnest", unnest.args.get("alias")))


def _identifier(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _rows_of(call: exp.Expr, default: str, alias: exp.Expr | None) -> exp.Expr:
    columns = alias.args.get("columns") if alias is not None else None
    relation = alias.name if alias is not None and alias.name else default
    column = columns[0].name if columns else relation
    lateral = call.find(exp.Column) is not None
    select = exp.Select(expressions=[exp.alias_(call, _identifier(column))])
    table_alias = exp.TableAlias(this=_identifier(relation))
    subquery = exp.Subquery(this=select)
    if lateral:
        return exp.Lateral(this=subquery, alias=table_alias)
    subquery.set("alias", table_alias)
    return subquery


def interval_of(node: exp.Expr) -> exp.Expr:
    """The interval literal inside casts; `NotSupported` for anything that is not one."""
    while isinstance(node, (exp.Paren, exp.Cast)):
        node = node.this
    if isinstance(node, exp.Interval) or (isinstance(node, exp.Literal) and node.is_string):
        return node
    raise NotSupported("a window's size must be an interval literal")


def interval_words(node: exp.Expr) -> str:
    """The text of an interval literal, its unit included."""
    if isinstance(node, exp.Interval):
        unit = node.args.get("unit")
        return f"{node.this.name} {unit.name}" if unit is not None else str(node.this.name)
    return str(node.name)


def _window_table(call: exp.Anonymous, alias: exp.Expr | None) -> exp.Expr:
    name, args = call.name.upper(), call.expressions
    if len(args) not in ((3, 4) if name == "TUMBLE" else (4, 5)) or not isinstance(args[0], exp.Column):
        raise NotSupported(f"{name} takes a relation, a time column and interval literals")
    source = exp.Table(this=args[0].this.copy(), db=args[0].args.get("table"))
    words = [exp.Literal.string(interval_words(interval_of(arg))) for arg in args[2:]]
    if name == "HOP":
        words = [words[1], words[0], *words[2:]]
    elif len(words) == 2:
        words = [words[0], words[0].copy(), words[1]]
    window = exp.Anonymous(this="WINDOW", expressions=[args[1].copy(), *words])
    window.meta[OWN] = True
    inner = exp.Select(
        expressions=[exp.Star(), exp.alias_(window, _identifier("__window"))], from_=exp.From(this=source)
    )
    parts = [
        exp.Dot(this=exp.Column(this=_identifier("__window")), expression=_identifier(p)) for p in ("start", "end")
    ]
    outer = exp.Select(
        expressions=[
            exp.Star(except_=[_identifier("__window")]),
            exp.alias_(parts[0], _identifier("window_start")),
            exp.alias_(parts[1], _identifier("window_end")),
        ],
        from_=exp.From(this=exp.Subquery(this=inner, alias=exp.TableAlias(this=_identifier("__windowed")))),
    )
    return exp.Subquery(this=outer, alias=alias or exp.TableAlias(this=args[0].this.copy()))


_SESSIONS = """
SELECT * EXCEPT ("__time", "__first"), max("__time") OVER (PARTITION BY {session}) + {gap} AS "window_end" FROM (
  SELECT *, max("__first") OVER ({keys} ORDER BY "__time") AS "window_start" FROM (
    SELECT *, CASE WHEN lag("__time") OVER ({keys} ORDER BY "__time") + {gap} > "__time" THEN NULL ELSE "__time" END
      AS "__first" FROM (SELECT *, {time} AS "__time" FROM {table} WHERE NOT {time} IS NULL) AS "__timed"
  ) AS "__begun"
) AS "__sessions"
"""
"""A row begins a session where the one before it is too far back: the last beginning up to a row is its session's."""


def _session_table(call: exp.Anonymous, alias: exp.Expr | None) -> exp.Expr:
    """`SESSION(relation, time, gap [, key ...])`: sessions of each combination of the keys."""
    args = call.expressions
    if len(args) < 3 or not all(isinstance(arg, exp.Column) for arg in (*args[:2], *args[3:])):
        raise NotSupported(
            "this SESSION", hint="it takes a relation, a time column, an interval literal, and columns to part it by"
        )
    source = exp.Table(this=args[0].this.copy(), db=args[0].args.get("table"))
    columns = [exp.column(_identifier(arg.name)).sql("postgres") for arg in (args[1], *args[3:])]
    time, keys = columns[0], columns[1:]
    literal = exp.Literal.string(interval_words(interval_of(args[2]))).sql("postgres")
    text = _SESSIONS.format(
        session=", ".join([*keys, '"window_start"']), keys=f"PARTITION BY {', '.join(keys)}" if keys else "",
        gap=f"INTERVAL {literal}", time=time, table=source.sql("postgres"),
    )  # fmt: skip
    return exp.Subquery(this=parse_one(text, read="postgres"), alias=alias or exp.TableAlias(this=args[0].this.copy()))


def name_values(tree: exp.Expr) -> exp.Expr:
    """Name the columns of `VALUES` lists `column1`, `column2`, ... where the query names none."""
    for values in list(tree.find_all(exp.Values)):
        alias = values.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            continue
        first = values.expressions[0]
        width = len(first.expressions) if isinstance(first, exp.Tuple) else 1
        columns = [_identifier(f"column{i + 1}") for i in range(width)]
        if alias is not None:
            alias.set("columns", columns)
            continue
        named = exp.Values(
            expressions=values.expressions, alias=exp.TableAlias(this=_identifier("__values"), columns=columns)
        )
        select = exp.Select(expressions=[exp.Star()], from_=exp.From(this=named))
        for key in ("order", "limit", "offset", "with_"):
            if values.args.get(key) is not None:
                select.set(key, values.args[key])
        if values is tree:
            tree = select
        else:
            values.replace(select)
    return tree


def normalize(tree: exp.Expr) -> exp.Expr:
    """All of the above, in place; returns the (possibly new) root."""
    tree = strip_catalog(tree)
    fold_names(tree)
    plain_functions(tree)
    tree = name_values(tree)
    name_outputs(tree)
    return tree
