"""The benchmarks name functions of the engine, which move; nothing else would say so before somebody measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def beside_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks import one another by name, as programs of one folder do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for path in BENCHMARKS.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)


@pytest.mark.usefixtures("beside_the_benchmarks")
def test_what_the_profile_of_an_epoch_times_is_there() -> None:
    spec = importlib.util.spec_from_file_location("epoch_profile", BENCHMARKS / "epoch_profile.py")
    assert spec is not None and spec.loader is not None
    profile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(profile)
    absent = [f"{owner.__name__}.{name}" for owner, name, _ in profile.TIMED if not hasattr(owner, name)]
    assert not absent
    assert {step for _, _, step in profile.TIMED} <= {step for step, _ in profile.STEPS}
