"""What the options of jobs come to, beside the settings that count where they are not given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.common.lazy_dataclass import dataclass
from headrace.config import Settings
from headrace.connectors.job_options import BARRIER, CHECKPOINT, COMMIT, LOG_LIMIT, POLICY, check
from headrace.connectors.option_reader import OptionReader


def own_group(job_id: int) -> str:
    """The name of the checkpoint group that a job has to itself."""
    return f"job-{job_id}"


def checked_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a job. Raises `InvalidParameter` for one that is unknown or has an impossible value."""
    check(options)
    return dict(options)


def on_error(options: Mapping[str, str]) -> str:
    """What becomes of a row on which an expression fails. Raises `InvalidParameter` for what is no such policy."""
    return OptionReader(options).on_error()


@dataclass(frozen=True)
class Cadence:
    """How often a group runs an epoch, and how often it commits what it has run: least milliseconds between two."""

    barrier_ms: int
    checkpoint_ms: int

    @property
    def holds(self) -> bool:
        """Whether epochs that have been run are held until the next checkpoint."""
        return self.barrier_ms < self.checkpoint_ms


def cadence(settings: Settings, all_options: Iterable[Mapping[str, str]]) -> Cadence:
    """The cadence of jobs with these options: the smallest of each. Unless told otherwise every epoch is committed."""
    found = list(all_options)
    checkpoint_ms = min(_checkpoint_ms(settings, o) for o in found)
    return Cadence(min([checkpoint_ms, *(int(o[BARRIER]) for o in found if BARRIER in o)]), checkpoint_ms)


def _checkpoint_ms(settings: Settings, options: Mapping[str, str]) -> int:
    every, interval_ms = int(options.get(COMMIT, 1)), int(options.get(CHECKPOINT, settings.checkpoint_interval_ms))
    return interval_ms if every == 1 else every * max(interval_ms, settings.barrier_interval_ms)


@dataclass(frozen=True)
class LogLimit:
    """How much of an input's log may be kept for a job that does not read it, and what happens beyond that."""

    bytes: int
    """0 for no limit."""
    drop: bool
    """Whether the log is given up then; otherwise that is only told."""


def log_limit(settings: Settings, options: Mapping[str, str]) -> LogLimit:
    """The limit of a job with these options."""
    size_mb = int(options.get(LOG_LIMIT, settings.log_limit_mb))
    return LogLimit(size_mb << 20, options.get(POLICY, settings.log_limit_policy) == "drop")
