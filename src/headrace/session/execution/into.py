"""CREATE SINK ... INTO table: the query as rows of the table, and which changes of it the table takes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import refusals
from headrace.connectors.job_options import GROUP
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.sinks import SINK_OPTIONS, TYPES
from headrace.coordinator.decide.watermarks import declared
from headrace.errors import InvalidParameter, NotNullViolation, NotSupported, SyntaxFault, WrongObjectType
from headrace.plan.planner import ViewPlan
from headrace.session.context import Context
from headrace.session.execution.assignment import assigned
from headrace.session.execution.select import describe
from headrace.session.execution.write_targets import is_required, target_columns
from headrace.session.names import BoundQuery, label, names_of
from headrace.sql import statements as st
from headrace.sql.binder.spark_text import quoted


@dataclass(frozen=True)
class IntoTable:
    """A sink into a table, checked as far as that goes without a plan."""

    target: ObjectRecord
    options: dict[str, str]
    """With the type, whether it was given or not."""

    @property
    def upserts(self) -> bool:
        """Whether rows replace and delete those of the table by its primary key."""
        return self.options["type"] == "upsert"

    def planned(self, plan: ViewPlan) -> ViewPlan:
        """The plan that hands its changes to the table. Raises `NotSupported` for changes that it cannot take."""
        if not plan.upstreams:
            raise NotSupported("a sink of a query that reads nothing", hint="INSERT puts such rows into the table")
        forced = OptionReader(self.options).boolean("force_append_only", False)
        if not self.upserts and not plan.append_only and not forced:
            raise NotSupported(
                f'an append-only sink into "{label(self.target)}" of rows that may be taken back',
                hint="let the table have a primary key, or set force_append_only to true to have only inserted rows",
            )
        return plan.into_table(len(self.target.primary_key))


def into_table(context: Context, statement: st.CreateSink) -> IntoTable:
    """What a statement says. Raises `WrongObjectType`, `InsufficientPrivilege`, `InvalidParameter`, `NotSupported`."""
    assert statement.into is not None
    target = names_of(context).get(statement.into)
    if not target.content.writable:
        raise WrongObjectType(
            f'cannot put the changes into {target.kind_name} "{label(target)}"', hint="Only tables can be written to."
        )
    options = dict(statement.options)
    if statement.secrets or statement.connection is not None:
        raise InvalidParameter("a sink into a table has no connector, so no secret and no connection")
    unknown = next((name for name in options if name not in SINK_OPTIONS), None)
    if unknown is not None:
        raise InvalidParameter(
            f"unknown option {unknown} of a sink into a table", hint=f"options: {', '.join(sorted(SINK_OPTIONS))}"
        )
    if refusals.ON_ROW_ERROR in options or refusals.TABLE in options:
        hint = "its table takes all rows of an epoch or none"
        raise NotSupported(f"option {refusals.ON_ROW_ERROR} of a sink into a table", hint=hint)
    reader, keyed = OptionReader(options), bool(target.primary_key)
    for name in ("force_append_only", "snapshot"):
        reader.boolean(name, False)
    fixed = target.content_as(TableContent).append_only
    kind = reader.choice("type", TYPES, "upsert" if keyed and not fixed else "append-only")
    context.rights.require("awd" if kind == "upsert" else "a", target)
    _check_type(target, kind, options)
    if options.pop(GROUP, "own") != "own":
        raise NotSupported("option checkpoint_group of a sink into a table", hint="it has a group of its own")
    return IntoTable(target, {**options, "type": kind})


def _check_type(target: ObjectRecord, kind: str, options: Mapping[str, str]) -> None:
    fixed, key = target.content_as(TableContent).append_only, target.primary_key
    name = label(target)
    if fixed and key:
        raise NotSupported(f'a sink into "{name}", which is APPEND ONLY and has a primary key')
    if declared(target) is not None:
        hint = "let it go into a table without one"
        raise NotSupported(f'a sink into "{name}", which has a watermark', hint=hint)
    if kind == "upsert" and not key:
        raise InvalidParameter(
            f'a sink of type upsert into "{name}", which has no primary key', hint="set type to append-only"
        )
    if kind == "upsert" and target.content_as(TableContent).on_conflict == "ignore":
        raise NotSupported(
            f'a sink of type upsert into "{name}", which is ON CONFLICT IGNORE', hint="set type to append-only"
        )
    given = tuple(part.strip() for part in options.get("primary_key", "").split(",") if part.strip())
    if given and sorted(given) != sorted(key):
        raise InvalidParameter(
            f'option primary_key is not the primary key of "{name}": ({", ".join(key)})', hint="leave it out"
        )


def rows_text(context: Context, statement: st.CreateSink, bound: BoundQuery, target: ObjectRecord, text: str) -> str:
    """The query, in Spark SQL, as rows of the table in the order in which these are stored.

    Raises `SyntaxFault` for too many or too few columns, `DatatypeMismatch`, `NotNullViolation` and `NotSupported` for
    what is left out.
    """
    found, columns = describe(context, bound), target_columns(target, statement.columns)
    if len(found) > len(columns):
        raise SyntaxFault("the sink's query has more columns than the table takes")
    if statement.columns and len(found) < len(columns):
        raise SyntaxFault("the sink's query has fewer columns than are named")
    columns = columns[: len(found)]
    places = {c.name: f"`c{i}`" for i, c in enumerate(columns)}
    key = target.primary_key or tuple(c.name for c in target.columns)
    kinds = {c.name: c for c in target.columns}
    ordered = [*(kinds[name] for name in key), *(c for c in target.columns if c.name not in key)]
    for column in ordered:
        if column.name in places:
            continue
        if column.name in target.content_as(TableContent).defaults:
            raise NotSupported(
                f'a sink that leaves out the column "{column.name}", which has a DEFAULT', hint="give it in the query"
            )
        if is_required(target, column):
            raise NotNullViolation(
                f'the sink\'s query leaves out the column "{column.name}" of "{label(target)}", which is not null'
            )
    items = [f"{places.get(c.name, f'CAST(NULL AS {c.type})')} AS {quoted(c.name)}" for c in ordered]
    return f"SELECT {', '.join(items)} FROM ({assigned(found, text, columns, bound.zone)}) AS __rows"
