"""What the changes of an epoch come to: rows that are added, and keys whose rows are gone or replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.sinks import WEIGHT_COLUMN, not_told_apart

_PLACE: Final = "__n"
_SETTINGS: Final = {
    "threads": 1, "enable_external_access": False, "autoload_known_extensions": False, "temp_directory": "",
}  # fmt: skip


@dataclass(frozen=True)
class NetChanges:
    """The changes of an epoch as a whole: what has come and gone within it is none."""

    count: int
    """Changes that were taken in."""
    rows: pa.Table
    """Rows to add."""
    gone: pa.Table | None = None
    """Rows of before that are gone; None where rows are only added."""
    keys: pa.Table | None = None
    """The keys, each once, whose rows of before are gone; None where rows are only added."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.rows.num_rows and not (self.keys is not None and self.keys.num_rows)


def taken(batches: Iterable[pa.RecordBatch], width: int, key: Sequence[str] | None) -> NetChanges:
    """What batches with so many columns, and their weights, come to: by key, or as rows that are only added.

    Raises `SinkError` where a key is NULL or stands for several rows.
    """
    whole = pa.Table.from_batches(list(batches))
    return _added(whole, width) if key is None else _net(whole, width, key)


def _added(whole: pa.Table, width: int) -> NetChanges:
    """Every row as often as it is added."""
    weights = np.asarray(whole.column(WEIGHT_COLUMN))
    rows = whole.select(range(width))
    if not (weights == 1).all():
        rows = rows.take(pa.array(np.repeat(np.arange(len(weights)), weights)))
    return NetChanges(whole.num_rows, rows)


def _net(whole: pa.Table, width: int, key: Sequence[str]) -> NetChanges:
    """The row that each key has now, and the keys that had another one or none."""
    rows = whole.select(range(width))
    with duckdb.connect(config=dict(_SETTINGS)) as connection:
        placed = _numbered(rows)
        names = ", ".join(placed.column_names)
        placed = placed.append_column(WEIGHT_COLUMN, whole.column(WEIGHT_COLUMN))
        connection.register("taken", placed.append_column(_PLACE, pa.array(np.arange(whole.num_rows))))
        # Only places come back: no value is to go through types that are not Arrow's own.
        found = connection.sql(
            f"SELECT min({_PLACE}) AS n, CAST(sum({WEIGHT_COLUMN}) AS BIGINT) AS w FROM taken GROUP BY {names} "
            f"HAVING sum({WEIGHT_COLUMN}) <> 0 ORDER BY n"
        ).to_arrow_table()
        places, weights = (np.asarray(found.column(name)) for name in ("n", "w"))
        come = rows.take(pa.array(places[weights > 0]))
        _check_key(connection, come.select(key), weights[weights > 0])
        keys = _distinct(connection, rows.take(pa.array(places)).select(key))
        gone = rows.take(pa.array(places[weights < 0]))
    return NetChanges(whole.num_rows, come, gone, keys)


def without(table: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows of a table whose keys are not among these."""
    own = _numbered(table.select(keys.column_names))
    same = " AND ".join(f"t.{name} = k.{name}" for name in own.column_names)
    with duckdb.connect(config=dict(_SETTINGS)) as connection:
        connection.register("t", own.append_column(_PLACE, pa.array(np.arange(table.num_rows))))
        connection.register("k", _numbered(keys))
        found = connection.sql(f"SELECT t.{_PLACE} AS n FROM t ANTI JOIN k ON {same} ORDER BY n").to_arrow_table()
    return table.take(found.column("n"))


def _numbered(table: pa.Table) -> pa.Table:
    """The table with names by place: DuckDB takes names for one that differ in case alone."""
    return table.rename_columns([f"c{i}" for i in range(table.num_columns)])


def _check_key(connection: Any, keys: pa.Table, weights: np.ndarray[Any, Any]) -> None:
    own = _numbered(keys)
    names = ", ".join(own.column_names)
    connection.register("come", own.append_column(WEIGHT_COLUMN, pa.array(weights)))
    missing = " OR ".join(f"{name} IS NULL" for name in own.column_names)
    found = connection.sql(
        f"SELECT {names} FROM come GROUP BY {names} HAVING sum({WEIGHT_COLUMN}) > 1 OR {missing} LIMIT 1"
    ).fetchall()
    if found:
        raise not_told_apart(keys.column_names, ", ".join(map(repr, found[0])))


def _distinct(connection: Any, keys: pa.Table) -> pa.Table:
    own = _numbered(keys)
    names = ", ".join(own.column_names)
    connection.register("touched", own.append_column(_PLACE, pa.array(np.arange(keys.num_rows))))
    found = connection.sql(f"SELECT min({_PLACE}) AS n FROM touched GROUP BY {names} ORDER BY n").to_arrow_table()
    return keys.take(found.column("n"))
