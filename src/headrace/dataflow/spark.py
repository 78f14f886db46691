"""The Spark session that headrace starts for itself."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headrace.common.hosts import address_towards, bind_address
from headrace.common.regular import STACK_MIB
from headrace.dataflow import class_archive
from headrace.errors import InvalidParameter, OperationalError
from headrace.plan.catalyst import process
from headrace.plan.catalyst.answers import UNANSWERED

if TYPE_CHECKING:
    from headrace.config import Settings

_POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="streaming"><schedulingMode>FAIR</schedulingMode><weight>8</weight></pool>
  <pool name="query"><schedulingMode>FAIR</schedulingMode><weight>8</weight><minShare>1</minShare></pool>
  <pool name="maintenance"><schedulingMode>FIFO</schedulingMode><weight>1</weight></pool>
</allocations>
"""


_LOOPBACK = "127.0.0.1"
_STANDALONE = re.compile(r"spark://(?P<host>[^:/,]+):(?P<port>\d+)")

# Failures of tasks reach the user as errors of their statement or view; Spark's own account of them is noise.
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} spark %p %c{1}: %m%n
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.python.name = org.apache.spark.api.python.PythonRunner
logger.python.level = off
"""


def has_ended(session: SparkSession, wait_s: float = 0.0) -> bool:
    """Whether the session's JVM has ended, or its SparkContext was stopped.

    What a call to a dying JVM raises may come before its exit code: `wait_s` is how long to wait for that.
    """
    return process.has_ended(session.sparkContext, wait_s)


def is_local(master: str) -> bool:
    """Whether tasks of a Spark with this master run in the driver's own process."""
    return master == "local" or master.startswith("local[")


_starting = threading.Lock()
_scratch_of: WeakKeyDictionary[SparkContext, Path] = WeakKeyDictionary()
"""Where applications that were started here keep their shuffle files."""


def successor(lost: SparkSession, start: Callable[[], SparkSession]) -> SparkSession:
    """Another session in place of one that has ended, by `start`.

    PySpark keeps one JVM and one SparkContext for each process, and would hand out the dead ones. Databases of one
    process share the new one as they have shared the old one.
    """
    with _starting:
        if not has_ended(lost):
            return lost
        _forget_ended()
        return start()


def _forget_ended() -> None:
    """Make room for another session in place of one that has ended."""
    context = process.forget_ended()
    if context is not None and (scratch := _scratch_of.pop(context, None)) is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # a JVM that is killed leaves its files behind


def local_slots() -> int:
    """Task slots of local mode: more than cores, so that tasks that wait do not hold up the others."""
    return max(8, 4 * (os.cpu_count() or 2))


def cores_of(session: SparkSession) -> int:
    """Tasks of one query that are worth running side by side."""
    half = int(session.sparkContext.defaultParallelism) // 2
    local = str(session.sparkContext.master).startswith("local")
    return max(1, min(half, os.cpu_count() or 1) if local else half)


