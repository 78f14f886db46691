"""The cache of unpacked sections: bounded, least recently used first out, right whatever its processes do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.state import cache as cache_module
from headrace.state.cache import SectionCache
from headrace.state.iopool import IoMetrics
from headrace.state.stores import RemoteStore, StoreRoot
from support import examples


def _put(cache: SectionCache, key: str, size: int, content: bytes = b"x") -> None:
    temporary = cache.temporary()
    temporary.write_bytes(content * size)
    cache.admit(key, temporary)


def _bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.iterdir() if f.name != ".lock")


def _age(folder: Path, keys: list[str]) -> None:
    """Make the keys look as if they had been used one after the other, long ago."""
    for i, key in enumerate(keys):
        os.utime(folder / cache_module._name(key), ns=(0, 1_000_000_000 * (i + 1)))


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    metrics = IoMetrics()
    cache = SectionCache(tmp_path, 100, metrics)
    for key in "abcd":
        _put(cache, key, 25)
    _age(tmp_path, list("abcd"))
    assert cache.map("a", 25) is not None
    _put(cache, "e", 25)
    assert {k for k in "abcde" if cache.map(k, 25) is not None} == {"a", "d", "e"}
    assert metrics.cache_evictions == 2
    assert metrics.cache_bytes == 75


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = SectionCache(tmp_path, 100, IoMetrics())
    _put(cache, "a", 60)
    _put(cache, "b", 101)
    assert cache.map("b", 101) is None
    assert cache.map("a", 60) is not None


def test_what_fits_exactly_stays(tmp_path: Path) -> None:
    """LS-7: sections whose sum is the limit stay; with one byte more nothing but a reference is left of the oldest."""
    metrics = IoMetrics()
    cache = SectionCache(tmp_path, 100, metrics)
    for key, size in (("a", 60), ("b", 40)):
        _put(cache, key, size)
    _age(tmp_path, ["a", "b"])
    assert cache.holds("a", 60) and cache.holds("b", 40) and metrics.cache_bytes == 100
    _put(cache, "c", 1)
    assert not cache.holds("a", 60) and cache.holds("b", 40) and cache.holds("c", 1)
    assert not cache.holds("c", 2), "one of another length is not it"


def test_a_mapped_section_outlives_its_eviction(tmp_path: Path) -> None:
    cache = SectionCache(tmp_path, 100, IoMetrics())
    _put(cache, "a", 100, b"a")
    view = cache.map("a", 100)
    _put(cache, "b", 100, b"b")
    assert cache.map("a", 100) is None
    assert view is not None and bytes(view) == b"a" * 100


def test_a_section_is_read_where_its_use_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has been made read-only after an error, say."""
    cache = SectionCache(tmp_path, 100, IoMetrics())
    _put(cache, "a", 10)

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(cache_module.os, "utime", refused)
    view = cache.map("a", 10)
    assert view is not None and bytes(view) == b"x" * 10


def test_a_section_of_another_length_is_no_hit(tmp_path: Path) -> None:
    cache = SectionCache(tmp_path, 100, IoMetrics())
    _put(cache, "a", 10)
    assert cache.map("a", 11) is None


def test_leftovers_of_a_crash_are_cleared_away(tmp_path: Path) -> None:
    """A sum that is lost, or too large, is counted again; old temporary files go, young ones stay."""
    cache = SectionCache(tmp_path, 100, IoMetrics())
    _put(cache, "a", 40)
    old, young = cache.temporary(), cache.temporary()
    for path in (old, young):
        path.write_bytes(b"x" * 500)
    os.utime(old, (0, 0))
    (tmp_path / ".lock").write_text(f"{10**9:20d}\n")
    _put(cache, "b", 40)
    assert cache.map("a", 40) is not None and cache.map("b", 40) is not None
    assert young.exists() and not old.exists()
    (tmp_path / ".lock").write_bytes(b"\0\0\0")
    _put(cache, "c", 40)
    young.unlink()
    assert _bytes(tmp_path) <= 100


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.booleans()), max_size=40))
def test_the_bound_holds_whatever_is_put_in(steps: list[tuple[int, int, bool]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        caches = [SectionCache(folder, 100, IoMetrics()) for _ in range(2)]
        for key, size, first in steps:
            cache = caches[first]
            if size % 7 == 6:
                cache.discard(str(key))
            else:
                _put(cache, str(key), size)
            assert _bytes(Path(folder)) <= 100
            assert cache._metrics.cache_bytes in (0, _bytes(Path(folder))) or size > 100


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    from headrace.errors import StorageError

    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file/cache"):
        SectionCache(tmp_path / "file" / "cache", 10, IoMetrics()).temporary()


@pytest.mark.parametrize("found", ["open to others", "a link", "of another user"])
def test_a_directory_that_anybody_could_have_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """What lies in the default directory is taken for verified, so nobody else may have been able to put it there."""
    folder = tmp_path / "cache"
    cache = SectionCache(folder, 100, IoMetrics(), private=True)
    _put(cache, "a", 25)
    assert cache.map("a", 25) is not None and folder.stat().st_mode & 0o077 == 0
    if found == "open to others":
        folder.chmod(0o777)
    elif found == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(cache_module.os, "getuid", lambda: folder.stat().st_uid + 1)
    for use in (lambda: cache.map("a", 25), cache.temporary, lambda: cache.discard("a")):
        with pytest.raises(StorageError, match=r"cache directory .* only this user"):
            use()


def test_the_default_directory_is_private() -> None:
    sections = RemoteStore(StoreRoot("memory://private"))._sections
    assert sections.cache._private and "headrace-cache-" in str(sections.cache._folder)
