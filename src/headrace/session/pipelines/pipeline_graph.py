"""Finding a pipeline's graph: every definition is evaluated over relations that have columns and no rows yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from headrace.catalog.contents import CONTENTS, Content, ViewContent
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.sources import infer_columns
from headrace.errors import HeadraceError, InvalidParameter, StatementError
from headrace.plan.border_types import spark_of
from headrace.plan.catalyst import nodes
from headrace.plan.catalyst.bridge import Bridge
from headrace.plan.catalyst.kinds import PythonCall
from headrace.plan.failures import translate
from headrace.plan.tree import canonical
from headrace.session.context import Context
from headrace.session.execution import connections
from headrace.session.execution.select import describe
from headrace.session.names import BoundQuery, Names, names_of
from headrace.session.pipelines.definitions import Definition, Pipeline
from headrace.session.pipelines.digest import code_parts, digest
from headrace.session.system.asking_functions import localize
from headrace.sql import statements as st
from headrace.sql.parser import parse_one, parse_query
from headrace.sql.statements import TableName


class PipelineCycle(StatementError):
    """Definitions that need each other."""

    sqlstate = "42P17"


@dataclass
class PipelineNode:
    """A definition, evaluated: what it reads, its columns, and a digest of all that it means.

    `sql` is the statement that creates it, or a view's query; a view made of a DataFrame has none.
    """

    definition: Definition
    columns: tuple[Column, ...] = ()
    reads: list[str] = field(default_factory=list)
    sql: str | None = None
    digest: str = ""
    frame: DataFrame | None = None

    @property
    def name(self) -> str:
        """The relation's name."""
        return self.definition.name

    @property
    def stored(self) -> bool:
        """Whether the database has an object of it; a view made of a DataFrame is put in the place of its name."""
        return self.definition.kind != "view" or self.sql is not None


@dataclass(frozen=True)
class _Overlay(Names):
    """Look-up of names, definitions of the pipeline first."""

    nodes: Mapping[str, PipelineNode] = field(default_factory=dict)

    def find(self, name: TableName) -> ObjectRecord | None:
        node = self.nodes.get(name.name) if name.schema in (None, "public") else None
        if node is None or not node.stored or node.definition.kind == "function":
            return super().find(name)
        number = -1 - list(self.nodes).index(name.name)
        return ObjectRecord(number, self._content(node), "public", name.name, node.columns)

    def _content(self, node: PipelineNode) -> Content:
        if node.definition.kind == "view":
            assert node.sql is not None  # else it is not stored
            return ViewContent(query=node.sql, search_path=self.search_path, typed=True)
        return CONTENTS[node.definition.kind.replace(" ", "_")]()


