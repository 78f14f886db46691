"""What only one kind of object has: a frozen record for each kind, and what can be done with objects of that kind.

The class of an object's content is its kind. Whoever wants to know what an object can do asks for a capability
(`record.content.readable`); whoever needs what one kind alone has asks for that kind, by `isinstance`, or where nothing
else can be by `record.content_as(IndexContent)`. Nobody compares kinds by their names, and nobody reads the stored
form: `encoding.py` keeps that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Final, Literal, NamedTuple

from headrace.catalog.encoding import Stored, always, rare
from headrace.common.lazy_dataclass import dataclass

ObjectKind = Literal[
    "schema", "table", "source", "materialized_view", "view", "sink", "index", "function", "secret", "role",
    "subscription", "connection",
]  # fmt: skip
"""The kinds of objects that SQL can create, as they are stored and shown."""
GrantClass = Literal["relation", "schema", "function", "secret", "connection"]
"""The classes of objects by which rights are granted."""
Vectorized = Literal["", "pandas", "arrow"]
"""What code is called with: a row, or a batch of rows in one of two forms."""
FunctionForm = Literal["scalar", "table", "aggregate"]
"""What a function gives: a value of each row, rows, or a value of a group."""


@dataclass(frozen=True, slots=True)
class DeclaredWatermark(Stored):
    """`WATERMARK FOR column AS expression`, which is the column less a delay."""

    column: str
    delay_ms: int
    expression: str = ""


@dataclass(frozen=True, slots=True)
class MadeBy(Stored):
    """The definition of a pipeline that has made an object."""

    digest: str
    comment: str = ""


class Earlier(NamedTuple):
    """What had the name of a table before it had more columns."""

    relation: int
    """Its id; it may be gone."""
    until: int
    """An id: objects with smaller ones were made before."""
    width: int
    """How many columns it had."""


class DefaultGrant(NamedTuple):
    """What one `ALTER DEFAULT PRIVILEGES` says: rights on objects that are made later."""

    schema: str
    """Where; "" for everywhere."""
    kind: str
    """On what: `relation`, `function` or `schema`."""
    grantee: int
    """To whom: the id of a role, 0 for everybody."""
    letters: str
    """What, a letter for each privilege."""


def _members(data: Mapping[str, bool]) -> dict[int, bool]:
    return {int(role): admin for role, admin in data.items()}


def _earlier(data: list[list[int]]) -> tuple[Earlier, ...]:
    return tuple(Earlier(*one) for one in data)


def _default_grants(data: list[list[Any]]) -> tuple[DefaultGrant, ...]:
    return tuple(DefaultGrant(*grant) for grant in data)


# ---- what all kinds have


@dataclass(frozen=True, slots=True, kw_only=True)
class Content(Stored):
    """Base of the contents, with the capabilities of their kinds: none, unless a kind says otherwise."""

    kind: ClassVar[ObjectKind]
    relation: ClassVar[bool] = False
    """It shares the name space of relations, and system catalogs list it as one."""
    readable: ClassVar[bool] = False
    """A query can read it by its name."""
    keeps_rows: ClassVar[bool] = False
    """The database keeps its rows: they can be indexed, followed, copied, and read without Spark."""
    writable: ClassVar[bool] = False
    """Statements change its rows."""
    external: ClassVar[bool] = False
    """Its rows are outside: epochs are bound to offsets there, and it has no log."""
    in_graph: ClassVar[bool] = False
    """The coordinator knows it: as an input of jobs, or as what a job makes."""
    has_job: ClassVar[bool] = False
    """A job keeps it up to date."""
    stands_alone: ClassVar[bool] = False
    """Its record is all that creating it takes: no plan, no value to seal, no history to begin."""
    granted_as: ClassVar[GrantClass | None] = None
    """The class by which rights on it are granted; None for what only its owner has to do with."""

    pipeline: MadeBy | None = field(default=None, metadata=rare(late=2, read=MadeBy.from_json))
    """The definition of a pipeline that has made it."""
    called: str | None = field(default=None, metadata=rare(late=7))
    """The name by which plans know it, where that is not its name: they tell plans apart by it."""

    def width_before(self, object_id: int) -> int | None:
        """How many columns it had when an object was made; None for as many as it has."""
        return None

    @property
    def version(self) -> int:
        """The first schema version of an object's record that knows such a content."""
        return 1


@dataclass(frozen=True, slots=True)
class SchemaContent(Content):
    """A schema has nothing but its name."""

    kind = "schema"
    stands_alone = True
    granted_as = "schema"


# ---- relations


