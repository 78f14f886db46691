"""Options of a job, as `WITH (...)` and `ALTER ... SET (...)` give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.config import Settings
from headrace.errors import InvalidParameter
from headrace.plan import tolerance

GROUP = "checkpoint_group"
"""The option of a job that names its checkpoint group."""
POLICY = "log_limit_policy"
"""The option of a job that says what happens when its inputs' logs outgrow their limit."""
POLICIES = ("alert", "drop")
CHECKPOINT = "checkpoint_interval_ms"
"""The option of a job that says how often its group commits."""
BARRIER = "barrier_interval_ms"
"""The option of a job that says how often its group runs an epoch, where that is more often."""
ON_ERROR = "on_error"
"""The option of a job that says what becomes of a row on which an expression fails. It is settled at its creation."""
_NUMBERS = {"parallelism": 1, "max_rows_per_epoch": 1, CHECKPOINT: 0, BARRIER: 0, "log_limit_mb": 0}
"""The options that are numbers, and the least value of each."""


def own_group(job_id: int) -> str:
    """The name of the checkpoint group that a job has to itself."""
    return f"job-{job_id}"


def checked_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a job. Raises `InvalidParameter` for one that is unknown or has an impossible value."""
    for name, value in options.items():
        least = _NUMBERS.get(name)
        if name == GROUP:
            if not value or len(value) > 63 or value.startswith(("job-", "table-")):
                raise InvalidParameter(
                    f'"{value}" is no name for a checkpoint group',
                    hint="it has 1 to 63 characters and does not begin with job- or table-; own is a group of its own",
                )
        elif name == POLICY:
            if value not in POLICIES:
                raise InvalidParameter(f'option {name} is {" or ".join(POLICIES)}, not "{value}"')
        elif name == ON_ERROR:
            on_error(options)
        elif least is None:
            known = ", ".join(sorted([GROUP, POLICY, ON_ERROR, *_NUMBERS]))
            raise InvalidParameter(f'a materialized view has no option "{name}"', hint=f"there are {known}")
        elif not value.strip().isdecimal() or int(value) < least:
            raise InvalidParameter(f'option {name} is a whole number from {least} on, not "{value}"')
    return dict(options)


def job_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those among a sink's options that are its job's; the others are its connector's."""
    return {name: value for name, value in options.items() if name in (GROUP, POLICY, ON_ERROR) or name in _NUMBERS}


def on_error(options: Mapping[str, str]) -> str:
    """What becomes of a row on which an expression fails. Raises `InvalidParameter` for what is no such policy."""
    value = options.get(ON_ERROR, tolerance.FAIL)
    if value not in tolerance.POLICIES:
        raise InvalidParameter(f'option {ON_ERROR} is {" or ".join(tolerance.POLICIES)}, not "{value}"')
    return value


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
    checkpoint_ms = min(int(o.get(CHECKPOINT, settings.checkpoint_interval_ms)) for o in found)
    return Cadence(min([checkpoint_ms, *(int(o[BARRIER]) for o in found if BARRIER in o)]), checkpoint_ms)


@dataclass(frozen=True)
class LogLimit:
    """How much of an input's log may be kept for a job that does not read it, and what happens beyond that."""

    bytes: int
    """0 for no limit."""
    drop: bool
    """Whether the log is given up then; otherwise that is only told."""


def log_limit(settings: Settings, options: Mapping[str, str]) -> LogLimit:
    """The limit of a job with these options."""
    size_mb = int(options.get("log_limit_mb", settings.log_limit_mb))
    return LogLimit(size_mb << 20, options.get(POLICY, settings.log_limit_policy) == "drop")
