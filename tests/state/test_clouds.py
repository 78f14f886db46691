"""What every object store has to do, on servers that speak the protocols of S3, Google and Azure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from remote_cases import SCHEMA, batch, elsewhere, rows_of, write

from cloud_servers import Cloud, azure, azurite, google
from headrace.errors import CorruptObject, StorageError
from headrace.state.arrangement import Arrangement
from headrace.state.merge import merge
from headrace.state.run import RunCache, Section, write_run
from headrace.state.stores import store_of
from object_server import S3Server


@pytest.fixture(scope="module", params=["s3", "google", pytest.param("azure", marks=pytest.mark.soak)])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud | S3Server]:
    if request.param == "s3":
        yield request.getfixturevalue("s3")
    elif request.param == "google":
        pytest.importorskip("moto", reason="the server is moto's, of the dev extra")
        with google() as server:
            yield server
    else:
        command = azurite()
        if command is None:
            pytest.skip("Azurite needs npm")
        with azure(command) as server:
            yield server


def test_objects_come_and_go(cloud: Cloud | S3Server, tmp_path: Path) -> None:
    root = cloud.root(tmp_path / "a")
    store = store_of(root)
    store.prepare()
    assert list(store.list()) == []
    refs = write_run(root, "7/e-1/0.run", [Section(t, SCHEMA, [batch(800, t)], 3) for t in (1, 2)])
    for seen in (root, elsewhere(root, tmp_path / "b")):
        for ref, seed in zip(refs, (1, 2), strict=True):
            assert rows_of(seen, ref).to_batches() == [batch(800, seed)]
    write(root, "8/x.run")
    assert sorted(o.path for o in store.list()) == ["7/e-1/0.run", "8/x.run"]
    (found,) = store.list("7")
    head = store.head(found.path)
    assert head is not None and head.size == found.size == sum(r.packed or 0 for r in refs)
    assert found.modified_s > 1.7e9
    store.delete(found.path)
    store.delete(found.path)
    assert store.head(found.path) is None
    with pytest.raises(CorruptObject, match=r"object 7/e-1/0\.run is missing"):
        rows_of(elsewhere(root, tmp_path / "c"), refs[0])


def test_a_name_is_given_once(cloud: Cloud | S3Server, tmp_path: Path) -> None:
    root = cloud.root(tmp_path)
    ref = write(root, "x.run", seed=1)
    with pytest.raises(StorageError, match=r"object x\.run exists already"):
        write(root, "x.run", seed=2)
    assert rows_of(elsewhere(root, tmp_path / "b"), ref).to_batches() == [batch(1000, 1)]


def test_arrangements_and_merges(cloud: Cloud | S3Server, tmp_path: Path) -> None:
    root = cloud.root(tmp_path / "a")
    refs = [write(root, f"{i}.run", 6000, seed=i) for i in range(5)]
    there = elsewhere(root, tmp_path / "b")
    merged = merge(refs, SCHEMA, there, "m.run", 1)
    assert merged is not None and merged.rows == 30_000
    keys = np.sort(np.concatenate([np.asarray(batch(6000, i).column(0))[::100] for i in range(5)]))
    apart = Arrangement(SCHEMA, refs, there, cache=RunCache()).fetch(keys)
    cold = Arrangement(SCHEMA, [merged], elsewhere(root, tmp_path / "c"), cache=RunCache()).fetch(keys)
    assert apart.num_rows == len(keys)
    assert apart.equals(cold)
