"""From a normalised query to Spark SQL text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from headrace.errors import NotSupported, UndefinedTable
from headrace.sql.datatypes import spark_type
from headrace.sql.law import position_of
from headrace.sql.normalize import iter_tables, output_name, table_name
from headrace.sql.rewrite import aggregate_rules, scalars, time_rules
from headrace.sql.rewrite.tree_building import Types
from headrace.sql.statements import LOOKUP_SUFFIX, TableName
from headrace.sql.type_names import pg_type_text

Schema = Mapping[TableName, Mapping[str, str]]
"""For each relation its columns and their Spark types."""

_LOOKUP = "hr_lookup"
"""Marks a relation that is read `FOR SYSTEM_TIME AS OF PROCTIME()`."""

_RULES: dict[type[exp.Expr], scalars.Rule] = {**scalars.RULES, **time_rules.RULES}
_RULES[exp.GroupConcat] = aggregate_rules.string_agg
_ANONYMOUS: dict[str, scalars.Rule] = {**scalars.ANONYMOUS, **time_rules.ANONYMOUS}


class _Generator(SparkGenerator):
    TRANSFORMS = {
        kind: how for kind, how in SparkGenerator.TRANSFORMS.items() if kind not in (exp.With, exp.Select, exp.Cast)
    }

    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        kind = expression.to
        name = kind.name if isinstance(kind, exp.Var) else spark_type(kind)
        return f"{safe_prefix or ''}CAST({self.sql(expression, 'this')} AS {name})"

    def anonymous_sql(self, expression: exp.Anonymous) -> str:
        name = expression.this if isinstance(expression.this, str) else self.sql(expression, "this")
        return f"{name}({self.expressions(expression, flat=True)})"


class HeadraceSpark(Spark):
    """Spark's dialect with the type names of headrace."""

    Generator = _Generator


