"""COPY to and from files: computed, read and written by Spark's tasks; no row goes through the server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from headrace.catalog.contents import SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.common.faults import fault_point
from headrace.connectors.base import Admission, Offsets, Source
from headrace.connectors.confidential import hiding
from headrace.connectors.declared import DeclaredOptions
from headrace.connectors.files import folders
from headrace.connectors.files.clients import STORE, scheme_of
from headrace.connectors.files.file_listing import format_of
from headrace.connectors.files.folders import WrittenFile, folder_at
from headrace.connectors.files.options import SOURCE, delimiter_of
from headrace.connectors.files.out import check_format, compression_of
from headrace.connectors.files.store_access import local_path
from headrace.connectors.leaving import columns_outside
from headrace.connectors.option_reader import check_secrets
from headrace.connectors.policy import PAST_IT
from headrace.connectors.sources import check_secret_options, open_source
from headrace.coordinator.decide.watermarks import declared
from headrace.dataflow.operators.copy_write import OUTCOME, WriteFile
from headrace.errors import HeadraceError, InvalidParameter, NotSupported, SourceError
from headrace.session.context import Context
from headrace.session.engine import columns_of
from headrace.session.execution import fed, secrets
from headrace.session.execution.copying import query_of
from headrace.session.execution.defaults import default_values, left_out, refuse_of_each_row
from headrace.session.execution.handler import Handler, InScript, Needs
from headrace.session.execution.in_transaction import run_writing
from headrace.session.execution.large_writes import insert_frame
from headrace.session.execution.snapshots import open_snapshot
from headrace.session.execution.spark_queries import frame_of
from headrace.session.execution.write_targets import target_columns, target_table
from headrace.session.introspection import asked
from headrace.session.names import BoundQuery, names_of
from headrace.session.result import Notice, Result
from headrace.session.system.asking_functions import localize
from headrace.session.transactions import Transaction
from headrace.sql import statements as st
from headrace.sql.query import Query

_LAYOUT: Final = ("format", "header", "delimiter", "null_string", "multiline")
FROM: Final = DeclaredOptions(tuple(o for o in SOURCE.options if o.name in (*_LAYOUT, *(s.name for s in STORE))))
"""The options of COPY FROM are those of the source, as far as they say what files are; `null` is `null_string`."""
_AS_IN_POSTGRES: Final = {"header": "false", "multiline": "true"}
"""What holds where nothing is said."""


def copy_from_files(context: Context, statement: st.CopyFromFiles) -> Result:
    """COPY FROM files: all rows of the files that are there now, as one change."""
    record = target_table(context, statement)
    columns = target_columns(record, statement.columns)
    context.rights.require_member("pg_read_server_files", "COPY from files of the server or of a store")
    if declared(record) is not None:
        hint = "copy to a table without one, and INSERT from that"
        raise NotSupported("COPY from files to a table with a watermark", hint=hint)
    fed.check_types(columns)
    named = secrets.named(context, statement)
    _check_names(FROM, [*statement.options, *named])
    options = {"connector": "files", "path": statement.place, **_AS_IN_POSTGRES, **statement.options}
    check_secret_options(options, named)
    _check_absolute(statement.place, options)
    values = context.coordinator.secrets(named)
    read = tuple(Column(c.name, c.type) for c in columns)  # a NULL is refused with the row that has it
    source, form = open_source(options, read, values), statement.options.get("format")
    if form is not None:
        folders.check_of_format([form], statement.options)
    offsets = _everything(context, source, statement.place)
    folders.check_of_format({f for f in (format_of(path, form) for path in offsets) if f}, statement.options)
    told = _half_written(statement, offsets, {} if values is None else dict(values()))
    files = ObjectRecord(0, SourceContent(), "", "files", columns=read, options=options)
    refuse_of_each_row(context, record, left_out(record, columns), "COPY")
    defaults = default_values(context, record, left_out(record, columns))
    ignore = record.content_as(TableContent).on_conflict == "ignore"

    def run(transaction: Transaction) -> tuple[Result, None]:
        engine = context.engine
        with _without_source(), context.jobs.running(statement.text):
            frame = engine.source_leaf(engine.session_for(None), files, offsets, [c.name for c in read], values)
            written = insert_frame(context, transaction, record, columns, frame, defaults, ignore=ignore)
        return Result(statement.counted(written.inserted), notices=told), None

    return run_writing(context, run)


@contextmanager
def _without_source() -> Iterator[None]:
    """Say nothing of a source that could be altered: there is none."""
    try:
        yield
    except HeadraceError as error:
        if error.hint == PAST_IT:
            error.hint = "mend the file: either all of its rows are copied or none"
        raise


def _half_written(statement: st.CopyFromFiles, offsets: Offsets, hidden: Mapping[str, str]) -> list[Notice]:
    """A warning for each folder whose files are those of a COPY that may not have written all of them."""
    store = {o.name: statement.options[o.name] for o in STORE if o.name in statement.options}
    text = f"has files of a COPY that has not ended: no {folders.MANIFEST}"
    found = folders.half_written(offsets, {**store, **hidden})
    return [Notice(f"{at} {text}", "WARNING", "01000") for at in found]


def _everything(context: Context, source: Source, place: str) -> Offsets:
    """The offsets behind all that is there. Raises `SourceError` where that is nothing."""
    offsets, now_ms = source.start_offsets(), context.clock.now_ms()
    while True:
        context.check()
        binding = source.latest_offsets(offsets, Admission(), now_ms)
        offsets = binding.offsets
        if not binding.behind:
            break
    if not offsets:
        hint = "files whose names begin with . or _, or end otherwise than their format, are left alone"
        raise SourceError(f"there is no file to copy at {place}", hint=hint, sqlstate="58P01")
    return offsets


def copy_to_files(context: Context, statement: st.CopyToFiles) -> Result:
    """COPY TO a folder: it is there with all files, or not at all."""
    context.rights.require_member("pg_write_server_files", "COPY to files of the server or of a store")
    query = statement.query
    if query is None:
        assert statement.table is not None
        query = query_of(context, statement.table, statement.columns)[0]
    named = secrets.named(context, statement)
    _check_names(folders.OPTIONS, [*statement.options, *named])
    options = {"connector": "COPY", **statement.options}
    check_secrets(folders.OPTIONS.takes_secret, options, named)
    values = folders.OPTIONS.read(options)
    folders.check_of_format([values["format"]], statement.options)
    compression_of(values)
    _check_absolute(statement.place, statement.options)
    found = context.coordinator.secrets(named)
    return _written(context, statement, query, values, {} if found is None else dict(found()))


def _written(
    context: Context, statement: st.CopyToFiles, query: Query, values: Mapping[str, Any], hidden: Mapping[str, str]
) -> Result:  # fmt: skip
    query, copy_id = localize(context, query), uuid.uuid4().hex[:16]
    if asked(context, query, described=True) is not None:
        raise NotSupported("COPY of system catalogs to files", hint="COPY ... TO STDOUT sends them to the client")
    store = {o.name: statement.options[o.name] for o in STORE if o.name in statement.options}
    with ExitStack() as stack:
        stack.enter_context(hiding([*hidden.values()]))
        folder = folder_at(statement.place, {**store, **hidden}, copy_id)
        bound = BoundQuery(query, names_of(context))
        snapshot = open_snapshot(context, bound, stack)
        frame = frame_of(context, bound, snapshot)
        columns = tuple(Column(c.name, c.type) for c in columns_of(frame))
        _check_columns(columns, values["format"])
        write = WriteFile(
            columns, folder, copy_id, values["format"], compression_of(values), values["header"],
            delimiter_of(values), tuple(hidden.values()),
        )  # fmt: skip
        folder.claim()
        try:
            with context.jobs.running(statement.text), context.turns.one(context.check):
                rows = frame.mapInArrow(write, f"{OUTCOME[0].name} string").collect()
            files = sorted((WrittenFile(**json.loads(row[0])) for row in rows), key=lambda f: f.name)
            fault_point("copy.commit.before")
            folder.commit(files)
        except BaseException:
            folder.give_up()
            raise
    return Result(statement.counted(sum(f.rows for f in files)))


def _check_columns(columns: Sequence[Column], format: str) -> None:
    """Raise for columns that files of a format cannot have."""
    names = [c.name for c in columns]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None and format != "csv":
        raise InvalidParameter(
            f'column "{twice}" specified more than once', hint="give it another name", sqlstate="42701"
        )
    check_format(columns_outside(columns), format)


def _check_names(options: DeclaredOptions, names: Sequence[str]) -> None:
    """Raise `InvalidParameter` for an option that is none."""
    known = [o.name for o in options.options]
    for name in names:
        if name not in known:
            raise InvalidParameter(f'option "{name}" of COPY is not known', hint=f"options: {', '.join(known)}")


def _check_absolute(place: str, options: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for files whose place depends on where the server was started."""
    paths = [] if scheme_of(place, options) else [local_path(item.strip()) for item in place.split(",")]
    if any(not os.path.isabs(path) for path in paths):
        raise InvalidParameter("relative path not allowed for COPY with files", sqlstate="42602")


HANDLERS: Final = (
    Handler(st.CopyFromFiles, copy_from_files, script=InScript.OPENS, audited=True, needs=Needs.WRITE),
    Handler(st.CopyToFiles, copy_to_files, audited=True, needs=Needs.FILES),
)
