"""A Spark cluster of its own: a master and workers, each a process, all on this host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from headrace.common.hosts import address_towards
from support import BRIEF_JAVA, child, eventually

_SPARK = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PACKAGE = "org.apache.spark.deploy"
_BRIEF = BRIEF_JAVA["spark.driver.extraJavaOptions"]
QUICK_SPARK = {**BRIEF_JAVA, "spark.executor.extraJavaOptions": _BRIEF}
"""How a server of a test has Spark run: its processes end too soon for the second compiler to pay."""
HOST = address_towards("192.0.2.1", 9) or "127.0.0.1"
"""An address of this host that is not that of the loopback device, if it has one."""


def apart(folder: Path) -> list[str]:
    """What makes a command see an empty folder in the place of another one."""
    return ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]


@dataclass
class Cluster:
    """A running master, and its workers."""

    folder: Path
    processes: ExitStack
    master: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_master(self) -> None:
        """Start the master; afterwards its address is known."""
        log = self.folder / "master.log"
        self._start(log, "master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
        eventually(lambda: _MASTER.search(log.read_text()), "the master to come up")
        found = _MASTER.search(log.read_text())
        assert found is not None
        self.master = found[1]

    def add_worker(self, cores: int = 2, hidden: Path | None = None) -> None:
        """Start a worker, and wait until the master knows it.

        In the place of the folder `hidden` it has one of its own: that takes the right to mount.
        """
        name = f"worker{len(self.workers)}"
        log, work = self.folder / f"{name}.log", self.folder / name
        options = ("--host", HOST, "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "1g")
        arguments = (*options, "--work-dir", str(work), self.master)
        within = [] if hidden is None else apart(hidden)
        self.workers.append(self._start(log, "worker.Worker", *arguments, within=within))
        eventually(lambda: "Successfully registered with master" in log.read_text(), f"{name} to register")

    def _start(self, log: Path, kind: str, *arguments: str, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _BRIEF,
            "PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        command = [*within, str(_SPARK / "bin" / "spark-class"), f"{_PACKAGE}.{kind}", *arguments]
        with log.open("wb") as sink:
            made: subprocess.Popen[bytes] = self.processes.enter_context(
                child(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment)
            )
        return made


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that ends with the block."""
    folder.mkdir(parents=True)
    with ExitStack() as processes:
        made = Cluster(folder, processes)
        made.start_master()
        for _ in range(workers):
            made.add_worker()
        yield made


@contextmanager
def served(folder: Path, settings: Mapping[str, str], cwd: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A `headrace serve` process on `folder/db`, and its log."""
    log = folder / "server.log"
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_IP"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "HEADRACE_SPARK_DRIVER_MEMORY_MB": "768"}
    environment |= {"HEADRACE_SPARK_CONF": json.dumps(QUICK_SPARK), **settings}
    command = [sys.executable, "-m", "headrace.cli", "serve", "--data", str(folder / "db"), "--port", "0"]
    with log.open("wb") as sink, child(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment,
                                       cwd=cwd) as server:  # fmt: skip
        yield server, log
