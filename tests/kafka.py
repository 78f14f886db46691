"""A Kafka broker of its own for a test: one process in KRaft mode, on a scratch directory.

Its jars come from Maven Central; where Maven or its registry is not there, the tests that need a broker are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import registries
from support import eventually

HOST = "127.0.0.1"
HEAP = "-Xmx256m"
BRIEF = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a broker that ends soon."""


class NoKafka(Exception):
    """There is no Kafka on this machine that could be started."""


@dataclass
class Kafka:
    """A broker."""

    port: int
    root: Path
    command: list[str]
    process: subprocess.Popen[bytes] | None = field(default=None)
    beside: Mapping[str, int] = field(default_factory=dict)
    """The ports of its listeners that are not in plain text, by their names."""

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which can talk to it and no more."""
        return {**self.__dict__, "process": None}

    @property
    def servers(self) -> str:
        """What clients are told as `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "kafka.Kafka", str(self.root / "server.properties")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        eventually(self._answers, "Kafka to come up")

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise NoKafka(f"Kafka has ended:\n{(self.root / 'log').read_text()[-4000:]}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self.port)):
                return False
        try:
            return bool(self.admin().list_topics(timeout=5).brokers)
        except Exception:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def admin(self) -> Any:
        """An AdminClient."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; its name."""
        from confluent_kafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        eventually(lambda: name in admin.list_topics(timeout=10).topics)
        return name

    def remade(self, name: str) -> None:
        """Delete a topic, and make it again."""
        admin = self.admin()
        partitions = len(admin.list_topics(name).topics[name].partitions)
        admin.delete_topics([name])[name].result(30)
        eventually(lambda: name not in admin.list_topics(timeout=10).topics)
        self.topic(name, partitions)

    def producer(self, **options: Any) -> Any:
        """A Producer."""
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.servers, "linger.ms": 1, "log_level": 0, **options})

    def send(self, topic: str, *values: bytes | str | None, key: bytes | str | None = None, **more: Any) -> None:
        """Produce records, and wait until they are there."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, key, **more)
        assert producer.flush(60) == 0

    def settle(self, topic: str) -> None:
        """Wait until no transaction of a topic is open: its markers are written after the producer has its answer."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin = self.admin()
        latest = {
            TopicPartition(topic, p): OffsetSpec.latest() for p in admin.list_topics(topic).topics[topic].partitions
        }

        def ends(level: Any) -> dict[int, int]:
            asked = admin.list_offsets(latest, isolation_level=level)
            return {where.partition: int(answer.result(30).offset) for where, answer in asked.items()}

        eventually(
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
            "the end of transactions",
        )

    def records(self, topic: str) -> list[Any]:
        """All committed records of a topic, partition by partition."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "checker", "isolation.level": "read_committed",
             "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
             "fetch.wait.max.ms": 10}  # at the end of each partition it waits so long, and half a second by default
        )  # fmt: skip
        found: list[Any] = []
        for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None:
                if message.error() is not None:
                    break
                found.append(message)
        consumer.close()
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def kafka_server(settings: Mapping[str, str] | None = None, beside: Mapping[str, str] | None = None) -> Iterator[Kafka]:
    """A new broker in a scratch directory, started, and removed at the end; raises NoKafka.

    `beside` the listener in plain text it has others: name -> security protocol.
    """
    try:
        jars = registries.jars(*registries.KAFKA)
    except registries.NotToBeHad as error:
        raise NoKafka(str(error)) from error
    root = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    port, controller = _free_port(), _free_port()
    protocols = {"PLAINTEXT": "PLAINTEXT", **(beside or {})}
    ports = {name: port if name == "PLAINTEXT" else _free_port() for name in protocols}
    open_to_all = [f"{name}://{HOST}:{at}" for name, at in ports.items()]
    options = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"{','.join(open_to_all)},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": ",".join(open_to_all),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in (protocols | {"CONTROLLER": "PLAINTEXT"}).items()
        ),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(root / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.initial.task.delay.ms": "1000",
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.dedupe.buffer.size": "4000000",
        "log.segment.delete.delay.ms": "100",  # with 0 a thread of the broker looks a thousand times a second
        "metadata.max.idle.interval.ms": "0",  # else it writes down twice a second that nothing has happened
        "socket.listen.backlog.size": "50",
        **(settings or {}),
    }
    (root / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    java = [f"{home}/bin/java" if (home := os.environ.get("JAVA_HOME")) else "java", HEAP, *BRIEF]
    command = [*java, "-cp", f"{jars}/*"]
    server = Kafka(port, root, command, beside={name: ports[name] for name in beside or {}})
    try:
        layout = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(root / "server.properties")]
        done = subprocess.run([*command, *layout], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise NoKafka(f"Kafka's storage cannot be formatted: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
