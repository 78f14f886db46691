"""INSERT, UPDATE and DELETE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column, arrow_schema, arrow_type
from headrace.coordinator.changes import TableChange
from headrace.errors import (
    DatatypeMismatch,
    HeadraceError,
    NotNullViolation,
    NotSupported,
    StatementError,
    SyntaxFault,
    UndefinedColumn,
    WrongObjectType,
)
from headrace.session.engine import columns_of, stream
from headrace.session.execution.select import compute
from headrace.session.execution.simple import constant_value
from headrace.session.names import Bound, kind_name, label, null_relation
from headrace.session.result import Notice, Result, ResultColumn
from headrace.sql import statements as st
from headrace.sql.dml import DEFAULT, Returning, delete_query, update_query
from headrace.sql.parser import parse_query
from headrace.sql.query import Query
from headrace.sql.statements import TableName

if TYPE_CHECKING:
    from headrace.session.session import Session

_WHOLE = ("tinyint", "smallint", "int", "bigint")


def target_table(session: Session, name: TableName, verb: str) -> ObjectRecord:
    """The table to write to. Raises `WrongObjectType` for anything else."""
    record = session.names().get(name)
    if record.kind != "table":
        raise WrongObjectType(
            f'cannot {verb} {kind_name(record)} "{label(record)}"', hint="Only tables can be written to."
        )
    return record


def target_columns(record: ObjectRecord, names: Sequence[str]) -> list[Column]:
    """The columns of an INSERT's column list; all without one."""
    by_name = {c.name: c for c in record.columns}
    for name in names:
        if name not in by_name:
            raise UndefinedColumn(f'column "{name}" of relation "{label(record)}" does not exist')
        if list(names).count(name) > 1:
            raise StatementError(f'column "{name}" specified more than once', sqlstate="42701")
    return [by_name[n] for n in names] if names else list(record.columns)


def insert(session: Session, statement: st.Insert) -> Result:
    """INSERT of rows or of a query's result."""
    record = target_table(session, statement.table, "insert into")
    targets = target_columns(record, statement.columns)
    rows = _insert_rows(session, record, targets, statement)
    check_not_null(record, rows)
    conflict = statement.on_conflict or str(record.payload.get("on_conflict", "overwrite"))
    change = TableChange(inserts=_batch(rows), on_conflict="ignore" if conflict == "ignore" else "overwrite")
    count = rows.num_rows
    result = returning(session, statement.returning, statement.table, record, rows, f"INSERT 0 {count}")
    written = session.write(record, change)
    if written is not None and conflict == "ignore":
        result.tag = f"INSERT 0 {written.inserted}"
    if written is not None and written.late:
        result.tag = f"INSERT 0 {written.inserted}"
        text = f"{written.late} rows were left out: the watermark of the table had passed them"
        result.notices.append(Notice(text))
    return result


def _insert_rows(session: Session, record: ObjectRecord, targets: Sequence[Column], statement: st.Insert) -> pa.Table:
    types = [c.type for c in targets]
    if statement.rows is not None:
        width = statement.rows.width
        if statement.columns and width < len(targets):
            raise SyntaxFault("INSERT has more target columns than expressions")
        literal = statement.literal_rows(types)
        if literal is not None:
            return _from_literals(session, record, targets, literal)
        defaults = [record.payload.get("defaults", {}).get(c.name) for c in targets]
        return _from_query(session, record, targets[:width], statement.rows.query(types, defaults))
    if statement.query is not None:
        return _from_query(session, record, targets, statement.query, bool(statement.columns))
    return _from_literals(session, record, [], [[]])


def _from_literals(
    session: Session, record: ObjectRecord, targets: Sequence[Column], rows: Sequence[Sequence[object]]
) -> pa.Table:
    at = {c.name: i for i, c in enumerate(targets)}
    arrays = []
    for column in record.columns:
        i = at.get(column.name)
        values = [row[i] if i is not None and i < len(row) else DEFAULT for row in rows]
        if any(v is DEFAULT for v in values):
            default = default_value(session, record, column)
            values = [default if v is DEFAULT else v for v in values]
        arrays.append(pa.array(values, arrow_type(column.type)))
    return pa.Table.from_arrays(arrays, schema=_schema(record))


def default_value(session: Session, record: ObjectRecord, column: Column) -> object:
    """The value of a column that an INSERT leaves out."""
    text = record.payload.get("defaults", {}).get(column.name)
    if text is None:
        return None
    known, value = constant_value(text, column.type)
    if known:
        return value
    query = session.localized(parse_query(f"SELECT {text}"))
    bound = Bound(query, session.names())
    table = compute(session, bound, lambda found, inner: _assigned(found, inner, [column]))
    return table.column(0)[0].as_py()