def infer_types(tree: exp.Expr, schema: Schema | None) -> Types:
    """The types of the tree's nodes as far as they can be known; literals and casts are known without a schema."""
    for number, node in enumerate(tree.walk()):
        node.meta["hr_id"] = number
    copy = tree.copy()
    known: dict[str, dict[str, exp.DataType]] = {}
    for i, table in enumerate(iter_tables(copy)):
        columns = (schema or {}).get(table_name(table), {})
        if not table.alias:
            table.set("alias", exp.TableAlias(this=table.this.copy()))
        known[f"t{i}"] = {name: _sqlglot_type(kind) for name, kind in columns.items()}
        table.set("this", exp.to_identifier(f"t{i}", quoted=True))
        table.set("db", None)
        table.set("version", None)
    by_number: dict[int, exp.DataType] = {}
    try:
        mapping = MappingSchema({name: c for name, c in known.items() if c}, dialect="postgres", normalize=False)
        copy = qualify(
            copy, schema=mapping, dialect="postgres", validate_qualify_columns=False, quote_identifiers=False,
            identify=False, canonicalize_table_aliases=False,
        ) if schema else copy  # fmt: skip
        copy = annotate_types(copy, schema=mapping, dialect="postgres")
    except (SqlglotError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        logging.getLogger(__name__).debug("types could not be inferred", exc_info=True)
    for node in copy.walk():
        mark = node.meta.get("hr_id")
        if mark is not None and isinstance(node.type, exp.DataType):
            by_number.setdefault(mark, node.type)
    return {id(node): by_number[node.meta["hr_id"]] for node in tree.walk() if node.meta["hr_id"] in by_number}


def _sqlglot_type(spark: str) -> exp.DataType:
    try:
        return exp.DataType.build(pg_type_text(spark), dialect="risingwave")
    except (SqlglotError, ValueError):
        return exp.DataType.build("unknown")


def _replace(tree: exp.Expr, node: exp.Expr, rule: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Put what `rule` makes of `node` into its place; the rule may build on the node itself. Returns the root."""
    parent, key, index = node.parent, node.arg_key, node.index
    new = rule(node)
    if new is node:
        return tree
    if parent is None or key is None:
        new.parent = None
        return new
    parent.set(key, new, index)
    return tree


def apply_rules(tree: exp.Expr, types: Types) -> exp.Expr:
    """Apply every rule, innermost expressions first."""
    nodes = list(tree.walk(bfs=False))
    for node in reversed(nodes):
        rule = _RULES.get(type(node))
        if isinstance(node, exp.Anonymous):
            rule = _ANONYMOUS.get(str(node.name).lower())
        if aggregate_rules.is_array_agg(node):
            rule = aggregate_rules.array_agg
        if rule is not None:
            chosen = rule

            def run(found: exp.Expr, chosen: scalars.Rule = chosen) -> exp.Expr:
                made = chosen(found, types)
                if made is not found and id(found) in types:
                    types[id(made)] = types[id(found)]
                return made

            tree = _replace(tree, node, run)
    return _apply_select_rules(tree)


def _apply_select_rules(tree: exp.Expr) -> exp.Expr:
    for select in list(tree.find_all(exp.Select))[::-1]:
        select.set("locks", None)
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            tree = _replace(tree, select, lambda node: aggregate_rules.distinct_on(node))  # type: ignore[arg-type]
    for node in list(tree.walk()):
        limit = node.args.get("limit")
        if isinstance(limit, exp.Fetch):
            node.set("limit", exp.Limit(expression=limit.args.get("count") or exp.Literal.number(1)))
        elif isinstance(limit, exp.Limit) and isinstance(limit.expression, (exp.Var, exp.Null)):
            node.set("limit", None)
        if isinstance(node, exp.CTE):
            node.set("materialized", None)
    return tree


def is_proctime(version: exp.Expr | None) -> bool:
    """Whether a relation is read `FOR SYSTEM_TIME AS OF PROCTIME()`."""
    time = version.args.get("expression") if version is not None else None
    return isinstance(time, exp.Anonymous) and str(time.name).lower() == "proctime"


_CTE: Final = "__cte"
"""What the names of users' CTEs end with in Spark's text, so that none of them hides a relation's internal name."""


def _rename_ctes(tree: exp.Expr) -> None:
    """Give every CTE a name of its own, which no relation has; the user's name still qualifies its columns."""
    used: set[str] = set()
    stack: list[tuple[exp.Expr, dict[str, str]]] = [(tree, {})]
    while stack:
        node, visible = stack.pop()
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not node.db:
            _refer(node, visible.get(node.name))
        with_ = node.args.get("with_")
        if with_ is not None:
            before = visible
            for cte in with_.expressions:
                name = _unused(cte.alias, used)
                if not with_.args.get("recursive"):
                    stack.append((cte.this, visible))
                visible = {**visible, cte.alias: name}
                cte.args["alias"].set("this", exp.to_identifier(name, quoted=True))
            if with_.args.get("recursive"):
                stack.extend((cte.this, {**before, **visible}) for cte in with_.expressions)
        stack.extend((child, visible) for child in node.iter_expressions() if child is not with_)


def _unused(name: str, used: set[str]) -> str:
    found = next(n for n in (f"{name}{_CTE}{i or ''}" for i in count()) if n.casefold() not in used)
    used.add(found.casefold())
    return found


def _refer(table: exp.Table, name: str | None) -> None:
    """Make a table a reference to a CTE by its new name, if it is one."""
    if name is None:
        return
    alias = table.args.get("alias") or exp.TableAlias()
    if alias.args.get("this") is None:
        alias.set("this", exp.to_identifier(table.name, quoted=True))
    table.set("alias", alias)
    table.set("this", exp.to_identifier(name, quoted=True))


def _qualify_by_alias(tree: exp.Expr) -> None:
    """Let columns be qualified by the relation's name alone. Refuses what could then mean another relation."""
    qualified = [column for column in tree.find_all(exp.Column) if column.args.get("db") is not None]
    if not qualified:
        return
    known: dict[str, set[str | None]] = {}
    for table in iter_tables(tree):
        known.setdefault(table.alias_or_name, set()).add(None if table.alias else table.db or "")
    others = {s.alias for s in tree.find_all(exp.Subquery, exp.CTE, exp.Lateral, exp.Values) if s.alias}
    for column in qualified:
        schema, name = column.text("db"), column.table
        found = known.get(name, set())
        if len(found) > 1 or (found and (name in others or schema in known or schema in others)):
            raise NotSupported(
                f'"{schema}.{name}.{column.name}" is ambiguous', hint="Give the relation an alias.",
                position=position_of(column),
            )  # fmt: skip
        if found - {schema, ""}:
            raise UndefinedTable(
                f'invalid reference to FROM-clause entry for table "{name}"', position=position_of(column)
            )
        if found:
            column.set("db", None)
        elif schema not in known and schema not in others:
            raise UndefinedTable(f'missing FROM-clause entry for table "{schema}.{name}"', position=position_of(column))


def _rename_tables(tree: exp.Expr, rename: Callable[[TableName], str]) -> None:
    """Put `rename`'s text in place of every relation."""
    for table in list(iter_tables(tree)):
        alias = table.args.get("alias") or exp.TableAlias()
        if alias.args.get("this") is None:
            alias.set("this", exp.to_identifier(table.name, quoted=True))
        text = rename(table_name(table))
        if table.meta.get(_LOOKUP) and text.startswith("`"):
            text = f"{text[:-1]}{LOOKUP_SUFFIX}`"
        table.replace(
            exp.Table(
                this=exp.Var(this=text),
                alias=alias,
                joins=table.args.get("joins"),
                laterals=table.args.get("laterals"),
                sample=table.args.get("sample"),
            )
        )


_SESSIONS = (exp.CurrentCatalog, exp.CurrentDatabase, exp.CurrentSchema, exp.CurrentSchemas, exp.CurrentUser,
             exp.CurrentVersion, exp.SessionUser)  # fmt: skip


def _refuse_what_is_left(tree: exp.Expr) -> None:
    """Raises `NotSupported` for what should have become a value before."""
    if tree.find(exp.Parameter) is not None:
        raise NotSupported("a parameter has no value here", hint="Prepare the statement and execute it with values.")
    session = tree.find(*_SESSIONS)
    if session is not None:
        raise NotSupported(
            f"{output_name(session)} is not supported here", hint="Only a query by itself can ask about its session.",
            position=position_of(session),
        )  # fmt: skip
    for array in tree.find_all(exp.Array):
        if any(isinstance(item, exp.Query) for item in array.expressions):
            raise NotSupported(
                "ARRAY(query) is not supported", hint="Use array_agg in a subquery.", position=position_of(array)
            )


def to_spark_sql(tree: exp.Expr, rename: Callable[[TableName], str], schema: Schema | None) -> str:
    """The Spark SQL text of a normalised tree, which is used up.

    Raises `NotSupported` for what has no Spark form.
    """
    _refuse_what_is_left(tree)
    try:
        for table in iter_tables(tree):  # before the rules, which make the current time of PROCTIME()
            table.meta[_LOOKUP] = is_proctime(table.args.get("version"))
        types = infer_types(tree, schema)
        tree = apply_rules(tree, types)
        _qualify_by_alias(tree)
        _rename_tables(tree, rename)
        _rename_ctes(tree)
        generator = HeadraceSpark().generator(comments=False, unsupported_level=ErrorLevel.IGNORE)
        text: str = generator.generate(tree, copy=False)
        return text
    except RecursionError:
        raise NotSupported("the query is nested too deeply", hint="Split it with WITH or views.") from None
