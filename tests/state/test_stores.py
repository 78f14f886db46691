"""Stores of every kind through one interface; faults are injected below the I/O pool."""

from __future__ import annotations

import errno
import json
import os
import pickle
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from faulty_transport import FaultyTransport
from remote_cases import SCHEMA, batch, rows_of, write

from headrace.errors import CorruptObject, DiskFull, InvalidParameter, StorageError
from headrace.state import objects, stores
from headrace.state import remote as remote_module
from headrace.state import run as run_module
from headrace.state.iopool import IoPool, RetryPolicy
from headrace.state.objects import ObjectWriter, append_unsynced
from headrace.state.run import Run, Section, write_run, write_small_run
from headrace.state.schema import RunRef
from headrace.state.stores import RemoteStore, StoreRoot, root_from_json, root_to_json, store_of
from headrace.state.transport import open_transport


class Panic(BaseException):
    """As the panics of native libraries are: not an `Exception`."""


class Faulty:
    """A store in memory with a faulty transport, whose pool does not sleep."""

    def __init__(self, folder: Path, name: str) -> None:
        self.root = StoreRoot(f"memory://{name}", cache_dir=str(folder / "cache"))
        self.transport = FaultyTransport(open_transport(self.root.url, {}, 1000))
        self.store = RemoteStore(self.root, IoPool(4, RetryPolicy(attempts=4), sleep_s=lambda s: None), self.transport)

    def forget(self) -> None:
        """Empty the cache."""
        for file in Path(self.root.cache_dir).iterdir():
            file.unlink()


@pytest.fixture
def faulty(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    made = Faulty(tmp_path, request.node.name)
    real = stores._opened
    monkeypatch.setattr(stores, "_opened", lambda root: made.store if root == made.root else real(root))
    yield made


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    """A host that does not see the server's directory must not come by one of its own by asking for an object."""
    root = tmp_path / "not" / "mounted"
    store = store_of(str(root))
    ref = RunRef(1, "a/b.run", 0, 1, 1, 1, 1, 0, 0)
    assert store.head("a/b") is None and store.get("a/b") is None and not list(store.list("a"))
    store.delete("a/b")
    store.tidy()
    with pytest.raises(CorruptObject):
        store.open(ref, lambda view: None)
    with pytest.raises(StorageError, match="does not see the server's object"):
        store_of(StoreRoot(str(root), proof="proof/x"))
    assert not list(tmp_path.iterdir())
    store.put("a/b", b"12345")
    found = store.head("a/b")
    assert found is not None and (found.path, found.size) == ("a/b", 5) and found.modified_s > 0
    assert store.head("a") is None and store.head("a/b/c") is None


def test_roots_travel_as_json_and_pickles() -> None:
    root = StoreRoot("s3://b/p", (("endpoint", "http://x"), ("region", "r")), "/c", 5, 2, 100)
    assert root_from_json(json.loads(json.dumps(root_to_json(root)))) == root
    assert pickle.loads(pickle.dumps(root)) == root
    assert root_from_json(root_to_json("/a b/c")) == "/a b/c"


def test_a_directory_is_one_by_path_and_by_url(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c%41"
    ref = write(StoreRoot(str(folder)), "1/x.run")
    assert rows_of(StoreRoot(folder.as_uri()), ref).num_rows == 1000
    for root in (folder, str(folder), folder.as_uri(), StoreRoot(str(folder))):
        assert [o.path for o in store_of(root).list()] == ["1/x.run"]
    with pytest.raises(TypeError, match="no directory"):
        StoreRoot("s3://b").__fspath__()


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (StoreRoot("ftp://x/y"), "no object store"),
        (StoreRoot("file://elsewhere/y"), "no directory of this host"),
        (StoreRoot("s3://b/p", (("secret_access_key", "x"),)), 'unknown option "secret_access_key"'),
        (StoreRoot("memory://x", (("region", "x"),)), 'unknown option "region"'),
    ],
)
def test_what_is_no_store_is_refused(root: StoreRoot, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=message):
        store_of(root)


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("gs://b/p/q", {"base_url": "http://127.0.0.1:1", "allow_http": "true"}, 'bucket="b", prefix="p/q"'),
        ("az://c/p/q", {"account_name": "a", "use_emulator": "true"}, 'container_name="c"'),
        ("s3://b/p/q", {"region": "r", "virtual_hosted_style_request": "true"}, 'bucket="b", prefix="p/q"'),
    ],
)
def test_other_clouds_are_opened_by_url(url: str, options: dict[str, str], shown: str) -> None:
    transport = open_transport(url, options, 1000)
    assert shown in str(transport._store) and transport._store.prefix == "p/q"


