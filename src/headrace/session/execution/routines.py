"""CREATE FUNCTION and CREATE AGGREGATE, and what is known of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sqlglot import exp

from headrace.catalog.contents import FunctionContent
from headrace.catalog.records import ObjectRecord
from headrace.errors import (
    DependentObjectsExist,
    DuplicateObject,
    HeadraceError,
    UndefinedFunction,
    UndefinedObject,
)
from headrace.session import created_functions
from headrace.session.context import Context
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.owning import owned
from headrace.session.introspection import is_catalog_function
from headrace.session.names import label, names_of
from headrace.session.result import Notice, Result
from headrace.session.system.asking_functions import is_session_function
from headrace.sql import statements as st
from headrace.sql.dialect import parse_expression_tokens, tokenize
from headrace.sql.statements import TableName

HEADS = [("Name", "string"), ("Arguments", "string"), ("Return Type", "string"), ("Language", "string"),
         ("Link", "string")]  # fmt: skip


def create_function(context: Context, statement: st.CreateFunction) -> Result:
    """CREATE FUNCTION and CREATE AGGREGATE."""
    made = create(
        context, statement.name, lambda: created_functions.content_of(statement), statement.text,
        if_not_exists=statement.if_not_exists, or_replace=statement.or_replace,
    )  # fmt: skip
    notices = [] if made else [Notice(f'function "{statement.name}" already exists, skipping', "NOTICE", "42723")]
    return Result(statement.tag, notices=notices)


def create(
    context: Context, name: TableName, content_of: Callable[[], FunctionContent], definition: str, *,
    if_not_exists: bool = False, or_replace: bool = False,
) -> bool:  # fmt: skip
    """Store a function and make it known; whether it was made. Raises `DuplicateObject`, and what `content_of` does."""
    context.rights.require_member("pg_execute_server_program", "create a function: its code runs in the server")
    schema = name.schema or names_of(context).schema
    if name.schema and name.schema != "public" and context.catalog.state.object_named("", name.schema) is None:
        raise UndefinedObject(f'schema "{name.schema}" does not exist', sqlstate="3F000")
    context.rights.require_new(schema)
    old = context.catalog.state.object_named(schema, name.name)
    is_function = old is not None and isinstance(old.content, FunctionContent)
    if is_function and if_not_exists:
        return False
    if old is not None and not (is_function and or_replace):
        raise DuplicateObject(
            f'"{name.name}" already exists: it is a {old.kind_name}',
            hint="CREATE OR REPLACE FUNCTION replaces a function that nothing is built on"
            if is_function else "functions and relations share their names", sqlstate="42723",
        )  # fmt: skip
    if old is None and _is_built_in(context, name.name):
        raise DuplicateObject(f'the function "{name.name}" is built in', hint="choose another name", sqlstate="42723")
    content = content_of()
    if old is not None:
        context.rights.require_owner(old)
        if replace(old.content, pipeline=None, more={}) == content:
            return True
        _drop_old(context, old)
    content = replace(content, pipeline=context.pipeline)
    record = ObjectRecord(0, content, schema, name.name, definition=definition, created_ms=context.clock.now_ms())
    made = context.coordinator.create_relation(owned(context, record))
    try:
        created_functions.register(context.spark_sessions(), context.catalog.state.objects[made])
    except BaseException:
        context.coordinator.drop([made])
        raise
    return True


def _drop_old(context: Context, old: ObjectRecord) -> None:
    state = context.catalog.state
    above = [state.objects[i] for i in state.dependents(old.id)]
    if above:
        raise DependentObjectsExist(
            f"cannot replace function {label(old)} because other objects depend on it",
            detail="\n".join(f"{o.kind_name} {label(o)} depends on function {label(old)}" for o in above),
            hint="create the new one under another name, or drop what depends on the old one first",
        )
    forget(context, old)
    context.coordinator.drop([old.id])


def forget(context: Context, record: ObjectRecord) -> None:
    """Take a function away from Spark's sessions."""
    if isinstance(record.content, FunctionContent):
        created_functions.unregister(context.spark_sessions(), record)


def _is_built_in(context: Context, name: str) -> bool:
    if is_session_function(name) or is_catalog_function(name):
        return True
    text = f'"{name}"(1)' if not name.isidentifier() else f"{name}(1)"
    try:
        tree = parse_expression_tokens(text, tokenize(text))
    except HeadraceError:
        return True
    known: bool = context.planner.bridge.spark.catalog.functionExists(name)
    return not isinstance(tree, exp.Anonymous) or known


def listed(context: Context, schemas: tuple[str, ...], fits: Callable[[str], bool]) -> list[list[object]]:
    """The rows of SHOW FUNCTIONS."""
    there = context.catalog.state.objects_of(FunctionContent)
    found = sorted((o for o in there if o.schema in schemas and fits(o.name)), key=lambda o: o.name)
    return [[o.name, *created_functions.signature(o), o.content_as(FunctionContent).language, None] for o in found]


def described(context: Context, name: TableName) -> list[list[object]]:
    """The rows of DESCRIBE FUNCTION. Raises `UndefinedFunction`."""
    record = names_of(context).find(name)
    if record is None or not isinstance(record.content, FunctionContent):
        raise UndefinedFunction(f'function "{name}" does not exist', hint="SHOW FUNCTIONS lists what there is")
    content = record.content
    arguments, returns = created_functions.signature(record)
    body = content.source if content.source is not None else "(a Python object, stored as a pickle)"
    kinds = {"scalar": "function", "table": "table function", "aggregate": "aggregate function"}
    return [
        ["Kind", kinds[content.form]],
        ["Arguments", arguments],
        ["Return Type", returns],
        ["Language", content.language],
        ["Vectorized", content.vectorized or "no"],
        ["Volatility", "immutable" if content.deterministic else "volatile"],
        ["Strict", "yes" if content.strict else "no"],
        ["Body", body],
    ]


HANDLERS: Final = (Handler(st.CreateFunction, create_function, needs=Needs.PROGRAM),)
