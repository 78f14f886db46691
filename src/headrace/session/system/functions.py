"""Functions and casts that ask about the session or the catalog, put into a query as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from headrace.errors import UndefinedTable
from headrace.session.roles import ROOT, all_roles
from headrace.session.system.postgres import ALWAYS_EMPTY, type_names
from headrace.session.system.privileges import answered
from headrace.session.system.relations import system_relation
from headrace.session.variables import PG_VERSION
from headrace.sql.query import Query
from headrace.sql.query import Session as Values
from headrace.sql.statements import TableName

if TYPE_CHECKING:
    from headrace.session.session import Session

Value = Callable[["Session", exp.Expr], exp.Expr]


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)


def _number(session: Session) -> exp.Expr:
    return exp.Literal.number(session.number)


def _null(kind: str) -> exp.Expr:
    return exp.Cast(this=exp.Null(), to=exp.DataType.build(kind))


def _schemas(session: Session) -> exp.Expr:
    names = ["pg_catalog", *session.variables.search_path()]
    return exp.Array(expressions=[_text(n) for n in names])


def version_text() -> str:
    """What `version()` says."""
    import headrace

    return f"PostgreSQL {PG_VERSION}-headrace-{headrace.__version__}"


def _setting(session: Session, node: exp.Expr) -> exp.Expr:
    arguments = node.expressions
    if not arguments or not isinstance(arguments[0], exp.Literal):
        return node
    return _text(session.setting(arguments[0].name.lower()))


def _standing_by(session: Session) -> exp.Expr:
    return exp.true() if session.on_standby else exp.false()


def _set_config(session: Session, node: exp.Expr) -> exp.Expr:
    name, value = node.expressions[0], node.expressions[1]
    if isinstance(name, exp.Literal) and isinstance(value, exp.Literal):
        local = len(node.expressions) > 2 and node.expressions[2] == exp.true()
        session.variables.set(name.name, value.name, local=local and session.transaction_status != "I")
        return _text(session.variables.get(name.name))
    return node


def _format_type(session: Session, node: exp.Expr) -> exp.Expr:
    column = node.expressions[0] if node.expressions else None
    if isinstance(column, exp.Column) and column.name in ("atttypid", "oid"):
        return _sibling(column, "__format_type")
    return _null("text") if column is None else _type_text(column, node.expressions[1:])


def _type_text(oid: exp.Expr, modifier: Sequence[exp.Expr]) -> exp.Expr:
    """The name of the type with an oid, as a value of the query itself."""
    case = exp.Case(this=exp.Cast(this=oid.copy(), to=exp.DataType.build("bigint")))
    for number, name in type_names().items():
        case = case.when(exp.Literal.number(number), _text(name))
    if not modifier:
        return case
    # For numeric: (precision << 16 | scale) + 4.
    size = exp.Paren(this=exp.Cast(this=modifier[0].copy(), to=exp.DataType.build("int")) - 4)
    parts = [
        exp.IntDiv(this=size, expression=exp.Literal.number(65536)),
        exp.Mod(this=size, expression=exp.Literal.number(65536)),
    ]
    text = exp.Concat(expressions=[_text("numeric("), *_between(parts), _text(")")])
    sized = exp.and_(
        exp.EQ(this=oid.copy(), expression=exp.Literal.number(1700)),
        exp.GTE(this=size, expression=exp.Literal.number(0)),
    )
    return exp.Case().when(sized, text).else_(case)


def _between(parts: Sequence[exp.Expr]) -> list[exp.Expr]:
    texts = [exp.Cast(this=part.copy(), to=exp.DataType.build("text")) for part in parts]
    return [texts[0], _text(","), texts[1]]


def _type_oid(session: Session, node: exp.Expr) -> exp.Expr:
    """`to_regtype`: the oid of a type by its name, NULL for one that is not there."""
    case = exp.Case(this=exp.Cast(this=node.expressions[0].copy(), to=exp.DataType.build("text")))
    for oid, name in type_names().items():
        case = case.when(_text(name), exp.Literal.number(oid))
    return case


def _role_by_oid(session: Session, node: exp.Expr) -> exp.Expr:
    """`pg_get_userbyid`: the name of a role by its oid."""
    case = exp.Case(this=exp.Cast(this=node.expressions[0].copy(), to=exp.DataType.build("bigint")))
    for oid, role in all_roles(session.database.catalog.state).items():
        case = case.when(exp.Literal.number(oid), _text(role.name))
    return exp.Case(ifs=case.args["ifs"], this=case.this, default=_text(ROOT))


def _sibling(column: exp.Column, name: str) -> exp.Expr:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=column.args.get("table"))


def _first(session: Session, node: exp.Expr) -> exp.Expr:
    return node.expressions[0]


def _constant(make: Callable[[], exp.Expr]) -> Value:
    return lambda session, node: make()


_true = _constant(exp.true)
_no_text = _constant(lambda: _null("text"))
_FUNCTIONS: dict[str, Value] = {
    "pg_get_userbyid": lambda session, node: _role_by_oid(session, node),
    **dict.fromkeys(
        ("has_table_privilege", "has_schema_privilege", "has_function_privilege", "pg_has_role"),
        lambda session, node: answered(session, node),
    ),
    **dict.fromkeys(
        ("pg_table_is_visible", "pg_type_is_visible", "pg_function_is_visible", "has_database_privilege",
         "has_any_column_privilege"), _true,
    ),
    **dict.fromkeys(
        ("obj_description", "col_description", "shobj_description", "pg_get_indexdef", "pg_get_constraintdef",
         "pg_get_viewdef", "pg_get_ruledef", "pg_get_triggerdef", "pg_get_partkeydef", "pg_get_partition_constraintdef",
         "pg_get_statisticsobjdef_columns", "pg_get_function_result", "pg_get_function_arguments",
         "pg_get_functiondef", "pg_get_function_identity_arguments", "pg_get_serial_sequence", "pg_size_pretty",
         "pg_tablespace_location", "pg_describe_object", "inet_server_addr", "inet_client_addr",
         "pg_advisory_unlock_all"), _no_text,
    ),
    **dict.fromkeys(
        ("pg_table_size", "pg_relation_size", "pg_total_relation_size", "pg_database_size"),
        _constant(lambda: _null("bigint")),
    ),
    **dict.fromkeys(("pg_relation_is_publishable", "pg_is_other_temp_schema"), _constant(exp.false)),
    "pg_is_in_recovery": lambda session, node: _standing_by(session),
    "pg_get_expr": _first,
    "quote_ident": _first,
    "array_to_string": lambda session, node: exp.Anonymous(this="array_join", expressions=node.expressions),
    "pg_encoding_to_char": _constant(lambda: _text("UTF8")),
    "current_setting": _setting,
    "set_config": _set_config,
    "format_type": _format_type,
    "to_regtype": _type_oid,
    "pg_backend_pid": lambda session, node: _number(session),
    "pg_my_temp_schema": _constant(lambda: exp.Literal.number(0)),
    "txid_current": _constant(lambda: exp.Literal.number(1)),
}  # fmt: skip
_NODES: dict[type[exp.Expr], Value] = {
    exp.CurrentVersion: lambda session, node: _text(version_text()),
    exp.CurrentDatabase: _constant(lambda: _text("dev")),
    exp.CurrentCatalog: _constant(lambda: _text("dev")),
    exp.CurrentSchema: lambda session, node: _text(session.names().schema),
    exp.CurrentSchemas: lambda session, node: _schemas(session),
    exp.CurrentUser: lambda session, node: _text(session.role),
    exp.SessionUser: lambda session, node: _text(session.user),
}


def is_system_function(name: str) -> bool:
    """Whether the session or the catalog answers the function of this name."""
    return name.lower() in _FUNCTIONS


def localize(session: Session, query: Query) -> Query:
    """The query with all such functions replaced; the same object where there are none."""
    tree = query.tree
    holder = exp.Paren(this=tree)
    changed, known = False, True
    asked: list[str] = []
    for node in reversed(list(holder.walk(bfs=False))):
        if node is holder:
            continue
        new = _replacement(session, node)
        if new is not node:
            changed = True
            known = known and (type(node) in _NODES or _is_simple(node))
            if isinstance(node, exp.Anonymous) and node.name.lower() == "current_setting":
                asked.append(node.expressions[0].name.lower())
            node.replace(new)
    if _reads_only_system(query):
        changed = _without_arrays(holder) or changed
        changed = _without_rows(holder) or changed
        changed = _single_rows(holder) or changed
    if not changed:
        return query
    if known:  # the binder is told the values, and reads the text itself
        values = _values(session, asked)
        return Query(holder.this, query.text, query.offset, query.refused, query.change, values)
    return Query(holder.this, query.text, refused=query.refused)


_SIMPLE = frozenset(("pg_backend_pid", "pg_is_in_recovery", "txid_current", "current_setting"))


def _is_simple(node: exp.Expr) -> bool:
    """Whether it is a call of a function that the binder knows, too."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in _SIMPLE:
        return False
    return all(isinstance(a, exp.Literal) for a in node.expressions) and len(node.expressions) <= 1