def test_a_directory_lists_and_deletes(tmp_path: Path) -> None:
    store = store_of(tmp_path / "new")
    store.prepare()
    assert list(store.list()) == []
    ref = write(StoreRoot(str(tmp_path / "new")), "1/2/x.run")
    (tmp_path / "new/1/.y.run.01234567.tmp").write_bytes(b"abc")
    assert {(o.path, o.size) for o in store.list()} == {("1/2/x.run", ref.length), ("1/.y.run.01234567.tmp", 3)}
    assert [o.path for o in store.list("1/2")] == ["1/2/x.run"]
    head = store.head(ref.path)
    assert head is not None and head.size == ref.length
    store.delete(ref.path)
    store.delete(ref.path)
    assert store.head(ref.path) is None


def test_an_object_is_one_request_and_the_next_reader_needs_none(faulty: Faulty) -> None:
    parts = [Section(t, SCHEMA, [batch(500, t)], 3) for t in (1, 2, 3)]
    refs = write_run(faulty.root, "1/x.run", parts)
    assert [rows_of(faulty.root, r).num_rows for r in refs] == [500] * 3
    assert dict(faulty.transport.requests) == {"put": 1}
    metrics = faulty.store.metrics
    assert (metrics.cache_hits, metrics.cache_misses) == (3, 0)
    (stored,) = faulty.store.list()
    assert stored.size == metrics.bytes_written == sum(r.packed or 0 for r in refs) < sum(r.length for r in refs)


def test_what_was_just_written_is_read_from_its_copy(faulty: Faulty) -> None:
    """LS-14: what a checkpoint has uploaded is delivered from memory, once, and not uploaded again; then by reference.

    Deleting the object ends that: nothing refers to the copy any more.
    """
    (ref,) = write_run(faulty.root, "1/x.run", [Section(1, SCHEMA, [batch(500)], 3)])
    assert faulty.store.copied(ref)
    for _ in range(3):
        assert rows_of(faulty.root, ref).to_batches() == [batch(500)]
    assert dict(faulty.transport.requests) == {"put": 1}
    faulty.forget()
    assert not faulty.store.copied(ref)
    assert rows_of(faulty.root, ref).to_batches() == [batch(500)]
    assert dict(faulty.transport.requests) == {"put": 1, "get": 1} and faulty.store.copied(ref)
    faulty.store.delete(ref.path)
    faulty.forget()
    with pytest.raises(CorruptObject, match="missing"):
        Run.open(faulty.root, ref)


@pytest.mark.parametrize("short", [0, 1])
def test_a_section_that_fits_the_cache_exactly_is_kept(faulty: Faulty, short: int) -> None:
    """LS-7: with a byte less room there is only the reference, by which each reader fetches it."""
    (ref,) = write_run(faulty.root, "1/x.run", [Section(1, SCHEMA, [batch(500)], 3)])
    faulty.forget()
    faulty.store._sections.cache._limit = ref.length - short
    for _ in range(2):
        assert rows_of(faulty.root, ref).to_batches() == [batch(500)]
    assert faulty.transport.requests["get"] == (2 if short else 1) and faulty.store.copied(ref) is not bool(short)


