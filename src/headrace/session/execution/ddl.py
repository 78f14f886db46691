"""CREATE of tables, sources, indexes, subscriptions and schemas, and of whatever a job keeps up to date."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.catalog.contents import (
    Content,
    DeclaredWatermark,
    IndexContent,
    MaterializedViewContent,
    PlannedContent,
    SchemaContent,
    SinkContent,
    SourceContent,
    TableContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_type
from headrace.common.faults import fault_point
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.common.span import SPARK_TYPE as SPAN
from headrace.common.zones import Zone
from headrace.connectors import sinks
from headrace.connectors.base import FIELD_IDS, SHARED_BY, WAITING
from headrace.connectors.confidential import hiding
from headrace.connectors.job_options import GROUP, of_view
from headrace.connectors.sinks import drops_retractions
from headrace.connectors.sources import (
    added_columns,
    check_secret_options,
    feeds,
    infer_columns,
    is_shared,
    open_source,
    retracts,
    settled,
)
from headrace.connectors.webhook.options import check_columns, is_webhook
from headrace.coordinator.ddl.letting_go import is_held
from headrace.coordinator.decide.view_options import on_error
from headrace.errors import (
    DatatypeMismatch,
    DuplicateObject,
    HeadraceError,
    InsufficientPrivilege,
    InvalidParameter,
    JobFailed,
    NotSupported,
    QueryCanceled,
    StatementError,
    SyntaxFault,
    UndefinedColumn,
    WrongObjectType,
)
from headrace.plan.planner import Planner, ViewPlan
from headrace.session.context import Context
from headrace.session.execution import (
    arrangement_choice,
    connections,
    dead_letters,
    fed,
    shared_tables,
    subscriptions,
    webhooks,
)
from headrace.session.execution.as_of import check_as_of
from headrace.session.execution.handler import Handler, Needs
from headrace.session.execution.select import describe
from headrace.session.names import BoundQuery, check_named, names_of
from headrace.session.result import Notice, Result, ResultColumn
from headrace.session.system.asking_functions import localize
from headrace.session.system.system_relations import SYSTEM_SCHEMAS
from headrace.sql import statements as st
from headrace.sql.binder.spark_text import quoted
from headrace.sql.parser import parse_query
from headrace.sql.statements import TableName
from headrace.sql.type_names import pg_type_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

from headrace.session.execution.existing import taken
from headrace.session.execution.owning import owned


def create_table(context: Context, statement: st.CreateTable) -> Result:
    """CREATE TABLE, also from a query."""
    found = taken(context, statement)
    if found is not None:
        return found
    takes_requests = is_webhook(statement.options)
    if statement.validation is not None and (statement.origin is not None or not takes_requests):
        raise NotSupported("VALIDATE of a table whose connector is not webhook")
    if statement.origin is not None:
        return _create_shared_table(context, statement)
    if statement.options.get("connector") and not takes_requests:
        return _create_fed_table(context, statement)
    given = webhooks.resolved(context, statement) if takes_requests else connections.NOTHING
    storage = () if takes_requests else _storage_parameters(statement)
    _refuse_table_features(statement, storage)
    columns = declared_columns(statement.columns)
    if takes_requests:
        check_columns(columns)
    if statement.query is not None and not columns:
        columns = columns_from(describe(context, BoundQuery(localize(context, statement.query), names_of(context))))
    if not columns:
        raise NotSupported("a table without columns", hint="declare at least one column")
    for column in statement.columns:
        if column.default is not None:
            check_default(context, column.default)
    if statement.append_only and statement.on_conflict == "overwrite":
        raise NotSupported("ON CONFLICT OVERWRITE on an append-only table", hint="leave one of them out")
    content = TableContent(
        watermark=_watermark(statement.watermark, columns),
        append_only=statement.append_only,
        on_conflict=statement.on_conflict or "overwrite",
        defaults={c.name: c.default for c in statement.columns if c.default is not None},
    )
    coordinator = context.coordinator
    record = new_record(
        context, content, statement.name, columns, statement.text, statement.primary_key, given.options, given.needed,
    )  # fmt: skip
    table_id = coordinator.create_relation(replace(record, secrets=given.secrets))
    if statement.query is None:
        told = 'storage parameter "{}" has no effect: it is about files that PostgreSQL keeps'
        notices = webhooks.notices(context) if takes_requests else [Notice(told.format(name)) for name in storage]
        return Result(statement.tag, notices=notices)
    from headrace.session.execution.dml import insert

    made = st.Insert(statement.name, (), query=statement.query, text=statement.text)
    try:
        inserted = insert(context, made, replace(record, id=table_id)).tag
    except BaseException:
        with suppress(HeadraceError):  # others may have built on it, or dropped it
            coordinator.drop([table_id])
        raise
    return Result(statement.counted(int(inserted.removeprefix(made.tag))))


_STORAGE: Final[Mapping[str, re.Pattern[str]]] = {
    "fillfactor": re.compile(r"[1-9]\d|100"),
    "parallel_workers": re.compile(r"\d{1,3}|10[01]\d|102[0-4]"),
    "autovacuum_enabled": re.compile("true|false|on|off|1|0"),
}
"""What PostgreSQL is told of how it keeps a table, and not of what the table is; and how the values are written."""


def _storage_parameters(statement: st.CreateTable) -> tuple[str, ...]:
    """The options of a table that are about PostgreSQL's files alone. Raises `InvalidParameter`."""
    found = tuple(name for name in _STORAGE if name in statement.options)
    for name in found:
        if not _STORAGE[name].fullmatch(statement.options[name]):
            raise InvalidParameter(f'value {statement.options[name]} out of bounds for option "{name}"')
    return found


