"""Options of a job, as `WITH (...)` and `ALTER ... SET (...)` give them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import InvalidParameter

GROUP = "checkpoint_group"
"""The option of a job that names its checkpoint group."""
_NUMBERS = {"parallelism": 1, "max_rows_per_epoch": 1, "checkpoint_interval_ms": 0}
"""The other options of a job, and the least value of each."""


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
        elif least is None:
            known = ", ".join(sorted([GROUP, *_NUMBERS]))
            raise InvalidParameter(f'a materialized view has no option "{name}"', hint=f"there are {known}")
        elif not value.strip().isdecimal() or int(value) < least:
            raise InvalidParameter(f'option {name} is a whole number from {least} on, not "{value}"')
    return dict(options)


def job_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those among a sink's options that are its job's; the others are its connector's."""
    return {name: value for name, value in options.items() if name == GROUP or name in _NUMBERS}
