"""Object storage on a real S3 server process."""

from __future__ import annotations

import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from faulty_transport import FaultyTransport
from remote_cases import elsewhere, read_all, rows_of, write

from headrace.errors import CorruptObject, StorageError
from headrace.state import remote
from headrace.state.iopool import IoPool, RetryPolicy
from headrace.state.schema import RunRef
from headrace.state.stores import RemoteStore, StoreRoot, store_of
from headrace.state.transport import open_transport
from object_server import S3Server


def test_an_object_cut_short_is_named(s3: S3Server, tmp_path: Path) -> None:
    root = s3.root(tmp_path / "a")
    ref = write(root, "x.run")
    transport = open_transport(root.url, dict(root.options), 30_000)
    data = bytes(transport.get("x.run", 0, 10**9))
    for keep in (len(data) - 1, 1, 0):
        transport.put("x.run", data[:keep], create=False)
        with pytest.raises(CorruptObject, match=r"object x\.run is truncated"):
            rows_of(elsewhere(root, tmp_path / str(keep)), ref)


def test_processes_share_a_small_cache(s3: S3Server, tmp_path: Path) -> None:
    """Several processes fill and evict at once: every read is right and the bound holds."""
    writer = s3.root(tmp_path / "a")
    refs = [write(writer, f"{i}.run", 2000, seed=i) for i in range(8)]
    limit = 3 * max(r.length for r in refs)
    root = StoreRoot(writer.url, writer.options, str(tmp_path / "b"), limit)
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as processes:
        jobs = [processes.submit(read_all, root, refs[i:] + refs[:i], 25) for i in range(3)]
        assert [job.result() for job in jobs] == [[2000] * 25] * 3
    left = [f for f in (tmp_path / "b").iterdir() if f.name != ".lock"]
    assert 0 < sum(f.stat().st_size for f in left) <= limit
    assert not [f for f in left if f.name.startswith(".")]
    assert int((tmp_path / "b" / ".lock").read_text()) == sum(f.stat().st_size for f in left)


def test_a_server_that_is_not_there_is_a_storage_error(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(StoreRoot("s3://nobody/p", s3.root(tmp_path).options, str(tmp_path)))
    with pytest.raises(StorageError, match="listing s3://nobody/p failed"):
        store.prepare()
    for single_put_bytes in (remote.SINGLE_PUT_BYTES, 1):
        monkeypatch.setattr(remote, "SINGLE_PUT_BYTES", single_put_bytes)
        with pytest.raises(StorageError, match=r"writing object x\.run failed"):
            write(store.root, "x.run")


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request ends at its own time limit, and counts as one that may go better the next time."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "region": "r", "allow_http": "true"}
        pool = IoPool(2, RetryPolicy(attempts=3), sleep_s=lambda s: None)
        root = StoreRoot("s3://b/p", tuple(options.items()), str(tmp_path), timeout_ms=100)
        store = RemoteStore(root, pool)
        with pytest.raises(StorageError, match="looking for object x failed"):
            store.head("x")
    assert (pool.metrics.requests, pool.metrics.retries, pool.metrics.failures) == (3, 2, 1)


def test_requests_that_fail_at_a_real_server_are_repeated(s3: S3Server, tmp_path: Path) -> None:
    """Lost answers and refused requests below the pool: every run is there once, and reads right."""
    root = s3.root(tmp_path / "a")
    transport = FaultyTransport(open_transport(root.url, dict(root.options), 30_000))
    store = RemoteStore(root, IoPool(2, sleep_s=lambda s: None), transport)
    refs = []
    for i in range(6):
        transport.fail("put", *[ConnectionError("503")] * (i % 3), after=i % 2 == 0)
        with store.create(f"{i}.run") as out:
            out.begin()
            out.write(bytes([i]) * 1000)
            extent = out.end()
            out.commit()
        refs.append(RunRef(1, f"{i}.run", extent.offset, extent.length, 1, 1, 1, 0, 0, None, extent.packed))
    cold = RemoteStore(elsewhere(root, tmp_path / "b"), IoPool(2, sleep_s=lambda s: None), transport)
    for i, ref in enumerate(refs):
        transport.fail("get", *[ConnectionError("reset")] * (i % 4))
        assert bytes(cold.open(ref, lambda view: None)) == bytes([i]) * 1000
    assert sorted(o.path for o in store.list()) == [f"{i}.run" for i in range(6)]
