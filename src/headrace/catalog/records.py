"""What the catalog holds: one immutable record type per collection, each with its JSON form.

A stored value is a JSON object whose `v` is the schema version of its record type. Fields named `id` are
unique over all kinds of objects; times are Unix milliseconds; epochs are int64.
"""

from __future__ import annotations

import base64
import json
from dataclasses import field, fields
from functools import cache
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

import pyarrow as pa

from headrace.catalog.contents import CONTENTS, Content, ObjectKind, SourceContent
from headrace.catalog.encoding import Stored, rare
from headrace.common.columns import Column
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import CorruptObject, OperationalError
from headrace.state.schema import Combine, RunRef, TableSchema

C = TypeVar("C", bound=Content)
Key: TypeAlias = int | str | tuple[int, int]
"""A record's key within its collection."""
Collection = Literal[
    "object", "job", "state_table", "run", "remap", "position", "setting", "event", "source", "leaving"
]  # fmt: skip
"""The names of the collections; `config` is apart."""
JobStatus = Literal["creating", "created", "paused", "quarantined"]
"""Where a job stands in its life."""


DATABASE_COMMENT: Final = "database"
"""Under which the schema `public`, which has no columns, keeps the comment on the database."""


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@dataclass(frozen=True, slots=True)
class _Record:
    """Base of the record types: scalar fields, tuples and plain JSON values map to JSON as they are."""

    VERSION: ClassVar[int] = 1

    def to_json(self) -> dict[str, object]:
        """The stored form: a dict of JSON values with the schema version in `v`."""
        kind: object = type(self)
        return {"v": self.VERSION, **{name: getattr(self, name) for name in _names(kind)}}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Self:
        """The inverse of `to_json`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class ObjectRecord(_Record):
    """A schema, table, source, view, index, sink, function, secret, role, subscription or connection. A schema has its
    name in `name`, "" in `schema`.

    What only its kind has is its `content`, which is also what tells the kind. What programs of an older schema version
    would not know is of a newer one, so that they refuse it: whatever has to do with secrets is of version 2, with
    rights of version 4, comments and other names of version 8, and contents say theirs (`Content.version`).
    """

    COLLECTION: ClassVar[Collection] = "object"
    VERSION: ClassVar[int] = 8

    id: int
    content: Content
    schema: str
    name: str
    columns: tuple[Column, ...] = ()
    definition: str = ""
    """SQL text, or a description where there is none."""
    primary_key: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    depends_on: tuple[int, ...] = ()
    """Ids of the objects that this one is built on."""
    created_ms: int = 0
    secrets: dict[str, int] = field(default_factory=dict)
    """Option -> the id of the secret that has its value; such an option is not among `options`."""
    owner: int = 0
    """The id of the role that it belongs to; 0: the role that is always there."""
    grants: dict[str, str] | None = None
    """Id of a role, or "0" for everybody -> its privileges, a letter each; None: those that the kind begins with."""
    comments: dict[str, str] = field(default_factory=dict)
    """What people have written about it, by the name of a column; about itself by "". What they have written about the
    database is with the schema `public`, by `DATABASE_COMMENT`.
    """

    @property
    def key(self) -> int:
        """The id."""
        return self.id

    @property
    def kind(self) -> ObjectKind:
        """The kind as it is stored and shown; whoever decides by it asks `content`."""
        return self.content.kind

    @property
    def kind_name(self) -> str:
        """The kind as messages spell it."""
        return self.kind.replace("_", " ")

    @property
    def in_words(self) -> str:
        """What messages call it: its kind and its name. A hidden source goes by the table that it is a part of."""
        if isinstance(self.content, SourceContent) and self.content.part is not None:
            return f'table "{self.content.part}"'
        return f'{self.kind_name} "{self.name}"'

    def content_as(self, kind: type[C]) -> C:
        """The content of an object that is known to be of a kind."""
        assert isinstance(self.content, kind), f"object {self.id} is a {self.kind}"
        return self.content

    def to_json(self) -> dict[str, object]:
        """The stored form."""
        stored: dict[str, object] = {
            "v": self._version(), "id": self.id, "kind": self.kind, "schema": self.schema, "name": self.name,
            "columns": [[c.name, c.type, c.nullable] for c in self.columns], "definition": self.definition,
            "primary_key": self.primary_key, "options": self.options, "depends_on": self.depends_on,
            "created_ms": self.created_ms, "payload": self.content.to_json(),
        }  # fmt: skip
        if self.secrets:
            stored["secrets"] = self.secrets
        if self.owner:
            stored["owner"] = self.owner
        if self.grants is not None:
            stored["grants"] = self.grants
        if self.comments:
            stored["comments"] = self.comments
        return stored

    def _version(self) -> int:
        """The first schema version that can say what the record says."""
        rights, secrets = self.owner or self.grants is not None, bool(self.secrets)
        late = bool(self.comments) or self.content.called is not None
        return max(self.content.version, 8 if late else 1, 4 if rights else 1, 2 if secrets else 1)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ObjectRecord:
        """The inverse of `to_json`."""
        data = dict(data)
        data["columns"] = tuple(Column(*column) for column in data["columns"])
        data["content"] = CONTENTS[data.pop("kind")].from_json(data.pop("payload", {}))
        return cls(**_tuples(data, "primary_key", "depends_on"))


@dataclass(frozen=True, slots=True)
class JobPlan(Stored):
    """What tells a job's plan, and what recovery must know of it before it is planned again. None: nothing is said."""

    kind: Literal["table"] | None = field(default=None, metadata=rare())
    """`table` for a table's own job, which has no plan."""
    fingerprint: str | None = field(default=None, metadata=rare())
    """What identifies the plan, so that state is only read by the operators that wrote it."""
    upstreams: tuple[int, ...] | None = field(default=None, metadata=rare())
    """The relations that it reads."""
    lookups: tuple[int, ...] | None = field(default=None, metadata=rare())
    """Those of them of which it takes in no changes."""
    arrangements: tuple[int, ...] | None = field(default=None, metadata=rare())
    """The relations and indexes whose rows its joins look up instead of keeping them."""
    sharable: tuple[tuple[int, tuple[str, ...]], ...] = field(default=(), metadata=rare())
    """Relation and columns of each side that it keeps, and that an index could have instead."""


