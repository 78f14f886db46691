"""Whether Spark's tasks run on other hosts, and what has to be settled with these before any work is given to them.

The store's address that tasks on other hosts are told names an object that the server has put there
(`StoreRoot.proof`, `state/proof.py`): no process opens the store without having seen it. At the start all executors
answer it. An epoch or merge whose objects the server does not see has failed (`confirm`).
"""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.dataflow.spark import is_local
from headrace.errors import OperationalError
from headrace.plan.catalyst.answers import UNANSWERED
from headrace.plan.catalyst.java_calls import cancel_jobs, set_property
from headrace.plan.failures import translate
from headrace.state.proof import answer_proof, check_answers
from headrace.state.stores import StoreRoot

WAIT_S = 120.0
"""Seconds that executors have to take the first tasks."""
LOOPBACK = "127.0.0.1"
"""Where tasks reach this process that run in processes of this machine."""
_numbers = itertools.count(1)


def is_remote(session: SparkSession) -> bool:
    """Whether tasks run in other processes than the driver's own, and so maybe on other hosts."""
    return not is_local(str(session.sparkContext.master))


def driver_host(session: SparkSession) -> str:
    """The address at which tasks reach this host."""
    if not is_remote(session):
        return LOOPBACK
    return str(session.sparkContext.getConf().get("spark.driver.host", LOOPBACK))


def prove(session: SparkSession, root: StoreRoot, wait_s: float = WAIT_S) -> None:
    """Let every executor there is show that it uses the server's store; those that come later show it by themselves.

    Raises `StorageError` where one does not, `OperationalError` if no executor takes the tasks in time.
    """
    context, group = session.sparkContext, f"headrace-proof-{next(_numbers)}"
    late = threading.Event()

    def give_up() -> None:
        late.set()
        cancel_jobs(context, group)

    timer = threading.Timer(wait_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        answers = _answers(context, group, root)
    except Exception as error:
        if late.is_set():
            raise OperationalError(
                f"no executor of {context.master} has taken a task within {wait_s:.0f} s",
                hint="are there workers, with free cores and memory, and do they reach this host? See driver_host",
            ) from error
        raise translate(error) from error
    finally:
        timer.cancel()
    check_answers(root, answers)


def _answers(context: SparkContext, group: str, root: StoreRoot) -> list[tuple[str, str, str]]:
    # Some more tasks than there are slots, which Spark hands out evenly.
    count = 2 * max(2, context.defaultParallelism)
    context.setJobGroup(group, "whether all executors use the server's store", True)
    try:
        return context.parallelize(range(count), count).map(lambda _: answer_proof(root)).collect()
    finally:
        with suppress(*UNANSWERED):
            set_property(context, "spark.jobGroup.id", None)
            set_property(context, "spark.job.description", None)