def _from_query(
    session: Session, record: ObjectRecord, targets: Sequence[Column], query: Query, exact: bool = False
) -> pa.Table:
    bound = Bound(session.localized(query), session.names())
    width: list[int] = []

    def wrap(found: list[ResultColumn], text: str) -> str:
        if len(found) > len(targets):
            raise SyntaxFault("INSERT has more expressions than target columns")
        if exact and len(found) < len(targets):
            raise SyntaxFault("INSERT has more target columns than expressions")
        width.append(len(found))
        return _assigned(found, text, targets)

    computed = compute(session, bound, wrap)
    at = {c.name: i for i, c in enumerate(targets[: width[0]])}
    arrays = []
    for column in record.columns:
        kind = arrow_type(column.type)
        if column.name in at:
            arrays.append(computed.column(at[column.name]).cast(kind))
        else:
            arrays.append(pa.array([default_value(session, record, column)] * computed.num_rows, kind))
    return pa.Table.from_arrays(arrays, schema=_schema(record))


def _assigned(found: Sequence[ResultColumn], text: str, targets: Sequence[Column]) -> str:
    """Spark SQL around a query that casts its columns to those of a table, as an assignment does."""
    names = ", ".join(f"`c{i}`" for i in range(len(found)))
    items = [f"{assignment(f'`c{i}`', c.type, t)} AS `c{i}`" for i, (c, t) in enumerate(zip(found, targets))]
    return f"SELECT {', '.join(items)} FROM ({text}) AS __rows({names})"


def assignment(expression: str, source: str, target: Column) -> str:
    """Spark SQL that stores a value of one type in a column of another; raises `DatatypeMismatch`."""
    if source == target.type:
        return expression
    scalar = not source.startswith(("array<", "struct<", "map<"))
    if (source == "boolean") != (target.type == "boolean") and not {source, target.type} & {"string", "void"}:
        raise DatatypeMismatch(
            f'column "{target.name}" is of type {target.type} but expression is of type {source}',
            hint="You will need to rewrite or cast the expression.",
        )
    if scalar and target.type in _WHOLE and source in ("float", "double"):
        expression = f"RINT({expression})"
    elif scalar and target.type in _WHOLE and source.startswith("decimal"):
        expression = f"ROUND({expression})"
    return f"CAST({expression} AS {target.type})"


def update(session: Session, statement: st.Update) -> Result:
    """UPDATE: the rows are found by a query, then replaced."""
    record = target_table(session, statement.table, "update")
    _refuse_append_only(record, "UPDATE")
    names = [c.name for c in record.columns]
    by_name = {c.name: c for c in record.columns}
    query = update_query(statement, names, record.payload.get("defaults", {}))
    assigned = [a.column for a in statement.assignments]
    targets = [*record.columns, *(by_name[n] for n in assigned)]
    with session.database.writing(record.id):
        found = _affected(session, record, query, targets, statement.sources is not None)
        old = _named(record, found.columns[: len(names)])
        new_columns = dict(zip(names, old.columns)) | dict(zip(assigned, found.columns[len(names) :]))
        new = _named(record, [new_columns[n] for n in names])
        check_not_null(record, new)
        result = returning(session, statement.returning, statement.table, record, new, f"UPDATE {new.num_rows}")
        session.write(record, TableChange(inserts=_batch(new), deletes=_batch(old)))
    return result


def delete(session: Session, statement: st.Delete) -> Result:
    """DELETE: the rows are found by a query, then taken back."""
    record = target_table(session, statement.table, "delete from")
    _refuse_append_only(record, "DELETE")
    query = delete_query(statement, [c.name for c in record.columns])
    with session.database.writing(record.id):
        found = _affected(session, record, query, record.columns, statement.sources is not None)
        old = _named(record, found.columns)
        result = returning(session, statement.returning, statement.table, record, old, f"DELETE {old.num_rows}")
        session.write(record, TableChange(deletes=_batch(old)))
    return result


def _refuse_append_only(record: ObjectRecord, verb: str) -> None:
    if record.payload.get("append_only"):
        raise NotSupported(f'{verb} on the append-only table "{label(record)}"', hint="declare it without APPEND ONLY")


