"""Values of columns that an INSERT or a COPY leaves out. Those that are no literals are computed by one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_type
from headrace.errors import HeadraceError, NotSupported
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.execution.assignment import assigned
from headrace.session.execution.kernel_queries import AssignedQuery, rows_of
from headrace.session.execution.simple import constant_value
from headrace.session.names import BoundQuery, names_of
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_query


def left_out(record: ObjectRecord, given: Sequence[Column]) -> list[Column]:
    """The columns of a table that are not among the given ones."""
    names = {column.name for column in given}
    return [column for column in record.columns if column.name not in names]


def of_each_row(context: Context, record: ObjectRecord, columns: Sequence[Column]) -> list[Column]:
    """Those of some columns whose defaults call what may have another value each time, as the binder knows it."""
    texts = record.content_as(TableContent).defaults
    return [c for c in columns if "(" in texts.get(c.name, "") and _is_volatile(context, record, texts[c.name])]


def _is_volatile(context: Context, record: ObjectRecord, text: str) -> bool:
    try:
        return _bound(context, record, [text]).is_volatile
    except HeadraceError:  # is told by who computes it, should that be asked for
        return False


def refuse_of_each_row(context: Context, record: ObjectRecord, columns: Sequence[Column], what: str) -> None:
    """Raise `NotSupported` for columns that are left out where all rows get the same defaults."""
    for column in of_each_row(context, record, columns):
        raise NotSupported(
            f'{what} without the column "{column.name}", whose default has another value for each row',
            hint="give the column values, or fill the table by INSERT ... SELECT",
        )


def default_values(
    context: Context, record: ObjectRecord, columns: Sequence[Column], rows: int = 1
) -> Mapping[str, pa.Array]:  # fmt: skip
    """The values of each of these columns that its default gives to so many rows; at least one."""
    each = of_each_row(context, record, columns) if rows > 1 else []
    same = _same_values(context, record, [c for c in columns if c not in each])
    found = {name: pa.repeat(value[0], max(rows, 1)) for name, value in same.items()}
    return {**found, **_values_of_rows(context, record, each, rows)} if each else found


def _values_of_rows(
    context: Context, record: ObjectRecord, columns: Sequence[Column], rows: int
) -> Mapping[str, pa.Array]:  # fmt: skip
    texts, zone = record.content_as(TableContent).defaults, declared_zone(record)
    wanted = AssignedQuery(
        _bound(context, record, [texts[c.name] for c in columns], f" FROM generate_series(1, {rows})"), columns,
        lambda heads, inner: assigned(heads, inner, columns, zone),
    )  # fmt: skip
    found = rows_of(context, wanted)
    return {c.name: found.column(i).cast(arrow_type(c.type)).combine_chunks() for i, c in enumerate(columns)}


def _same_values(context: Context, record: ObjectRecord, columns: Sequence[Column]) -> Mapping[str, pa.Array]:
    texts, zone = record.content_as(TableContent).defaults, declared_zone(record)
    found: dict[str, object] = {}
    asking: list[Column] = []
    for column in columns:
        text = texts.get(column.name)
        known, found[column.name] = (True, None) if text is None else constant_value(text, column.type, zone)
        if not known:
            asking.append(column)
    if asking:
        wanted = AssignedQuery(
            _bound(context, record, [texts[c.name] for c in asking]), asking,
            lambda heads, inner: assigned(heads, inner, asking, zone),
        )  # fmt: skip
        row = rows_of(context, wanted)
        found |= {column.name: row.column(i)[0].as_py() for i, column in enumerate(asking)}
    return {column.name: pa.array([found[column.name]], arrow_type(column.type)) for column in columns}


def _bound(context: Context, record: ObjectRecord, texts: Sequence[str], behind: str = "") -> BoundQuery:
    """The query for some defaults, in the time zone in which they were declared."""
    query = localize(context, parse_query(f"SELECT {', '.join(texts)}{behind}"))
    return BoundQuery(query, replace(names_of(context), zone=declared_zone(record)))
