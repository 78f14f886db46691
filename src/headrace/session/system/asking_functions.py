"""Functions and casts that ask about the session or the catalog, put into a query as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlglot import exp

from headrace.errors import UndefinedObject
from headrace.session.context import Context
from headrace.session.names import names_of
from headrace.session.variables import PG_VERSION
from headrace.sql.query import Query
from headrace.sql.query import Session as Values

Value: TypeAlias = Callable[[Context, exp.Expr], exp.Expr]


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)


def _number(context: Context) -> exp.Expr:
    return exp.Literal.number(context.number)


def _schemas(context: Context, node: exp.Expr) -> exp.Expr:
    implicit = [] if node.this == exp.false() else ["pg_catalog"]
    return exp.Array(expressions=[_text(n) for n in [*implicit, *context.variables.search_path()]])


def version_text() -> str:
    """What `version()` says."""
    import headrace

    return f"PostgreSQL {PG_VERSION}-headrace-{headrace.__version__}"


def _setting(context: Context, node: exp.Expr) -> exp.Expr:
    arguments = node.expressions
    if not arguments or not isinstance(arguments[0], exp.Literal):
        return node
    found = setting_or_null(context, arguments[0].name, missing_ok=arguments[1:] == [exp.true()])
    return _text(found) if found is not None else exp.Cast(this=exp.Null(), to=exp.DataType.build("text"))


def setting_or_null(context: Context, name: str, *, missing_ok: bool) -> str | None:
    """What `current_setting` answers. Raises `UndefinedObject` for no setting, unless that is to be NULL."""
    try:
        return context.setting(name.lower())
    except UndefinedObject:
        if missing_ok:
            return None
        raise


def _standing_by(context: Context) -> exp.Expr:
    return exp.true() if context.on_standby else exp.false()


def _set_config(context: Context, node: exp.Expr) -> exp.Expr:
    name, value = node.expressions[0], node.expressions[1]
    if isinstance(name, exp.Literal) and isinstance(value, exp.Literal):
        local = len(node.expressions) > 2 and node.expressions[2] == exp.true()
        context.variables.set(name.name, value.name, local=local and context.in_block)
        return _text(context.variables.get(name.name))
    return node


def _constant(make: Callable[[], exp.Expr]) -> Value:
    return lambda context, node: make()


_FUNCTIONS: dict[str, Value] = {
    "pg_is_in_recovery": lambda context, node: _standing_by(context),
    "current_setting": _setting,
    "set_config": _set_config,
    "pg_backend_pid": lambda context, node: _number(context),
    "pg_my_temp_schema": _constant(lambda: exp.Literal.number(0)),
    "pg_advisory_unlock_all": _constant(lambda: exp.Cast(this=exp.Null(), to=exp.DataType.build("text"))),
    "txid_current": _constant(lambda: exp.Literal.number(1)),
}  # fmt: skip
_NODES: dict[type[exp.Expr], Value] = {
    exp.CurrentVersion: lambda context, node: _text(version_text()),
    exp.CurrentDatabase: _constant(lambda: _text("dev")),
    exp.CurrentCatalog: _constant(lambda: _text("dev")),
    exp.CurrentSchema: lambda context, node: _text(names_of(context).schema),
    exp.CurrentSchemas: _schemas,
    exp.CurrentUser: lambda context, node: _text(context.role),
    exp.SessionUser: lambda context, node: _text(context.user),
}


def is_session_function(name: str) -> bool:
    """Whether the session answers the function of this name."""
    return name.lower() in _FUNCTIONS


def localize(context: Context, query: Query) -> Query:
    """The query with all such functions replaced; the same object where there are none."""
    tree = query.tree
    holder = exp.Paren(this=tree)
    changed, known = False, True
    asked: list[tuple[str, bool]] = []
    for node in reversed(list(holder.walk(bfs=False))):
        if node is holder:
            continue
        new = _replacement(context, node)
        if new is not node:
            changed = True
            known = known and (type(node) in _NODES or _is_simple(node))
            if isinstance(node, exp.Anonymous) and node.name.lower() == "current_setting":
                asked.append((node.expressions[0].name.lower(), len(node.expressions) > 1))
            node.replace(new)
    if not changed:
        return query
    if known:  # the binder is told the values, and reads the text itself
        values = _values(context, asked)
        return Query(holder.this, query.text, query.offset, query.refused, query.change, values)
    return Query(holder.this, query.text, refused=query.refused)


_SIMPLE = frozenset(("pg_backend_pid", "pg_is_in_recovery", "txid_current", "current_setting"))


def _is_simple(node: exp.Expr) -> bool:
    """Whether it is a call of a function that the binder knows, too."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in _SIMPLE:
        return False
    return all(isinstance(a, exp.Literal) for a in node.expressions[:1]) and node.expressions[1:] in ([], [exp.true()])


def _values(context: Context, settings: Sequence[tuple[str, bool]]) -> Values:
    """What the session says, by what asks for it; of settings also whether one that is missing is NULL."""
    schemas = tuple(context.variables.search_path())
    given = {name: setting_or_null(context, name, missing_ok=missing_ok) for name, missing_ok in settings}
    found: dict[str, str | bool | int | tuple[str, ...]] = {
        **dict.fromkeys(("current_user", "user", "current_role"), context.role), "session_user": context.user,
        **dict.fromkeys(("current_catalog", "current_database"), "dev"),
        "current_schema": names_of(context).schema, "version": version_text(),
        "current_schemas true": ("pg_catalog", *schemas), "current_schemas false": schemas,
        "pg_backend_pid": context.number, "pg_is_in_recovery": context.on_standby, "txid_current": 1,
        **{f"current_setting {n}": "" if value is None else value for n, value in given.items()},
        **{f"current_setting {n} is missing": True for n, value in given.items() if value is None},
    }  # fmt: skip
    return tuple(sorted(found.items()))


def _replacement(context: Context, node: exp.Expr) -> exp.Expr:
    if type(node) in _NODES:
        return _NODES[type(node)](context, node)
    if isinstance(node, exp.Anonymous):
        make = _FUNCTIONS.get(str(node.name).lower())
        return make(context, node) if make is not None else node
    return node