def _refuse_table_features(statement: st.CreateTable, storage: Sequence[str]) -> None:
    if statement.temporary:
        raise NotSupported("temporary tables", hint="create a table and drop it afterwards")
    unknown = sorted({*statement.options} - {*storage})
    if not is_webhook(statement.options) and (unknown or statement.secrets or statement.connection):
        what = f"the option {unknown[0]}" if unknown else "a secret or connection"
        raise NotSupported(f"{what} of a table without a connector", hint="WITH (connector = '...') says which one")
    if statement.version_column is not None or statement.on_conflict == "do update if not null":
        raise NotSupported("this ON CONFLICT behaviour", hint="use ON CONFLICT OVERWRITE or ON CONFLICT IGNORE")
    if statement.watermark is not None and not statement.append_only:
        raise NotSupported("a watermark on a table that can be updated", hint="declare the table APPEND ONLY")
    if any(c.generated is not None for c in statement.columns):
        raise NotSupported("generated columns", hint="compute them in a view")


def declared_columns(columns: Iterable[st.ColumnDef]) -> tuple[Column, ...]:
    """The columns that a statement declares. Raises `NotSupported`."""
    found = tuple(Column(c.name, c.type, not c.not_null) for c in columns)
    for column in found:
        if column.name.startswith("__"):
            raise NotSupported(
                f"the column name {column.name}", hint="names that begin with two underscores are reserved"
            )
        try:
            arrow_type(column.type)
        except ValueError:
            raise NotSupported(f"columns of type {column.type}") from None
    return found


