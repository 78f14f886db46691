"""What becomes of a database when its Spark ends, without any Spark: a session is a name here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import HeadraceError, JobFailed, OperationalError, QueryCanceled, ShuttingDown, SparkLost
from headrace.session.keeper import KeeperPace, SparkKeeper
from support import WAIT_S, eventually

QUICK = KeeperPace(look_s=0.001, dying_s=0.0, ready_s=WAIT_S, retry_s=1.0, retry_most_s=3.0)


class Scene:
    """A keeper of sessions that are named s0, s1 ..., and its coordinator: both note what they are asked for."""

    def __init__(
        self, pace: KeeperPace = QUICK, given: bool = False, coming: bool = False, held: bool = False,
        on_demand: bool = False, at_start: Callable[[], object] = lambda: None,
        at_planning: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """`coming`: there is no session yet; `on_demand`: nor is one started before it is needed. `held`: a pause ends
        with `go_on`."""
        self.said: list[str] = []
        self._held = threading.Semaphore(0) if held else None
        self.aborted: HeadraceError | None = None
        self.ended: set[Any] = set()
        self.failing_starts = 0
        self.failing_renewals = 0
        self.failing_looks = 0
        self.at_start = at_start
        self.at_planning = at_planning
        self._started = 0
        self.needed = False
        self._suspended = False
        self.keeper = SparkKeeper(
            None if coming else "s0",  # type: ignore[arg-type]
            None if given else self._start,  # type: ignore[arg-type]
            lambda session: self.said.append(f"renew {session}"),
            pace=pace,
            ended=self._has_ended,
            successor=lambda lost, start: start(),
            pause=lambda closed, seconds: self._pause(seconds),
            first=self._start if coming else None,  # type: ignore[arg-type]
            on_demand=on_demand,
        )
        self.keeper.watch(self)  # type: ignore[arg-type]

    def _has_ended(self, session: Any, wait_s: float) -> bool:
        if self.failing_looks:
            self.failing_looks -= 1
            raise KeyError("of nobody knows what")
        return session in self.ended

    def _start(self) -> str:
        self.at_start()
        if self.failing_starts:
            self.failing_starts -= 1
            raise OSError("no memory")
        self._started += 1
        self.said.append(f"start s{self._started}")
        return f"s{self._started}"

    def needs_spark(self) -> bool:
        self.said.append("look")
        return self.needed

    def _pause(self, seconds: float) -> None:
        self.said.append(f"pause {seconds:g}")
        if self._held is not None:
            assert self._held.acquire(timeout=WAIT_S)

    def go_on(self) -> None:
        """Let a pause end."""
        assert self._held is not None
        self._held.release()

    def end(self) -> None:
        """The session that is there ends."""
        self.ended.add(self.keeper.session)

    def wait_for(self, what: str) -> None:
        """Wait until something was said."""
        eventually(lambda: what in self.said, f"{what} to be said")

    # ---- what a coordinator does

    def watch_spark(self, is_lost: Callable[[], bool]) -> None:
        self.is_lost = is_lost

    def note_failure(self, what: str, error: Exception) -> None:
        self.said.append(f"{what} failed: {error}")

    def plan_suspect(self) -> None:
        pass

    def suspend(self, reason: HeadraceError) -> None:
        if not self._suspended:
            self.said.append("suspend")
        self._suspended = True

    def renew(self, begin: Callable[[], None], serve: Callable[[], None]) -> None:
        begin()
        assert not self._is_ready(), "statements go on before anything is defined"
        serve()
        self.at_planning()
        if self.failing_renewals:
            self.failing_renewals -= 1
            raise SparkLost("ended again")
        self.said.append("resume")
        self._suspended = False

    def abort(self, error: HeadraceError) -> None:
        self.aborted = error
        self.said.append("abort")

    def _is_ready(self) -> bool:
        class NotReadyError(Exception):
            pass

        def check() -> None:
            raise NotReadyError

        try:
            self.keeper.wait_ready(check)
        except NotReadyError:
            return False
        return True


Make = Callable[..., Scene]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes scenes, and ends them after the test."""
    scenes: list[Scene] = []

    def made(*arguments: Any, **options: Any) -> Scene:
        scenes.append(Scene(*arguments, **options))
        return scenes[-1]

    yield made
    for scene in scenes:
        scene.keeper.close()


def nothing() -> None:
    """A check that finds nothing."""


def test_the_order_of_things(make: Make) -> None:
    """PC-42: work stops, another Spark is started, everything moves there, and only then statements go on."""
    scene = make()
    scene.keeper.wait_ready(nothing)
    scene.end()
    scene.wait_for("resume")
    scene.keeper.wait_ready(nothing)
    assert scene.said == ["suspend", "start s1", "renew s1", "resume"]
    assert scene.keeper.session == "s1" and not scene.is_lost()
    assert scene.keeper.close() == "s1"