def test_a_cold_reader_fetches_each_section_once(faulty: Faulty) -> None:
    refs = write_run(faulty.root, "1/x.run", [Section(t, SCHEMA, [batch(500, t)], 3) for t in (1, 2)])
    faulty.forget()
    for _ in range(2):
        assert pa.Table.from_batches(Run.open(faulty.root, refs[1]).batches).to_batches() == [batch(500, 2)]
    assert faulty.transport.requests["get"] == 1
    assert faulty.store.metrics.bytes_read == refs[1].packed


def test_a_large_section_comes_down_in_parts(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "GET_BYTES", 4096)
    ref = write(faulty.root, "1/x.run", 5000)
    faulty.forget()
    assert ref.packed is not None
    assert rows_of(faulty.root, ref).num_rows == 5000
    assert faulty.transport.requests["get"] == -(-ref.packed // 4096) > 5


def test_a_large_object_goes_up_in_parts(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "SINGLE_PUT_BYTES", 1000)
    ref = write(faulty.root, "1/x.run", 5000)
    faulty.forget()
    assert rows_of(faulty.root, ref).num_rows == 5000
    with pytest.raises(StorageError, match=r"object 1/x\.run exists already"):
        write(faulty.root, "1/x.run", 5000)


def test_a_name_is_never_used_twice(faulty: Faulty) -> None:
    ref = write(faulty.root, "1/x.run", seed=1)
    with pytest.raises(StorageError, match=r"object 1/x\.run exists already"):
        write(faulty.root, "1/x.run", seed=2)
    faulty.forget()
    assert rows_of(faulty.root, ref).to_batches() == [batch(1000, 1)]


def test_an_upload_whose_answer_was_lost_has_happened(faulty: Faulty) -> None:
    """The second try finds the object there; it is ours, because it holds the same bytes."""
    faulty.transport.fail("put", ConnectionError("reset"), after=True)
    ref = write(faulty.root, "1/x.run")
    faulty.forget()
    assert rows_of(faulty.root, ref).num_rows == 1000


def test_a_retry_does_not_take_the_object_of_another_for_its_own(faulty: Faulty) -> None:
    write(faulty.root, "1/x.run", seed=1)
    faulty.transport.fail("put", ConnectionError("reset"))
    with pytest.raises(StorageError, match="exists already"):
        write(faulty.root, "1/x.run", seed=2)


@pytest.mark.parametrize(
    ("error", "after"),
    [(ConnectionError("503"), False), (Panic("broken"), False), (Panic("broken"), True), (PermissionError("no"), True)],
)
def test_a_failed_upload_leaves_no_trace_on_the_disk(faulty: Faulty, error: BaseException, after: bool) -> None:
    faulty.transport.fail("put", *[error] * (4 if isinstance(error, ConnectionError) else 1), after=after)
    with pytest.raises(StorageError, match=r"writing object 1/x\.run failed") as caught:
        write(faulty.root, "1/x.run")
    assert not isinstance(caught.value, CorruptObject)
    assert list(Path(faulty.root.cache_dir).iterdir()) == []
    assert rows_of(faulty.root, write(faulty.root, "1/y.run")).num_rows == 1000


def test_transient_read_errors_are_no_corruption(faulty: Faulty) -> None:
    ref = write(faulty.root, "1/x.run")
    faulty.forget()
    faulty.transport.fail("get", *[TimeoutError("slow")] * 3)
    assert rows_of(faulty.root, ref).num_rows == 1000
    assert faulty.store.metrics.retries == 3
    faulty.forget()
    faulty.transport.fail("get", *[ConnectionError("gone")] * 4)
    with pytest.raises(StorageError, match=r"reading object 1/x\.run failed: gone") as caught:
        rows_of(faulty.root, ref)
    assert not isinstance(caught.value, CorruptObject)


def test_a_torn_answer_is_asked_for_again(faulty: Faulty) -> None:
    ref = write(faulty.root, "1/x.run")
    faulty.forget()
    faulty.transport.torn_bytes.append(10)
    assert rows_of(faulty.root, ref).num_rows == 1000
    faulty.forget()
    faulty.transport.torn_bytes.extend([10, 10, 10, 10])
    with pytest.raises(CorruptObject, match=r"object 1/x\.run is truncated"):
        rows_of(faulty.root, ref)


def _replace(faulty: Faulty, path: str, data: bytes) -> None:
    faulty.transport.inner.put(path, data, create=False)


def test_a_damaged_object_is_named_and_never_cached(faulty: Faulty) -> None:
    """FS-12: missing, short or flipped, at any place: an error with the object's name, never rows."""
    ref = write(faulty.root, "1/x.run")
    assert ref.packed is not None
    whole = bytes(faulty.transport.inner.get("1/x.run", 0, ref.packed))
    for i in (len(whole) // 3, len(whole) // 2, len(whole) - 20):
        flipped = bytearray(whole)
        flipped[i] ^= 4
        _replace(faulty, "1/x.run", bytes(flipped))
        faulty.forget()
        with pytest.raises(CorruptObject, match=r"object 1/x\.run"):
            rows_of(faulty.root, ref)
        assert not [f for f in Path(faulty.root.cache_dir).iterdir() if f.name != ".lock"]
    _replace(faulty, "1/x.run", whole[:-1])
    with pytest.raises(CorruptObject, match=r"object 1/x\.run is truncated"):
        rows_of(faulty.root, ref)
    faulty.store.delete("1/x.run")
    with pytest.raises(CorruptObject, match=r"object 1/x\.run is missing"):
        rows_of(faulty.root, ref)
    _replace(faulty, "1/x.run", whole)
    assert rows_of(faulty.root, ref).num_rows == 1000


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "deleted", "swapped tail"])
def test_a_damaged_copy_is_fetched_again(faulty: Faulty, damage: str) -> None:
    ref = write(faulty.root, "1/x.run")
    (copy,) = [f for f in Path(faulty.root.cache_dir).iterdir() if f.name != ".lock"]
    data = bytearray(copy.read_bytes())
    copy.unlink()  # not in place: a file that is mapped must not change
    if damage == "flipped":
        data[1000] ^= 1
    elif damage == "swapped tail":
        data[-12:-8] = b"abcd"
    if damage != "deleted":
        copy.write_bytes({"truncated": data[:-1], "emptied": b""}.get(damage, data))
    if damage == "flipped":  # found when the batch is touched; then the copy is forgotten
        with pytest.raises(CorruptObject, match=r"object 1/x\.run fails its checksum"):
            rows_of(faulty.root, ref)
    assert rows_of(faulty.root, ref).to_batches() == [batch(1000)]
    assert faulty.transport.requests["get"] == 1
    assert len([f for f in Path(faulty.root.cache_dir).iterdir() if f.name != ".lock"]) == 1


