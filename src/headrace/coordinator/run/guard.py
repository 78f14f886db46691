"""Keeps what runs in the background going: a failure there is told, counted and tried again; it ends nothing."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import AddEvent
from headrace.common.clock import Clock
from headrace.common.lazy_dataclass import dataclass
from headrace.common.loggers import get_logger
from headrace.config import Settings
from headrace.coordinator.decide.targets import retry_delay_ms
from headrace.coordinator.observe.sparing import Sparing
from headrace.coordinator.run.waiting import Waiters
from headrace.errors import Fenced, HeadraceError, JobFailed, StorageError

FAILED, RECOVERED = "background_failed", "background_recovered"
"""The kinds of its events."""
MOST_DETAIL = 4000
"""Characters of a traceback that an event keeps."""


class Guard:
    """Runs chores and the loops of threads. Each has a name, by which its failures are told apart. Thread-safe.

    An event tells of the first failure, of each with another message, and of the end of them; of one name not more than
    `sparing` allows, however often it comes and goes and whatever it says.
    """

    def __init__(
        self, changed: Waiters, clock: Clock, catalog: Catalog, sparing: Sparing, *, settings: Callable[[], Settings],
        stopping: Callable[[], bool], fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        """`changed` is notified when the coordinator is `stopping`; `fatal` ends it, since it has lost the database."""
        self._changed = changed
        self._clock = clock
        self._catalog = catalog
        self._sparing = sparing
        self._settings = settings
        self._stopping = stopping
        self._fatal = fatal
        self._failing: dict[str, _Failing] = {}
        self.failures: Counter[str] = Counter()
        """By name, since the server started. Changed under the lock of `changed`, as is what fails at present."""

    def chore(self, name: str, work: Callable[[], object]) -> bool:
        """Do a piece of work that is done again later anyway; whether it succeeded. Raises `Fenced`, nothing else."""
        try:
            work()
        except Fenced:
            raise
        except Exception as error:
            self.note(name, error)
            return False
        self.succeeded(name)
        return True

    def forever(
        self, name: str, loop: Callable[[], object], failed: Callable[[Exception], object] = lambda error: None
    ) -> None:
        """The main function of a thread: `loop`, which returns when it is time to stop, and is begun again if it fails.

        Later and later, until it has run for as long as the longest of these pauses. `failed` is called first.
        """
        failures = 0
        while True:
            since_s = self._clock.monotonic_s()
            try:
                loop()
                return
            except Fenced as error:
                self._fatal(error)
                return
            except Exception as error:
                settings = self._settings()
                if self._clock.monotonic_s() - since_s > settings.group_retry_max_ms / 1000:
                    failures = 0
                    with self._changed:
                        self._failing.pop(name, None)  # It had gone well: it is told again.
                failures += 1
                try:
                    self.chore(f"{name}, taking note of a failure", partial(failed, error))
                    self.note(name, error)
                except Fenced as fenced:
                    self._fatal(fenced)
                    return
            delay_ms = retry_delay_ms(
                failures, settings.group_retry_initial_ms, settings.group_retry_max_ms, random.random()
            )
            if not self._pause(delay_ms / 1000):
                return

    def _pause(self, delay_s: float) -> bool:
        """Wait; False if the coordinator stops."""
        until_s = self._clock.monotonic_s() + delay_s
        with self._changed:
            while not self._stopping() and self._clock.monotonic_s() < until_s:
                self._changed.doze(until_s - self._clock.monotonic_s())
            return not self._stopping()

    # ---- telling

    def note(self, name: str, error: Exception) -> None:
        """Notes a failure: tells it if it is news, and counts it. Raises `Fenced`."""
        message = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        with self._changed:
            self.failures[name] += 1
            now = self._failing.get(name)
            news = now is None or now.message != message
            if now is None or news:
                now = self._failing[name] = _Failing(message)
        if now.told:
            return
        detail = "".join(traceback.format_exception(error))[-MOST_DETAIL:]
        event = self._sparing.thinned(
            AddEvent(FAILED, None, f"{name} failed, and is tried again: {message}", detail), name
        )
        if event is None:
            return
        if news:
            with suppress(Exception):  # Where it goes may be full, or gone. That keeps nothing from going on.
                get_logger("headrace").error("background work failed", what=name, error=message, detail=detail)
        now.told = self._tell(event)
        if not now.told:
            self._sparing.not_told(event, name)

    def succeeded(self, name: str) -> None:
        """It works, maybe again. Raises `Fenced`."""
        if name in self._failing:
            with self._changed:
                now = self._failing.pop(name, None)
            if now is not None and now.told:
                self._tell(AddEvent(RECOVERED, None, f"{name} works again"))

    def _tell(self, event: AddEvent) -> bool:
        """False if the catalog does not take it: then that is tried again with the next failure."""
        try:
            self._catalog.transact([event])
        except Fenced:
            raise
        except Exception:
            return False
        return True


@dataclass
class _Failing:
    message: str
    told: bool = False


class PiecesOfWork:
    """Does each piece of a chore though others fail, and raises the first failure in the end."""

    def __init__(self) -> None:
        self.first: Exception | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """A piece of work. Raises `Fenced`, nothing else."""
        try:
            yield
        except Fenced:
            raise
        except Exception as error:
            self.first = self.first or error

    def end(self) -> None:
        """Raise what failed first, if anything did."""
        if self.first is not None:
            raise self.first


def as_headrace_error(error: BaseException) -> HeadraceError:
    """Any exception as one that carries an SQLSTATE."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"{type(error).__name__}: {error}")
    return JobFailed(f"{type(error).__name__}: {error}")


def without_frames(error: HeadraceError) -> HeadraceError:
    """The same error, which does not hold what the code had in hands that raised it, or what caused it.

    An error that is kept as a state would: a frame knows who keeps it, so that clients that got nowhere would stay
    with their threads until garbage is looked for.
    """
    left: list[BaseException] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [other for other in (each.__cause__, each.__context__) if other is not None]
    return error