@dataclass(frozen=True, slots=True)
class TableContent(Content):
    """How a table takes rows."""

    kind = "table"
    relation = readable = keeps_rows = writable = in_graph = stands_alone = True
    granted_as = "relation"

    watermark: DeclaredWatermark | None = field(default=None, metadata=rare(read=DeclaredWatermark.from_json))
    append_only: bool = False
    on_conflict: str = "overwrite"
    """What an insert does whose key is there: `overwrite` or `ignore`."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Column -> the expression of its default."""
    time_zone: str | None = field(default=None, metadata=rare(late=4))
    """The zone of the session that has defined it, in which its defaults are computed; None for UTC."""
    widths: tuple[tuple[int, int], ...] = field(default=(), metadata=rare(late=5))
    """As those of a source."""

    def width_before(self, object_id: int) -> int | None:
        """See `Content`."""
        return next((width for before, width in self.widths if object_id < before), None)

    @property
    def version(self) -> int:
        """Older programs would compute the defaults in UTC, and have plain views show columns that came later."""
        return 8 if self.widths else 6 if self.time_zone is not None else 1


@dataclass(frozen=True, slots=True)
class SourceContent(Content):
    """What is known of a source beside its connector's options."""

    kind = "source"
    relation = readable = external = in_graph = stands_alone = True
    granted_as = "relation"
    append_only: ClassVar[bool] = True

    part: str | None = field(default=None, metadata=rare())
    """The name of the table with a connector that it is a hidden part of."""
    watermark: DeclaredWatermark | None = field(default=None, metadata=rare(read=DeclaredWatermark.from_json))
    shared: bool = field(default=False, metadata=rare(late=1))
    """It has no rows of its own: tables are read from it, each by a hidden source."""
    origin: int | None = field(default=None, metadata=rare(late=1))
    """The id of the shared source that it is one of the tables of: they are bound together."""
    paused: bool = field(default=False, metadata=rare(late=2))
    """It is not bound to anything new."""
    widths: tuple[tuple[int, int], ...] = field(default=(), metadata=rare(late=3))
    """An id and a number each time that it got columns: objects with smaller ids were made when it had so many."""

    def width_before(self, object_id: int) -> int | None:
        """See `Content`."""
        return next((width for before, width in self.widths if object_id < before), None)

    @property
    def version(self) -> int:
        """Older programs would bind tables of one source each by itself, and one that is paused; and plan otherwise
        what was made before a source got columns.
        """
        return 8 if self.paused or self.widths else 7 if self.shared or self.origin is not None else 1


@dataclass(frozen=True, slots=True)
class ViewContent(Content):
    """A query that is put in the place of a name."""

    kind = "view"
    relation = readable = stands_alone = True
    granted_as = "relation"

    query: str
    search_path: tuple[str, ...] = ("public",)
    """Where the names in the query are looked for."""
    typed: bool = False
    """The query means what the binder says; views from before there was one keep the meaning that they had."""


@dataclass(frozen=True, slots=True)
class PlannedContent(Content):
    """What a job keeps up to date: its query, as Spark SQL or, of a DataFrame, as a plan; and what followed of it."""

    in_graph = has_job = relation = True

    spark_sql: str | None = field(default=None, metadata=rare())
    plan: str | None = field(default=None, metadata=rare())
    """Catalyst's analyzed plan as Java writes it, in base64."""
    leaves: tuple[int, ...] | None = field(default=None, metadata=rare())
    """The relations that the leaves of `plan` stand for, in its order; 0 for one that stands for none."""
    last_id: int | None = field(default=None, metadata=rare())
    """The highest expression id in `plan`."""
    emit_on_window_close: bool = field(default=False, metadata=rare(late=1))
    """What it puts out waits until the watermark has passed it."""
    append_only: bool = field(default=False, metadata=always(late=1))
    """It never takes a row back, as its plan says."""
    watermark_column: str | None = field(default=None, metadata=rare(late=3))
    """The column that has the watermark of EMIT ON WINDOW CLOSE."""


@dataclass(frozen=True, slots=True)
class MaterializedViewContent(PlannedContent):
    """A query whose rows are kept."""

    kind = "materialized_view"
    readable = keeps_rows = True
    granted_as = "relation"

    part: str | None = field(default=None, metadata=rare())
    """The name of the view that it is a hidden part of."""
    time_zone: str | None = field(default=None, metadata=rare(late=4))
    """In which its query is meant, whoever reads; None for UTC."""
    earlier: tuple[Earlier, ...] = field(default=(), metadata=rare(late=6, read=_earlier))
    """Of a table that got columns: what had its name before, oldest first."""
    former_of: int | None = field(default=None, metadata=rare(late=6))
    """The id of the table that has its name since that has more columns: it goes on, hidden, for what reads it."""

    def width_before(self, object_id: int) -> int | None:
        """See `Content`."""
        return next((known.width for known in self.earlier if object_id < known.until), None)

    @property
    def version(self) -> int:
        """Older programs would show its definition as one in UTC, and what had the name of a table as another one."""
        if self.earlier or self.former_of is not None:
            return 8
        return 6 if self.time_zone is not None else 1


