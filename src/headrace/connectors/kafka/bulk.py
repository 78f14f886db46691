"""A consumer that takes many records at once out of the client library, without an object of Python's for each.

The library is the one that confluent_kafka brings along, called by its own public functions and by the layout of
`rd_kafka_message_t`, which is public, too. Where it cannot be found or is called otherwise, `bulk_consumer` says None,
and records are read as confluent_kafka gives them. What comes out is the same.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.packed import BareMessage, PackedMessages, PackedValues

_POINTER: Final = ctypes.c_void_p
_WORD: Final = 8
_ERROR, _PAYLOAD, _LENGTH, _OFFSET = 0, 3, 4, 7
"""Places in `rd_kafka_message_t`, in words of 64 bits; the error is the lower half of its word."""
_CONSUMER: Final = 1
_TEXT: Final = 512
_CALLS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_POINTER, ()),
    "conf_set": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)),
    "conf_destroy": (None, (_POINTER,)),
    "new": (_POINTER, (ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t)),
    "poll_set_consumer": (ctypes.c_int, (_POINTER,)),
    "queue_get_consumer": (_POINTER, (_POINTER,)),
    "queue_destroy": (None, (_POINTER,)),
    "topic_partition_list_new": (_POINTER, (ctypes.c_int,)),
    "topic_partition_list_add": (_POINTER, (_POINTER, ctypes.c_char_p, ctypes.c_int32)),
    "topic_partition_list_set_offset": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64)),
    "topic_partition_list_destroy": (None, (_POINTER,)),
    "assign": (ctypes.c_int, (_POINTER, _POINTER)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_POINTER, ctypes.c_int, _POINTER, ctypes.c_size_t)),
    "message_errstr": (ctypes.c_char_p, (_POINTER,)),
    "err2str": (ctypes.c_char_p, (ctypes.c_int,)),
    "consumer_close": (ctypes.c_int, (_POINTER,)),
    "destroy": (None, (_POINTER,)),
}


class _Library:
    """The functions of the library, by their names without `rd_kafka_`. Raises `OSError`, `AttributeError`."""

    def __init__(self, path: Path) -> None:
        waiting, quick = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        self._calls: dict[str, Any] = {}
        for name, (result, arguments) in _CALLS.items():
            self._calls[name] = getattr(waiting, f"rd_kafka_{name}")
            self._calls[name].restype, self._calls[name].argtypes = result, arguments
        self.forget = quick.rd_kafka_message_destroy  # so short that Python's lock is kept
        self.forget.restype, self.forget.argtypes = None, (_POINTER,)

    def __getattr__(self, name: str) -> Any:
        return self._calls[name]


@cache
def _library() -> _Library | None:
    package = Path(str(needed_module("confluent_kafka", "kafka").__file__)).parent
    if ctypes.sizeof(_POINTER) != _WORD:
        return None
    places = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    for path in (found for place in places for found in sorted(place.glob("librdkafka*"))):
        try:
            return _Library(path)
        except (OSError, AttributeError):
            continue
    return None


@dataclass(frozen=True)
class Event:
    """What comes among records and is none; with the methods that confluent_kafka's have."""

    found: Any
    at: int

    def error(self) -> Any:
        """A `KafkaError`."""
        return self.found

    def offset(self) -> int:
        """Where."""
        return self.at


