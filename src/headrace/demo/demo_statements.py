"""The statements of the demonstration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.demo.data import COLUMNS, Inputs, rows_of
from headrace.sql.type_names import pg_type_text


@dataclass(frozen=True)
class View:
    """A materialized view of the demonstration, and what it tells people."""

    name: str
    meaning: str
    query: str


PROGRESS: Final = "replay_progress"
"""The view that tells how far the replay is."""

VIEWS: Final = (
    View(
        PROGRESS,
        "how far the year is",
        "SELECT count(*) AS flights, max(sched_dep) AS until FROM flights",
    ),
    View(
        "carrier_hours",
        "delays by carrier and hour",
        """SELECT f.carrier, a.name AS airline, date_trunc('hour', f.sched_dep) AS hour,
       count(*) AS flights,
       count(*) FILTER (WHERE f.dep_delay > 15) AS late,
       count(*) FILTER (WHERE f.dep_delay IS NULL) AS cancelled,
       round(avg(f.dep_delay), 1) AS avg_delay_min
  FROM flights f
  JOIN airlines a ON a.carrier = f.carrier
 GROUP BY f.carrier, a.name, date_trunc('hour', f.sched_dep)""",
    ),
    View(
        "carrier_board",
        "the year by carrier (a view on carrier_hours)",
        """SELECT carrier, airline, sum(flights) AS flights, sum(late) AS late, sum(cancelled) AS cancelled,
       round(100.0 * sum(late) / sum(flights), 1) AS late_percent
  FROM carrier_hours
 GROUP BY carrier, airline""",
    ),
    View(
        "route_days",
        "every route, day by day",
        """SELECT day, origin, dest, count(*) AS flights, count(dep_delay) AS departed,
       count(*) FILTER (WHERE dep_delay > 15) AS late,
       count(*) FILTER (WHERE dep_delay IS NULL) AS cancelled,
       round(avg(dep_delay), 1) AS avg_delay_min
  FROM flights
 GROUP BY day, origin, dest""",
    ),
    View(
        "worst_routes_now",
        "the ten worst routes of the current day (a view on route_days)",
        """SELECT w.origin, w.dest, coalesce(p.name, w.dest) AS destination,
       w.flights, w.late, w.cancelled, w.avg_delay_min
  FROM (SELECT r.*
          FROM route_days r
          JOIN (SELECT max(day) AS day FROM flights) today ON today.day = r.day
         WHERE r.departed >= 3
         ORDER BY r.avg_delay_min DESC, r.origin, r.dest
         LIMIT 10) w
  LEFT JOIN airports p ON p.faa = w.dest""",
    ),
    View(
        "weather_delays",
        "delays against the weather at departure",
        """SELECT f.origin,
       CASE WHEN w.visib < 3 THEN 'low visibility' WHEN w.precip > 0 THEN 'rain or snow'
            WHEN w.wind_speed > 20 THEN 'windy' ELSE 'fair' END AS weather,
       count(*) AS flights,
       count(*) FILTER (WHERE f.dep_delay > 15) AS late,
       round(avg(f.dep_delay), 1) AS avg_delay_min
  FROM flights f
  JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour
 GROUP BY 1, 2""",
    ),
    View(
        "late_planes",
        "planes with more than one late leg in a day",
        """SELECT d.day, d.tailnum, p.manufacturer, p.model, d.late_legs, d.worst_delay_min
  FROM (SELECT day, tailnum, count(*) AS late_legs, max(dep_delay) AS worst_delay_min
          FROM flights
         WHERE dep_delay > 15 AND tailnum IS NOT NULL
         GROUP BY day, tailnum
        HAVING count(*) > 1) d
  LEFT JOIN planes p ON p.tailnum = d.tailnum""",
    ),
)
"""In an order in which they can be created."""

_KEYS: Final = {"airlines": "carrier", "airports": "faa"}
_ROWS_PER_INSERT: Final = 500


def relations(inputs: Inputs, seconds: float) -> Iterator[str]:
    """Tables with their rows, then sources. The clock of the replay starts when the flights are released."""
    for name, key in _KEYS.items():
        yield f"CREATE TABLE {name} ({columns(name)}, PRIMARY KEY ({key}))"
        rows = rows_of(inputs, name)
        for start in range(0, len(rows), _ROWS_PER_INSERT):
            values = ", ".join(f"({_literals(row)})" for row in rows[start : start + _ROWS_PER_INSERT])
            yield f"INSERT INTO {name} ({', '.join(COLUMNS[name])}) VALUES {values}"
    for name in ("planes", "weather"):
        yield f"CREATE SOURCE {name} ({columns(name)}) WITH (connector = 'files', path = {_text(inputs.path(name))})"
    replay = f"replay_column = 'sched_dep', replay_duration = '{seconds:g}s'"
    options = f"connector = 'files', path = {_text(inputs.stream)}, format = 'parquet', {replay}"
    yield f"CREATE SOURCE flights ({columns('flights')}) WITH ({options})"


def create_view(view: View) -> str:
    """The statement that creates a view."""
    return f"CREATE MATERIALIZED VIEW {view.name} AS\n{view.query}"


def columns(name: str) -> str:
    """Column definitions of an input."""
    return ", ".join(f"{column} {pg_type_text(kind)}" for column, kind in COLUMNS[name].items())


def _literals(row: dict[str, object]) -> str:
    return ", ".join(_literal(value) for value in row.values())


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return repr(value) if isinstance(value, (int, float)) else _text(value)


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"
