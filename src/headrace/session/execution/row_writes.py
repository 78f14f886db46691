"""INSERT of values, and UPDATE and DELETE by primary key, as operations on single rows: no Spark, no scan.

An operation is made once for a prepared statement; `sql/scalar.py` has the expressions that Python computes exactly
as Spark does. A group of writers runs it when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from sqlglot import exp

from headrace.catalog.contents import TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.common.lazy_dataclass import dataclass
from headrace.common.zones import UTC, Zone
from headrace.coordinator.decide.watermarks import declared
from headrace.coordinator.writes.layout import Key, Row, RowLayout
from headrace.coordinator.writes.requests import RowWrite
from headrace.coordinator.writes.written_rows import (
    Effect,
    RowOperation,
    append_rows,
    change_row,
    insert_rows,
    upsert_rows,
)
from headrace.errors import DataError
from headrace.session.context import Context
from headrace.session.defined import declared_zone
from headrace.session.execution.simple import constant_value
from headrace.session.execution.upserts import conflict_of, keeps_key
from headrace.session.execution.write_targets import (
    check_row,
    ignores,
    letters_of,
    plain_items,
    target_columns,
    target_table,
)
from headrace.session.names import names_of
from headrace.session.result import Ready, Result, ResultColumn, columns_of_record
from headrace.sql import statements as st
from headrace.sql.conflicts import EXCLUDED, Conflict
from headrace.sql.parser import parse_expression
from headrace.sql.scalar import NotScalar, PairScope, RowScope, Run, Values, values_of
from headrace.sql.statements import TableName

_INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


Upsert: TypeAlias = Callable[[Values], Callable[[Row, Row], Row | None]]
"""From the values of the parameters to what a row becomes that is there when another one is to be inserted."""
RowChange: TypeAlias = st.Insert | st.Update | st.Delete


@dataclass(frozen=True)
class RowPlan:
    """A statement as an operation on single rows, with its parameters open. Good as long as the table is the same."""

    name: TableName
    record: ObjectRecord
    tag: str
    """What a client is told, before the number of rows."""
    letters: str
    """The privileges on the table that it takes."""
    make: Callable[[Values], RowOperation]
    """From the values of the parameters, and behind them the time of the transaction."""
    types: tuple[str | None, ...]
    """Types of the parameters."""
    ignore: bool = False
    returned: tuple[tuple[str, str], ...] | None = None
    """(column, name in the result) of a RETURNING list."""
    zone: Zone = UTC
    """The time zone in which texts are read."""
    inserted: Callable[[Values], list[Row]] | None = None
    """Of an INSERT, its rows, from the same as `make`."""
    update: Upsert | None = None
    """What rows become that an INSERT finds there, if it says so."""

    def holds(self, context: Context) -> bool:
        """Whether the statement still means this table in this zone, as when it was planned, and may write to it."""
        if context.zone != self.zone or names_of(context, checked=False).find(self.name) is not self.record:
            return False
        rights, record = context.rights, self.record
        return rights.superuser or (
            rights.may_in("U", record.schema) and all(rights.may(letter, record) for letter in self.letters)
        )

    def operation(self, texts: Sequence[str | None], zone: Zone, now: datetime) -> RowOperation:
        """What is to be done in a transaction that began `now`. Raises `DataError`s for texts that do not fit."""
        return self.make([*values_of(texts, self.types, zone), now])

    @property
    def columns(self) -> list[ResultColumn] | None:
        """The result's columns; None for no rows at all."""
        if self.returned is None:
            return None
        return columns_of_record(self.record, self.returned)

    def result(self, rows: Sequence[Row]) -> Result:
        """What the client is told of the rows that were written."""
        told = f"{self.tag} {len(rows)}"
        if self.returned is None:
            return Result(told)
        at = {c.name: (i, arrow_type(c.type)) for i, c in enumerate(self.record.columns)}
        places = [at[name] for name, _ in self.returned]
        arrays = [pa.array([row[i] for row in rows], kind) for i, kind in places]
        batch = pa.RecordBatch.from_arrays(arrays, names=[label for _, label in self.returned])
        return Result(told, self.columns, iter([batch]))


