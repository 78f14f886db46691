"""One frozen record for each kind of statement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from headrace.common.zones import Zone
    from headrace.connectors.webhook.validation import Validation
    from headrace.sql.conflicts import Conflict
    from headrace.sql.copying import CopyFormat
    from headrace.sql.dml import Assignment, InsertedRows, Returning
    from headrace.sql.query import Expression, Query


DATABASE = "dev"
"""The name of the only database that there is."""
LOOKUP_SUFFIX = "_now"
"""What the planning name of a relation that is read `FOR SYSTEM_TIME AS OF PROCTIME()` ends with."""


@dataclass(frozen=True, order=True)
class TableName:
    """A relation's name as a statement gives it; `schema` is None when the search path decides."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class ColumnDef:
    """A column in `CREATE`; `type` is Spark's type string, `default` and `generated` are SQL text."""

    name: str
    type: str
    not_null: bool = False
    default: str | None = None
    generated: str | None = None


@dataclass(frozen=True)
class Watermark:
    """`WATERMARK FOR column AS expression`; `delay_ms` is set for the form `column - INTERVAL '...'`."""

    column: str
    expression: str
    delay_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Any statement: its source text, and the 1-based character position of that text in the script.

    Each class says whether it `writes`: changes what others can see, which a read-only transaction must not. Some are
    `preparable`: PREPARE takes them, and a plan of one serves others of the same form. Some have a `secret`: their text
    is kept nowhere, and whoever reads one gives it a text without that.
    """

    text: str = field(default="", compare=False)
    position: int = field(default=1, compare=False)
    parsed: str = field(default="", compare=False)
    """What was parsed: the text, with values in the place of parameters."""
    writes: ClassVar[bool]
    preparable: ClassVar[bool]
    secret: ClassVar[bool]
    counts: ClassVar[bool]
    """Whether a number of rows may follow its tag. Where rows go to the client, whoever sends them appends it."""
    words: ClassVar[str]
    """What the kind of statement is called, for instance `CREATE TABLE`."""
    told: ClassVar[str]
    """The tag, unless that depends on the statement: its words, if the class says nothing else."""

    def __init_subclass__(
        cls, *, writes: bool, preparable: bool = False, secret: bool = False, tag: str | None = None,
        counts: bool = False,
    ) -> None:  # fmt: skip
        cls.writes, cls.preparable, cls.secret, cls.counts = writes, preparable, secret, counts
        cls.words = " ".join(re.findall("[A-Z][a-z]+", cls.__name__)).upper()
        cls.told = cls.words if tag is None else tag

    @property
    def tag(self) -> str:
        """What a client is told when it is done."""
        return self.told

    def counted(self, rows: int) -> str:
        """The same of a statement that `counts`, with how many rows it was about."""
        return f"{self.tag} {rows}"


@dataclass(frozen=True)
class Empty(Statement, writes=False, tag=""):
    """Nothing between two semicolons."""


@dataclass(frozen=True)
class CreateTable(Statement, writes=True, counts=True):
    """`CREATE TABLE`; `on_conflict` is `overwrite`, `ignore`, `do update if not null` or None."""

    name: TableName
    columns: tuple[ColumnDef, ...]
    primary_key: tuple[str, ...] = ()
    append_only: bool = False
    on_conflict: str | None = None
    version_column: str | None = None
    if_not_exists: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    query: Query | None = None
    temporary: bool = False
    secrets: Mapping[str, TableName] = field(default_factory=dict)
    """As in `CreateSource`, of a table with a connector."""
    connection: TableName | None = None
    validation: Validation | None = None
    """How requests prove that they come from who may send, `VALIDATE SECRET ... AS ...`; the secret is in `secrets`."""
    origin: TableName | None = None
    """The shared source that it is read from, `FROM origin TABLE 'upstream'`; without columns it has those of there."""
    upstream: str = ""

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "SELECT" if self.query is not None else self.told


@dataclass(frozen=True)
class CreateSource(Statement, writes=True):
    """`CREATE SOURCE`; without columns the connector infers them."""

    name: TableName
    columns: tuple[ColumnDef, ...]
    options: Mapping[str, str]
    watermark: Watermark | None = None
    primary_key: tuple[str, ...] = ()
    if_not_exists: bool = False
    secrets: Mapping[str, TableName] = field(default_factory=dict)
    """Options of which the value is a secret, and its name; none of them is among `options`."""
    connection: TableName | None = None
    """The connection that has the options that are not given here."""


@dataclass(frozen=True)
class CreateSink(Statement, writes=True):
    """`CREATE SINK name [INTO table [(columns)]] FROM relation | AS query WITH (...)`."""

    name: TableName
    source: TableName | None
    query: Query | None
    options: Mapping[str, str]
    if_not_exists: bool = False
    emit_on_window_close: bool = False
    secrets: Mapping[str, TableName] = field(default_factory=dict)
    """As in `CreateSource`."""
    connection: TableName | None = None
    into: TableName | None = None
    """The table that gets the changes."""
    columns: tuple[str, ...] = ()
    """The table's columns that the query's go into; without any, the first ones."""


@dataclass(frozen=True)
class CreateConnection(Statement, writes=True):
    """`CREATE CONNECTION name WITH (type = '...', ...)`."""

    name: TableName
    options: Mapping[str, str]
    secrets: Mapping[str, TableName] = field(default_factory=dict)
    """As in `CreateSource`."""
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateMaterializedView(Statement, writes=True):
    """`CREATE MATERIALIZED VIEW`; `columns` rename the query's."""

    name: TableName
    query: Query
    columns: tuple[str, ...] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False
    emit_on_window_close: bool = False


