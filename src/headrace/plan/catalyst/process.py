"""The Java process that Spark runs in, of which PySpark keeps one for this Python process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.common.niceness import give_way
from headrace.plan.catalyst.answers import UNANSWERED

_launch_gateway: Callable[[SparkConf, dict[str, Any]], JavaGateway] = launch_gateway


def launch(conf: Mapping[str, str], log_file: Path, niceness: int = 0) -> None:
    """Start this process's JVM, unless it runs. What it writes to its standard error goes to the file.

    It, and the workers that it starts, give way to this process by so much `niceness`.
    """
    if SparkContext._gateway is None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            gateway = _launch_gateway(SparkConf(False).setAll(list(conf.items())), {"stderr": log})
        give_way(gateway.proc.pid, niceness)
        SparkContext._ensure_initialized(gateway=gateway)


def has_ended(context: SparkContext, wait_s: float = 0.0) -> bool:
    """Whether the JVM of a SparkContext has ended, or the context was stopped.

    What a call to a dying JVM raises may come before its exit code: `wait_s` is how long to wait for that.
    """
    process = getattr(context._gateway, "proc", None)
    if process is not None:
        with suppress(TimeoutExpired):
            process.wait(wait_s)
            return True
    with suppress(*UNANSWERED, AttributeError):
        return bool(context._jsc.sc().isStopped())
    return True


def forget_ended() -> SparkContext | None:
    """Clear PySpark's singletons of what has ended: a session that ran, or one whose JVM ended while it started.

    Returns the SparkContext that was there.
    """
    context: SparkContext | None = SparkContext._active_spark_context
    ended = context is not None and has_ended(context)
    if context is not None and ended:
        context._jsc = None  # there is nobody to tell to stop
        context.stop()
    session: Any = SparkSession._instantiatedSession
    if session is not None and has_ended(session._sc):
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None and process.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None
        with suppress(Exception):  # of its connections; it also ends the thread that tells Java of garbage
            gateway.shutdown()
    return context if ended else None


def end(wait_s: float) -> None:
    """Let this process's JVM end, and wait for that."""
    gateway = SparkContext._gateway
    assert gateway is not None, "there is no JVM that could end"
    process = gateway.proc
    process.stdin.close()  # upon which the JVM ends
    process.wait(wait_s)


__all__ = ["end", "forget_ended", "has_ended", "launch"]
