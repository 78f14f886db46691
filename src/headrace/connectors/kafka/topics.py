"""Which topic a name stands for: one that was deleted and made again has another id, which never comes back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.options import ANSWER_S, Complaints, asked
from headrace.errors import SourceError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
KEPT = 16
"""Clients of a process that are kept for tasks."""
_lock = threading.Lock()
_known: dict[tuple[int, str], Asking] = {}
"""Process, configuration -> who asks there, for all tasks; the last one was wanted last."""


class Asking:
    """An administrating client, made when it is first needed, and what it has said of why it gets nowhere."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = dict(config)
        self.name = f"Kafka at {config['bootstrap.servers']}"
        """For people."""
        self._admin: AdminClient | None = None
        self._complaints = Complaints()

    def client(self) -> AdminClient:
        """The client. Raises `SourceError`."""
        if self._admin is None:
            needed_module("confluent_kafka", "kafka")
            admin = needed_module("confluent_kafka.admin", "kafka")
            config = {**self._config, "error_cb": self._complaints.heard}
            self._admin = self._complaints.of(asked(self.name, SourceError, lambda: admin.AdminClient(config)))
        return self._admin

    def answer(self, what: str, call: Callable[[], T]) -> T:
        """What a call of the client returns. Raises `SourceError`."""
        return asked(what, SourceError, call, self._complaints)

    def describe(self, topic: str) -> tuple[str, list[int]]:
        """A topic's id and its partitions. Raises `SourceError`."""
        kafka = needed_module("confluent_kafka", "kafka")
        names, client = kafka.TopicCollection([topic]), self.client()
        asking = asked(self.name, SourceError, lambda: client.describe_topics(names, request_timeout=ANSWER_S))
        found = self.answer(f"topic {topic} of {self.name}", lambda: asking[topic].result(ANSWER_S + 5))
        return str(found.topic_id), sorted(p.id for p in found.partitions)

    def check(self, topic: str, wanted: str) -> None:
        """Raise `SourceError` unless a topic has this id."""
        if self.describe(topic)[0] != wanted:
            raise other_topic(topic)


def other_topic(topic: str) -> SourceError:
    """What is told where a topic is another one than was bound."""
    return SourceError(
        f"the topic {topic} is not the one that has been read: it was deleted and made again",
        hint="drop the source and create it again",
    )


def asking_at(config: Mapping[str, object]) -> Asking:
    """Who asks for all tasks of this process that are configured alike. Who has not been wanted for long is let go."""
    process = os.getpid()
    key = process, repr(sorted(config.items()))
    with _lock:
        found = _known[key] = _known.pop(key) if key in _known else Asking(config)
        own = [one for one in _known if one[0] == process]
        for one in own[:-KEPT]:
            del _known[one]
        return found
