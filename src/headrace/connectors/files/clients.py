"""Clients of object stores (S3, Google Cloud Storage, Azure): their options, where an object is, and what they say.

The state's own store has other rules (`state/transport.py`): there the environment has the keys, and a pool retries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, BinaryIO, Final, cast

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.files.store_access import ContentMark
from headrace.errors import InvalidParameter, OperationalError, SourceError

SCHEMES: Final = ("s3", "gs", "az")
STORE: Final = (
    Option("s3.endpoint", "Where an S3 server is that is not Amazon's."),
    Option("s3.region", "The region of the bucket."),
    Option("s3.access.key", "The access key; by default what the environment of Spark's workers says.",
           secret=True),
    Option("s3.secret.key", "The secret key.", secret=True),
    Option("s3.session.token", "The token of keys that hold for a while.", secret=True),
    Option("gcs.endpoint", "Where a server is that is not Google's."),
    Option("gcs.credential", "The key of a service account, in JSON.", secret=True),
    Option("azure.account", "The storage account."),
    Option("azure.endpoint", "Where a server is that is not Microsoft's."),
    Option("azure.secret.key", "The key of the account.", secret=True),
    Option("store.anonymous", "Requests are not signed: everybody may read.", "boolean", default="false"),
)  # fmt: skip
"""The options of an object store."""
_OPTIONS: Final = DeclaredOptions(STORE)
_CONFIG: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "s3": ("s3.", {
        "s3.endpoint": "endpoint", "s3.region": "region", "s3.access.key": "access_key_id",
        "s3.secret.key": "secret_access_key", "s3.session.token": "session_token",
    }),
    "gs": ("gcs.", {"gcs.endpoint": "base_url", "gcs.credential": "service_account_key"}),
    "az": ("azure.", {"azure.account": "account_name", "azure.endpoint": "endpoint",
                      "azure.secret.key": "account_key"}),
}  # fmt: skip
"""By scheme: how its options begin, and the names that the library has for them."""

_CONNECT_S, _REQUEST_S, _RETRY_S, _RETRIES = 10, 60, 60, 5
_TOOK: Final = re.compile(r" in \d+(\.\d+)?[mµn]?s\b")
URL: Final = re.compile(r"(\w+)://([^/*?\[\]]+)(?:/(.*))?", re.DOTALL)


def scheme_of(path: str, options: Mapping[str, str]) -> str | None:
    """Of which object stores a comma-separated `path` is; None where it names files. Raises `InvalidParameter`."""
    schemes = {item.strip().partition("://")[0] if "://" in item else "" for item in path.split(",") if item.strip()}
    remote, given = schemes & {*SCHEMES}, [o.name for o in STORE if o.name in options]
    unknown = schemes - {*SCHEMES, "file", ""}
    if unknown:
        known = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, "file"))
        raise InvalidParameter(f"{min(unknown)}:// is not known", hint=f"a path, or one of {known}")
    if not remote:
        if given:
            raise InvalidParameter(f"option {given[0]} needs a path in an object store")
        return None
    if len(schemes) > 1:
        raise InvalidParameter("option path must name files of one kind of store")
    scheme = min(remote)
    prefix = _CONFIG[scheme][0]
    foreign = next((name for name in given if not name.startswith((prefix, "store."))), None)
    if foreign is not None:
        hint = f"its options begin with {prefix}"
        raise InvalidParameter(f"option {foreign} has no meaning for {scheme}://", hint=hint)
    for item in path.split(","):
        if item.strip() and not URL.fullmatch(item.strip()):
            raise InvalidParameter(f"{item.strip()} names no bucket", hint=f"{scheme}://bucket/folder")
    return scheme


class Gone(SourceError):
    """There is no such object."""


@contextmanager
def told(path: str, kind: type[OperationalError] = SourceError) -> Iterator[None]:
    """What the library raises inside the block as errors of the source, or of another kind."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        if kind is not SourceError:
            raise kind(f"{path} cannot be written: there is no such bucket or object") from error
        hint = "put the object back, or recreate the source"
        raise Gone(f"file {path} of the source cannot be read: there is no such object", hint=hint) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        hint = "look at the keys that the options name, and at what they permit"
        raise kind(f"access to {path} is denied: {_first_line(error)}", hint=hint) from error
    except (exceptions.BaseError, ValueError, OSError) as error:
        does = "read" if kind is SourceError else "written"
        raise kind(f"{path} cannot be {does}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """What an error says, without the time that the request has taken."""
    return _TOOK.sub("", (str(error).splitlines() or [type(error).__name__])[0])


def seen_of(meta: Any) -> ContentMark:
    """What is known of an object; Azure's listings write tags without the quotes that other answers have."""
    tag = (meta["e_tag"] or "").strip('"')
    return ContentMark(meta["size"], int(meta["last_modified"].timestamp() * 1_000_000) * 1000, tag)


@dataclass(frozen=True)
class ObjectPlace:
    """Where an object is, or objects below a folder."""

    client: Any
    bucket_url: str
    key: str

    @classmethod
    def of(cls, url: str, options: tuple[tuple[str, str], ...]) -> ObjectPlace:
        """Of a URL. Raises `InvalidParameter` where the options cannot be."""
        found = URL.fullmatch(url)
        assert found is not None, url
        return cls(_client(found[1], found[2], options), f"{found[1]}://{found[2]}", (found[3] or "").rstrip("/"))

    @property
    def url(self) -> str:
        """The URL."""
        return f"{self.bucket_url}/{self.key}"

    def head(self) -> object:
        """What the store knows of the object."""
        import obstore

        return obstore.head(self.client, self.key)

    def list(self) -> Iterable[Sequence[Any]]:
        """All objects below the folder, in pieces."""
        import obstore

        found: Iterable[Sequence[Any]] = obstore.list(self.client, self.key or None, chunk_size=1000)
        return found

    def get(self, seen: ContentMark, start: int, stop: int) -> tuple[ContentMark, memoryview]:
        """A range of bytes of the content that was seen, and which content it is of."""
        import obstore

        options: dict[str, object] = {"range": (start, stop)}
        if seen.tag and not seen.tag.startswith("W/"):  # a weak one never matches
            options["if_match"] = f'"{seen.tag}"'
        found = obstore.get(self.client, self.key, options=cast(Any, options))
        return seen_of(found.meta), memoryview(cast(Any, found.bytes()))


@lru_cache(maxsize=64)
def _client(scheme: str, bucket: str, options: tuple[tuple[str, str], ...]) -> object:
    """A client for a bucket. Raises `InvalidParameter`."""
    from obstore import exceptions, store

    given = dict(options)
    config: dict[str, Any] = {name: given[option] for option, name in _CONFIG[scheme][1].items() if option in given}
    if _OPTIONS.read(given)["store.anonymous"]:
        config["skip_signature"] = True
    plain = config.get("endpoint", config.get("base_url", "")).startswith("http://")
    client: dict[str, object] = {
        "timeout": timedelta(seconds=_REQUEST_S),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
    }
    if plain:
        client["allow_http"] = True
    retries: object = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)}
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    make = partial(cast(Any, kind), bucket, client_options=client, retry_config=retries)
    try:
        return make(**config)
    except (ValueError, TypeError, exceptions.BaseError) as error:
        raise InvalidParameter(f"cannot open {scheme}://{bucket}: {_first_line(error)}") from error