def _values(session: Session, settings: Sequence[str]) -> Values:
    """What the session says, by what asks for it."""
    found: dict[str, str | bool | int | tuple[str, ...]] = {
        **dict.fromkeys(("current_user", "user", "current_role"), session.role), "session_user": session.user,
        **dict.fromkeys(("current_catalog", "current_database"), "dev"),
        "current_schema": session.names().schema, "version": version_text(),
        "current_schemas": ("pg_catalog", *session.variables.search_path()),
        "pg_backend_pid": session.number, "pg_is_in_recovery": session.on_standby, "txid_current": 1,
        **{f"current_setting {name}": session.setting(name) for name in settings},
    }  # fmt: skip
    return tuple(sorted(found.items()))


def _replacement(session: Session, node: exp.Expr) -> exp.Expr:
    if type(node) in _NODES:
        return _NODES[type(node)](session, node)
    if isinstance(node, exp.Anonymous):
        make = _FUNCTIONS.get(str(node.name).lower())
        return make(session, node) if make is not None else node
    if isinstance(node, exp.Cast):
        return _object_id(session, node)
    return node


def _object_id(session: Session, node: exp.Cast) -> exp.Expr:
    kind = _cast_target(node)
    if kind not in ("regclass", "regtype", "regproc", "regnamespace", "regrole"):
        return node
    value = node.this
    if isinstance(value, exp.Literal) and value.is_string and kind == "regclass":
        return exp.Literal.number(_relation_id(session, value.name))
    if isinstance(value, exp.Column) and kind == "regclass" and value.name == "oid":
        return _sibling(value, "relname")
    if isinstance(value, exp.Column) and kind == "regtype" and value.name in ("atttypid", "oid"):
        return _sibling(value, "__format_type")
    return exp.Cast(this=value, to=exp.DataType.build("text"))


