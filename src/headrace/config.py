"""Every setting: typed, with its default, its unit in its name and one line of meaning.

Values come from keyword arguments, then from environment variables (`HEADRACE_PORT=4566`), then from the
defaults here. Those marked as run-time parameters can also be changed by SQL while the server runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Literal

from headrace.errors import InvalidParameter, UndefinedObject
from headrace.typed_settings import HIDDEN, Declared, Typed, UnfitValue, declared

ENV_PREFIX: Final = "HEADRACE_"
"""What the environment variable of every setting starts with."""
_OTHER_VARIABLES: Final = frozenset({f"{ENV_PREFIX}FAULTS"})
DEFAULT_RULES: Final = "host all all loopback trust; host all all all scram-sha-256"
"""Whoever is on this machine is trusted, all others need a password."""
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


_start = declared
"""A setting that is fixed when the process starts."""
_runtime = partial(declared, runtime=True)
"""A system parameter: SQL may change it while the server runs."""


class Settings(Typed):
    """The settings of one headrace process. Raises `InvalidParameter` for an unknown one and for a bad value."""

    ENV_PREFIX: ClassVar[str] = ENV_PREFIX

    # Where things are
    data_dir: Path = _start(Path("headrace-data"), "Directory that holds the catalog and the state.")
    catalog_url: str | None = _start(
        None, "Where the catalog is: sqlite:///, postgresql://, file:/// or s3://; unset means catalog.db in data_dir."
    )
    catalog_from: str | None = _start(
        None, "Where the catalog was so far: it is moved from there at the start; unset means catalog.db in data_dir."
    )
    catalog_shadow: str | None = _start(
        None, "A second place that gets each transaction of the catalog, too, and is compared; unset means none."
    )
    deploy_generation: int = _start(
        0,
        "Number of this deployment: once a process of a higher one has opened the catalog, this one does not.",
        least=0,
        most=(1 << 63) - 1,
    )
    catalog_options: dict[str, str] = _start(
        {}, "Options of the catalog's object store, as a JSON object; unset means those of the state."
    )
    state_url: str | None = _start(
        None, "Where the state lives: a directory, s3://bucket/prefix, gs:// or az://; unset means state in data_dir."
    )
    state_options: dict[str, str] = _start(
        {}, "Options of an object store (endpoint, region, allow_http ...), as a JSON object; never credentials."
    )
    state_moved: bool = _start(
        False, "Whether to accept that the state or the catalog has been moved, and to take over the state."
    )
    cache_dir: Path | None = _start(
        None,
        "Directory for unpacked copies of remote objects, on every host; unset means cache in data_dir.",
    )
    cache_mb: int = _start(4096, "Most disk space of that cache, MiB.", least=16)
    host: str = _start("127.0.0.1", "Address the server listens on.")
    port: int = _start(4566, "TCP port of the PostgreSQL protocol; 0 picks a free one.", least=0, most=65535)
    max_connections: int = _start(100, "Client connections accepted at once.", least=1)
    read_processes: int = _start(
        0, "Processes beside the server that answer reads without Spark, each on a core of its own.", least=0, most=64
    )
    auth_rules: str = _runtime(
        DEFAULT_RULES,
        "Who may connect from where, and how it is proved: rules like those of pg_hba.conf, with ; between them.",
    )
    failed_logins_per_minute: int = _runtime(
        60,
        "Failed logins from one address in a minute after which nobody from there is heard; 0 for no limit.",
        least=0,
    )
    tls: Literal["off", "preferred", "required"] = _start(
        "preferred", "Whether clients may or have to encrypt; preferred does nothing without tls_cert_file."
    )
    tls_cert_file: Path | None = _start(None, "The server's certificate and those above it, PEM; read when it changes.")
    tls_key_file: Path | None = _start(None, "The certificate's private key, PEM, not encrypted.")
    tls_client_ca_file: Path | None = _start(
        None, "Authorities whose clients' certificates are believed, PEM; needed for rules that ask for certificates."
    )
    webhook_host: str = _start("127.0.0.1", "Address on which requests to tables with connector webhook are taken.")
    webhook_port: int | None = _start(
        None, "TCP port for these requests (HTTP, or HTTPS with tls_cert_file); 0 picks a free one; unset: none.",
        least=0, most=65535,
    )  # fmt: skip
    webhook_requests: int = _start(
        64, "Such requests worked on at once; those that come on top are answered 429.", least=1
    )
    webhook_body_kb: int = _start(1024, "Largest body of such a request, KiB; larger ones are answered 413.", least=1)
    webhook_timeout_ms: int = _start(
        30_000, "Milliseconds in which the next request of a connection, and then its body, has to be there.", least=10
    )
    audit_log: Path | None = _start(
        None, "A file that gets a line for each login, definition, grant and denied statement; unset means none."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _runtime(
        "info", "Least severe messages that the headrace command logs."
    )

    secret_keys: str | None = _start(
        None,
        "Keys of secrets, 32 bytes in base64 each, separated by commas: the first one encrypts, all decrypt.",
        secret=True,
    )
    secret_keys_file: Path | None = _start(None, "A file with further such keys, one a line.")

    # Spark
    master: str | None = _start(None, "Spark master URL; unset means local[N] with more slots than cores.")
    driver_host: str | None = _start(
        None, "Address of this host that Spark's executors reach; unset means the one from which the master is reached."
    )
    spark_driver_memory_mb: int = _start(
        2048, "Heap of the Spark driver (and, when local, of its tasks), MiB.", least=512
    )
    spark_niceness: int = _start(
        5, "How far Spark's processes give way to the server's own where both want the processor, as nice(1) says it.",
        least=0, most=19,
    )  # fmt: skip
    spark_start: Literal["eager", "on_demand"] = _start(
        "eager",
        "Whether Spark starts with the database, or once it is needed: by a view, a query, a large merge. Where its "
        "tasks run on other machines it is always the former.",
    )
    class_archive: bool = _start(
        True, "Whether the first start lets Java keep Spark's classes for later ones, in ~/.cache/headrace."
    )
    spark_conf: dict[str, str] = _start({}, "Further Spark properties, as a JSON object.")
    parallelism: int | None = _start(None, "Tasks per operator of new jobs; unset means the number of cores.", least=1)

    # Epochs
    barrier_interval_ms: int = _runtime(1000, "Milliseconds between two ticks.", least=10)
    checkpoint_interval_ms: int = _runtime(
        0, "Least milliseconds between checkpoints of a group, rounded up to ticks; 0 means every tick.", least=0
    )
    default_checkpoint_group: Literal["own", "shared"] = _runtime(
        "own", "Whether a new job checkpoints in a group of its own or in the shared one."
    )
    max_rows_per_epoch: int = _runtime(
        1_000_000, "Most input rows that a job takes in at one go; more are taken in by steps.", least=1
    )
    max_mb_per_epoch: int = _runtime(
        512,
        "Most MiB of input, about, that a source is bound for and a job takes in at one go; at least one row.",
        least=1,
    )
    max_in_flight_epochs: int = _runtime(
        2, "Epochs of one group under way at once: one runs while those before it are committed.", least=1
    )
    epoch_timeout_ms: int = _runtime(
        600_000, "Milliseconds without progress after which a group's epoch is abandoned; 0 means never.", least=0
    )
    lag_notice_ms: int = _runtime(
        60_000,
        "Milliseconds behind at which reads of a view say so, and a late barrier is an event; 0: never.",
        least=0,
    )
    progress_host: str | None = _start(
        None, "Address on which tasks report their progress; empty: they do not; unset: where Spark's tasks reach it."
    )
    group_retry_initial_ms: int = _runtime(500, "Milliseconds before the first retry of a failing group.", least=1)
    group_retry_max_ms: int = _runtime(60_000, "Most milliseconds between two retries of a failing group.", least=1)
    backfill_slice_rows: int = _runtime(
        500_000, "Upstream rows per checkpointed slice while a view is created.", least=1
    )
    backfill_caught_up_ticks: int = _runtime(
        3, "Ticks behind its upstreams at which a new view counts as created.", least=1
    )

    # State
    retention_ms: int = _runtime(600_000, "Milliseconds of history kept readable below the newest epoch.", least=0)
    compaction_interval_ms: int = _runtime(2000, "Milliseconds between two looks for work for compaction.", least=10)
    compaction_trigger_runs: int = _runtime(8, "Runs of one tier that start a merge.", least=2)
    compaction_fan_in: int = _runtime(16, "Most runs that one merge reads.", least=2)
    compaction_stall_runs: int = _runtime(64, "Runs of one table at which its group's epochs slow down.", least=4)
    compaction_max_tasks: int = _runtime(
        0, "Most Spark tasks that one merge is split over, of those that run side by side; 0 means all.", least=0
    )
    log_limit_mb: int = _runtime(
        1024,
        "Log of an input, MiB, that a view may be behind before log_limit_policy applies; 0 means no limit.",
        least=0,
    )
    log_limit_policy: Literal["alert", "drop"] = _runtime(
        "alert", "At that limit: keep the log and say so, or give it up, and with it the view that has not read it."
    )
    vacuum_interval_ms: int = _runtime(60_000, "Milliseconds between two searches for unreferenced objects.", least=100)
    vacuum_grace_ms: int = _runtime(
        3_600_000, "Least age in milliseconds of an unreferenced object to be deleted.", least=0
    )
    run_fsync: bool = _start(True, "Whether a run is flushed to the device before it is acknowledged.")
    catalog_commit_sync: bool = _start(
        True, "Whether a catalog commit is flushed to the device; off risks the last commits."
    )
    catalog_timeout_ms: int = _start(
        15_000, "Milliseconds after which an access to the catalog's server or object store is given up.", least=1_000
    )
    catalog_lease_ms: int = _start(
        1_000,
        "Milliseconds for which reads trust that no other server took a catalog in an object store over.",
        least=0,
    )
    lease_ms: int = _start(
        5_000,
        "Milliseconds without a renewal after which a standby takes over; renewed each third, but for a catalog in a "
        "SQLite file; 0: no lease, a standby takes over only when it is told to.",
        least=0,
    )
    standby_look_ms: int = _runtime(
        500, "Most milliseconds between two looks of a standby at the catalog that it follows.", least=10
    )
    standby_staleness_ms: int = _runtime(
        60_000,
        "Milliseconds without news of the active server after which a standby refuses reads; 0: never.",
        least=0,
    )
    catalog_busy_timeout_ms: int = _start(
        10_000, "Milliseconds that a catalog access waits for another process.", least=0
    )
    compaction_spark_mb: int = _runtime(
        64, "Input of a merge, MiB, from which on it is split over Spark tasks.", least=0
    )
    memory_budget_mb: int = _runtime(
        1024, "Memory for deltas in flight and merge buffers, MiB; 0 means a quarter of the machine's.", least=0
    )
    spool_dir: Path | None = _start(
        None, "Local directory for rows that wait or do not fit in memory; unset means cache/spool in data_dir."
    )
    io_concurrency: int = _start(8, "Requests to an object store under way at once per process.", least=1)
    io_timeout_ms: int = _start(
        30_000, "Milliseconds after which a request to an object store is tried again.", least=100
    )

    # Queries
    events_shown: int = _runtime(1000, "Newest events that headrace_catalog.events has.", least=1, most=10_000)
    statement_timeout_ms: int = _runtime(
        0, "Milliseconds after which a statement is cancelled; 0 means never.", least=0
    )
    transaction_timeout_ms: int = _runtime(
        86_400_000,
        "Milliseconds after which a client that leaves its transaction open is sent away; 0 means never.",
        least=0,
    )
    idle_in_transaction_session_timeout_ms: int = _runtime(
        3_600_000, "Milliseconds for which a client may leave an open transaction alone; 0 means for ever.", least=0
    )
    idle_session_timeout_ms: int = _runtime(
        0, "Milliseconds for which a client may ask for nothing outside of a transaction; 0 means for ever.", least=0
    )
    client_timeout_ms: int = _runtime(
        3_600_000,
        "Milliseconds for which a client may take nothing of a result that it has asked for; 0: for ever.",
        least=0,
    )
    max_concurrent_queries: int = _runtime(4, "Queries that Spark runs at once; more wait their turn.", least=1)
    kept_spark_plans: int = _runtime(
        100, "Plans of queries on Spark that are kept for when the same is asked again; 0: none.", least=0
    )
    max_result_rows: int = _runtime(0, "Most rows that a query may return; more are error 54000; 0: no limit.", least=0)
    cursor_memory_bytes: int = _runtime(
        64 << 20, "Most bytes of rows that a cursor keeps to scroll, or when it is held over its transaction.", least=1
    )
    result_batch_rows: int = _runtime(10_000, "Most rows of one batch on the way to a client.", least=1)

    @property
    def spool_location(self) -> Path:
        """Absolute path of the directory for spooled rows."""
        return (self.spool_dir or self.data_dir / "cache" / "spool").absolute()

    @property
    def catalog_location(self) -> str:
        """What `Catalog.open` takes: `catalog_url`, or else the SQLite file in `data_dir`."""
        return self.catalog_url or str(self.data_dir / "catalog.db")


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """A setting with its value and default, as SHOW PARAMETERS and the manual show it."""

    name: str
    type: str
    default: str
    value: str
    meaning: str
    runtime: bool
    """Whether SQL may change it while the server runs."""
    env: str
    """The environment variable that sets it."""


def describe_settings(settings: Settings | None = None) -> list[SettingInfo]:
    """Every setting in declaration order; `value` is that of `settings`, or else the default."""
    return [_describe(name, field, settings) for name, field in Settings.FIELDS.items()]


def apply_parameters(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """`settings` with system parameters changed, values in text form as SQL gives them.

    Raises `UndefinedObject` for an unknown name, `InvalidParameter` for one that is fixed at start or a bad value.
    """
    values: dict[str, object] = {}
    for name, text in changes.items():
        require_parameter(name)
        try:
            values[name] = Settings.FIELDS[name].checked(text)
        except UnfitValue as error:
            raise InvalidParameter(f'invalid value for parameter "{name}": {error}') from None
    return settings.replaced(**values)


def is_parameter(name: str) -> bool:
    """Whether SQL may change a setting while the server runs."""
    field = Settings.FIELDS.get(name)
    return field is not None and field.runtime


def require_parameter(name: str) -> None:
    """Raise `UndefinedObject` for an unknown name, `InvalidParameter` for a setting that is fixed at start."""
    if name not in Settings.FIELDS:
        raise UndefinedObject(f'unrecognized system parameter "{name}"', hint="SHOW PARAMETERS lists them")
    if not is_parameter(name):
        raise InvalidParameter(
            f'parameter "{name}" cannot be changed while the server runs',
            hint=f"set {ENV_PREFIX}{name.upper()} and start again",
        )


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Environment variables that look like settings of headrace and are none."""
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.FIELDS} | _OTHER_VARIABLES
    return sorted(name for name in environment if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)


def _describe(name: str, field: Declared, settings: Settings | None) -> SettingInfo:
    value = field.default if settings is None else getattr(settings, name)
    return SettingInfo(
        name=name,
        type=_type_name(field.annotation),
        default=_text(field.default),
        value=HIDDEN if field.secret and value is not None else _text(value),
        meaning=field.meaning,
        runtime=field.runtime,
        env=f"{ENV_PREFIX}{name.upper()}",
    )


def _type_name(annotation: object) -> str:
    return annotation.__name__ if annotation in (int, str, bool, Path) else str(annotation).replace("typing.", "")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", value)
    return str(value).lower() if isinstance(value, bool) else str(value)