def run_plan(context: Context, plan: RowPlan, texts: Sequence[str | None] = ()) -> Result:
    """Run it with the text of its parameters. Raises `DataError`s for values that do not fit."""
    operation = plan.operation(texts, context.zone, context.times.now)
    transaction = context.transaction
    if transaction is not None:
        return plan.result(transaction.work.run(operation).affected)
    outcome = context.coordinator.commit(RowWrite(operation), context.check)
    context.wrote(outcome.epoch)
    return plan.result(outcome.affected)


class StartedWrite(NamedTuple):
    """A `Pending` of a single-row operation that waits to be committed."""

    context: Context
    statement: st.Statement
    plan: RowPlan
    request: RowWrite

    @property
    def ready(self) -> Ready:
        """Done when it is committed or has failed."""
        return self.request.done

    def finish(self) -> Result:
        """Its result."""
        return self.context.runner.finish(self.statement, self._result)

    def _result(self) -> Result:
        outcome = self.request.done.result()
        self.context.wrote(outcome.epoch)
        return self.plan.result(outcome.affected)


def start_plan(
    context: Context, statement: st.Statement, plan: RowPlan, texts: Sequence[str | None]
) -> Result | StartedWrite:  # fmt: skip
    """The same as `run_plan` without waiting for the commit."""
    operation = plan.operation(texts, context.zone, context.times.now)
    if context.transaction is not None:
        return plan.result(context.transaction.work.run(operation).affected)
    request = RowWrite(operation)
    context.coordinator.writer.submit(request)
    return StartedWrite(context, statement, plan, request)


def plan_rows(context: Context, statement: RowChange, types: Sequence[str | None] = ()) -> RowPlan | None:
    """The statement as a plan for single rows; None where it is more than that. Parameters' types may be open.

    Raises what is wrong with the statement in any case.
    """
    record = target_table(context, statement)
    layout = context.coordinator.tables.layout(record.id)
    if not layout.plain or declared(record) is not None or (record.primary_key and not layout.keyed):
        return None
    returned = None
    if statement.returning is not None:
        found = plain_items(statement.returning, record)
        if found is None:
            return None
        returned = tuple(found)
    open_types = list(types)
    ignore, inserted, update = False, None, None
    try:
        if isinstance(statement, st.Insert):
            ignore, conflict = ignores(record, statement), conflict_of(record, statement)
            inserted = _inserted(record, statement, RowScope({}, open_types, context.zone))
            if conflict is not None and conflict.updates:
                update = _upsert(record, conflict, open_types, context.zone)
            make = _insert(record, layout, inserted, ignore, update)
        elif record.content_as(TableContent).append_only:
            return None
        else:
            make = _change(record, layout, statement, open_types, context.zone)
    except (NotScalar, DataError):
        return None  # an error is the engine's to tell, in its words
    return RowPlan(
        statement.table, record, statement.tag, letters_of(statement), make, tuple(open_types), ignore, returned,
        context.zone, inserted, update,
    )  # fmt: skip


def plan_all_rows(context: Context, plans: Sequence[RowPlan]) -> RowPlan:
    """INSERTs of rows into one table as one: each takes its parameters from those that the ones before it leave."""
    first = plans[0]
    record, layout = first.record, context.coordinator.tables.layout(first.record.id)

    def inserted(parameters: Values) -> list[Row]:
        made: list[Row] = []
        at, now = 0, parameters[-1]
        for plan in plans:
            assert plan.inserted is not None
            made += plan.inserted([*parameters[at : at + len(plan.types)], now])
            at += len(plan.types)
        return made

    types = tuple(chain.from_iterable(plan.types for plan in plans))
    make = _insert(record, layout, inserted, first.ignore, first.update)
    return replace(first, make=make, types=types, inserted=inserted)