class PipelineGraph:
    """The nodes of a pipeline, each after all that it reads. Functions come first: they must be in the database."""

    def __init__(self, context: Context, pipeline: Pipeline):
        self._context = context
        self._pipeline = pipeline
        self._bridge: Bridge = context.planner.bridge
        self._open: list[str] = []
        self.nodes: dict[str, PipelineNode] = {}

    def functions(self) -> list[PipelineNode]:
        """The pipeline's functions; they read nothing."""
        return [self.node(d.name) for d in self._pipeline.definitions.values() if d.kind == "function"]

    def build(self) -> dict[str, PipelineNode]:
        """Evaluate every definition. Raises `PipelineCycle`, and what a definition raises, with its place as detail."""
        for name in self._pipeline.definitions:
            self.node(name)
        return self.nodes

    def node(self, name: str) -> PipelineNode:
        """The evaluated definition of a name, and before it all that it reads."""
        if name in self.nodes:
            return self.nodes[name]
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise PipelineCycle(
                f"the definitions depend on each other in a circle: {circle}",
                hint="make one of them a table that something outside of the pipeline fills",
            )
        definition = self._pipeline.definitions[name]
        self._open.append(name)
        try:
            node = self._evaluated(definition)
        except PipelineCycle:
            raise
        except Exception as error:
            found = error if isinstance(error, HeadraceError) else translate(error)
            if not str(found.detail or "").startswith("defined at "):
                found.detail = f"defined at {definition.place}" + (f"\n{found.detail}" if found.detail else "")
            raise found from error
        finally:
            self._open.pop()
        self.nodes[name] = node
        return node

    def _evaluated(self, definition: Definition) -> PipelineNode:
        node = PipelineNode(definition)
        parts: list[object] = [definition.kind, dict(definition.options)]
        if definition.kind == "function":
            arguments = dict(definition.arguments)
            parts += [str(arguments["returns"]), arguments["args"], code_parts(definition.function)]
        elif definition.kind in ("source", "table"):
            node.sql = create_text(definition)
            node.columns = self._declared(node.sql)
            parts.append(node.sql)
        else:
            parts.append(self._query(node))
            if definition.arguments:
                parts.append(dict(definition.arguments))
        node.digest = digest(parts)
        return node

    def _declared(self, text: str) -> tuple[Column, ...]:
        made = parse_one(text)
        assert isinstance(made, (st.CreateTable, st.CreateSource))
        columns = tuple(Column(c.name, c.type, not c.not_null) for c in made.columns)
        if columns:
            return columns
        given = connections.resolved(self._context, made, made.options)
        values = self._context.coordinator.secrets(given.secrets)
        return tuple(infer_columns(given.options, values))

    def _query(self, node: PipelineNode) -> object:
        """Evaluate the function of a view; what its digest is made of."""
        with self._pipeline.reading(lambda name: self._read(node, name)):
            found = node.definition.function()
        if isinstance(found, str):
            return self._sql(node, found)
        if not isinstance(found, DataFrame):
            raise InvalidParameter(
                f"the function of {node.name} returned {type(found).__name__}", hint="return a DataFrame or SQL text"
            )
        node.frame = found
        analyzed = self._bridge.analyzed(found)
        node.columns = tuple(Column(a.name, spark_of(a).simpleString()) for a in analyzed.output)
        return [canonical(analyzed.text, {}), list(_code(self._bridge, analyzed))]

    def _sql(self, node: PipelineNode, text: str) -> object:
        query = parse_query(text)
        for name in sorted(query.tables(), key=str):
            if name.schema in (None, "public") and name.name in self._pipeline.definitions:
                if not self.node(name.name).stored:
                    raise InvalidParameter(
                        f'SQL cannot read "{name.name}", a view made of a DataFrame',
                        hint="make it a materialized view, or write it in SQL",
                    )
                self._note(node, name.name)
        for function in sorted(query.functions() & set(self._pipeline.definitions)):
            self._note(node, function)
        names = names_of(self._context)
        overlay = _Overlay(names.catalog, names.search_path, zone=names.zone, nodes=self.nodes)
        bound = BoundQuery(localize(self._context, query), overlay)
        node.columns = tuple(Column(c.name, c.type) for c in describe(self._context, bound))
        node.sql = text.strip()
        return " ".join(text.split())

    def _read(self, node: PipelineNode, name: str) -> DataFrame:
        if name in self._pipeline.definitions:
            other = self.node(name)
            self._note(node, name)
            if other.frame is not None and not other.stored:
                return other.frame
            columns = other.columns
        else:
            parts = name.split(".")
            columns = names_of(self._context).get(TableName(parts[0] if len(parts) > 1 else None, parts[-1])).columns
        bridge = self._bridge
        schema = StructType([StructField(c.name, bridge.spark_type_of(c.type), True) for c in columns])
        return bridge.relation(schema).alias(name)

    def _note(self, node: PipelineNode, name: str) -> None:
        if name not in node.reads:
            node.reads.append(name)


def create_text(definition: Definition) -> str:
    """The statement that creates a source or a table."""
    arguments = definition.arguments
    if definition.kind == "source":
        options = definition.function()
        if not isinstance(options, Mapping):
            raise InvalidParameter(
                f"the function of source {definition.name} returned {type(options).__name__}",
                hint='return its options: {"connector": "files", "path": ...}',
            )
        pairs = ", ".join(f"'{k}' = '{str(v).replace(chr(39), chr(39) * 2)}'" for k, v in options.items())
        columns = f" ({arguments['columns']})" if arguments["columns"] else ""
        return f'CREATE SOURCE "{definition.name}"{columns} WITH ({pairs})'
    keys = ", ".join(f'"{k}"' for k in arguments["primary_key"])
    key = f", PRIMARY KEY ({keys})" if keys else ""
    only = " APPEND ONLY" if arguments["append_only"] else ""
    return f'CREATE TABLE "{definition.name}" ({arguments["columns"]}{key}){only}'


def _code(bridge: Bridge, node: nodes.Node) -> Any:
    """The code of the Python functions that a plan calls."""
    for expression in node.expressions:
        for call in expression.every(PythonCall):
            loaded = cloudpickle.loads(bridge.python_command(call))
            yield [call.name, code_parts(loaded[0] if isinstance(loaded, tuple) else loaded)]
    for child in [*node.children, *node.subqueries]:
        yield from _code(bridge, child)