# Threads and connections do not survive a fork.
os.register_at_fork(after_in_child=_client.cache_clear)


@dataclass(frozen=True)
class Bucket:
    """Objects below a folder, by their names in it, to be written. Errors are of the kind that is given."""

    _place: ObjectPlace
    _kind: type[OperationalError]

    @classmethod
    def at(cls, url: str, options: Mapping[str, str], kind: type[OperationalError]) -> Bucket:
        """Of a URL. Raises `InvalidParameter`."""
        given = {o.name: options[o.name] for o in STORE if o.name in options}
        return cls(ObjectPlace.of(url, tuple(sorted(given.items()))), kind)

    def _key(self, name: str) -> str:
        return f"{self._place.key}/{name}" if self._place.key else name

    def names(self) -> Iterator[tuple[str, int]]:
        """What is there, with sizes."""
        cut = len(self._place.key) + 1 if self._place.key else 0
        with told(self._place.url, self._kind):
            for chunk in self._place.list():
                yield from ((meta["path"][cut:], meta["size"]) for meta in chunk)

    def put(self, name: str, file: BinaryIO) -> None:
        """Store an object, all of it or nothing."""
        import obstore

        with told(f"{self._place.url}/{name}", self._kind):
            obstore.put(self._place.client, self._key(name), file)

    def give(self, name: str, file: BinaryIO) -> None:
        """Store an object unless there is one of this name, all of it or nothing, by one request."""
        import obstore
        from obstore import exceptions

        with told(f"{self._place.url}/{name}", self._kind):
            try:
                obstore.put(self._place.client, self._key(name), file, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                pass
            except (exceptions.BaseError, OSError):
                if not self.has(name):  # else only the answer has been lost
                    raise

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        import obstore

        with told(f"{self._place.url}/{name}", self._kind):
            try:
                obstore.head(self._place.client, self._key(name))
            except FileNotFoundError:
                return False
            return True

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object, and say whether it is there and no other: an answer may have been lost."""
        import obstore
        from obstore import exceptions

        with told(f"{self._place.url}/{name}", self._kind):
            try:
                obstore.put(self._place.client, self._key(name), data, mode="create", use_multipart=False)
            except (exceptions.BaseError, OSError) as error:
                try:
                    found = bytes(cast(Any, obstore.get(self._place.client, self._key(name)).bytes()))
                except FileNotFoundError:
                    raise error from None
                return found == data
        return True

    def read(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        import obstore

        with told(f"{self._place.url}/{name}", self._kind):
            try:
                return bytes(cast(Any, obstore.get(self._place.client, self._key(name)).bytes()))
            except FileNotFoundError:
                return None

    def delete(self, name: str) -> None:
        """Remove an object; nothing where there is none."""
        import obstore

        with told(f"{self._place.url}/{name}", self._kind), suppress(FileNotFoundError):
            obstore.delete(self._place.client, self._key(name))