def _inserted(record: ObjectRecord, statement: st.Insert, scope: RowScope) -> Callable[[Values], list[Row]]:
    if statement.rows is None:
        raise NotScalar
    columns = target_columns(record, statement.columns)
    rows = [_cells(record, columns, cells, scope, bool(statement.columns)) for cells in statement.rows.cells()]

    def inserted(parameters: Values) -> list[Row]:
        made = [tuple([cell((), parameters) for cell in row]) for row in rows]
        for row in made:
            if None in row:
                check_row(record, row)
        return made

    return inserted


def _insert(
    record: ObjectRecord, layout: RowLayout, inserted: Callable[[Values], list[Row]], ignore: bool,
    update: Upsert | None,
) -> Callable[[Values], RowOperation]:  # fmt: skip
    def make(parameters: Values) -> RowOperation:
        made = inserted(parameters)
        if not layout.key_at:
            return RowOperation(record.id, (), append_rows(made))
        keys = [layout.key_of(row) for row in made]
        if update is not None:
            return RowOperation(record.id, tuple(keys), upsert_rows(made, keys, update(parameters)))
        return RowOperation(record.id, tuple(keys), insert_rows(made, keys, ignore=ignore))

    return make


def _upsert(record: ObjectRecord, conflict: Conflict, types: list[str | None], zone: Zone) -> Upsert:
    """What DO UPDATE makes of a row that is there and one that was to be inserted."""
    columns = [(c.name, c.type) for c in record.columns]
    scope = PairScope(columns, types, zone, (conflict.relation, EXCLUDED))
    assigned = _assigned(record, conflict, scope, {name: (i, kind) for i, (name, kind) in enumerate(columns)})
    matches = None if conflict.where is None else scope.compile_condition(conflict.where.tree)

    def update(parameters: Values) -> Callable[[Row, Row], Row | None]:
        def changed(old: Row, excluded: Row) -> Row | None:
            both = (*old, *excluded)
            if matches is not None and matches(both, parameters) is not True:
                return None
            return _reassigned(record, old, assigned, both, parameters)

        return changed

    return update


def _cells(
    record: ObjectRecord, columns: Sequence[Any], cells: Sequence[exp.Expr | None], scope: RowScope, listed: bool
) -> list[Run]:  # fmt: skip
    """How each column of a row is computed."""
    if len(cells) > len(columns) or (listed and len(cells) < len(columns)):
        raise NotScalar
    given = {c.name: cell for c, cell in zip(columns, cells) if cell is not None}
    found: list[Run] = []
    for column in record.columns:
        cell = given.get(column.name)
        if cell is None:
            found.append(_default(record, column.name, column.type))
        else:
            found.append(scope.compile_as(cell, column.type))
    return found


def _default(record: ObjectRecord, name: str, kind: str) -> Run:
    text = record.content_as(TableContent).defaults.get(name)
    if text is None:
        return lambda *_: None
    zone = declared_zone(record)
    known, value = constant_value(text, kind, zone)
    if known:
        return lambda *_: value
    return RowScope({}, [], zone).compile_as(parse_expression(text).tree, kind)


def _change(
    record: ObjectRecord, layout: RowLayout, statement: st.Update | st.Delete, types: list[str | None],
    zone: Zone,
) -> Callable[[Values], RowOperation]:  # fmt: skip
    if statement.sources is not None or statement.where is None or not layout.key_at:
        raise NotScalar
    at = {c.name: (i, c.type) for i, c in enumerate(record.columns)}
    scope = RowScope(at, types, zone, (statement.alias or statement.table.name,))
    equal, rest = _keyed(statement.where.tree, record, scope)
    matches = [scope.compile_condition(part) for part in rest]
    assigned = _assigned(record, statement, scope, at) if isinstance(statement, st.Update) else None
    possible = _possible_key(record)

    def make(parameters: Values) -> RowOperation:
        key = tuple([run((), parameters) for run in equal])
        if not possible(key):
            return RowOperation(record.id, (), lambda _: Effect())

        def fits(row: Row) -> bool:
            return all(part(row, parameters) is True for part in matches)

        def changed(row: Row) -> Row | None:
            return None if assigned is None else _reassigned(record, row, assigned, row, parameters)

        return RowOperation(record.id, (key,), change_row(key, fits, changed))

    return make