def _cast_target(node: exp.Cast) -> str:
    target = node.args["to"]
    kind = target.args.get("kind")
    if kind is not None:
        return str(getattr(kind, "name", kind)).lower()
    return str(getattr(target.this, "value", target.this)).lower()


def _relation_id(session: Session, text: str) -> int:
    parts = [p.strip('"') for p in text.split(".")]
    name = TableName(parts[0] if len(parts) > 1 else None, parts[-1])
    if system_relation(name.schema, name.name) is not None:
        return 0
    found = session.names().find(name)
    if found is None:
        raise UndefinedTable(f'relation "{text}" does not exist')
    return found.id


def _reads_only_system(query: Query) -> bool:
    tables = query.tables()
    return bool(tables) and all(
        t.schema in (None, "pg_catalog", "information_schema") and system_relation(t.schema, t.name) for t in tables
    )


def _without_arrays(tree: exp.Expr) -> bool:
    """Put NULL for arrays of what a subquery finds."""
    found = [node for node in tree.find_all(exp.Array) if any(isinstance(e, exp.Query) for e in node.expressions)]
    for node in found:
        node.replace(_null("array<text>"))
    return bool(found)


def _without_rows(tree: exp.Expr) -> bool:
    """Put NULL for scalar subqueries over relations that never have rows, and for any in outputs of such selects."""
    changed = False
    for subquery in list(tree.find_all(exp.Subquery)):
        placed = isinstance(subquery.parent, (exp.From, exp.Join, exp.Lateral, exp.In, exp.Exists, exp.SetOperation))
        if not placed and subquery is not tree and _is_empty(subquery.this):
            subquery.replace(_null("text"))
            changed = True
    for select in filter(_is_empty, list(tree.find_all(exp.Select))):
        for item in filter(_nested, list(select.expressions)):
            item.replace(exp.alias_(_null("text"), item.alias_or_name or "value", quoted=True))
            changed = True
    return changed


def _is_empty(select: exp.Expr) -> bool:
    """Whether a select can have no rows, since it reads a relation that never has any."""
    if not isinstance(select, exp.Select):
        return False
    joins = select.args.get("joins") or ()
    if any(j.side for j in joins) or any(e.find(exp.AggFunc) for e in select.expressions if not _nested(e)):
        return False
    read = [part.this for part in (select.args.get("from_"), *joins) if part is not None]
    return any(isinstance(t, exp.Table) and t.db in ("", "pg_catalog") and t.name in ALWAYS_EMPTY for t in read)


def _nested(item: exp.Expr) -> bool:
    return item.find(exp.Subquery) is not None


def _single_rows(tree: exp.Expr) -> bool:
    """Make scalar subqueries visibly single-row, as Spark wants them when they are correlated."""
    changed = False
    for subquery in list(tree.find_all(exp.Subquery)):
        select = subquery.this
        placed = isinstance(subquery.parent, (exp.From, exp.Join, exp.Lateral, exp.In, exp.Exists, exp.Paren))
        if placed or not isinstance(select, exp.Select) or len(select.expressions) != 1:
            continue
        item = select.expressions[0]
        inner = item.this if isinstance(item, exp.Alias) else item
        if select.find(exp.AggFunc) is None and select.args.get("from_") is not None:
            item.replace(exp.alias_(exp.Max(this=inner.copy()), item.alias_or_name or "value", quoted=True))
            for key in ("order", "limit"):
                select.set(key, None)
            changed = True
    return changed
