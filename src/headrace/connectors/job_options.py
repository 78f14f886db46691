"""Options of whatever a job keeps up to date: a view, a sink, a table with a connector. Declared once.

`WITH (...)` and `ALTER ... SET (...)` check them by this, and the manual's table follows from it. Those with a
`setting` say for one job what that setting says for all, within the same bounds. `coordinator/decide/view_options.py`
says what they come to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import option_reader as option_texts
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.option_reader import OptionReader
from headrace.errors import InvalidParameter

GROUP: Final = "checkpoint_group"
CHECKPOINT: Final = "checkpoint_interval_ms"
BARRIER: Final = "barrier_interval_ms"
COMMIT: Final = "commit_checkpoint_interval"
LOG_LIMIT: Final = "log_limit_mb"
POLICY: Final = "log_limit_policy"
MAX_ROWS: Final = "max_rows_per_epoch"
MAX_MB: Final = "max_mb_per_epoch"
PARALLELISM: Final = "parallelism"
ON_ERROR: Final = "on_error"
POLICIES: Final = ("alert", "drop")
_MOST_CHARS: Final = 63
_OWN_PREFIXES: Final = ("job-", "table-")


def is_group_name(text: str) -> bool:
    """Whether a checkpoint group may be called so: not as one that a job or a table has to itself."""
    return 0 < len(text) <= _MOST_CHARS and not text.startswith(_OWN_PREFIXES)


@dataclass(frozen=True)
class JobOption(Option):
    """An option of a job."""

    setting: str | None = None
    """The setting that counts for jobs that do not say it."""

    @property
    def default_text(self) -> str:
        """What counts where it is not given, for people."""
        return f"the setting `{self.setting}`" if self.setting is not None else super().default_text

    def read(self, reader: OptionReader) -> object:
        """See `Option`."""
        found = super().read(reader)
        if self.name == GROUP and found is not None and not is_group_name(found):
            raise InvalidParameter(
                f'"{found}" is no name for a checkpoint group',
                hint="it has 1 to 63 characters and does not begin with job- or table-; own is a group of its own",
            )
        return found


OPTIONS: Final = (
    JobOption(
        GROUP,
        "the views of a group take in the same epochs, commit together and fail together; `own` is a group by itself, "
        "any other name is a group that is shared",
        setting="default_checkpoint_group",
    ),
    JobOption(
        CHECKPOINT,
        "least milliseconds between two checkpoints; the smallest one of a group's views counts",
        "number",
        setting="checkpoint_interval_ms",
    ),
    JobOption(
        COMMIT,
        "every how many of these checkpoints there is one: of a sink, each is a commit of its target (`FLUSH` makes "
        "one at once)",
        "number",
        default="1",
        least=1,
    ),
    JobOption(
        BARRIER,
        "least milliseconds between two epochs of the group, where that is less than `checkpoint_interval_ms`: those "
        "between two checkpoints are run ahead, so that work is spread, and all of them become visible and durable "
        "with the next checkpoint (with `FLUSH` at once); views and subscriptions that read the log see each change "
        "under its own epoch. At most 32 are held",
        "number",
    ),
    JobOption(
        LOG_LIMIT,
        "MiB of an input's log that it may be behind ([operations.md](operations.md)); 0 for no limit",
        "number",
        setting="log_limit_mb",
    ),
    JobOption(
        POLICY,
        "what happens then: that is told, or the log is given up",
        choices=POLICIES,
        setting="log_limit_policy",
    ),
    JobOption(
        MAX_ROWS,
        "most rows that are taken in at one go: a larger change is taken in by several steps, each of which survives a "
        "crash, and becomes visible as a whole after the last",
        "number",
        least=1,
        setting="max_rows_per_epoch",
    ),
    JobOption(
        MAX_MB,
        "most MiB, about, that are taken in at one go, in the same way: of tables and views as their rows are stored, "
        "of sources as they are read, which is estimated where nobody can tell; at least one row, or what cannot be "
        "read in parts",
        "number",
        least=1,
        setting="max_mb_per_epoch",
    ),
    JobOption(PARALLELISM, "tasks for each operator", "number", least=1, setting="parallelism"),
    JobOption(
        ON_ERROR,
        "what becomes of a row on which an expression fails (below); only when the view is created",
        default="fail",
        choices=option_texts.ON_ERROR,
    ),
)
_BY_NAME: Final[Mapping[str, JobOption]] = {o.name: o for o in OPTIONS}


def check(options: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for an option that a job has not, or a value that one cannot have."""
    reader = OptionReader(options)
    for name in options:
        option = _BY_NAME.get(name)
        if option is None:
            known = ", ".join(sorted(_BY_NAME))
            raise InvalidParameter(f'a materialized view has no option "{name}"', hint=f"there are {known}")
        option.read(reader)


def of_job(options: Mapping[str, str]) -> dict[str, str]:
    """Those among the options of a sink that are its job's; the others are its connector's."""
    return {name: value for name, value in options.items() if name in _BY_NAME}


def of_view(options: Mapping[str, str]) -> dict[str, str]:
    """Those among the options of a table with a connector that are its view's; the others are its source's."""
    return {name: value for name, value in options.items() if name in (GROUP, PARALLELISM)}


def table() -> str:
    """The options as a table in Markdown."""
    return DeclaredOptions(OPTIONS).table()
