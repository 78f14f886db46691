"""Calls of functions that users have created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import NotSupported, UndefinedFunction, WrongObjectType
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import BoundAggregate, Call, Expr
from headrace.sql.binder.coerce import coerce
from headrace.sql.binder.parse_tree import Message, place, refuse
from headrace.sql.binder.scope import Wrong
from headrace.sql.binder.types import Type
from headrace.sql.binder.world import Routine

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb


def routine_call(routine: Routine, arguments: Sequence[Expr], message: pb.FuncCall, where: Expr | None) -> Expr:
    """A scalar function, or an aggregate: a scalar function of the sorted list of its group's rows."""
    if routine.form == "table":
        raise WrongObjectType(
            f'the table function "{routine.name}" stands where a value is expected',
            hint=f"call it in FROM: SELECT ... FROM {routine.name}(...), or FROM t, LATERAL {routine.name}(t.c)",
        )
    given = _given(routine, arguments, message)
    result = _kind(routine.returns)
    if routine.form == "scalar":
        if message.agg_distinct or message.agg_order or where is not None or message.HasField("over"):
            raise WrongObjectType(
                f'"{routine.name}" is no aggregate function', hint="CREATE AGGREGATE makes one", sqlstate="42809"
            )
        holes = ", ".join(f"{{{i}}}" for i in range(len(given)))
        return _cast(Call(result, f"`{routine.spark_name}`({holes})", given, routine.volatile), result)
    if message.agg_order:
        raise NotSupported(
            f"ORDER BY inside the aggregate {routine.name}", hint="its rows always reach it sorted by their values"
        )
    items = ", ".join(f"'a{i}', {{{i}}}" for i in range(len(given)))
    rows = BoundAggregate(
        Type("rows", "?", "?"),
        f"collect_list({{d}}named_struct({items}))",
        given,
        bool(message.agg_distinct),
        (),
        where,
    )
    sorted_rows = "{0}" if any("map<" in kind for kind in routine.arguments or ()) else "sort_array({0})"
    return _cast(Call(result, f"`{routine.spark_name}`({sorted_rows})", (rows,), routine.volatile), result)


def table_call(routine: Routine, arguments: Sequence[Expr], message: pb.FuncCall) -> Expr:
    """A table function in FROM."""
    if routine.form != "table":
        raise WrongObjectType(
            f'"{routine.name}" is no table function', hint="CREATE FUNCTION ... RETURNS TABLE (...) makes one"
        )
    given = _given(routine, arguments, message)
    holes = ", ".join(f"{{{i}}}" for i in range(len(given)))
    return Call(Type("rows", "?", "?"), f"`{routine.spark_name}`({holes})", given)


def _given(routine: Routine, arguments: Sequence[Expr], message: Message) -> tuple[Expr, ...]:
    if routine.arguments is None:
        return tuple(coerce(a, t.TEXT, "implicit") if a.type.name == "unknown" else a for a in arguments)
    if len(arguments) != len(routine.arguments):
        raise UndefinedFunction(
            f'function "{routine.name}" with {len(arguments)} arguments does not exist',
            hint=f"There is {_signature(routine)}.",
        )
    found = []
    for argument, spark in zip(arguments, routine.arguments, strict=True):
        kind = _kind(spark)
        if kind.category in "?P" and argument.type.spark == spark:
            found.append(argument)
            continue
        if kind.category == "?" or not t.can_cast(argument.type, kind, "implicit"):
            given = ", ".join(str(a.type) for a in arguments)
            raise Wrong(
                f"function {routine.name}({given}) does not exist", "42883", place(message),
                f"There is {_signature(routine)}.",
            )  # fmt: skip
        ready = coerce(argument, kind, "implicit")
        found.append(ready if ready.type.spark == spark else _cast(ready, kind))
    return tuple(found)


def _kind(spark: str | None) -> Type:
    if spark is None:
        refuse("a function whose result has no type")
    return t.of_spark(spark) or Type("?", spark, "?")


def _cast(value: Expr, kind: Type) -> Expr:
    return Call(kind, f"CAST({{0}} AS {kind.spark})", (value,))


def _signature(routine: Routine) -> str:
    kinds = ", ".join(str(_kind(k)) for k in routine.arguments or ())
    return f"{routine.name}({kinds})"