@dataclass(frozen=True, slots=True)
class SinkContent(PlannedContent):
    """A query whose changes go to a connector, or into a table."""

    kind = "sink"

    into: int | None = field(default=None, metadata=rare())
    """The id of the table that gets the changes; None for a connector."""
    time_zone: str | None = field(default=None, metadata=rare(late=4))
    """In which its query is meant; None for UTC."""
    dead_letters: int | None = field(default=None, metadata=rare(late=5))
    """The id of the table for rows that the connector's target refuses."""

    @property
    def version(self) -> int:
        """Older programs would take a sink into a table for one of a connector, and fail by what is refused."""
        if self.dead_letters is not None:
            return 8
        return 6 if self.into is not None or self.time_zone is not None else 1


@dataclass(frozen=True, slots=True)
class IndexContent(PlannedContent):
    """Rows of a relation, kept by some of its columns."""

    kind = "index"

    on: int = field(kw_only=True)
    """The id of the relation."""
    key: tuple[str, ...] = field(kw_only=True)
    automatic: bool = field(default=False, metadata=rare())
    """The system has made it, and drops it."""


# ---- everything else


@dataclass(frozen=True, slots=True)
class FunctionContent(Content):
    """A function in Python: its code as text or as a pickle, and how SQL calls it. Types are Spark's."""

    kind = "function"
    stands_alone = True
    granted_as = "function"

    language: str
    source: str | None
    pickle: str | None = field(repr=False)
    """A Python object, in base64."""
    form: FunctionForm
    names: tuple[str, ...] | None
    """The names of the arguments, if all have one."""
    arguments: tuple[str, ...] | None
    """Their types; None for any number of any type."""
    returns: str | None
    """The type of its value; None for a table function."""
    columns: tuple[tuple[str, str], ...]
    """The columns of the rows of a table function, with their types."""
    vectorized: Vectorized
    """What a call gets at once: one row, or many of them as `pandas` or `arrow`."""
    strict: bool
    """A call with a null among its arguments is null."""
    deterministic: bool


@dataclass(frozen=True, slots=True)
class SecretContent(Content):
    """A ciphertext; `sealing.py` has its meaning. All of it is missing until the secret has its id."""

    kind = "secret"
    granted_as = "secret"

    cipher: str | None = field(default=None, metadata=rare())
    key_id: str | None = field(default=None, metadata=rare())
    sealed: str | None = field(default=None, metadata=rare())

    @property
    def version(self) -> int:
        """Older programs have no secrets."""
        return 2


_WITH_RIGHTS: Final = ("superuser", "create_role", "create_db", "inherit", "member_of", "defaults")


@dataclass(frozen=True, slots=True)
class RoleContent(Content):
    """The attributes of a role. Those that came with rights are stored all together, or not if none says anything."""

    kind = "role"
    stands_alone = True

    can_login: bool = True
    password: str | None = field(default=None, repr=False)
    """What checks a password, as PostgreSQL writes it (SCRAM-SHA-256$...); None: it has none."""
    connection_limit: int = -1
    """Most connections at once; -1: no limit of its own."""
    valid_until_ms: int | None = None
    """When the password ends, milliseconds since 1970 in UTC; None: never."""
    superuser: bool = field(default=True, metadata=rare())
    """Whether it may do everything, as a role from before there were rights may."""
    create_role: bool = field(default=False, metadata=rare())
    create_db: bool = field(default=False, metadata=rare())
    """Whether it may make schemas: there is only one database."""
    inherit: bool = field(default=True, metadata=rare())
    """Whether it has the rights of the roles that it is a member of without `SET ROLE`."""
    member_of: Mapping[int, bool] = field(default_factory=dict, metadata=rare(read=_members))
    """Id of each role that it is a member of -> whether it may let others in."""
    defaults: tuple[DefaultGrant, ...] = field(default=(), metadata=rare(read=_default_grants))
    """What is granted on what it makes."""

    def _said(self) -> list[str]:
        said = Content._said(self)
        if not any(name in _WITH_RIGHTS for name in said):
            return said
        return [*(name for name in said if name not in _WITH_RIGHTS), *_WITH_RIGHTS]

    @property
    def version(self) -> int:
        """Older programs have no roles, or roles that may all do everything."""
        return 4 if "superuser" in self.to_json() else 3


@dataclass(frozen=True, slots=True)
class SubscriptionContent(Content):
    """A promise to keep the changes of a relation."""

    kind = "subscription"

    retention_ms: int
    """For how long changes stay readable."""
    since: int = 0
    """The epoch after which its history begins."""

    @property
    def version(self) -> int:
        """Older programs have no subscriptions."""
        return 5


@dataclass(frozen=True, slots=True)
class ConnectionContent(Content):
    """What a connection connects to; its options are those of the object."""

    kind = "connection"
    stands_alone = True
    granted_as = "connection"

    type: str

    @property
    def version(self) -> int:
        """Older programs have no connections."""
        return 6


CONTENTS: Final[Mapping[str, type[Content]]] = {
    c.kind: c
    for c in (
        SchemaContent, TableContent, SourceContent, ViewContent, MaterializedViewContent, SinkContent, IndexContent,
        FunctionContent, SecretContent, RoleContent, SubscriptionContent, ConnectionContent,
    )
}  # fmt: skip
"""Kind -> the class of the content of such objects."""
