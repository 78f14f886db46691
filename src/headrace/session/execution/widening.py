"""Columns of sources that find them by name in whatever they read: they come to the source itself, as its last ones.

What has been bound is read again with them by whoever is made from then on; who was there before reads as before. So
a table over such a source is filled again, beside the one that is there, over the very same source, from where that
began: a column has the values that the records have, NULL where they have none.

A table is refused columns where reading again would not give its rows: where records are gone, or are left out for a
value that cannot be understood.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.connectors.base import FIELD_IDS, Offsets, Source, common_options
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.sources import open_source, refreshes, widens
from headrace.errors import (
    DatatypeMismatch,
    HeadraceError,
    NotSupported,
    StatementError,
    UndefinedColumn,
    UndefinedTable,
)
from headrace.session.context import Context
from headrace.session.execution import ddl, fed
from headrace.session.execution.in_transaction import opened
from headrace.session.execution.kernel_queries import all_of
from headrace.session.execution.refilling import check_asked, check_not_refreshed, check_running, new_table, take_place
from headrace.session.execution.select import select
from headrace.session.names import check_named, label
from headrace.sql.parser import parse_query
from headrace.sql.statements import ColumnDef
from headrace.sql.type_names import pg_type_text

AGAIN: Final = "drop it and create it again: it begins with what there is by now"


def can_widen(source: ObjectRecord | None) -> bool:
    """Whether columns can be had for a source, or for the table that it feeds."""
    return source is not None and widens(source.options)


def widen_source(context: Context, source: ObjectRecord, asked: Sequence[ColumnDef] | None) -> list[Column]:
    """Give a source the columns that have come where it reads, or those that are asked for. Returns them."""
    columns, found_by = _wanted(context, source, source, asked)
    if columns:
        with context.coordinator.defining():
            _check_unaltered(context, source, source)
            context.coordinator.add_columns(source.id, columns, found_by)
    return columns


def widen_table(
    context: Context, table: ObjectRecord, source: ObjectRecord, text: str, asked: Sequence[ColumnDef] | None
) -> list[Column]:  # fmt: skip
    """The same for a table that is fed by a hidden source."""
    check_running(context, table, source)
    if common_options(OptionReader(source.options)).on_error == "skip":
        raise NotSupported(
            f'new columns of the table "{label(table)}", which leaves out rows with a value that is at fault '
            "(on_error = 'skip'): it would lose those that are so in a new column only",
            hint="create it again, with on_error = 'null' or the columns that are wanted",
        )
    columns, found_by = _wanted(context, table, source, asked)
    if not columns:
        return []
    try:
        new = _beside(context, table, source, columns, found_by, text)
        take_place(context, table, [new], lambda new: _check_rows(context, table, new))
    except BaseException:
        with suppress(HeadraceError):  # the next start does it, or whoever comes next
            context.coordinator.add_columns(source.id, [], {})
        raise
    return columns


def _beside(
    context: Context, table: ObjectRecord, source: ObjectRecord, columns: Sequence[Column],
    found_by: Mapping[str, str], text: str,
) -> ObjectRecord:  # fmt: skip
    """Create the table with more columns, over the source with them: nobody else gives it others meanwhile."""
    planner = context.planner  # a start of Spark defines all that there is, and must not wait for this while this waits
    with context.coordinator.defining():
        check_not_refreshed(context.catalog.state, table)  # it may have begun meanwhile, or even ended
        _check_unaltered(context, table, source)
        check_named(context.catalog.state, table)
        key = fed.key_of(table, source)
        context.coordinator.add_columns(source.id, columns, found_by)
        return new_table(context, table, context.catalog.state.objects[source.id], key, text, planner)


def _check_unaltered(context: Context, shown: ObjectRecord, source: ObjectRecord) -> None:
    """Raise if a source is gone, or has other columns than when it was looked which ones are new."""
    now = context.catalog.state.objects.get(source.id)
    if now is None:
        raise UndefinedTable(f'relation "{label(shown)}" does not exist', hint="it was dropped meanwhile")
    if (now.columns, now.options.get(FIELD_IDS)) != (source.columns, source.options.get(FIELD_IDS)):
        raise StatementError(
            f"{called(shown)} has got columns by another statement meanwhile", sqlstate="55000", hint="try again"
        )


# ---- which columns


def called(record: ObjectRecord) -> str:
    """What messages call a source, or the table that one feeds."""
    return f'{"source" if isinstance(record.content, SourceContent) else "table"} "{label(record)}"'


def _wanted(
    context: Context, shown: ObjectRecord, source: ObjectRecord, asked: Sequence[ColumnDef] | None
) -> tuple[list[Column], dict[str, str]]:  # fmt: skip
    """The new columns of what is shown to people, a source or the table that it feeds, and options that find them.

    Raises what is wrong with them.
    """
    taken = {c.name for c in shown.columns} | {*fed.COLUMNS.values()}
    known = [c for c in source.columns if c.name in taken]
    values = context.coordinator.secrets(source.secrets)
    opened = open_source(source.options, known, values)
    bound = context.catalog.state.newest_remap(source.id)
    there = _there(opened, source, {} if bound is None else bound.offsets, any_type=asked is not None)
    if asked is not None:
        new = _asked(shown, taken, None if there is None else [c.name for c in there], asked)
    elif there is not None:
        new = _come(shown, there)
    else:
        raise NotSupported(
            f"REFRESH SCHEMA of {called(shown)}: nobody says what fields its records have",
            hint="ALTER ... ADD COLUMN name type",
        )
    fed.check_types(new)
    if new:
        open_source(source.options, (*known, *new), values).start_offsets()
    return new, opened.found_by(new) if new else {}


def _there(opened: Source, source: ObjectRecord, bound: Offsets, *, any_type: bool) -> list[Column] | None:
    """The columns that are there by now; None where nobody says it, or with `any_type` where one has no counterpart."""
    if not refreshes(source.options):
        return None
    try:
        return opened.columns_there(bound)
    except NotSupported:
        if any_type:  # it need not be one that is wanted
            return None
        raise


def _come(shown: ObjectRecord, there: Sequence[Column]) -> list[Column]:
    """Those that are there and were not. Raises `DatatypeMismatch` for one that is of another type by now."""
    types = {c.name: c.type for c in shown.columns}
    other = next((c for c in there if types.get(c.name, c.type) != c.type), None)
    if other is not None:
        raise DatatypeMismatch(
            f'the column "{other.name}" of {called(shown)} is {pg_type_text(types[other.name])}, and in '
            f"the schema by now {pg_type_text(other.type)}",
            hint="what is read of it fits the column or is at fault, as on_error says; to have another type, " + AGAIN,
        )
    new = [c for c in there if c.name not in types]
    return list(ddl.declared_columns([ColumnDef(c.name, c.type) for c in new]))


def _asked(
    shown: ObjectRecord, taken: Collection[str], there: Sequence[str] | None, asked: Sequence[ColumnDef]
) -> list[Column]:  # fmt: skip
    """The columns of ADD COLUMN; where somebody knows which there are, they have to be among them."""
    for column in asked:
        check_asked(shown, taken, column, "what is read from outside")
        if there is not None and column.name not in there:
            raise UndefinedColumn(
                f'there is no column "{column.name}" where "{label(shown)}" is read from',
                hint=f"it has {', '.join(there)}",
            )
    return list(ddl.unlike(ddl.declared_columns(asked)))


# ---- whether it has all rows


def _check_rows(context: Context, table: ObjectRecord, new: ObjectRecord) -> None:
    """Raise `StatementError` if a table that was filled again does not have the rows that it had.

    Records are gone, then. By that rows can be missing, and where what tells records apart for compaction is not the
    key of the table, older ones can stand in their places. Columns of maps are not looked at: nobody compares them.
    """
    both = [f"({all_of(o).text})" for o in (table, new)]
    compared = replace(table, columns=tuple(c for c in table.columns if "map<" not in c.type))
    first, second = (f"({all_of(replace(compared, name=o.name)).text})" for o in (table, new))
    differing = f"(({first} EXCEPT ALL {second}) UNION ALL ({second} EXCEPT ALL {first}))"
    counts = [f"(SELECT count(*) FROM {rows} AS t)" for rows in (*both, differing)]
    own = opened(context, implicit=True)
    try:
        with context.within(own):  # as of now, whatever epoch the session wants to see
            (found,) = select(context, parse_query(f"SELECT {', '.join(counts)}")).rows()
    finally:
        own.close()
    before, now, others = (int(str(number)) for number in found)
    if before != now or others:
        said = f"{now} come of what can be read by now" if before != now else f"{others // 2} come otherwise by now"
        raise StatementError(
            f'"{label(table)}" has {before} rows, and {said}',
            sqlstate="55000", hint="records were deleted where it reads, by compaction say; " + AGAIN,
        )  # fmt: skip
