"""Schemas of Protobuf: the texts that the registry has, compiled by `protoc`, and the messages in them.

A schema's text may import others, which the registry knows as its references, and Google's own, which `protoc` brings.
"""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from headrace.common.lazy_dataclass import dataclass
from headrace.connectors.declared import needed_module
from headrace.connectors.kafka.framed import Unreadable
from headrace.connectors.kafka.registry import NoSchema, Reference, Registered, Registry
from headrace.errors import InvalidParameter, NotSupported, SourceError

_COMPILE_S: Final = 60
_MOST_FILES: Final = 200
"""Which a schema may refer to."""
_ROOT: Final = "headrace_schema.proto"
Kind: TypeAlias = Any
"""A descriptor of Google's library: of a message, or of a field of one."""


@dataclass(frozen=True)
class ProtobufSchema:
    """A compiled file: descriptors of the messages in it, and its name for people."""

    file: Kind
    name: str

    def at(self, path: Sequence[int]) -> Kind:
        """The message at a path of places, the outermost first. Raises `Unreadable`.

        Serializers differ in whether the types that stand for maps are counted among the nested ones; a place behind
        one of these is refused.
        """
        kinds = list(self.file.message_types_by_name.values())
        found = None
        for place in path:
            if not 0 <= place < len(kinds):
                raise Unreadable(f"{self.name} has no message {list(path)}")
            if any(_is_map(kind) for kind in kinds[: place + 1]):
                raise Unreadable(
                    f"the message {list(path)} of {self.name} stands behind a map: which one is not certain"
                )
            found = kinds[place]
            kinds = list(found.nested_types)
        return found

    def named(self, message: str | None) -> Kind:
        """The message of a name, with or without its package; the first if there is none. None if it is not there."""
        kinds = list(self.file.message_types_by_name.values())
        if message is None:
            return kinds[0] if kinds else None
        return next((kind for kind in _all(kinds) if is_named(kind, message)), None)


def is_named(kind: Kind, message: str) -> bool:
    """Whether a message has a name, with or without its package."""
    package = f"{kind.file.package}."
    return message in (kind.full_name, kind.full_name.removeprefix(package))


def _all(kinds: Sequence[Kind]) -> Iterator[Kind]:
    for kind in kinds:
        yield kind
        yield from _all([inner for inner in kind.nested_types if not _is_map(inner)])


def _is_map(kind: Kind) -> bool:
    return bool(kind.GetOptions().map_entry)


def compiled(registry: Registry, found: Registered) -> ProtobufSchema:
    """A schema, ready for use. Raises `SourceError`, and `NotSupported` for one that is none of Protobuf."""
    if found.kind != "PROTOBUF":
        raise NotSupported(
            f"{found.name} of the schema registry, which is no Protobuf schema", hint="ENCODE PROTOBUF reads Protobuf"
        )
    texts = {_ROOT: found.text}
    _add(registry, found.references, texts)
    files = needed_module("google.protobuf.descriptor_pb2", "protobuf").FileDescriptorSet
    pool = needed_module("google.protobuf.descriptor_pool", "protobuf").DescriptorPool()
    for file in files.FromString(_described(texts, found.name)).file:
        pool.Add(file)
    return ProtobufSchema(pool.FindFileByName(_ROOT), found.name)


def _add(registry: Registry, references: Sequence[Reference], texts: dict[str, str]) -> None:
    for each in references:
        if each.name in texts:
            continue
        path = PurePosixPath(each.name)
        if path.is_absolute() or ".." in path.parts or "\\" in each.name or "\0" in each.name:
            raise SourceError(f"a schema refers to {each.name!r}, which is no name of a file")
        if len(texts) > _MOST_FILES:
            raise SourceError(f"a schema refers to more than {_MOST_FILES} others")
        try:
            found = registry.version(each.subject, each.version)
        except NoSchema as error:
            said = (
                f"a schema refers to version {each.version} of {each.subject}, which the schema registry does not have"
            )
            raise SourceError(said) from error
        texts[each.name] = found.text
        _add(registry, found.references, texts)


def _described(texts: Mapping[str, str], name: str) -> bytes:
    """What `protoc` makes of texts: it runs by itself, since it may end its process."""
    tools = Path(needed_module("grpc_tools", "protobuf").__file__).parent
    made = {path: _descriptor(text, path) for path, text in texts.items()}
    try:
        with TemporaryDirectory(prefix="headrace-proto-") as folder:
            compiled_before, out = Path(folder, "set"), Path(folder, "out")
            compiled_before.write_bytes(b"".join(d for d in made.values() if d is not None))
            for path, text in texts.items():
                target = Path(folder, "in", path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if made[path] is None:
                    target.write_text(text, "utf-8")
            command = [
                sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{folder}/in", f"-I{tools / '_proto'}",
                f"--descriptor_set_in={compiled_before}", "--include_imports", f"--descriptor_set_out={out}", _ROOT,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=False)
            if done.returncode == 0:
                return out.read_bytes()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{name} of the schema registry cannot be compiled: {error}") from error
    said = done.stderr.decode(errors="replace").strip()
    raise SourceError(f"{name} of the schema registry is not understood: {said}")


def _descriptor(text: str, path: str) -> bytes | None:
    """A set with the one descriptor that a text is in base64, as some clients register it; None for others."""
    descriptors = needed_module("google.protobuf.descriptor_pb2", "protobuf")
    try:
        file = descriptors.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, needed_module("google.protobuf.message", "protobuf").DecodeError):
        return None
    file.name = path
    return bytes(descriptors.FileDescriptorSet(file=[file]).SerializeToString())


def message_of(schema: ProtobufSchema, message: str | None) -> Kind:
    """See `ProtobufSchema.named`. Raises `InvalidParameter`."""
    found = schema.named(message)
    if found is None:
        what = "message" if message is None else f"message {message}"
        raise InvalidParameter(f"{schema.name} of the schema registry has no {what}")
    return found