def test_a_missing_bucket_is_found_at_start(faulty: Faulty) -> None:
    faulty.transport.fail("list", PermissionError("no such bucket"))
    with pytest.raises(StorageError, match="no such bucket"):
        faulty.store.prepare()
    faulty.store.prepare()


@pytest.mark.parametrize("links", [True, False], ids=["by link", "on a filesystem without links"])
def test_of_two_writers_of_one_name_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Put-if-absent: also where the other one comes between the last look and the name."""
    first, second = (ObjectWriter(tmp_path, "1/x.run") for _ in range(2))
    real = os.fsync

    def fsync(fd: int) -> None:
        monkeypatch.setattr(objects.os, "fsync", real)
        first.commit()

    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    if not links:
        monkeypatch.setattr(objects.os, "link", no_link)
    with first, second:
        first.write(b"first")
        second.write(b"second")
        monkeypatch.setattr(objects.os, "fsync", fsync)
        with pytest.raises(StorageError, match=r"1/x\.run exists already"):
            second.commit()
    assert [o.path for o in store_of(tmp_path).list()] == ["1/x.run"]
    assert (tmp_path / "1/x.run").read_bytes() == b"first"


def test_every_new_directory_is_durable_before_an_object_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that another writer has made and not yet synced."""
    (tmp_path / "7").mkdir()
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(objects.os, "fsync", fsync)
    with ObjectWriter(tmp_path, "7/1-a/x.run") as writer:
        writer.commit()
    assert {str(tmp_path), str(tmp_path / "7"), str(tmp_path / "7/1-a")} <= set(synced)
    synced.clear()
    with ObjectWriter(tmp_path, "7/1-a/y.run") as writer:
        writer.commit()
    assert synced[1:] == [str(tmp_path / "7/1-a")], "the others are known to be"
    store_of(tmp_path / "a/b").prepare()
    assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)