def local_session(
    master: str | None = None,
    *,
    driver_host: str | None = None,
    driver_memory: str = "2g",
    log_file: Path | None = None,
    java_options: str | None = None,
    further: Mapping[str, str] | None = None,
    niceness: int = 0,
) -> SparkSession:
    """A classic session, configured for short jobs on one machine (or on `master`).

    What the JVM and the Python workers write to their standard error goes to `log_file`, or to a scratch file.
    Executors on other hosts reach this one at `driver_host`, by default at the address that the master is reached from.
    `java_options` are further ones of the JVM, by default those that let it use the archive of classes if there is one.
    `further` properties are the user's; they go before those here but for the ones that results depend on.
    `niceness` is by how much its processes give way to this one.
    Raises `OperationalError` where Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    local = master is None or master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    scratch = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    log_file = log_file or scratch / "spark.log"
    archive = class_archive.using() if java_options is None else ""
    # Where Java itself crashes it leaves a report, by default in the working directory.
    always = f'"-XX:ErrorFile={log_file.parent.absolute()}/java-crash-%p.log"'
    conf = _conf(scratch, driver_memory, f"{always} {archive or java_options or ''}")
    conf |= {"spark.master": master or f"local[{local_slots()}]", "spark.app.name": "headrace"}
    conf |= _addresses(master, driver_host)
    if local:
        # Elsewhere the package may reach the workers only after their daemon has started.
        conf["spark.python.daemon.module"] = "headrace.dataflow.daemon"
        conf["spark.shuffle.compress"] = "false"  # what is shuffled stays in this machine's memory
    conf = _with_further(conf, further or {})
    # PySpark logs every failed query with its whole stack; the error itself reaches whoever asked.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    # So does py4j, on the root logger, for each call that a JVM that has ended does not answer.
    logging.getLogger().addFilter(_no_failed_calls)
    try:
        try:
            process.launch(conf, log_file, niceness)
        except PySparkRuntimeError:
            if not archive:
                raise
            # Java does without an archive that does not fit, but not without one that is damaged.
            conf |= _conf(scratch, driver_memory, always)
            process.launch(_with_further(conf, further or {}), log_file, niceness)
        session = SparkSession.builder.config(map=dict(conf)).getOrCreate()
        _scratch_of.setdefault(session.sparkContext, scratch)
        return session
    except Exception as error:
        if log_file.parent != scratch:
            shutil.rmtree(scratch, ignore_errors=True)
        raise OperationalError(
            f"Spark did not start: {error}", hint=f"see {log_file}", detail=_tail(log_file)
        ) from error


class SparkStart:
    """Starts the sessions of one database: the first one when it is first asked for, in a thread of its own.

    So whoever opens a database does all that needs no Spark first: Java takes all cores for seconds.
    """

    def __init__(self, start: Callable[[], SparkSession], *, may_come_later: bool = True):
        self.another = start
        """Makes one more, after its predecessor has ended. Raises `OperationalError`."""
        self.may_come_later = may_come_later
        """Whether nothing has to be found out of the first session before a database is opened."""
        self._changing = threading.Lock()
        self._abandoned = False
        self._told = False
        """Whether somebody was told that the attempt has failed."""
        self._attempt: Future[SparkSession] | None = None

    def _begin(self) -> Future[SparkSession]:
        attempt: Future[SparkSession] = Future()
        threading.Thread(target=self._run, args=(attempt,), name="headrace-spark-start", daemon=True).start()
        return attempt

    def _run(self, attempt: Future[SparkSession]) -> None:
        with _starting:  # PySpark keeps one JVM for each process: two that start one would get in each other's way
            if not attempt.set_running_or_notify_cancel():
                return
            try:
                _forget_ended()
                session = self.another()
            except BaseException as error:
                attempt.set_exception(error)
            else:
                attempt.set_result(session)  # which stops it, while nobody else starts one, if nobody wants it any more

    def first(self) -> SparkSession:
        """The first session, once it is there; asked again after a failure it is another attempt.

        Raises `OperationalError` where Spark does not start, `CancelledError` once it is abandoned.
        """
        with self._changing:
            if self._attempt is None or (self._told and not self._abandoned):
                self._attempt, self._told = self._begin(), False
            attempt = self._attempt
        try:
            return attempt.result()
        except BaseException:
            with self._changing:
                self._told = self._told or attempt is self._attempt
            raise

    def abandon(self) -> None:
        """Nobody will take the first session: it is stopped as soon as it is there. Does not wait for that."""
        with self._changing:
            self._abandoned = True
            attempt = self._attempt = self._attempt or Future()
            if not attempt.cancel():
                attempt.add_done_callback(_stop)


def _stop(attempt: Future[SparkSession]) -> None:
    if attempt.exception() is None:
        with suppress(*UNANSWERED):  # its JVM may have ended before
            attempt.result().stop()


def spark_start(settings: Settings, master: str | None, log_file: Path | None) -> SparkStart:
    """How Spark is started as a database's settings say. Makes the directory of its data, for the log."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    memory = f"{settings.spark_driver_memory_mb}m"
    further = dict(settings.spark_conf)
    refuse_own(further)
    chosen, host = master or settings.master, settings.driver_host
    return SparkStart(
        lambda: local_session(
            chosen,
            driver_host=host,
            driver_memory=memory,
            log_file=log_file,
            further=further,
            niceness=settings.spark_niceness,
        ),
        # One that is there already may be of any kind.
        may_come_later=(chosen is None or is_local(chosen)) and SparkContext._active_spark_context is None,
    )


