"""A schema registry, Confluent's or one that speaks its protocol: schemas by id, and the newest one of a subject."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, urlsplit

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import Option
from headrace.errors import InvalidParameter, NotSupported, OperationalError, SourceError

REGISTRY: Final = "encode.schema.registry"
MESSAGE: Final = "encode.message"
OPTIONS: Final = (
    Option(
        REGISTRY,
        "Behind `ENCODE AVRO` or `PROTOBUF`, `(schema.registry = ...)`: where the registry is, `http://...` or `https://...`.",
    ),
    Option(f"{REGISTRY}.username", "Who asks it."),
    Option(f"{REGISTRY}.password", "The password.", secret=True),
)
_ANSWER_S: Final = 10
_ANSWER_BYTES: Final = 4 << 20
_DETAIL_BYTES: Final = 2000
_NOT_FOUND: Final = 404
_JSON: Final = "application/vnd.schemaregistry.v1+json"


class NoSchema(Exception):
    """The registry does not know it."""


class _Stays(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: what is asked may carry a password."""

    def redirect_request(self, *given: Any) -> None:
        """None is an error."""


@dataclass(frozen=True)
class Reference:
    """A schema that another one refers to: the name that it has there, and which one it is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Registered:
    """A schema as the registry keeps it."""

    kind: str
    """`AVRO`, `PROTOBUF`, `JSON`."""
    text: str
    references: tuple[Reference, ...]
    name: str
    """For people."""


class Registry:
    """A registry. What it has said of an id holds for ever. Errors are of the kind that is given, or `NoSchema`."""

    def __init__(self, options: Mapping[str, str], kind: type[OperationalError] = SourceError) -> None:
        """Raises `InvalidParameter`."""
        self._kind = kind
        self._url = options.get(REGISTRY, "").rstrip("/")
        try:
            found = urlsplit(self._url)
        except ValueError:
            found = urlsplit("")
        if found.scheme not in ("http", "https") or not found.hostname or found.username is not None:
            hint = "(schema.registry = 'http://host:port') behind ENCODE, with a user as schema.registry.username"
            raise InvalidParameter(
                "ENCODE AVRO or PROTOBUF needs the option schema.registry, the URL of one registry", hint=hint
            )
        name, password = options.get(f"{REGISTRY}.username"), options.get(f"{REGISTRY}.password", "")
        self._headers = {"Accept": _JSON}
        if name is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
        self._open = urllib.request.build_opener(_Stays()).open

    def by_id(self, schema_id: int) -> Registered:
        """The schema of an id."""
        return _registered(self._ask(f"/schemas/ids/{schema_id}"), f"schema {schema_id}")

    def newest(self, subject: str) -> Registered:
        """The newest schema of a subject."""
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str) -> Registered:
        """A version of a subject."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        return _registered(self._ask(path), f"subject {subject}")

    def register(self, subject: str, schema: Any) -> int:
        """Make a schema the newest of a subject, if it is not there yet; its id."""
        body = json.dumps({"schema": json.dumps(schema)}).encode()
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions", body)
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), int):
            raise self._kind(f"the schema registry {self._url} gives no id for a schema of {subject}")
        return int(answer["id"])

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        headers = self._headers if body is None else {**self._headers, "Content-Type": _JSON}
        request = urllib.request.Request(self._url + path, body, headers)
        try:
            with self._open(request, timeout=_ANSWER_S) as answer:
                return json.loads(answer.read(_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND and body is None:
                    raise NoSchema(path) from error
                detail = error.read(_DETAIL_BYTES).decode(errors="replace")
            raise self._kind(
                f"the schema registry {self._url} answers {error.code} to {path}", detail=detail
            ) from error
        except (OSError, ValueError, HTTPException) as error:
            raise self._kind(f"the schema registry {self._url} does not answer: {error}") from error


def check_encode(options: Mapping[str, str], encode: str) -> None:
    """Raise `InvalidParameter` for options of an encoding that the values do not have."""
    for name in options:
        if name.startswith(REGISTRY) and encode not in ("avro", "protobuf"):
            raise InvalidParameter(f"option {name.removeprefix('encode.')} is for ENCODE AVRO and PROTOBUF")
        if name in ("encode.delimiter", "encode.without_header") and encode != "csv":
            raise InvalidParameter(f"option {name.removeprefix('encode.')} is for ENCODE CSV")
        if name == MESSAGE and encode != "protobuf":
            raise InvalidParameter("option message is for ENCODE PROTOBUF")


def avro_schema(found: Registered) -> Any:
    """A schema of Avro, as its JSON is. Raises `NotSupported` for one of another kind, or in parts."""
    if found.kind != "AVRO":
        raise NotSupported(
            f"{found.name} of the schema registry, which is no Avro schema", hint="ENCODE AVRO reads Avro"
        )
    if found.references:
        raise NotSupported(f"{found.name} of the schema registry, which refers to other schemas")
    try:
        return json.loads(found.text)
    except ValueError as error:
        raise SourceError(f"{found.name} of the schema registry cannot be read: {error}") from error


def _registered(answer: Any, name: str) -> Registered:
    try:
        references = [
            Reference(str(r["name"]), str(r["subject"]), int(r["version"])) for r in answer.get("references") or ()
        ]
        return Registered(str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), tuple(references), name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{name} of the schema registry cannot be read: {error!r}") from error
