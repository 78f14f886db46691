"""Options of jobs: one declaration, from which checks, the manual and the bounds of the settings do not drift."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

import headrace
from headrace.config import Settings
from headrace.connectors import job_options, sinks
from headrace.connectors.job_options import JobOption
from headrace.errors import InvalidParameter

ROOT = Path(headrace.__file__).parent
MANUAL = ROOT.parents[1] / "docs" / "sql.md"
CONSTANTS = {value: name for name, value in vars(job_options).items() if name.isupper() and isinstance(value, str)}
"""The names that the code has for options."""


def ids(option: JobOption) -> str:
    return option.name


def test_the_manual_has_what_the_code_has() -> None:
    _, found, rest = MANUAL.read_text().partition("<!-- options of a job -->\n\n")
    assert found and rest.startswith(job_options.table() + "\n"), job_options.table()


@pytest.mark.parametrize("option", [o for o in job_options.OPTIONS if o.setting is not None], ids=ids)
def test_an_option_has_the_bounds_of_its_setting(option: JobOption) -> None:
    """One job must not be given what all of them could not be."""
    assert option.setting is not None
    field = Settings.FIELDS[option.setting]
    if option.name == job_options.GROUP:  # a job may name a group of its own making, too
        assert all(job_options.is_group_name(name) for name in get_args(field.annotation))
    elif option.choices:
        assert get_args(field.annotation) == option.choices
    else:
        assert field.least == option.least


@pytest.mark.parametrize("option", job_options.OPTIONS, ids=ids)
def test_every_option_is_read(option: JobOption) -> None:
    name = CONSTANTS[option.name]
    assert any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for path in ROOT.rglob("*.py")
        if path.stem != "job_options"
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_nobody_else_spells_their_names() -> None:
    """Those that only jobs have: a name that is spelled twice is a declaration of its own."""
    of_jobs_only = {job_options.LOG_LIMIT, job_options.POLICY, job_options.PARALLELISM, job_options.BARRIER}
    found = {
        f"{path.relative_to(ROOT)}: {node.value}"
        for path in ROOT.rglob("*.py")
        if path.stem != "job_options"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in of_jobs_only
    }
    assert found == {"coordinator/coordinator.py: barrier_interval_ms"}  # the setting


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("checkpoint_interval_ms", "-1", "whole number of at least 0"),
        ("max_rows_per_epoch", "0", "whole number of at least 1"),
        ("parallelism", "x", "whole number of at least 1"),
        ("checkpoint_group", "job-1", "no name for a checkpoint group"),
        ("checkpoint_group", "", "no name for a checkpoint group"),
        ("on_error", "stop", "must be one of fail, null, skip"),
        ("barrier_interval_ms", "soon", "whole number of at least 0"),
        ("log_limit_mb", "-1", "whole number of at least 0"),
        ("log_limit_policy", "wait", "must be one of alert, drop"),
    ],
)
def test_views_and_sinks_are_refused_the_same(name: str, value: str, message: str) -> None:
    """FS-2: nonsense is refused where it is said."""
    with pytest.raises(InvalidParameter, match=message):
        job_options.check({name: value})
    with pytest.raises(InvalidParameter, match=message):
        sinks.open_sink({"connector": "blackhole", name: value}, [])


def test_a_sink_takes_every_option_of_a_job() -> None:
    values = {o.name: o.choices[0] if o.choices else "1" if o.kind == "number" else "mine" for o in job_options.OPTIONS}
    job_options.check(values)
    sinks.open_sink({"connector": "blackhole", **values}, [])


def test_a_sink_may_checkpoint_at_every_tick_as_a_view_may() -> None:
    job_options.check({"checkpoint_interval_ms": "0"})
    sinks.open_sink({"connector": "blackhole", "checkpoint_interval_ms": "0"}, [])
