"""Making a database what a pipeline says: what is missing is created, what is there is left alone, or replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pyarrow as pa

from headrace.catalog.contents import MadeBy, MaterializedViewContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_schema
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.coordinator.decide.automatic import is_automatic
from headrace.errors import DatatypeMismatch, DependentObjectsExist, DuplicateObject, HeadraceError
from headrace.session import created_functions, frame_views
from headrace.session.execution import ddl, fed, routines
from headrace.session.execution.in_transaction import write
from headrace.session.names import BoundQuery, label, names_of
from headrace.session.pipelines.definitions import Pipeline
from headrace.session.pipelines.pipeline_graph import PipelineGraph, PipelineNode
from headrace.session.session import Session
from headrace.session.system.asking_functions import localize
from headrace.sql.parser import parse_one, parse_query
from headrace.sql.statements import TableName
from headrace.state.kernels import concat
from headrace.state.table_changes import TableChange

State = Literal["create", "unchanged", "changed", "replace", "inline"]
Progress = Callable[["ApplyStep", bool], None]
"""Told of a step before it is taken (False) and after (True)."""


@dataclass
class ApplyStep:
    """What `apply` does with one definition: create, leave alone or replace it."""

    node: PipelineNode
    state: State


class PipelineChanged(DuplicateObject):
    """Definitions that are not those that made the objects of their names."""


class Plan:
    """What has to be done so that the database has all that a pipeline defines. Raises what its definitions raise."""

    def __init__(self, session: Session, pipeline: Pipeline):
        self._session = session
        self._pipeline = pipeline
        self._context = session.context
        graph = PipelineGraph(session.context, pipeline)
        made = self._make_functions(graph.functions())
        self.steps = [
            ApplyStep(node, "create" if node.name in made else self._state(node)) for node in graph.build().values()
        ]
        self._by_name = {step.node.name: step for step in self.steps}

    # ---- what is there

    def _record(self, name: str) -> ObjectRecord | None:
        return names_of(self._context).find(TableName(None, name))

    def _state(self, node: PipelineNode) -> State:
        if not node.stored:
            return "inline"
        record = self._record(node.name)
        if record is None:
            return "create"
        made_by = record.content.pipeline
        return "unchanged" if made_by is not None and made_by.digest == node.digest else "changed"

    def _make_functions(self, nodes: Iterable[PipelineNode]) -> set[str]:
        """Functions first: views cannot be analyzed without them. One that has changed is left for `run`."""
        missing = [node for node in nodes if self._state(node) == "create"]
        for node in missing:
            self._create(node)
        return {node.name for node in missing}

    def changed(self) -> list[ApplyStep]:
        """Steps whose object was made by another definition."""
        return [step for step in self.steps if step.state == "changed"]

    # ---- what is to be done

    def run(self, *, replace: bool = False, progress: Progress | None = None) -> None:
        """Create what is missing, each after what it reads. Harmless when repeated.

        Raises `PipelineChanged` before anything is done if definitions have changed and are not to be replaced, and
        `DependentObjectsExist` where something outside of the pipeline is built on what is to be replaced.
        """
        if self.changed() and not replace:
            names = ", ".join(step.node.name for step in self.changed())
            raise PipelineChanged(
                f"these definitions are not the ones that made what is there: {names}",
                detail="\n".join(f"{s.node.name}: defined at {s.node.definition.place}" for s in self.changed()),
                hint="--replace (replace=True) drops them, and what the pipeline builds on them, and makes them again",
            )
        self._drop_replaced()
        for step in self.steps:
            if step.state in ("create", "replace") and self._record(step.node.name) is None:
                if progress is not None:
                    progress(step, False)
                self._create(step.node)
                if progress is not None:
                    progress(step, True)

    def _drop_replaced(self) -> None:
        gone = [record for s in self.changed() if (record := self._record(s.node.name)) is not None]
        state = self._context.catalog.state
        order: list[ObjectRecord] = []

        def visit(record: ObjectRecord) -> None:
            for above in state.dependents(record.id):
                visit(state.objects[above])
            if record not in order and not is_automatic(record):
                order.append(record)

        for record in gone:
            visit(record)
        foreign = [o for o in order if o.name not in self._by_name]
        if foreign:
            raise DependentObjectsExist(
                f"cannot replace {label(gone[0])}: {', '.join(map(label, foreign))} is built on it",
                hint="the pipeline does not define that: drop it first",
            )
        if order:
            for text in fed.drop(self._context, order):
                get_logger("headrace").warning(text)
        for record in order:
            routines.forget(self._context, record)
            self._by_name[record.name].state = "replace"

    def _create(self, node: PipelineNode) -> None:
        definition, session, context = node.definition, self._session, self._context
        context.pipeline = MadeBy(digest=node.digest, comment=definition.comment)
        try:
            if definition.kind == "function":
                self._create_function(node)
            elif definition.kind == "materialized view":
                self._create_view(node)
            elif definition.kind == "view":
                session.run(parse_one(f'CREATE VIEW "{node.name}" AS {node.sql}'))
            else:
                assert node.sql is not None
                rows = definition.function() if definition.kind == "table" else None
                session.run(parse_one(node.sql))
                if rows is not None:
                    self._fill(node.name, rows)
        finally:
            context.pipeline = None

    def _create_function(self, node: PipelineNode) -> None:
        definition, given = node.definition, node.definition.arguments
        routines.create(
            self._context, TableName(None, node.name),
            lambda: created_functions.content_of_object(
                node.name, definition.function, given["returns"], given["args"], False, False
            ),
            f"-- Python function at {definition.place}",
        )  # fmt: skip

    def _create_view(self, node: PipelineNode) -> None:
        context, name, options = self._context, TableName(None, node.name), dict(node.definition.options)
        closing = bool(node.definition.arguments.get("on_window_close"))
        if node.sql is not None:
            bound = BoundQuery(localize(context, parse_query(node.sql)), names_of(context))
            text = ddl.planned_text(bound, None)
            content = MaterializedViewContent(spark_sql=text, emit_on_window_close=closing)
            ddl.create_planned(context, name, text, content, node.sql, options, bound.dependencies())
            return
        with self._pipeline.reading(self._read):
            frame = node.definition.function()
        frame_views.create_view(context, name, frame, options, closing)

    def _read(self, name: str) -> Any:
        step = self._by_name.get(name)
        if step is not None and not step.node.stored:
            return step.node.definition.function()
        return frame_views.relation(self._context, name).alias(name)

    def _fill(self, name: str, rows: object) -> None:
        record = self._record(name)
        assert record is not None
        try:
            table = rows_of(record, rows)
            if table.num_rows:
                batch = concat(table.to_batches(), table.schema)
                write(self._context, record, TableChange(inserts=batch))
        except BaseException:
            self._context.coordinator.drop([record.id])
            raise


def rows_of(record: ObjectRecord, rows: Any) -> pa.Table:
    """The rows of a table in its own types. Raises `DatatypeMismatch`."""
    import pandas as pd

    schema = arrow_schema(record.columns)
    try:
        if isinstance(rows, pa.Table):
            return rows.select(schema.names).cast(schema)
        if isinstance(rows, pd.DataFrame):
            return pa.Table.from_pandas(rows[schema.names], schema, preserve_index=False)
        if hasattr(rows, "toArrow"):
            return rows.toArrow().select(schema.names).cast(schema)
        found = [row if isinstance(row, dict) else dict(zip(schema.names, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(found, schema)
    except HeadraceError:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        columns = json.dumps({f.name: str(f.type) for f in schema})
        raise DatatypeMismatch(
            f"the rows of table {record.name} do not fit its columns: {error}", detail=columns
        ) from None


__all__ = ["PipelineChanged", "Plan", "ApplyStep"]