@dataclass(frozen=True, slots=True)
class JobRecord(_Record):
    """What recovery needs to know of a job, and nothing else."""

    COLLECTION: ClassVar[Collection] = "job"
    VERSION: ClassVar[int] = 3

    id: int
    """The id of the object that the job keeps up to date."""
    group: str
    status: JobStatus
    committed_epoch: int = 0
    frontier: int = 0
    """The job's relation will not change any more at or below this epoch."""
    plan: JobPlan = JobPlan()
    options: dict[str, str] = field(default_factory=dict)
    exact: tuple[tuple[int, int], ...] = ()
    """Closed ranges of epochs at which the content equals the definition over the inputs, ascending."""
    joined: bool = True
    """It commits in step with its group; false while it is still catching up with it."""
    due_epoch: int = 0
    """The first epoch at which its content may change without its inputs, because time passes; 0 for none."""
    delivered_epoch: int = 0
    """The newest epoch that the target of a sink has taken, with changes in it; 0 for none."""

    @property
    def key(self) -> int:
        """The object's id."""
        return self.id

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobRecord:
        """The inverse of `to_json`."""
        data = dict(data)
        data["exact"] = tuple((low, high) for low, high in data["exact"])
        data["plan"] = JobPlan.from_json(data.get("plan", {}))
        return cls(**data)

    def to_json(self) -> dict[str, object]:
        """The stored form."""
        stored = {**_Record.to_json(self), "plan": self.plan.to_json()}
        if self.delivered_epoch:
            return stored
        del stored["delivered_epoch"]
        return {**stored, "v": 2}


