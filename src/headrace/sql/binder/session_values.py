"""What only the session knows: who asks, where, and when."""

from __future__ import annotations

from typing import Final

from postgast import pg_query_pb2 as pb

from headrace.sql.binder import moments, zone_times
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.coerce import plain
from headrace.sql.binder.parse_tree import Message, refuse
from headrace.sql.binder.types import Type
from headrace.sql.binder.world import World

SESSION_VALUES: Final = frozenset(
    ("current_user", "user", "session_user", "current_role", "current_catalog", "current_schema")
)
"""Those that are called without brackets."""
_CALLED: Final = {
    "version": (0,), "current_database": (0,), "current_schema": (0,), "current_schemas": (1,), "pg_backend_pid": (0,),
    "pg_is_in_recovery": (0,), "txid_current": (0,), "current_setting": (1, 2),
}  # fmt: skip
"""Functions, and with how many arguments."""


_TIMES: Final = {
    pb.SVFOP_CURRENT_TIMESTAMP: t.TIMESTAMPTZ, pb.SVFOP_CURRENT_DATE: t.DATE, pb.SVFOP_LOCALTIMESTAMP: t.TIMESTAMP,
}  # fmt: skip


def value_function(world: World, message: pb.SQLValueFunction) -> Expr:
    """What is called without brackets."""
    name = pb.SQLValueFunctionOp.Name(message.op).removeprefix("SVFOP_").lower()
    if message.op not in _TIMES and name in SESSION_VALUES:
        return session_value(world, name, message)
    if message.op not in _TIMES or message.typmod not in (0, -1):
        refuse(f"this {name.upper().removesuffix('_N')}", message)
    return now_as(_TIMES[message.op])


def now_as(kind: Type) -> Expr:
    """The time of the transaction as a moment, or what clocks or the calendar show at it."""
    if kind == t.DATE and zone_times.current().is_utc:
        return Call(kind, moments.TODAY, ())
    now = Call(t.TIMESTAMPTZ, moments.TRANSACTION, ())
    return now if kind == t.TIMESTAMPTZ else plain(now, kind)


def is_session_function(name: str, arguments: int) -> bool:
    """Whether the session answers such a call."""
    return arguments in _CALLED.get(name, ())


def session_value(world: World, name: str, message: Message) -> Expr:
    """A value as the session gives it."""
    found = world.value(name)
    if found is None:
        refuse(f"{name.split()[0]} in a definition, or another session's value,", message)
    if isinstance(found, bool):
        return Constant(t.BOOL, "true" if found else "false")
    if isinstance(found, int):
        return Constant(t.INT8 if name == "txid_current" else t.INT4, str(found))
    if isinstance(found, str):
        return Constant(t.TEXT, found)
    listed = tuple(Constant(t.TEXT, part) for part in found)
    return Call(t.array_of(t.TEXT), f"array({', '.join(f'{{{i}}}' for i in range(len(listed)))})", listed)
