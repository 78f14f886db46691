"""Calls of functions that users have created, put into a query in Spark's terms.

Arguments are cast to the types that the function declares, and its result to the type that it returns, so that other
rules know it. An aggregate becomes a scalar function over the sorted list of its group's rows: so `FILTER`, `DISTINCT`,
`OVER` and other aggregates beside it mean what they always mean, and the order of rows cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.errors import NotSupported, UndefinedFunction, WrongObjectType
from headrace.sql import builtin, law
from headrace.sql.binder.world import Routine
from headrace.sql.normalize import OWN
from headrace.sql.type_names import pg_type_text


def signature(routine: Routine) -> str:
    """The name with the types of its arguments."""
    return f"{routine.name}({', '.join(map(_shown, routine.arguments)) if routine.arguments is not None else '...'})"


def _shown(kind: str) -> str:
    try:
        return pg_type_text(kind)
    except ValueError:
        return kind


def _calls(tree: exp.Expr) -> Iterator[exp.Anonymous]:
    return tree.find_all(exp.Anonymous)


def _name(call: exp.Anonymous) -> str:
    quoted = isinstance(call.this, exp.Identifier) and call.this.args.get("quoted")
    return str(call.name) if quoted else str(call.name).lower()


def called(tree: exp.Expr) -> set[str]:
    """Names of all functions that a query calls and that are not built in."""
    return {_name(call) for call in _calls(tree)}


def check_known(tree: exp.Expr, routines: Mapping[str, Routine]) -> None:
    """Raises `UndefinedFunction` for a call of what is neither built in nor one of the functions."""
    for call in _calls(tree):
        name = _name(call)
        if name in routines or name in builtin.PARSED or name in builtin.CALLED or call.meta.get(OWN):
            continue
        raise UndefinedFunction(
            f"function {name} with {len(call.expressions)} arguments does not exist", position=law.position_of(call)
        )


def put_functions(tree: exp.Expr, routines: Mapping[str, Routine]) -> exp.Expr:
    """Rewrite every call of one of the functions, in place; returns the root.

    Raises `UndefinedFunction` for a wrong number of arguments, `WrongObjectType` for a function in the wrong place.
    """
    for call in reversed(list(_calls(tree))):
        routine = routines.get(_name(call))
        if routine is None:
            continue
        if isinstance(call.parent, (exp.Table, exp.Lateral)):
            _in_from(call, routine)
        elif routine.form == "table":
            raise WrongObjectType(
                f'the table function "{routine.name}" stands where a value is expected',
                hint=f"call it in FROM: SELECT ... FROM {routine.name}(...), or FROM t, LATERAL {routine.name}(t.c)",
            )
        else:
            tree = _value(tree, call, routine)
    return tree


def _arguments(call: exp.Anonymous, routine: Routine) -> list[exp.Expr]:
    given = call.expressions
    if len(given) == 1 and isinstance(given[0], exp.Distinct):
        given = given[0].expressions
    if any(isinstance(g, exp.Order) for g in given):
        raise NotSupported(
            f"ORDER BY inside the aggregate {routine.name}", hint="its rows always reach it sorted by their values"
        )
    if routine.arguments is None:
        return [g.copy() for g in given]
    if len(given) != len(routine.arguments):
        raise UndefinedFunction(
            f'function "{routine.name}" with {len(given)} arguments does not exist',
            hint=f"There is {signature(routine)}.",
        )
    return [_cast(g.copy(), kind) for g, kind in zip(given, routine.arguments)]


def _cast(value: exp.Expr, kind: str | None) -> exp.Expr:
    if kind is None:
        return value
    try:
        target = exp.DataType.build(pg_type_text(kind), dialect="risingwave")
    except (SqlglotError, ValueError):
        return value
    return exp.Cast(this=value, to=target)


def _function(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _in_from(call: exp.Anonymous, routine: Routine) -> None:
    if routine.form != "table":
        raise WrongObjectType(
            f'"{routine.name}" is no table function', hint="CREATE FUNCTION ... RETURNS TABLE (...) makes one"
        )
    source = call.parent
    assert source is not None
    alias = source.args.get("alias") or exp.TableAlias()
    if alias.args.get("this") is None:
        alias.set("this", exp.to_identifier(routine.name, quoted=True))
    new = _function(routine.spark_name, *_arguments(call, routine))
    if isinstance(source, exp.Table) and call.find(exp.Column) is not None:
        source.replace(exp.Lateral(this=new, alias=alias))
    else:
        source.set("this", new)
        source.set("alias", alias)


def _value(tree: exp.Expr, call: exp.Anonymous, routine: Routine) -> exp.Expr:
    arguments = _arguments(call, routine)
    outer: exp.Expr = call
    if routine.form == "aggregate":
        row = [part for i, a in enumerate(arguments) for part in (exp.Literal.string(f"a{i}"), a)]
        collected: exp.Expr = _function("named_struct", *row)
        if call.expressions and isinstance(call.expressions[0], exp.Distinct):
            collected = exp.Distinct(expressions=[collected])
        outer = _function("collect_list", collected)
        tree = _replaced(tree, call, outer)
        while isinstance(outer.parent, (exp.Filter, exp.Window)) and outer.arg_key == "this":
            outer = outer.parent
        arguments = [exp.Placeholder()]
        if not any("map<" in kind for kind in routine.arguments or ()):
            arguments = [_function("sort_array", *arguments)]
    elif isinstance(call.parent, (exp.Filter, exp.Window)) and call.arg_key == "this":
        raise WrongObjectType(
            f'"{routine.name}" is no aggregate function', hint="CREATE AGGREGATE makes one", sqlstate="42809"
        )
    new = _cast(_function(routine.spark_name, *arguments), routine.returns)
    tree = _replaced(tree, outer, new)
    for hole in list(new.find_all(exp.Placeholder)):  # moved, not copied: calls inside of it are still to be rewritten
        hole.replace(outer)
    return tree


def _replaced(tree: exp.Expr, old: exp.Expr, new: exp.Expr) -> exp.Expr:
    """Put a node in the place of another; returns the root."""
    if old.parent is None:
        return new
    old.replace(new)
    return tree
