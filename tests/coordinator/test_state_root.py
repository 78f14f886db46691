"""Where a database keeps its state, by its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import Settings
from headrace.coordinator.run.storage import state_root
from headrace.dataflow.params import EpochParams, decode
from headrace.errors import InvalidParameter
from headrace.state.stores import StoreRoot


def test_state_is_in_the_data_directory_by_default(tmp_path: Path) -> None:
    root = state_root(Settings(data_dir=tmp_path))
    assert Path(root) == tmp_path / "state"
    assert root.cache_dir == str(tmp_path / "cache")


def test_an_object_store_is_told_all_it_needs_and_no_secrets(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        state_url="s3://b/p",
        state_options={"region": "eu", "endpoint": "http://x"},
        cache_dir=tmp_path / "c",
        cache_mb=64,
        io_concurrency=3,
        io_timeout_ms=1500,
    )
    root = state_root(settings)
    options = (("endpoint", "http://x"), ("region", "eu"))
    assert root == StoreRoot("s3://b/p", options, str(tmp_path / "c"), 64 << 20, 3, 1500)
    params = EpochParams("1-1-1", 3, 4, False, root, "1/4-1")
    assert decode(params.encode()) == params


def test_state_in_memory_is_refused() -> None:
    """Spark's workers are other processes: they would find nothing there."""
    with pytest.raises(InvalidParameter, match="not seen by Spark's workers"):
        state_root(Settings(state_url="memory://x"))