def _affected(
    session: Session, record: ObjectRecord, query: Query, targets: Sequence[Column], joined: bool
) -> pa.Table:
    if joined and not record.primary_key:
        raise NotSupported("UPDATE ... FROM and DELETE ... USING on a table without a primary key")
    bound = Bound(session.localized(query), session.names())
    found = compute(session, bound, lambda columns, text: _assigned(columns, text, targets))
    if not joined:
        return found
    # A row that several source rows match is changed once.
    keys = [i for i, c in enumerate(record.columns) if c.name in record.primary_key]
    seen: set[tuple[object, ...]] = set()
    keep = []
    for row in zip(*(found.column(i).to_pylist() for i in keys)):
        keep.append(row not in seen)
        seen.add(row)
    return found.filter(pa.array(keep, pa.bool_()))


def _schema(record: ObjectRecord) -> pa.Schema:
    return arrow_schema([Column(c.name, c.type) for c in record.columns])


def _named(record: ObjectRecord, columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    schema = _schema(record)
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema)], schema=schema)


def _batch(rows: pa.Table) -> pa.RecordBatch | None:
    return rows.combine_chunks().to_batches()[0] if rows.num_rows else None


def check_not_null(record: ObjectRecord, rows: pa.Table) -> None:
    """Raise `NotNullViolation` for a null in a column that may not hold it."""
    for column in record.columns:
        found = rows.column(column.name)
        if (not column.nullable or column.name in record.primary_key) and found.null_count:
            at = pc.index(pc.is_null(found), True).as_py()
            row = ", ".join("null" if v is None else str(v) for v in rows.slice(at, 1).to_pylist()[0].values())
            raise NotNullViolation(
                f'null value in column "{column.name}" of relation "{label(record)}" violates not-null constraint',
                detail=f"Failing row contains ({row}).",
            )


def returning(
    session: Session, wanted: Returning | None, name: TableName, record: ObjectRecord, rows: pa.Table, tag: str
) -> Result:
    """The result of a statement that changed `rows`."""
    if wanted is None:
        return Result(tag)
    plain = _plain_items(wanted, record)
    if plain is not None:
        types = {c.name: c.type for c in record.columns}
        columns = [ResultColumn(label, types[column]) for column, label in plain]
        table = pa.Table.from_arrays([rows.column(c) for c, _ in plain], names=[label for _, label in plain])
        return Result(tag, columns, iter(table.to_batches()))
    engine = session.database.engine
    schema = {name: {c.name: c.type for c in record.columns}}
    with session.jobs.running(wanted.text):
        spark = engine.session_for(None)
        frame = spark.createDataFrame(rows)
        with engine.views({record.id: frame}) as labels:
            found = spark.sql(wanted.to_spark(lambda _: labels[record.id], schema))
        return Result(tag, columns_of(found), iter(list(stream(found))))


def returning_columns(session: Session, wanted: Returning, record: ObjectRecord, name: TableName) -> list[ResultColumn]:
    """The columns of a RETURNING list."""
    plain = _plain_items(wanted, record)
    if plain is not None:
        types = {c.name: c.type for c in record.columns}
        return [ResultColumn(label, types[column]) for column, label in plain]
    schema = {name: {c.name: c.type for c in record.columns}}
    with session.jobs.running(wanted.text):
        return session.database.engine.analyze(wanted.to_spark(lambda _: null_relation(record.columns), schema))


def _plain_items(wanted: Returning, record: ObjectRecord) -> list[tuple[str, str]] | None:
    """(column, label) of a list that is nothing but columns."""
    text = wanted.text.strip()
    try:
        tree = parse_query(
            "SELECT " + (text[len("RETURNING") :] if text.upper().startswith("RETURNING") else text)
        ).tree
    except HeadraceError:
        return None
    names = [c.name for c in record.columns]
    found: list[tuple[str, str]] = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            found += [(n, n) for n in names]
        elif isinstance(inner, exp.Column) and inner.name in names and isinstance(inner.this, exp.Identifier):
            found.append((inner.name, item.alias_or_name))
        else:
            return None
    return found


def parameter_targets(record: ObjectRecord, statement: st.Insert) -> dict[int, str]:
    """Types of the parameters that stand alone in an INSERT's rows, by their number from 1."""
    found: dict[int, str] = {}
    if statement.rows is None:
        return found
    targets = target_columns(record, statement.columns)
    tree = statement.rows.query(["string"] * max(len(targets), statement.rows.width)).tree
    for select in tree.find_all(exp.Select):
        for column, item in zip(targets, select.expressions):
            inner = item.this if isinstance(item, exp.Alias) else item
            if isinstance(inner, exp.Parameter) and inner.name.isdigit():
                found.setdefault(int(inner.name), column.type)
    return found