def refuse_own(further: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for a property of Spark that is not the user's to set."""
    for name in further:
        if name in _OWN:
            raise InvalidParameter(f"spark_conf cannot set {name}", hint=_OWN[name])
        if not name.startswith("spark."):
            raise InvalidParameter(f'"{name}" in spark_conf is no property of Spark', hint="they begin with spark.")


def _with_further(conf: Mapping[str, str], further: Mapping[str, str]) -> dict[str, str]:
    found = {**conf, **further}
    for name in (_JAVA_OPTIONS, _EXECUTORS_OPTIONS):
        if name in further and name in conf:
            found[name] = f"{conf[name]} {further[name]}"
    return found


def _addresses(master: str | None, host: str | None) -> dict[str, str]:
    """Where the driver listens, and where executors find it; nothing where Spark has to find that out itself."""
    if master is None or master.startswith("local"):
        host = _LOOPBACK
    elif not host and (found := _STANDALONE.match(master)):
        host = address_towards(found["host"], int(found["port"]))
    return {} if not host else {"spark.driver.host": host, "spark.driver.bindAddress": bind_address(host)}


def _no_failed_calls(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


_JAVA_OPTIONS, _EXECUTORS_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
_STACK = f"-Xss{STACK_MIB}m"
_OPTIMIZED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
)
"""Java optimizes in full what was called ten times as often as by default. Otherwise that takes a third of the
processor after a start, for methods that hardly run again; what is called for each row gets there within the first
epoch, and loops as soon as ever."""
_OWN = {
    "spark.master": "the setting master, or --master, says where Spark runs",
    "spark.driver.memory": "the setting spark_driver_memory_mb says it",
    **dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "the setting driver_host says it"),
    "spark.sql.shuffle.partitions": "the setting parallelism says it",
    **dict.fromkeys(
        ("spark.sql.adaptive.enabled", "spark.sql.session.timeZone", "spark.sql.ansi.enabled",
         "spark.sql.legacy.allowHashOnMapType", "spark.sql.optimizer.runtime.bloomFilter.enabled",
         "spark.sql.optimizer.dynamicPartitionPruning.enabled", "spark.sql.autoBroadcastJoinThreshold",
         "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.mapKeyDedupPolicy", "spark.sql.variable.substitute",
         "spark.sql.execution.arrow.pyspark.enabled", "spark.sql.warehouse.dir", "spark.speculation",
         "spark.scheduler.mode", "spark.scheduler.allocation.file", "spark.python.daemon.module"),
        "results depend on what headrace sets it to",
    ),
}  # fmt: skip
"""Properties that are not the user's to set, and why."""


def _conf(scratch: Path, driver_memory: str, java_options: str) -> dict[str, str]:
    pools, log_conf = scratch / "pools.xml", scratch / "log4j2.properties"
    pools.write_text(_POOLS)
    log_conf.write_text(_LOGGING)
    return {
        _JAVA_OPTIONS: f"{_STACK} {_OPTIMIZED_LATER} -Dlog4j2.configurationFile={log_conf.as_uri()} {java_options}",
        _EXECUTORS_OPTIONS: _STACK,
        "spark.driver.memory": driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": str(pools),
        "spark.speculation": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.variable.substitute": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        # Whenever a Column is made PySpark would ask Java four times more, to tell later which line has made it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.cleaner.periodicGC.interval": "5min",
    }


def _tail(path: Path, most: int = 2000) -> str:
    try:
        return path.read_text(errors="replace")[-most:]
    except OSError:
        return ""