@dataclass(frozen=True)
class CreateView(Statement, writes=True):
    """`CREATE VIEW`."""

    name: TableName
    query: Query
    columns: tuple[str, ...] | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    temporary: bool = False


@dataclass(frozen=True)
class CreateIndex(Statement, writes=True):
    """`CREATE INDEX name ON table (columns) [INCLUDE (...)] [DISTRIBUTED BY (...)]`."""

    name: TableName
    table: TableName
    columns: tuple[str, ...]
    include: tuple[str, ...] = ()
    distributed_by: tuple[str, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateSubscription(Statement, writes=True):
    """`CREATE SUBSCRIPTION name FROM relation WITH (retention = '1d')`."""

    name: TableName
    source: TableName
    options: Mapping[str, str]
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateFunction(Statement, writes=True):
    """`CREATE FUNCTION | AGGREGATE name (arguments) RETURNS ... LANGUAGE ... AS body`.

    `arguments` are (name or None, Spark type); `table` are the columns of `RETURNS TABLE`, else `returns` is set.
    """

    name: TableName
    arguments: tuple[tuple[str | None, str], ...]
    returns: str | None
    table: tuple[tuple[str, str], ...] | None
    language: str
    body: str
    aggregate: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    volatility: str = "immutable"
    strict: bool = False
    if_not_exists: bool = False
    or_replace: bool = False

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "CREATE AGGREGATE" if self.aggregate else self.told


@dataclass(frozen=True)
class CreateSchema(Statement, writes=True):
    """`CREATE SCHEMA`."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateSecret(Statement, writes=True, secret=True):
    """`CREATE SECRET name WITH (backend = 'meta') AS 'value'`; its `text` has not the value."""

    name: TableName
    value: str = field(repr=False)
    if_not_exists: bool = False


@dataclass(frozen=True)
class AlterSecret(Statement, writes=True, secret=True):
    """`ALTER SECRET name AS 'value'`; its `text` has not the value."""

    name: TableName
    value: str = field(repr=False)
    if_exists: bool = False


@dataclass(frozen=True)
class CreateRole(Statement, writes=True, secret=True):
    """`CREATE ROLE name`; `options` are fields of a role, the password as it was given. Its `text` has not that."""

    name: str
    options: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class AlterRole(Statement, writes=True, secret=True):
    """`ALTER ROLE name`, with options as `CreateRole` has them, or a new name. Its `text` has not the password."""

    name: str
    options: Mapping[str, object] = field(repr=False)
    target: str | None = None


@dataclass(frozen=True)
class DropRole(Statement, writes=True):
    """`DROP ROLE names`."""

    names: tuple[str, ...]
    if_exists: bool = False


@dataclass(frozen=True)
class GrantRole(Statement, writes=True):
    """`GRANT roles TO members`, or `REVOKE roles FROM members`; `admin` is `WITH ADMIN OPTION`, or that alone."""

    roles: tuple[str, ...]
    members: tuple[str, ...]
    revoked: bool = False
    admin: bool = False

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "REVOKE ROLE" if self.revoked else self.told


@dataclass(frozen=True)
class Grant(Statement, writes=True):
    """`GRANT` or `REVOKE` privileges (none: all) on objects of a class, by their names or all that are in schemas.

    The class is `relation`, `schema`, `function`, `secret` or `connection`; `only` restricts all of a schema to a kind
    of relations.
    """

    privileges: tuple[str, ...]
    kind: str
    names: tuple[TableName, ...]
    schemas: tuple[str, ...]
    only: str | None
    grantees: tuple[str, ...]
    revoked: bool = False

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "REVOKE" if self.revoked else self.told


@dataclass(frozen=True)
class Comment(Statement, writes=True):
    """`COMMENT ON kind name IS 'text'`, or `COMMENT ON COLUMN relation.column IS 'text'`; without a text, none."""

    kind: str
    """The kind of object in words, such as `materialized view`; empty for a column."""
    name: TableName
    column: str | None = None
    comment: str | None = None


@dataclass(frozen=True)
class AlterDefaultPrivileges(Statement, writes=True):
    """`ALTER DEFAULT PRIVILEGES [FOR ROLE roles] [IN SCHEMA schemas] GRANT | REVOKE`; without roles, one's own."""

    roles: tuple[str, ...]
    schemas: tuple[str, ...]
    privileges: tuple[str, ...]
    kind: str
    grantees: tuple[str, ...]
    revoked: bool = False


@dataclass(frozen=True)
class ReassignOwned(Statement, writes=True):
    """`REASSIGN OWNED BY roles TO target`."""

    roles: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class DropOwned(Statement, writes=True):
    """`DROP OWNED BY roles`: what they own, and what has been granted to them."""

    roles: tuple[str, ...]
    cascade: bool = False


@dataclass(frozen=True)
class SetRole(Statement, writes=False, tag="SET"):
    """`SET [LOCAL] ROLE name`, or `SET SESSION AUTHORIZATION name`; None is `NONE` and `DEFAULT`, also by `RESET`."""

    name: str | None
    session: bool = False
    local: bool = False


@dataclass(frozen=True)
class Drop(Statement, writes=True):
    """`DROP kind names`; `kind` is for instance `materialized view`. A schema's name stands in `TableName.name`."""

    kind: str
    names: tuple[TableName, ...]
    if_exists: bool = False
    cascade: bool = False

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return f"DROP {self.kind.upper()}"


@dataclass(frozen=True)
class AlterJob(Statement, writes=True):
    """`ALTER kind name` with an action: `pause`, `resume`, `set`, `refresh schema`, `rename`, `set schema` or `owner`.

    `options` belong to `set`; `target` is the new name, schema or owner.
    """

    kind: str
    name: TableName
    action: str
    options: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    if_exists: bool = False

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return f"ALTER {self.kind.upper()}"


@dataclass(frozen=True)
class AlterColumns(Statement, writes=True):
    """`ALTER TABLE | SOURCE name ADD COLUMN ... | DROP COLUMN ...`."""

    kind: str
    name: TableName
    add: tuple[ColumnDef, ...] = ()
    drop: tuple[str, ...] = ()
    if_exists: bool = False
    unless_there: tuple[bool, ...] = ()
    """Of each of `add` whether it is to be left alone where there is one of that name."""

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return f"ALTER {self.kind.upper()}"


@dataclass(frozen=True)
class AddPrimaryKey(Statement, writes=True, tag="ALTER TABLE"):
    """`ALTER TABLE name ADD [CONSTRAINT any] PRIMARY KEY (columns)`."""

    name: TableName
    columns: tuple[str, ...]
    if_exists: bool = False


# ---- what writes rows to a table: a `verb` for errors, and a letter for each privilege on the table that it takes.
# What is changed or removed is read, too: by a condition, or to be counted.


@dataclass(frozen=True)
class Insert(Statement, writes=True, preparable=True, tag="INSERT 0", counts=True):
    """`INSERT`; exactly one of `query` and `rows` is set, or neither for `DEFAULT VALUES`.

    Without a column list `columns` is empty.
    """

    verb: ClassVar[str] = "insert into"
    table: TableName
    columns: tuple[str, ...]
    query: Query | None = None
    rows: InsertedRows | None = None
    returning: Returning | None = None
    conflict: Conflict | None = None

    @property
    def privileges(self) -> str:
        """A letter for each privilege on the table: an update of what is there takes more."""
        return "awr" if self.conflict is not None and self.conflict.updates else "a"

    def literal_rows(self, column_types: Sequence[str], zone: Zone) -> list[list[object]] | None:
        """The rows as Python values that fit Arrow arrays of the Spark types given, or None if one is no literal.

        `DEFAULT` appears as `headrace.sql.dml.DEFAULT`. Raises a `DataError` for a value its column cannot hold.
        """
        return self.rows.literals(column_types, zone) if self.rows is not None else None


@dataclass(frozen=True)
class Update(Statement, writes=True, preparable=True, counts=True):
    """`UPDATE`; `sources` is the SQL text of its `FROM`."""

    verb: ClassVar[str] = "update"
    privileges: ClassVar[str] = "wr"
    table: TableName
    alias: str | None
    assignments: tuple[Assignment, ...]
    where: Expression | None
    returning: Returning | None = None
    sources: str | None = None


@dataclass(frozen=True)
class Delete(Statement, writes=True, preparable=True, counts=True):
    """`DELETE`; `sources` is the SQL text of its `USING`."""

    verb: ClassVar[str] = "delete from"
    privileges: ClassVar[str] = "dr"
    table: TableName
    alias: str | None
    where: Expression | None
    returning: Returning | None = None
    sources: str | None = None


@dataclass(frozen=True)
class TruncateTables(Statement, writes=True, tag="TRUNCATE TABLE"):
    """`TRUNCATE tables`: takes all rows back."""

    verb: ClassVar[str] = "truncate"
    privileges: ClassVar[str] = Delete.privileges
    tables: tuple[TableName, ...]


@dataclass(frozen=True)
class CopyFrom(Statement, writes=True, tag="COPY", counts=True):
    """`COPY table [(columns)] FROM STDIN`."""

    verb: ClassVar[str] = "copy to"
    privileges: ClassVar[str] = "a"
    returning: ClassVar[None] = None
    table: TableName
    columns: tuple[str, ...]
    format: CopyFormat


@dataclass(frozen=True)
class CopyFromFiles(Statement, writes=True, tag="COPY", counts=True):
    """`COPY table [(columns)] FROM 'path' (...)`."""

    verb: ClassVar[str] = "copy to"
    privileges: ClassVar[str] = "a"
    returning: ClassVar[None] = None
    table: TableName
    columns: tuple[str, ...]
    place: str
    options: Mapping[str, str]
    secrets: Mapping[str, TableName]
    """Option -> the secret that it has the value of."""


# ---- what reads


@dataclass(frozen=True)
class CopyTo(Statement, writes=False, tag="COPY", counts=True):
    """`COPY table [(columns)] TO STDOUT` or `COPY (query) TO STDOUT`."""

    table: TableName | None
    columns: tuple[str, ...]
    query: Query | None
    format: CopyFormat


@dataclass(frozen=True)
class CopyToFiles(Statement, writes=False, tag="COPY", counts=True):
    """`COPY table [(columns)] TO 'folder' (...)` or `COPY (query) TO 'folder' (...)`."""

    table: TableName | None
    columns: tuple[str, ...]
    query: Query | None
    place: str
    options: Mapping[str, str]
    secrets: Mapping[str, TableName]


@dataclass(frozen=True)
class Select(Statement, writes=False, preparable=True, counts=True):
    """Any query."""

    query: Query


@dataclass(frozen=True)
class Explain(Statement, writes=False):
    """`EXPLAIN`; option names in lower case, a bare option is `true`."""

    statement: Statement
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Show(Statement, writes=False):
    """`SHOW`: `what` is `tables`, `columns`, `create`, `all`, ... or `setting`.

    `name` is the relation, `setting` the setting's name, `kind` the object kind of `create`, `schema` that of
    `FROM schema`, `pattern` the `LIKE` pattern.
    """

    what: str
    name: TableName | None = None
    setting: str | None = None
    kind: str | None = None
    schema: str | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Describe(Statement, writes=False):
    """`DESCRIBE name`; `kind` is set for `DESCRIBE FUNCTION`."""

    name: TableName
    kind: str | None = None


@dataclass(frozen=True)
class Flush(Statement, writes=False):
    """`FLUSH`."""


@dataclass(frozen=True)
class Wait(Statement, writes=False):
    """`WAIT`."""


@dataclass(frozen=True)
class Promote(Statement, writes=False, tag="SELECT", counts=True):
    """`SELECT pg_promote(wait, wait_seconds)`: let a standby take over."""

    wait: bool = True
    wait_s: int = 60


@dataclass(frozen=True)
class Recover(Statement, writes=False):
    """`RECOVER`."""


@dataclass(frozen=True)
class SetVariable(Statement, writes=False, tag="SET"):
    """`SET [LOCAL] name = value`; None stands for `DEFAULT`."""

    name: str
    value: str | None
    local: bool = False


@dataclass(frozen=True)
class AlterSystem(Statement, writes=True):
    """`ALTER SYSTEM SET name = value | RESET name | RESET ALL`; a value of None resets, a name of None all of them."""

    name: str | None
    value: str | None = None


@dataclass(frozen=True)
class ResetVariable(Statement, writes=False, tag="RESET"):
    """`RESET name`; None for `RESET ALL`."""

    name: str | None


@dataclass(frozen=True)
class Begin(Statement, writes=False):
    """`BEGIN` or `START TRANSACTION`; modes are None where not given."""

    isolation: str | None = None
    read_only: bool | None = None


@dataclass(frozen=True)
class SetTransaction(Statement, writes=False, tag="SET"):
    """`SET [SESSION CHARACTERISTICS AS] TRANSACTION`."""

    isolation: str | None = None
    read_only: bool | None = None
    session: bool = False


@dataclass(frozen=True)
class Commit(Statement, writes=False):
    """`COMMIT` or `END`."""


@dataclass(frozen=True)
class Rollback(Statement, writes=False):
    """`ROLLBACK` or `ABORT`."""


@dataclass(frozen=True)
class Savepoint(Statement, writes=False):
    """`SAVEPOINT name`, `RELEASE [SAVEPOINT] name` or `ROLLBACK TO [SAVEPOINT] name`."""

    action: str
    """set, release or rollback."""
    name: str

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return {"set": "SAVEPOINT", "release": "RELEASE", "rollback": "ROLLBACK"}[self.action]


@dataclass(frozen=True)
class Maintain(Statement, writes=False):
    """`VACUUM`, `ANALYZE`, `REINDEX` or `CLUSTER`, of some relations or of all."""

    verb: str
    """The statement's first word."""
    names: tuple[TableName, ...]

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return self.verb


@dataclass(frozen=True)
class CancelJobs(Statement, writes=True):
    """`CANCEL JOBS 1, 2`."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Kill(Statement, writes=False):
    """`KILL 7`: cancels what a session runs."""

    session: int


@dataclass(frozen=True)
class Discard(Statement, writes=False):
    """`DISCARD ALL | PLANS | SEQUENCES | TEMP`."""

    what: str

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return f"DISCARD {self.what.upper()}"


@dataclass(frozen=True)
class Prepare(Statement, writes=False):
    """`PREPARE name [(types)] AS statement`; `types` are Spark's, None where the statement tells them."""

    name: str
    types: tuple[str | None, ...]
    statement: Statement


@dataclass(frozen=True)
class Execute(Statement, writes=False):
    """`EXECUTE name [(values)]`; the values are text, or None for NULL."""

    name: str
    values: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Deallocate(Statement, writes=False):
    """`DEALLOCATE [PREPARE] name`; None for `ALL`."""

    name: str | None

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "DEALLOCATE ALL" if self.name is None else self.told


@dataclass(frozen=True)
class DeclareCursor(Statement, writes=False):
    """`DECLARE name [BINARY] [SCROLL] CURSOR [WITH HOLD] FOR query`."""

    name: str
    query: Query
    scroll: bool = False
    hold: bool = False
    binary: bool = False


@dataclass(frozen=True)
class Since:
    """Where to begin with the changes of a relation: at the oldest that are kept (`begin`), with those that are still
    to come (`now`), with all rows and then those (`full`), at a time (`at_ms`) or after a `position`.
    """

    what: Literal["begin", "now", "full", "at_ms", "position"] = "now"
    at_ms: int = 0
    """Unix time in milliseconds: changes from then on."""
    position: str = ""
    """As headrace has shown it, or an epoch."""


@dataclass(frozen=True)
class DeclareSubscriptionCursor(Statement, writes=False, tag="DECLARE CURSOR"):
    """`DECLARE name SUBSCRIPTION CURSOR FOR subscription [SINCE ... | FULL]`."""

    name: str
    subscription: TableName
    since: Since = field(default_factory=Since)


@dataclass(frozen=True)
class CopySubscribe(Statement, writes=False, tag="COPY", counts=True):
    """`COPY (SUBSCRIBE relation [SINCE ... | FULL] [UP TO now()] [WITH (progress)]) TO STDOUT`."""

    target: TableName
    since: Since
    ends: bool
    """Whether it ends once it has given what there was when it began."""
    progress: bool
    format: CopyFormat


@dataclass(frozen=True)
class FetchCursor(Statement, writes=False, tag="FETCH", counts=True):
    """`FETCH` and `MOVE`; `count` is None for `ALL`."""

    name: str
    direction: Literal["forward", "backward", "absolute", "relative"]
    count: int | None
    moves: bool = False
    timeout_s: float | None = None
    """`WITH (timeout = '...')`: how long to wait for a first row, of a cursor over a subscription."""

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "MOVE" if self.moves else self.told


@dataclass(frozen=True)
class CloseCursor(Statement, writes=False):
    """`CLOSE name`; None for `ALL`."""

    name: str | None

    @property
    def tag(self) -> str:
        """See `Statement`."""
        return "CLOSE CURSOR ALL" if self.name is None else self.told


@dataclass(frozen=True)
class Unlisten(Statement, writes=False):
    """`UNLISTEN channel | *`; nothing is ever listened to."""
