"""Where `Any` may stand: at the seams to what has no types of its own, and nowhere anew.

`object` says that nobody looks into a value, and makes whoever does ask what it is first. `Any` says nothing, and turns
off every check of what is done with it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
BOUNDS = {
    "__init__.py": 1,
    "catalog/contents.py": 1,
    "catalog/deadlines.py": 4,
    "catalog/encoding.py": 1,
    "catalog/frozen.py": 1,
    "catalog/marks.py": 1,
    "catalog/records.py": 8,
    "catalog/sealing.py": 4,
    "catalog/state.py": 4,
    "catalog/store.py": 1,
    "cli.py": 1,
    "common/jsonb/column_kernels.py": 10,
    "common/jsonb/document.py": 10,
    "common/jsonb/operations.py": 31,
    "connectors/base.py": 2,
    "connectors/declared.py": 3,
    "connectors/files/clients.py": 10,
    "connectors/files/formats.py": 1,
    "connectors/files/lines.py": 1,
    "connectors/files/object_files.py": 2,
    "connectors/json_out.py": 2,
    "connectors/kafka/avro.py": 20,
    "connectors/kafka/avro_columns.py": 2,
    "connectors/kafka/bulk.py": 5,
    "connectors/kafka/changes.py": 3,
    "connectors/kafka/envelopes.py": 1,
    "connectors/kafka/options.py": 4,
    "connectors/kafka/producing.py": 1,
    "connectors/kafka/protobuf.py": 1,
    "connectors/kafka/protobuf_schemas.py": 1,
    "connectors/kafka/reading.py": 7,
    "connectors/kafka/registry.py": 5,
    "connectors/kafka/sink.py": 1,
    "connectors/lake/changes.py": 3,
    "connectors/lake/deletes.py": 6,
    "connectors/lake/delta.py": 6,
    "connectors/lake/delta_constraints.py": 1,
    "connectors/lake/delta_source.py": 11,
    "connectors/lake/iceberg.py": 9,
    "connectors/lake/iceberg_source.py": 25,
    "connectors/lake/rows.py": 3,
    "connectors/lake/small_files.py": 1,
    "connectors/lake/source.py": 3,
    "connectors/leaving.py": 1,
    "connectors/netting.py": 2,
    "connectors/nexmark.py": 4,
    "connectors/parsed_values.py": 4,
    "connectors/postgres/cdc.py": 5,
    "connectors/postgres/fetching.py": 3,
    "connectors/postgres/options.py": 3,
    "connectors/postgres/rows.py": 4,
    "connectors/postgres/sink.py": 4,
    "connectors/postgres/slot.py": 11,
    "connectors/postgres/slot_table.py": 2,
    "connectors/postgres/slots.py": 1,
    "connectors/postgres/table_reading.py": 3,
    "connectors/postgres/tables.py": 3,
    "connectors/webhook/body.py": 4,
    "coordinator/decide/work.py": 2,
    "coordinator/observe/progress.py": 1,
    "coordinator/run/live_state.py": 1,
    "coordinator/writes/layout.py": 2,
    "coordinator/writes/stored.py": 1,
    "dataflow/build.py": 1,
    "dataflow/flow.py": 2,
    "dataflow/joins.py": 1,
    "dataflow/kept_plans.py": 1,
    "dataflow/lowering.py": 2,
    "dataflow/operators/calls.py": 8,
    "dataflow/operators/kernel_expressions.py": 1,
    "dataflow/operators/python_calls.py": 7,
    "dataflow/operators/task.py": 1,
    "dataflow/python.py": 1,
    "dataflow/recompute.py": 1,
    "dataflow/spark_kernels.py": 1,
    "dataflow/vectors.py": 3,
    "plan/catalyst/expressions.py": 1,
    "plan/catalyst/java_calls.py": 1,
    "plan/catalyst/process.py": 3,
    "plan/catalyst/typed_nodes.py": 1,
    "plan/derive.py": 1,
    "plan/tree.py": 1,
    "server/__init__.py": 1,
    "server/binary.py": 3,
    "server/peer.py": 2,
    "server/row_messages.py": 1,
    "server/server.py": 1,
    "server/tls.py": 1,
    "server/worker.py": 1,
    "session/created_functions.py": 5,
    "session/database.py": 6,
    "session/engine.py": 1,
    "session/execution/copying_files.py": 1,
    "session/execution/roles.py": 1,
    "session/execution/row_writes.py": 1,
    "session/handlers.py": 3,
    "session/introspection/duckdb_engine.py": 3,
    "session/pipelines/apply.py": 2,
    "session/pipelines/definitions.py": 2,
    "session/pipelines/pipeline_graph.py": 1,
    "session/query_result.py": 2,
    "session/reading/read_plans.py": 1,
    "session/reading/twins.py": 1,
    "session/result.py": 1,
    "session/session.py": 1,
    "session/system/headrace.py": 1,
    "session/system/system_relations.py": 1,
    "sql/binder/bound_tree.py": 1,
    "sql/binder/expression_binder.py": 1,
    "sql/binder/parse_tree.py": 1,
    "sql/binder/row_changes.py": 1,
    "sql/copying.py": 3,
    "sql/dialect.py": 2,
    "sql/dml.py": 1,
    "sql/render.py": 4,
    "sql/roles.py": 1,
    "sql/scalar.py": 3,
    "sql/statements.py": 1,
    "sql/text_values.py": 1,
    "state/gather.py": 1,
    "state/iopool.py": 2,
    "state/kernels/bloom.py": 1,
    "state/kernels/combination.py": 6,
    "state/kernels/equality.py": 3,
    "state/objects.py": 2,
    "state/remote.py": 6,
    "state/run.py": 1,
    "state/schema.py": 1,
    "state/spool.py": 1,
    "state/stores.py": 1,
    "state/transport.py": 5,
    "web/exchange.py": 4,
    "web/http_server.py": 1,
    "typed_settings.py": 1,
}
"""How many lines of a module may say it. A number may only go down, and no module may be added."""


def lines_with_any(path: Path) -> int:
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name) and node.id == "Any")
    return len({node.lineno for node in found})


def test_any_stands_at_the_seams_alone() -> None:
    found = {p.relative_to(SOURCE).as_posix(): lines_with_any(p) for p in sorted(SOURCE.rglob("*.py"))}
    more = {name: count for name, count in found.items() if count > BOUNDS.get(name, 0)}
    assert more == {}, "use object where nobody looks into it, else the type of what it is"


def test_a_bound_is_of_a_module_that_is_there() -> None:
    assert [name for name in BOUNDS if not (SOURCE / name).is_file()] == []
    assert sum(BOUNDS.values()) <= 420