def test_what_is_known_of_directories_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt at an epoch has one of its own, for years."""
    most = 8
    monkeypatch.setattr(objects, "_DURABLE_AT_MOST", most, raising=False)
    for epoch in range(5 * most):
        with ObjectWriter(tmp_path, f"7/{epoch}-a/x.run") as writer:
            writer.commit()
    assert len(objects._durable) <= most + 1


@pytest.mark.parametrize("packed", [True, False])
def test_parts_are_held_once_and_a_few_at_a_time(faulty: Faulty, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """A section of many parts takes as much memory as a few of them."""
    monkeypatch.setattr(remote_module, "GET_BYTES", 1024)
    ref = write(faulty.root, "1/x.run", 20_000)
    if not packed:
        stored = faulty.store._sections.open(ref, lambda view: None)
        _replace(faulty, "1/x.run", bytes(stored))
        ref = replace(ref, packed=None)
    faulty.forget()
    given: list[weakref.ref[Part]] = []
    most = 0
    get = faulty.transport.get

    class Part(bytearray):
        """A part of which it is known whether anybody still holds it."""

    def counted(path: str, offset: int, length: int) -> Part:
        nonlocal most
        part = Part(get(path, offset, length))
        given.append(weakref.ref(part))
        most = max(most, sum(g() is not None for g in given))
        return part

    monkeypatch.setattr(faulty.transport, "get", counted)
    assert rows_of(faulty.root, ref).num_rows == 20_000
    # Those ahead, the one that is unpacked, and what each of four threads has just handed over and still names.
    assert len(given) > 30 and most <= remote_module.PARTS_AHEAD + 1 + 4


def test_large_requests_have_more_time() -> None:
    made = open_transport("s3://b/p", {"region": "r"}, 1000)
    small, large = (made._for(size).client_options["timeout"] for size in (1 << 20, 64 << 20))
    assert (small, large) == ("1s", "1m 5s")


def test_a_small_run_is_the_same_object_by_either_way(tmp_path: Path) -> None:
    section = Section(1, SCHEMA, [batch(3)], 5)
    (ref,) = write_run(tmp_path, "a/x.run", [section])
    (small,), content = write_small_run(tmp_path, "b/x.run", section)
    assert content == (tmp_path / "a/x.run").read_bytes() == (tmp_path / "b/x.run").read_bytes()
    assert replace(small, path=ref.path) == ref
    assert write_small_run(tmp_path, "c/x.run", Section(1, SCHEMA, [], 5)) == ([], b"")
    assert not (tmp_path / "c").exists()


def test_a_small_batch_is_written_as_a_large_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = Section(1, SCHEMA, [batch(3)], 5)
    at_once, content = write_small_run(tmp_path, "a/x.run", section)
    monkeypatch.setattr(run_module, "SMALL_BYTES", 0)
    in_pieces, same = write_small_run(tmp_path, "b/x.run", section)
    assert content == same and replace(in_pieces[0], path="a/x.run") == at_once[0]


def test_a_small_object_takes_no_name_and_leaves_nothing_where_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_unsynced(tmp_path, "a/x", b"one", 0)
    with pytest.raises(StorageError):
        append_unsynced(tmp_path, "a/x", b"two", 0)
    assert (tmp_path / "a/x").read_bytes() == b"one"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(objects.os, "write", full)
    with pytest.raises(DiskFull, match="a/y"):
        append_unsynced(tmp_path, "a/y", b"three", 0)
    assert not (tmp_path / "a/y").exists()
