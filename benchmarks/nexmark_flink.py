"""Flink's side of the Nexmark benchmark: run by `nexmark.py` in a virtual environment of its own.

`python nexmark_flink.py JOB.json`, where the file names a folder with CSV files for each table (`tables`: name to
folder and columns), the `queries` in headrace's SQL with the columns that they read (by table), and a folder for
`checkpoints`. Prints one JSON line per query: its net run time in milliseconds, and that of only reading these columns
and dropping them, to be taken off, because Flink spends most of its time on parsing CSV and its wheel has no cheaper
format; or the reason why Flink refuses the query.

RocksDB, a checkpoint every second, two slots, blackhole sinks.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

# Where Flink says a thing otherwise.
_REWRITES = (
    (r"\bTUMBLE\((\w+), (\w+), (INTERVAL '\d+' SECOND)\)", r"TABLE(TUMBLE(TABLE \1, DESCRIPTOR(\2), \3))"),
    (r"\bHOP\((\w+), (\w+), (INTERVAL '\d+' SECOND), (INTERVAL '\d+' SECOND)\)",
     r"TABLE(HOP(TABLE \1, DESCRIPTOR(\2), \3, \4))"),
    (r"\bSESSION\((\w+), (\w+), (INTERVAL '\d+' SECOND), (\w+)\)",
     r"TABLE(SESSION(TABLE \1 PARTITION BY \4, DESCRIPTOR(\2), \3))"),
    (r"to_char\(([\w.]+), 'YYYY-MM-DD'\)", r"DATE_FORMAT(\1, 'yyyy-MM-dd')"),
    (r"to_char\(([\w.]+), 'HH24:MI'\)", r"DATE_FORMAT(\1, 'HH:mm')"),
    (r"split_part\(url, '/', (\d)\)", lambda m: f"SPLIT_INDEX(url, '/', {int(m[1]) - 1})"),
    (r"split_part\(split_part\(url, 'channel_id=', 2\), '&', 1\)",
     "SPLIT_INDEX(SPLIT_INDEX(url, 'channel_id=', 1), '&', 0)"),
    (r"GROUP BY window_end\)", "GROUP BY window_start, window_end)"),
    (r"\b(AS|s\.|GROUP BY) ?(day|date|time|minute|key|value)\b", r"\1 `\2`"),
    (r"s\. `", "s.`"),
)  # fmt: skip


def flink_sql(sql: str) -> str:
    """A query as Flink says it."""
    for pattern, replacement in _REWRITES:
        sql = re.sub(pattern, replacement, sql)
    return sql


def environment(checkpoints: str) -> Any:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.managed.size": "1g",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "table.exec.resource.default-parallelism": "2",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1s",
        "table.exec.mini-batch.size": "50000",
        "rest.port": "0",
    }.items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    return TableEnvironment.create(settings)


def columns_of(table: dict[str, Any]) -> str:
    kinds = {"bigint": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP(3)", "timestamp_ntz": "TIMESTAMP(3)"}
    columns = [f"`{name}` {kinds[kind]}" for name, kind in table["columns"]]
    if any(name == "date_time" for name, _ in table["columns"]):
        columns.append("WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND")
    return ", ".join(columns)


def run(env: Any, select: str, name: str) -> float:
    """Net run time in milliseconds of a query into a sink that drops its rows."""
    env.create_temporary_view(f"view_{name}", env.sql_query(select))
    columns = ", ".join(f"`{column}` {kind}" for column, kind in described(env, f"view_{name}"))
    env.execute_sql(f"CREATE TEMPORARY TABLE sink_{name} ({columns}) WITH ('connector' = 'blackhole')")
    result = env.execute_sql(f"INSERT INTO sink_{name} SELECT * FROM view_{name}")
    return float(result.get_job_client().get_job_execution_result().result().get_net_runtime())


def scan(env: Any, name: str, reads: dict[str, list[str]]) -> float:
    """Net run time in milliseconds of only reading columns, by table."""
    return sum(
        run(env, f"SELECT {', '.join(f'`{c}`' for c in columns)} FROM {table}", f"{name}_{table}")
        for table, columns in reads.items()
    )


def described(env: Any, view: str) -> list[tuple[str, str]]:
    """Columns and types of a view."""
    with env.execute_sql(f"DESCRIBE {view}").collect() as rows:
        return [(row[0], re.sub(r" \*\w+\*| NOT NULL", "", row[1])) for row in rows]


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    env = environment(job["checkpoints"])
    for name, table in job["tables"].items():
        env.execute_sql(
            f"CREATE TEMPORARY TABLE {name} ({columns_of(table)}) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{table['folder']}', 'format' = 'csv')"
        )
    scan(env, "warm_up", {"bid": ["auction", "price"]})
    for name, query in job["queries"].items():
        made = {"query": name}
        try:
            made["ms"] = run(env, flink_sql(query["sql"]), name)
            made["scan_ms"] = scan(env, name, query["reads"])
        except Exception as error:
            lines = [line for line in str(error).splitlines() if "Exception" in line or "rror" in line]
            made["refused"] = (lines or [str(error)])[-1].strip()[:200]
        print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
