"""Object stores by URL, over obstore: plain requests, each tried once. Of the state, the only module that
knows the library.

Errors are those of Python: `FileNotFoundError`, `FileExistsError`, `ConnectionError` where trying again may help.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol
from urllib.parse import unquote, urlsplit

from headrace.errors import InvalidParameter
from headrace.state.iopool import LEAST_BYTES_PER_S
from headrace.state.objects import StoredObject

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": ("endpoint", "region", "virtual_hosted_style_request", "allow_http"),
    "gs": ("base_url", "allow_http"),
    "az": ("account_name", "endpoint", "use_emulator", "allow_http"),
    "memory": (),
    "file": (),
}
"""What may be set, per scheme. Credentials are not among it: they come from the environment and are stored nowhere."""

SMALL_REQUEST_BYTES = 1 << 20
"""Requests that move more have more time."""
LARGEST_REQUEST_BYTES = 64 << 20
"""No request moves more."""
_STATUS = re.compile(r"status code: (\d{3})")
_TRY_AGAIN = (408, 425, 429)
_RANGE_NOT_SATISFIABLE = 416


class Transport(Protocol):
    """Requests to one object store, below a prefix; paths are relative to it. Safe to use from several threads."""

    def put(self, path: str, data: bytes | BinaryIO, *, create: bool) -> None:
        """Store an object, all of it or nothing. With `create` raises `FileExistsError` where there is one already."""

    def get(self, path: str, offset: int, length: int) -> Any:
        """A byte range, as a buffer: shorter where the object ends. Raises `FileNotFoundError`."""

    def head(self, path: str) -> StoredObject:
        """What is known of an object. Raises `FileNotFoundError`."""

    def list(self, prefix: str) -> list[StoredObject]:
        """All objects below a folder; those of the root for ""."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing where there is none."""


def open_transport(url: str, options: Mapping[str, str], timeout_ms: int) -> Transport:
    """The transport for `file:`, `s3:`, `gs:`, `az:` or `memory:`. Raises `InvalidParameter`."""
    scheme = url.partition("://")[0]
    _check(scheme, url, options)
    from obstore import exceptions, store

    if scheme == "memory":
        return Obstore(_memory(url))
    if scheme == "file":
        return Obstore(store.LocalStore(unquote(urlsplit(url).path), mkdir=True))
    from_url: Callable[..., object] = store.from_url  # its types want to know the kind of store
    config: dict[str, object] = dict(options)
    # The library reads the others of its variables by itself.
    allow_http = config.pop("allow_http", os.environ.get("AWS_ALLOW_HTTP", "")) == "true"

    def made(timeout: timedelta) -> object:
        client = {"timeout": timeout, "allow_http": allow_http}
        # Retries are counted, spread and bounded by the I/O pool.
        return from_url(url, config=config, client_options=client, retry_config={"max_retries": 0})

    timeout = timedelta(milliseconds=timeout_ms)
    patient = timeout + timedelta(seconds=LARGEST_REQUEST_BYTES / LEAST_BYTES_PER_S)
    try:
        return Obstore(made(timeout), made(patient))
    except (ValueError, TypeError, exceptions.BaseError) as error:
        raise InvalidParameter(f"cannot open the object store {url}: {str(error).splitlines()[0]}") from error


def _check(scheme: str, url: str, options: Mapping[str, str]) -> None:
    if scheme not in OPTIONS:
        raise InvalidParameter(f"{url} is no object store", hint=f"a directory, or {', '.join(OPTIONS)}://...")
    for name in options:
        if name not in OPTIONS[scheme]:
            known = ", ".join(OPTIONS[scheme]) or "none"
            raise InvalidParameter(
                f'unknown option "{name}" for an object store of kind {scheme}',
                hint=f"there are: {known}; credentials are read from the environment",
            )


_MEMORY: dict[str, object] = {}
_MEMORY_LOCK = threading.Lock()


def _memory(url: str) -> object:
    """The process's store of this URL, which holds its objects as long as the process lives."""
    from obstore.store import MemoryStore

    with _MEMORY_LOCK:
        return _MEMORY.setdefault(url, MemoryStore())


class Obstore:
    """A transport over a store of obstore's.

    A client has one time-out for all its requests, body included. So large ones go through another client, with more.
    """

    def __init__(self, store: Any, patient: Any = None) -> None:
        self._store = store
        self._patient = store if patient is None else patient

    def _for(self, size_bytes: int | None) -> Any:
        """The client for a request that moves so many bytes; None where they are many."""
        return self._store if size_bytes is not None and size_bytes <= SMALL_REQUEST_BYTES else self._patient

    def put(self, path: str, data: bytes | BinaryIO, *, create: bool) -> None:
        """See `Transport`."""
        import obstore

        # Obstore's local store knows "create" too, but no store compares tags on every kind: nothing relies on that.
        mode: Literal["create", "overwrite"] = "create" if create else "overwrite"
        store = self._for(len(data) if isinstance(data, bytes) else None)
        _request(partial(obstore.put, store, path, data, mode=mode, use_multipart=not create))

    def get(self, path: str, offset: int, length: int) -> object:
        """See `Transport`."""
        import obstore

        try:
            return memoryview(
                _request(partial(obstore.get_range, self._for(length), path, start=offset, length=length))
            )
        except _OutOfRange:
            return memoryview(b"")

    def head(self, path: str) -> StoredObject:
        """See `Transport`."""
        import obstore

        return _stored(_request(partial(obstore.head, self._store, path)))

    def list(self, prefix: str) -> list[StoredObject]:
        """See `Transport`."""
        import obstore

        return [_stored(o) for o in _request(lambda: obstore.list(self._store, prefix or None).collect())]

    def delete(self, path: str) -> None:
        """See `Transport`."""
        import obstore

        try:
            _request(partial(obstore.delete, self._store, path))
        except FileNotFoundError:
            return


def _stored(meta: Any) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp())


class _OutOfRange(Exception):
    """The range begins where the object has ended."""


def _request(call: Callable[[], Any]) -> Any:
    """One request, its errors as those of Python."""
    from obstore import exceptions

    try:
        return call()
    except FileNotFoundError as error:
        raise FileNotFoundError(_first_line(error)) from error
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(_first_line(error)) from error
    except exceptions.GenericError as error:
        found = _STATUS.search(str(error))
        status = int(found[1]) if found else 0
        if status == _RANGE_NOT_SATISFIABLE:
            raise _OutOfRange from error
        if status in _TRY_AGAIN or not 400 <= status < 500:
            raise ConnectionError(_first_line(error)) from error
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