def test_whoever_meets_the_loss_first_finds_it_for_all(make: Make) -> None:
    """An epoch that fails does not wait for the next look; a running Spark is not lost."""
    scene = make(KeeperPace(look_s=WAIT_S, dying_s=0.0))
    assert not scene.is_lost()
    scene.end()
    may_start = threading.Event()
    scene.at_start = lambda: may_start.wait(WAIT_S) and None
    assert scene.is_lost() and scene.is_lost()
    assert scene.said[0] == "suspend"
    may_start.set()
    scene.wait_for("resume")
    scene.keeper.wait_ready(nothing)
    assert not scene.is_lost() and [s for s in scene.said if s.startswith("start")] == ["start s1"]


def test_starts_that_fail_are_repeated_with_growing_pauses(make: Make) -> None:
    """PC-42: however often that takes."""
    scene = make()
    scene.failing_starts = 3
    scene.end()
    scene.wait_for("resume")
    assert scene.said == ["suspend", "pause 1", "pause 2", "pause 3", "start s1", "renew s1", "resume"]


def test_a_watch_that_fails_is_begun_again(make: Make) -> None:
    """Whatever looking comes to: else nobody would notice that Spark has ended."""
    scene = make()
    scene.failing_looks = 3
    eventually(lambda: not scene.failing_looks)
    scene.end()
    scene.wait_for("resume")
    assert scene.said.count("the watch over Spark failed: 'of nobody knows what'") == 3


def test_spark_ends_again_while_views_are_planned(make: Make) -> None:
    """PC-44: the one after the next takes over."""
    scene = make()
    scene.failing_renewals = 1
    scene.end()
    scene.wait_for("resume")
    scene.keeper.wait_ready(nothing)
    assert scene.said == ["suspend", "start s1", "renew s1", "pause 1", "start s2", "renew s2", "resume"]


def test_queries_go_on_while_views_are_planned(make: Make) -> None:
    """They need none of them; who waits is let go as soon as everything is defined."""
    planning, may_plan = threading.Event(), threading.Event()
    scene = make(coming=True, at_planning=lambda: planning.set() or may_plan.wait(WAIT_S))
    scene.keeper.wait_ready(nothing)
    assert planning.wait(WAIT_S) and scene.said == ["start s1", "renew s1"]
    may_plan.set()
    scene.wait_for("resume")


def test_spark_that_ends_while_views_are_planned_keeps_queries_waiting(make: Make) -> None:
    """PC-44: whether anybody has met the loss or not, none is begun on an application that is about to be replaced."""
    planning, may_plan = threading.Event(), threading.Event()
    scene = make(coming=True, held=True, at_planning=lambda: planning.set() or may_plan.wait(WAIT_S))
    scene.failing_renewals = 2
    assert planning.wait(WAIT_S) and scene._is_ready()
    may_plan.set()
    scene.wait_for("pause 1")
    assert not scene._is_ready()  # nobody has met it
    planning.clear(), may_plan.clear()
    scene.go_on()
    assert planning.wait(WAIT_S)
    scene.end()
    assert scene.is_lost() and not scene._is_ready()
    may_plan.set()
    scene.wait_for("pause 2")
    scene.go_on()
    scene.wait_for("resume")
    scene.keeper.wait_ready(nothing)


def test_spark_that_is_lost_just_before_it_serves_is_not_ready(make: Make) -> None:
    may_start = threading.Event()
    scene = make(coming=True, held=True, at_start=lambda: may_start.wait(WAIT_S))
    scene.failing_renewals = 1
    define = scene.keeper._renew

    def define_and_end(session: Any) -> None:
        define(session)
        scene.end()
        assert scene.is_lost()

    scene.keeper._renew = define_and_end
    may_start.set()
    scene.wait_for("pause 1")
    assert "suspend" in scene.said and not scene._is_ready()
    scene.keeper._renew = define
    scene.go_on()
    scene.wait_for("resume")


def test_closed_while_spark_is_started(make: Make) -> None:
    """Whoever closes gets the session that has just come up, to stop it; nothing is built on it."""
    scene = make()
    starting, may_start = threading.Event(), threading.Event()
    found: list[object] = []
    scene.at_start = lambda: starting.set() or (may_start.wait(WAIT_S) and None)
    scene.end()
    assert starting.wait(WAIT_S)
    closing = threading.Thread(target=lambda: found.append(scene.keeper.close()))
    closing.start()
    closing.join(0.01)
    assert closing.is_alive() and not found
    may_start.set()
    closing.join(WAIT_S)
    assert found == ["s1"] and scene.said == ["suspend", "start s1"]


def test_a_given_session_is_not_replaced(make: Make) -> None:
    """The database ends with it, and says what to do."""
    scene = make(given=True)
    scene.end()
    scene.wait_for("abort")
    assert scene.said[:2] == ["suspend", "abort"] and not [s for s in scene.said if s.startswith("start")]
    assert isinstance(scene.aborted, SparkLost) and "open the database again" in (scene.aborted.hint or "")