@dataclass(frozen=True, slots=True)
class StateTableRecord(_Record):
    """A state table: its layout and the two epochs of its version; its runs are records of their own."""

    COLLECTION: ClassVar[Collection] = "state_table"
    VERSION: ClassVar[int] = 2

    id: int
    job_id: int
    operator: str
    schema_ipc_b64: str
    """The Arrow fields of key, value and diffs, in this order: an IPC schema message in base64."""
    key_names: tuple[str, ...]
    value_names: tuple[str, ...]
    diff_names: tuple[tuple[str, Combine], ...]
    committed_epoch: int = 0
    safe_epoch: int = 0
    expires: str | None = None
    """The column with the event times by which rows expire."""
    watermark: int | None = None
    """Event time, Unix microseconds, below which rows have expired; it only ever rises."""

    @property
    def key(self) -> int:
        """The id."""
        return self.id

    @classmethod
    def from_table_schema(cls, id: int, job_id: int, operator: str, schema: TableSchema) -> StateTableRecord:
        """A record for a new, empty table with this layout."""
        arrow = pa.schema([*schema.key, *schema.value, *(f for f, _ in schema.diffs)])
        return cls(
            id=id,
            job_id=job_id,
            operator=operator,
            schema_ipc_b64=base64.b64encode(arrow.serialize().to_pybytes()).decode("ascii"),
            key_names=tuple(f.name for f in schema.key),
            value_names=tuple(f.name for f in schema.value),
            diff_names=tuple((f.name, combine) for f, combine in schema.diffs),
            expires=schema.expires,
        )

    def to_table_schema(self) -> TableSchema:
        """The table's layout."""
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema_ipc_b64)))
        all_fields = [arrow.field(i) for i in range(len(arrow))]
        values_at, diffs_at = len(self.key_names), len(self.key_names) + len(self.value_names)
        return TableSchema(
            key=tuple(all_fields[:values_at]),
            value=tuple(all_fields[values_at:diffs_at]),
            diffs=tuple((f, combine) for f, (_, combine) in zip(all_fields[diffs_at:], self.diff_names, strict=True)),
            expires=self.expires,
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StateTableRecord:
        """The inverse of `to_json`."""
        data = _tuples(data, "key_names", "value_names")
        data["diff_names"] = tuple((name, combine) for name, combine in data["diff_names"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class RunRecord(_Record):
    """A sorted run that belongs to the current version of a state table.

    One that is not all of its object and whose bytes are held is of schema version 4: programs that know of none
    would take these for the whole object.
    """

    COLLECTION: ClassVar[Collection] = "run"
    VERSION: ClassVar[int] = 4

    ref: RunRef
    level: int
    created_ms: int
    content_b64: str | None = None
    """The run's bytes in base64, of a small one that was not forced to the disk by itself: until it is."""

    @property
    def id(self) -> str:
        """`path:offset`, unique over all tables."""
        return run_id(self.ref)

    @property
    def key(self) -> str:
        """The id."""
        return run_id(self.ref)

    def to_json(self) -> dict[str, object]:
        """The stored form."""
        stored = {**_Record.to_json(self), "ref": self.ref.to_json(), "v": 3}
        if self.content_b64 is None:
            del stored["content_b64"]
        elif self.ref.offset:
            stored["v"] = 4
        return stored

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRecord:
        """The inverse of `to_json`."""
        return cls(**{**data, "ref": RunRef.from_json(data["ref"])})


@dataclass(frozen=True, slots=True)
class RemapRecord(_Record):
    """The binding of an epoch to a source's offsets: fixed for ever once written.

    Whoever puts a binding or looks one up has it whole. What is stored may be the change from an earlier one.
    """

    COLLECTION: ClassVar[Collection] = "remap"
    VERSION: ClassVar[int] = 2

    source_id: int
    epoch: int
    offsets: dict[str, object]
    """Split name -> offset, as JSON values: of all splits, or of those that have moved since `base`."""
    watermark_us: int | None = None
    """Event time, Unix microseconds, below which no further row is expected."""
    base: int | None = None
    """The epoch of the binding of which this is the change; None: it is whole."""
    gone: tuple[str, ...] = ()
    """The splits of `base` that there are no more."""
    chained: int = 0
    """How many splits the changes name from the last whole binding up to this one; 0 for a whole one."""

    @property
    def key(self) -> tuple[int, int]:
        """Source and epoch."""
        return (self.source_id, self.epoch)

    def to_json(self) -> dict[str, object]:
        """The stored form; a whole binding says nothing of a base."""
        stored = _Record.to_json(self)
        return {k: v for k, v in stored.items() if self.base is not None or k not in ("base", "gone", "chained")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RemapRecord:
        """The inverse of `to_json`."""
        return cls(**{**data, "gone": tuple(data.get("gone", ()))})


@dataclass(frozen=True, slots=True)
class SourceRecord(_Record):
    """What is known of a source beside its bindings; there is none as long as all of them are kept."""

    COLLECTION: ClassVar[Collection] = "source"

    id: int
    safe_epoch: int = 0
    """The oldest epoch at which it may be read: bindings that only older ones need are gone. Never goes back."""

    @property
    def key(self) -> int:
        """The source's id."""
        return self.id


@dataclass(frozen=True, slots=True)
class PositionRecord(_Record):
    """How far a job is with one input in an epoch that it takes in step by step; there is none between two epochs."""

    COLLECTION: ClassVar[Collection] = "position"
    VERSION: ClassVar[int] = 2

    job_id: int
    upstream_id: int
    epoch: int
    """The epoch that is being taken in: the job's next checkpoint, above its committed epoch."""
    sequence: int = 0
    """Steps that have taken rows of a table or view; read tasks that have been taken of a source's range."""
    next_key: int = 0
    """The smallest `__k` of a table or view that has not been taken."""
    parts: int = 0
    """The number of read tasks that was asked for when a source's range was cut; 0 for a table."""
    done: bool = False
    """All of the input's change has been taken."""
    from_epoch: int = 0
    """All of a source up to its offsets at this epoch has been taken; 0 if that is not said."""
    to_epoch: int = 0
    """The epoch at whose offsets the source's range ends that is begun; 0 if none is."""
    digest: str = ""
    """Of the read tasks of that range that have been taken: where they are cut by another rule it is another one."""

    @property
    def key(self) -> tuple[int, int]:
        """Job and upstream."""
        return (self.job_id, self.upstream_id)


@dataclass(frozen=True, slots=True)
class SettingRecord(_Record):
    """A system parameter that SQL has set; as `state_url`, where the state is; as `state_owner`, its newest mark."""

    COLLECTION: ClassVar[Collection] = "setting"

    name: str
    value: str

    @property
    def key(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True, slots=True)
class EventRecord(_Record):
    """An event of the database: one line of its audit and recovery history."""

    COLLECTION: ClassVar[Collection] = "event"

    sequence: int
    at_ms: int
    kind: str
    object_id: int | None
    message: str
    detail: str = ""

    @property
    def key(self) -> int:
        """The sequence number."""
        return self.sequence


@dataclass(frozen=True, slots=True)
class LeavingRecord(_Record):
    """A source that has been dropped and has not let go yet of what it holds where it reads."""

    COLLECTION: ClassVar[Collection] = "leaving"
    VERSION: ClassVar[int] = 8

    source: ObjectRecord
    """As it was."""
    secrets: tuple[ObjectRecord, ...] = ()
    """Those of its options: they may be gone, too."""
    offsets: dict[str, object] = field(default_factory=dict)
    """What it was bound to last; nothing if it never was."""
    dropped_ms: int = 0

    @property
    def key(self) -> int:
        """The source's id."""
        return self.source.id

    def to_json(self) -> dict[str, object]:
        """The stored form."""
        secrets = [s.to_json() for s in self.secrets]
        return {
            "v": self.VERSION, "source": self.source.to_json(), "secrets": secrets, "offsets": self.offsets,
            "dropped_ms": self.dropped_ms,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LeavingRecord:
        """The inverse of `to_json`."""
        source, *secrets = (
            ObjectRecord.from_json({k: v for k, v in o.items() if k != "v"}) for o in (data["source"], *data["secrets"])
        )
        return cls(source, tuple(secrets), data.get("offsets", {}), data.get("dropped_ms", 0))


Record: TypeAlias = (
    ObjectRecord
    | JobRecord
    | StateTableRecord
    | RunRecord
    | RemapRecord
    | PositionRecord
    | SettingRecord
    | EventRecord
    | SourceRecord
    | LeavingRecord
)
"""Any record of the catalog."""

RECORD_TYPES: Final[dict[str, type[Record]]] = {
    "object": ObjectRecord,
    "job": JobRecord,
    "state_table": StateTableRecord,
    "run": RunRecord,
    "remap": RemapRecord,
    "position": PositionRecord,
    "setting": SettingRecord,
    "event": EventRecord,
    "source": SourceRecord,
    "leaving": LeavingRecord,
}
"""Collection -> record type, in an order in which each refers only to earlier ones."""


def run_id(ref: RunRef) -> str:
    """The key of a run: `path:offset`."""
    return f"{ref.path}:{ref.offset}"


def key_text(key: Key) -> str:
    """A key as it is stored."""
    return f"{key[0]}:{key[1]}" if isinstance(key, tuple) else str(key)


def parse_key(collection: str, text: str) -> Key:
    """The key that `key_text` has made this text of."""
    if collection in ("remap", "position"):
        first, _, second = text.partition(":")
        return (int(first), int(second))
    return text if collection in ("run", "setting") else int(text)


def encode(record: Record) -> str:
    """The stored text of a record."""
    return json.dumps(record.to_json(), separators=(",", ":"))


def decode(collection: str, key: str, text: str) -> Record:
    """The record of a stored text.

    Raises `OperationalError` for a newer schema version, `CorruptObject` for what is no record; both name the key.
    """
    kind = RECORD_TYPES.get(collection)
    if kind is None:
        raise CorruptObject(f'the catalog holds an unknown collection "{collection}"')
    try:
        data = json.loads(text)
        version = data.pop("v")
        if version <= kind.VERSION:
            return kind.from_json(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptObject(f"catalog record {collection}/{key} cannot be read: {error!r}") from error
    raise OperationalError(
        f"catalog record {collection}/{key} has version {version}, this program knows up to {kind.VERSION}",
        hint="start a newer headrace",
    )


def _tuples(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**data, **{name: tuple(data[name]) for name in names}}