def key_wanted(context: Context, record: ObjectRecord, statement: st.Update | st.Delete) -> Key | None:
    """The primary key that a condition wants its rows to have; None where it may want several, or none at all."""
    layout = context.coordinator.tables.layout(record.id)
    if statement.sources is not None or statement.where is None or not layout.keyed:
        return None
    at = {c.name: (i, c.type) for i, c in enumerate(record.columns)}
    scope = RowScope(at, [], context.zone, (statement.alias or statement.table.name,))
    try:
        equal, _ = _keyed(statement.where.tree, record, scope)
        key = tuple([run((), (context.times.now,)) for run in equal])
    except (NotScalar, DataError):
        return None
    return key if _possible_key(record)(key) else None


def _keyed(condition: exp.Expr, record: ObjectRecord, scope: RowScope) -> tuple[list[Run], list[exp.Expr]]:
    """What a condition wants each column of the primary key to be, and the rest of it."""
    kinds = {c.name: c.type for c in record.columns}
    wanted: dict[str, Run] = {}
    rest: list[exp.Expr] = []
    for part in _parts(condition):
        name, value = _equality(part, record.primary_key)
        if name is None or value is None or name in wanted:
            rest.append(part)
            continue
        scope.compile(part)  # it must be a comparison that is understood, with the parameters' types settled
        found = scope.compile(value)
        if not found.constant:
            rest.append(part)
            continue
        wanted[name] = scope.compile_constant(value, kinds[name])
    if set(wanted) != set(record.primary_key):
        raise NotScalar
    return [wanted[name] for name in record.primary_key], rest


def _parts(condition: exp.Expr) -> list[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        return [*_parts(condition.this), *_parts(condition.expression)]
    return [condition]


def _equality(part: exp.Expr, names: Sequence[str]) -> tuple[str | None, exp.Expr | None]:
    if isinstance(part, exp.EQ):
        for column, value in ((part.this, part.expression), (part.expression, part.this)):
            if isinstance(column, exp.Column) and column.name in names:
                return column.name, value
    return None, None


def _possible_key(record: ObjectRecord) -> Callable[[Key], bool]:
    """Whether a row can have a key: no value is null or out of its column's range."""
    kinds = {c.name: c.type for c in record.columns}
    limits = [1 << _INTEGERS[kind] if (kind := kinds[name]) in _INTEGERS else None for name in record.primary_key]

    def possible(key: Key) -> bool:
        for value, limit in zip(key, limits):
            if value is None or (limit is not None and not -limit <= value < limit):
                return False
        return True

    return possible


def _reassigned(
    record: ObjectRecord, row: Row, assigned: Sequence[tuple[int, Run]], seen: Sequence[object], parameters: Values
) -> Row:  # fmt: skip
    """A row with the values that are assigned, which are computed of what is `seen`. Raises what it cannot hold."""
    new = list(row)
    for i, run in assigned:
        new[i] = run(seen, parameters)
    if None in new:
        check_row(record, new)
    return tuple(new)


def _assigned(
    record: ObjectRecord, statement: st.Update | Conflict, scope: RowScope, at: dict[str, tuple[int, str]]
) -> list[tuple[int, Run]]:  # fmt: skip
    found: dict[int, Run] = {}
    if len({a.column for a in statement.assignments}) < len(statement.assignments):
        raise NotScalar  # the binder says that one has several
    for assignment in statement.assignments:
        value = assignment.value
        if isinstance(statement, Conflict) and keeps_key(record, statement, assignment.column, value):
            continue
        if assignment.column not in at or assignment.column in record.primary_key:
            raise NotScalar
        i, kind = at[assignment.column]
        found[i] = _default(record, assignment.column, kind) if value is None else scope.compile_as(value.tree, kind)
    return list(found.items())