def test_statements_wait_for_spark_only_so_long(make: Make) -> None:
    """A statement that is cancelled stops waiting, and so does one for which it takes too long."""
    scene = make(KeeperPace(look_s=0.001, dying_s=0.0, ready_s=0.0))
    may_start = threading.Event()
    scene.at_start = lambda: may_start.wait(WAIT_S) and None
    scene.end()
    scene.wait_for("suspend")

    def cancelled() -> None:
        raise QueryCanceled("by its user")

    with pytest.raises(QueryCanceled, match="by its user"):
        scene.keeper.wait_ready(cancelled)
    with pytest.raises(SparkLost, match="could not be started again"):
        scene.keeper.wait_ready(nothing)
    may_start.set()


def test_errors_are_explained_by_the_loss_only_if_there_was_one(make: Make) -> None:
    """What a dying JVM makes of a statement is no fault of the statement; what else fails, is."""
    scene = make(KeeperPace(look_s=WAIT_S, dying_s=0.0))
    began_on = scene.keeper.session
    failed, other = JobFailed("no answer"), SparkLost("no answer")
    assert scene.keeper.explained(failed, began_on) is failed
    assert scene.keeper.explained(other, began_on) is other and scene.said == []
    may_start = threading.Event()
    scene.at_start = lambda: may_start.wait(WAIT_S) and None
    scene.end()
    assert scene.keeper.explained(other, began_on) is other and scene.said == ["suspend"]
    assert isinstance(scene.keeper.explained(failed, began_on), SparkLost)
    cancelled = QueryCanceled("by its user")
    assert scene.keeper.explained(cancelled, began_on) is cancelled
    may_start.set()
    scene.wait_for("resume")
    assert isinstance(scene.keeper.explained(failed, began_on), SparkLost)
    assert scene.keeper.explained(failed, scene.keeper.session) is failed


def test_the_first_spark_is_waited_for(make: Make) -> None:
    """Views are planned before statements go on; who waits for long is told so, once."""
    may_start, told = threading.Event(), list[str]()
    pace = KeeperPace(look_s=0.001, dying_s=0.0, ready_s=WAIT_S, notice_s=0.0)
    scene = make(pace, coming=True, at_start=lambda: may_start.wait(WAIT_S))
    assert scene.keeper.session is None and not scene.is_lost()

    def tell(text: str) -> None:
        told.append(text)
        may_start.set()

    scene.keeper.wait_ready(nothing, tell)
    assert told == ["waiting for Spark to start"]
    assert scene.said == ["start s1", "renew s1", "resume"] and scene.keeper.session == "s1"
    scene.end()
    scene.wait_for("start s2")


def test_a_first_spark_that_does_not_start_fails_whoever_waits(make: Make) -> None:
    """Not after a bound, but with why it did not; it is tried again with growing pauses all the same."""
    may_start = threading.Event()
    scene = make(coming=True, held=True, at_start=lambda: may_start.wait(WAIT_S))
    scene.failing_starts = 2
    may_start.set()
    scene.wait_for("pause 1")
    with pytest.raises(OperationalError, match="no memory"):
        scene.keeper.wait_ready(nothing)
    scene.go_on()
    scene.wait_for("pause 2")
    scene.go_on()
    scene.wait_for("resume")
    scene.keeper.wait_ready(nothing)
    assert scene.said == ["pause 1", "pause 2", "start s1", "renew s1", "resume"]


def test_closed_while_the_first_spark_starts(make: Make) -> None:
    """Who closes does not wait for it, and nothing is built on it when it comes."""
    starting, may_start = threading.Event(), threading.Event()
    scene = make(coming=True, at_start=lambda: starting.set() or may_start.wait(WAIT_S))
    assert starting.wait(WAIT_S)
    assert scene.keeper.close() is None
    with pytest.raises(ShuttingDown):
        scene.keeper.wait_ready(nothing)
    may_start.set()
    scene.wait_for("start s1")
    assert scene.keeper.session is None and scene.said == ["start s1"]


def test_spark_is_started_once_it_is_needed(make: Make) -> None:
    """By who waits for it, or by the coordinator; what need not wait does not start it, nor does the end."""
    idle = make(coming=True, on_demand=True)
    idle.wait_for("look")
    idle.keeper.wait_ready(nothing, unless=lambda: True)
    assert {*idle.said} == {"look"} and idle.keeper.session is None
    assert idle.keeper.close() is None
    asked = make(KeeperPace(look_s=WAIT_S, dying_s=0.0), coming=True, on_demand=True)
    asked.keeper.wait_ready(nothing)
    assert asked.keeper.session == "s1" and asked.said[-3:] == ["start s1", "renew s1", "resume"]
    busy = make(coming=True, on_demand=True)
    busy.wait_for("look")
    busy.needed = True
    busy.wait_for("resume")
    idle.wait_for("look")
    assert {*idle.said} == {"look"}