def unlike(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns, if no two have the same name. Raises `StatementError`."""
    names = [c.name for c in columns]
    doubled = next((n for n in names if names.count(n) > 1), None)
    if doubled is not None:
        raise StatementError(
            f'column "{doubled}" specified more than once', sqlstate="42701", hint="INCLUDE ... AS name"
        )
    return columns


def columns_from(columns: Iterable[ResultColumn], names: Sequence[str] | None = None) -> tuple[Column, ...]:
    """The columns of a relation that is made of a query's, perhaps by other names."""
    found = list(columns)
    if names is not None and len(names) > len(found):
        raise SyntaxFault("more column names than columns in the query")
    labels = [*(names or ()), *(c.name for c in found[len(names or ()) :])]
    doubled = next((n for n in labels if labels.count(n) > 1), None)
    if doubled is not None:
        raise StatementError(f'column "{doubled}" specified more than once', sqlstate="42701", hint="give it an alias")
    return tuple(Column(n, "string" if c.type == "void" else c.type) for n, c in zip(labels, found))


def create_source(context: Context, statement: st.CreateSource) -> Result:
    """CREATE SOURCE; the connector checks its options."""
    found = taken(context, statement)
    if found is not None:
        return found
    given = connections.resolved(context, statement, statement.options)
    content = SourceContent()
    if is_shared(given.options):
        if statement.watermark is not None:
            raise NotSupported("WATERMARK FOR in a source of several tables")
        given = replace(given, options=settled(given.options))
        content = SourceContent(shared=True)
    _define_source(context, statement, statement.name, statement.columns, given, content)
    return Result(statement.tag)


def _define_source(
    context: Context, statement: st.CreateSource | st.CreateTable, name: TableName, declared: Sequence[st.ColumnDef],
    given: connections.Resolved, content: SourceContent, key: Sequence[str] = (),
) -> ObjectRecord:  # fmt: skip
    """Create a source; what it has claimed where it reads is let go of again if that fails.

    A record without a value of the `key` of the table that it feeds is one at fault.
    """
    if any(c.generated is not None for c in declared):
        raise NotSupported("generated columns", hint="compute them in a view")
    options, named = given.options, given.secrets
    own = FIELD_IDS if FIELD_IDS in options else SHARED_BY
    if own in options and content.origin is None:
        raise InvalidParameter(f"option {own} is none of a statement's")
    check_reach(context, options, "pg_read_server_files", "create a source that reads from outside of the database")
    check_secret_options(options, named)
    values = context.coordinator.secrets(named)
    columns = declared_columns(declared) or tuple(infer_columns(options, values))
    columns = unlike((*columns, *added_columns(options)))
    columns = tuple(replace(c, nullable=False) if c.name in key else c for c in columns)
    fed.check_types(columns)
    if statement.watermark is not None and retracts(options):
        raise NotSupported(
            "WATERMARK FOR on a source that takes rows back", hint="set append_only = true, if its rows are only added"
        )
    if statement.watermark is None and (names := sorted(WAITING.keys() & options.keys())):
        raise InvalidParameter(
            f"option {names[0]} of a source without a watermark", hint="declare WATERMARK FOR a column"
        )
    source = open_source(options, columns, values)
    content = replace(content, watermark=_watermark(statement.watermark, columns))
    record = new_record(context, content, name, columns, statement.text, (), options, given.needed)
    record = replace(record, secrets=named)
    source.start_offsets()
    with context.coordinator.holding(options):
        source.claim()
        try:
            return replace(record, id=context.coordinator.create_relation(record))
        except BaseException:
            if content.shared or (content.origin is not None and not is_held(context.catalog.state, record)):
                with suppress(HeadraceError):
                    source.discard()
            raise


def _create_fed_table(context: Context, statement: st.CreateTable) -> Result:
    """A table with a connector: a source that is not listed, and a view that keeps its rows, by key if there is one."""
    if statement.query is not None or statement.temporary or statement.on_conflict or statement.version_column:
        raise NotSupported("AS, TEMPORARY, ON CONFLICT or a version column of a table with a connector")
    if any(c.default is not None for c in statement.columns):
        raise NotSupported("DEFAULT in a table with a connector", hint="compute it in a view")
    if statement.watermark is not None:
        raise NotSupported("WATERMARK FOR in a table with a connector", hint="CREATE SOURCE has it")
    given = connections.resolved(context, statement, statement.options)
    options, key = given.options, statement.primary_key
    of_job = of_view(options)
    options = {name: value for name, value in options.items() if name not in of_job}
    keeps = retracts(options)
    if statement.append_only and keeps:
        raise NotSupported(
            "APPEND ONLY of a table whose source takes rows back",
            hint="leave it out, or set append_only = true in WITH, if its rows are only added",
        )
    if is_shared(options):
        raise InvalidParameter(
            f"connector {options['connector']} needs the option table.name in CREATE TABLE",
            hint="or CREATE SOURCE s WITH (...), and CREATE TABLE t (...) FROM s TABLE 'schema.table' for each table",
        )
    if key and not (keeps or feeds(options)):
        raise NotSupported(
            f"a primary key of a table with the connector {options['connector']}",
            hint="leave it out, or CREATE SOURCE and a view that keeps what is wanted of each key",
        )
    if key and not keeps:
        options |= {f"include.{part}": name for part, name in fed.COLUMNS.items()}
    elif options.get("format", "plain") != "plain":
        raise NotSupported(
            f"FORMAT {options['format'].upper()} without a primary key", hint="declare the columns that tell rows apart"
        )
    given = replace(given, options=settled(options))
    _feed(context, statement, statement.columns, key, given, SourceContent(part=statement.name.name), of_job)
    return Result(statement.tag)


def _create_shared_table(context: Context, statement: st.CreateTable) -> Result:
    """A table of a shared source: a source that is not listed and is bound with the others, and a view as above."""
    assert statement.origin is not None
    if statement.query is not None or statement.temporary or statement.on_conflict or statement.version_column:
        raise NotSupported("AS, TEMPORARY, ON CONFLICT or a version column of a table FROM a source")
    if statement.append_only or statement.watermark is not None or any(c.default for c in statement.columns):
        raise NotSupported("APPEND ONLY, WATERMARK FOR or DEFAULT of a table FROM a source")
    origin = names_of(context).get(statement.origin)
    if not isinstance(origin.content, SourceContent) or not origin.content.shared:
        raise WrongObjectType(
            f'"{statement.origin}" is no source of several tables',
            hint="CREATE SOURCE ... WITH (connector = 'postgres-cdc', ...) without columns and table.name makes one",
        )
    context.rights.require_owner(origin)
    given = shared_tables.resolved(origin, statement)
    columns, key = shared_tables.columns_of(context, statement, given)
    content = SourceContent(part=statement.name.name, origin=origin.id)
    _feed(context, statement, columns, key, given, content, of_view(statement.options))
    return Result(statement.tag)


def _feed(
    context: Context, statement: st.CreateTable, columns: Sequence[st.ColumnDef], key: Sequence[str],
    given: connections.Resolved, content: SourceContent, of_job: dict[str, str],
) -> None:  # fmt: skip
    """Create the source of a table, and the view that keeps its rows."""
    declared = [c if c.name in key else replace(c, not_null=False) for c in columns] if key else columns
    hidden = TableName(statement.name.schema, f"{statement.name.name}$changes")
    source = _define_source(context, statement, hidden, declared, given, content, key)
    fault_point("table.fed.after")
    try:
        fed.check_key(key, source.columns)
        text = fed.query_of(source, key)
        view = MaterializedViewContent(spark_sql=text)
        create_planned(context, statement.name, text, view, statement.text, of_job, (source.id,))
    except BaseException as error:
        with suppress(HeadraceError):
            fault_point("table.undo.before")
            left = fed.drop(context, [source])
            if left and isinstance(error, HeadraceError):
                error.detail = "\n".join(filter(None, (error.detail, *left)))
        raise


_HARMLESS = ("datagen", "nexmark", "blackhole")
"""Connectors that reach nothing outside of the server."""


def check_reach(context: Context, options: Mapping[str, str], role: str, action: str) -> None:
    """Raise `InsufficientPrivilege` for a connector that reaches more than the role may."""
    if options.get("connector") not in _HARMLESS:
        context.rights.require_member(role, action)


def check_default(context: Context, text: str) -> None:
    """Raises what is wrong with the expression of a default."""
    try:
        _ = BoundQuery(localize(context, parse_query(f"SELECT {text}")), names_of(context)).typed
    except HeadraceError as error:
        error.position = None  # it is one in the expression
        raise


def _watermark(watermark: st.Watermark | None, columns: Iterable[Column]) -> DeclaredWatermark | None:
    """What is stored of `WATERMARK FOR`. Raises `UndefinedColumn`, `DatatypeMismatch`, `NotSupported`."""
    if watermark is None:
        return None
    column = next((c for c in columns if c.name == watermark.column), None)
    if column is None:
        raise UndefinedColumn(f'column "{watermark.column}" does not exist')
    if column.type not in ("timestamp", "timestamp_ntz"):
        raise DatatypeMismatch(f'a watermark is for a timestamp, and column "{column.name}" is none')
    if watermark.delay_ms is None or watermark.delay_ms < 0:
        raise NotSupported(
            f"the watermark {watermark.expression}",
            hint=f"write {column.name} - INTERVAL '...', the interval positive and without months or years",
        )
    return DeclaredWatermark(column=column.name, delay_ms=watermark.delay_ms, expression=watermark.expression)


def create_index(context: Context, statement: st.CreateIndex) -> Result:
    """CREATE INDEX: a job that keeps columns of a table or view by some of them; waits as for a view."""
    found = taken(context, statement)
    if found is not None:
        return found
    target = names_of(context).get(statement.table)
    if not target.content.keeps_rows:
        raise WrongObjectType(
            f'"{statement.table}" is a {target.kind_name}: indexes are on tables and materialized views'
        )
    context.rights.require_owner(target)
    names = [c.name for c in target.columns]
    given = [*statement.columns, *statement.include, *statement.distributed_by]
    unknown = next((n for n in given if n not in names), None)
    if unknown is not None:
        raise UndefinedColumn(f'column "{unknown}" does not exist in "{statement.table}"')
    kinds = {c.name: c.type for c in target.columns}
    loose = next((kinds[n] for n in statement.columns if kinds[n] in (JSONB, SPAN)), None)
    if loose is not None:
        raise NotSupported(
            f"an index on a column of type {pg_type_text(loose)}", hint="index a column with what is looked for"
        )
    if len(set(statement.columns)) < len(statement.columns):
        raise StatementError("a column appears twice in the index", sqlstate="42701")
    if tuple(statement.distributed_by) != statement.columns[: len(statement.distributed_by)]:
        raise NotSupported("DISTRIBUTED BY other than the first columns of the index", hint="leave the clause out")
    rest = [n for n in statement.include or names if n not in statement.columns]
    columns = ", ".join(quoted(n) for n in [*statement.columns, *dict.fromkeys(rest)])
    text = f"SELECT {columns} FROM `r{target.id}`"
    content = IndexContent(spark_sql=text, on=target.id, key=tuple(statement.columns))
    check = lambda: check_named(context.catalog.state, target)  # noqa: E731
    create_planned(context, statement.name, text, content, statement.text, {}, (target.id,), check=check)
    return Result(statement.tag)


def _check_delivery(plan: ViewPlan) -> None:
    assert plan.sink is not None
    if not sinks.delivers(plan.sink):
        return
    if plan.sink.get(GROUP, "own") != "own":
        raise NotSupported(
            f"option {GROUP} of this sink", hint="it has a group of its own, so that its target delays nobody"
        )
    if not plan.upstreams:
        raise NotSupported("a sink of a query that reads nothing", hint="it has no changes that could be delivered")


def _check_append_only(plan: ViewPlan) -> None:
    assert plan.sink is not None
    if plan.sink.get("type") == "append-only" and not plan.append_only and not drops_retractions(plan.sink):
        raise NotSupported(
            "an append-only sink of rows that may be taken back",
            hint="leave type out, or set force_append_only to true to have only the inserted rows written",
        )


def _check_forced(context: Context, plan: ViewPlan, options: Mapping[str, str]) -> None:
    """Refuse to deliver only what is added by a source that takes rows back: it may take a row back and add it again.

    What nets the changes of an epoch, row by row, is a materialized view.
    """
    if not drops_retractions(options):
        return
    known = context.catalog.state.objects
    inputs = (known[i] for i in plan.upstreams if i in known)
    taking = next((o for o in inputs if o.content.external and retracts(o.options)), None)
    if taking is not None:
        raise NotSupported(
            f'force_append_only of a sink that reads "{taking.name}", a source that takes rows back and may add the '
            "same ones again",
            hint="CREATE MATERIALIZED VIEW of what is wanted, and the sink FROM that, or set append_only = true of the "
            "source, if its rows are only added",
        )


def planned_text(bound: BoundQuery, columns: Sequence[str] | None) -> str:
    """The view's query as the planner takes it: relations by their planning names. Refuses system relations."""

    def leaf(target: object) -> str:
        if not isinstance(target, ObjectRecord):
            raise NotSupported("system relations in a materialized view", hint="query them directly")
        return f"`r{target.id}`"

    check_as_of(bound, bound.indexed())
    text = bound.spark(leaf)
    if columns:
        names = ", ".join(map(quoted, columns))
        return f"SELECT * FROM ({text}) AS __view({names})"
    return text


def create_planned(
    context: Context, name: TableName, query: str | DataFrame, content: PlannedContent, definition: str,
    options: dict[str, str], depends_on: Sequence[int],
    named: Mapping[str, int] | None = None, planned: Callable[[ViewPlan], ViewPlan] | None = None,
    check: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Plan a query (Spark SQL or a DataFrame), create its view or sink, and wait as the session wants. The new id.

    `planned` makes of a view's plan that of what is created, where it is neither a view nor one of the usual sinks.
    `check` raises if what the definition names has other names by now.
    """
    view_id = create_unfilled(
        context, name, query, content, definition, options, depends_on, named, planned, check=check
    )
    if not context.variables.is_on("background_ddl"):
        wait(context, view_id)
    return view_id


def create_unfilled(
    context: Context, name: TableName, query: str | DataFrame, content: PlannedContent, definition: str,
    options: dict[str, str], depends_on: Sequence[int],
    named: Mapping[str, int] | None = None, planned: Callable[[ViewPlan], ViewPlan] | None = None,
    planner: Planner | None = None, check: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """The same without waiting for its rows; nor for Spark, where a planner is given that has been waited for."""
    confidential = dict(named or {})

    def made(arrangements: frozenset[int]) -> ViewPlan:
        plan = (planner or context.planner).plan(
            query, on_window_close=content.emit_on_window_close, arrangements=arrangements,
            on_error=on_error(options),
        )  # fmt: skip
        if isinstance(content, SinkContent):
            _check_forced(context, plan, options)
        if planned is not None:
            return planned(plan)
        if isinstance(content, IndexContent):
            return plan.keyed(len(content.key))
        if isinstance(content, SinkContent):
            plan = plan.into(options, dead_letters.layout(context, content))
            _check_delivery(plan)
            _check_append_only(plan)
            _try_sink(context, options, plan, confidential)
        return plan

    alone = isinstance(content, SinkContent) and (content.into is not None or sinks.delivers(options))
    own = in_group(context, options, alone=alone)
    with arrangement_choice.arranged(context, made, own) as plan:
        upstreams = tuple(sorted({*depends_on, *plan.upstreams}))
        described = replace(content, append_only=plan.append_only)
        record = new_record(context, described, name, plan.columns, definition, (), own, upstreams)
        return context.coordinator.create_view(replace(record, secrets=confidential), plan, check)


def in_group(context: Context, options: Mapping[str, str], *, alone: bool) -> dict[str, str]:
    """The options of a view or sink with its checkpoint group, where they do not say it or the system's default counts.

    `alone`: it delivers by epochs of its own, so it checkpoints for itself unless told otherwise.
    """
    group = "own" if alone else context.variables.get("default_checkpoint_group")
    return {GROUP: group, **options} if group else dict(options)


def _try_sink(context: Context, options: Mapping[str, str], plan: ViewPlan, named: Mapping[str, int]) -> None:
    """Open a sink to see whether its options are right. Raises `InvalidParameter`."""
    sinks.check_secret_options(options, named)
    values = context.coordinator.secrets(named)
    opened = {} if values is None else dict(values())
    with hiding([*opened.values()]):
        sinks.open_sink({**options, **opened}, plan.columns).reach()


def wait(context: Context, view_id: int) -> None:
    """Wait until the view is filled. What fails or is cancelled meanwhile leaves no view behind."""
    coordinator = context.coordinator
    try:
        context.wait(lambda check: coordinator.wait_created(view_id, check=check))
    except (JobFailed, QueryCanceled):
        coordinator.drop([view_id])
        raise


def create_subscription(context: Context, statement: st.CreateSubscription) -> Result:
    """CREATE SUBSCRIPTION: from now on the changes of a table or view are kept for a while."""
    found = taken(context, statement)
    if found is not None:
        return found
    schema = statement.name.schema or names_of(context).schema
    record = replace(subscriptions.subscription_of(context, statement), schema=schema)
    context.coordinator.create_subscription(owned(context, record))
    return Result(statement.tag)


def create_schema(context: Context, statement: st.CreateSchema) -> Result:
    """CREATE SCHEMA."""
    state = context.catalog.state
    if statement.name.startswith("pg_") and statement.name not in SYSTEM_SCHEMAS:
        raise InvalidParameter(
            f'unacceptable schema name "{statement.name}"', detail='The prefix "pg_" is reserved.', sqlstate="42939"
        )
    if state.object_named("", statement.name) is not None or statement.name in SYSTEM_SCHEMAS:
        if statement.if_not_exists:
            return Result(statement.tag, notices=[Notice(f'schema "{statement.name}" already exists, skipping')])
        raise DuplicateObject(f'schema "{statement.name}" already exists', sqlstate="42P06")
    if not (context.rights.superuser or context.rights.role.create_db):
        raise InsufficientPrivilege(
            "permission denied to create schema", hint="ALTER ROLE ... CREATEDB lets a role make schemas."
        )
    context.coordinator.create_relation(owned(context, ObjectRecord(0, SchemaContent(), "", statement.name)))
    return Result(statement.tag)


def _in_zone(content: Content, zone: Zone) -> Content:
    """The content with the zone in which its query or its defaults are meant for ever; UTC is not written down."""
    if zone.is_plain or (isinstance(content, TableContent) and not content.defaults):
        return content
    if isinstance(content, (MaterializedViewContent, SinkContent, TableContent)):
        return replace(content, time_zone=zone.name)
    return content


def new_record(
    context: Context, content: Content, name: TableName, columns: Sequence[Column], definition: str,
    primary_key: Sequence[str], options: dict[str, str], depends_on: Sequence[int],
) -> ObjectRecord:  # fmt: skip
    """The record of an object that the session creates now, and owns."""
    schema = name.schema or names_of(context).schema
    now = context.clock.now_ms()
    content = replace(_in_zone(content, context.zone), pipeline=context.pipeline)
    made = ObjectRecord(
        0, content, schema, name.name, tuple(columns), definition,
        tuple(primary_key), options, tuple(depends_on), now,
    )  # fmt: skip
    return owned(context, made)


HANDLERS: Final = (
    Handler(st.CreateTable, create_table, needs=Needs.CREATE),
    Handler(st.CreateSource, create_source, needs=Needs.CREATE),
    Handler(st.CreateIndex, create_index, needs=Needs.CREATE),
    Handler(st.CreateSubscription, create_subscription, needs=Needs.CREATE),
    Handler(st.CreateSchema, create_schema, needs=Needs.ROLES),
)