class BulkConsumer:
    """A consumer of one partition at a time. Raises confluent_kafka's `KafkaException`."""

    def __init__(self, library: _Library, config: Mapping[str, object]) -> None:
        self._kafka = needed_module("confluent_kafka", "kafka")
        self._library = library
        text = ctypes.create_string_buffer(_TEXT)
        settings = library.conf_new()
        for name, value in config.items():
            spelled = str(value).lower() if isinstance(value, bool) else str(value)
            if library.conf_set(settings, name.encode(), spelled.encode(), text, _TEXT):
                library.conf_destroy(settings)
                raise self._failure(self._kafka.KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
        self._handle = library.new(_CONSUMER, settings, text, _TEXT)
        if not self._handle:
            library.conf_destroy(settings)
            raise self._failure(self._kafka.KafkaError._INVALID_ARG, text.value.decode(errors="replace"))
        library.poll_set_consumer(self._handle)
        self._queue = library.queue_get_consumer(self._handle)

    def _failure(self, code: int, text: str) -> Exception:
        failure: Exception = self._kafka.KafkaException(self._kafka.KafkaError(code, text))
        return failure

    def _checked(self, code: int) -> None:
        if code:
            raise self._failure(code, self._library.err2str(code).decode(errors="replace"))

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read a partition from an offset on."""
        places = self._library.topic_partition_list_new(1)
        try:
            self._library.topic_partition_list_add(places, topic.encode(), partition)
            self._checked(self._library.topic_partition_list_set_offset(places, topic.encode(), partition, offset))
            self._checked(self._library.assign(self._handle, places))
        finally:
            self._library.topic_partition_list_destroy(places)

    def unassign(self) -> None:
        """Read nothing."""
        self._checked(self._library.assign(self._handle, None))

    @contextmanager
    def consume(self, most: int, gather_s: float, look_s: float) -> Iterator[npt.NDArray[np.uint64]]:
        """Where records and events are, at most so many: as soon as there are as many, else after `gather_s`.

        Where there is none by then, the next that comes within `look_s`, and what comes with it. They are there as long
        as the block is.
        """
        into = np.empty(most, np.uint64)
        count = self._take(into, gather_s)
        if not count and (count := self._take(into[:1], look_s)) and most > 1:
            count += self._take(into[1:], gather_s)
        found = into[:count]
        try:
            yield found
        finally:
            deque(map(self._library.forget, found.tolist()), 0)

    def _take(self, into: npt.NDArray[np.uint64], wait_s: float) -> int:
        count: int = self._library.consume_batch_queue(self._queue, round(wait_s * 1000), into.ctypes.data, len(into))
        return max(0, count)

    def event(self, place: int) -> Event:
        """What there is in place of a record."""
        words = _fields(np.array([place], np.uint64))
        code = int(words[0, _ERROR].astype(np.uint32).astype(np.int32))
        text = (self._library.message_errstr(place) or b"").decode(errors="replace")
        return Event(self._kafka.KafkaError(code, text), int(words[0, _OFFSET].astype(np.int64)))

    def close(self) -> None:
        """Let go of it."""
        if self._handle:
            self._library.consumer_close(self._handle)
            self._library.queue_destroy(self._queue)
            self._library.destroy(self._handle)
            self._handle = None


def bulk_consumer(config: Mapping[str, object]) -> BulkConsumer | None:
    """None where it cannot be had. Raises as `BulkConsumer` does."""
    library = _library()
    return None if library is None else BulkConsumer(library, config)


def messages(found: npt.NDArray[np.uint64], split: int) -> Sequence[BareMessage]:
    """Copies of the records at some places: one by one, where one has no value."""
    words = _fields(found)
    lengths, offsets = words[:, _LENGTH].astype(np.int64), words[:, _OFFSET].astype(np.int64)
    if lengths.all():
        return PackedMessages(_gathered(words[:, _PAYLOAD], lengths), split, offsets)
    values = [ctypes.string_at(int(w[_PAYLOAD]), int(w[_LENGTH])) if w[_PAYLOAD] else None for w in words]
    return [BareMessage(value, split, int(offset)) for value, offset in zip(values, offsets)]


def are_events(found: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which places have no record."""
    errors: npt.NDArray[np.bool_] = (_fields(found)[:, _ERROR] & np.uint64(0xFFFFFFFF)) != 0
    return errors


def _fields(found: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The words of the messages at some places: only these are looked at, of all memory from the first to the last."""
    low = int(found.min())
    count = (int(found.max()) - low) // _WORD + _OFFSET + 1
    memory = np.frombuffer(pa.foreign_buffer(low, count * _WORD), np.uint64)
    at = ((found - np.uint64(low)) // np.uint64(_WORD)).astype(np.int64)
    words: npt.NDArray[np.uint64] = memory[at[:, None] + np.arange(_OFFSET + 1)]
    return words


def _gathered(places: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]) -> PackedValues:
    """The bytes at some places, copied to stand one behind the other.

    Arrow does it: a column of texts over all memory from the first to the last, of which every second one is a value,
    and what lies between them is not looked at.
    """
    order = np.argsort(places, kind="stable")
    low = int(places[order[0]])
    bounds = np.empty(2 * len(places), np.int64)
    bounds[::2] = (places[order] - np.uint64(low)).astype(np.int64)
    bounds[1::2] = bounds[::2] + lengths[order]
    memory = pa.foreign_buffer(low, int(bounds[-1]))
    ranges = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), memory], null_count=0
    )
    wanted = np.empty(len(places), np.int64)
    wanted[order] = np.arange(0, len(bounds), 2)
    values = ranges.take(pa.array(wanted))
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(values)]), values)
    joined = pc.binary_join(whole, pa.scalar(b"\n", pa.large_binary())).buffers()[2]
    return PackedValues.joined(memoryview(joined), lengths)
