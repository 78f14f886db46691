"""What there is to know of one kind of statement, declared once, next to what carries it out.

A module that carries out statements has a tuple `HANDLERS`, with one `Handler` for each kind. `session/handlers.py`
finds them by their kind, and `Session` does nothing with a statement but what its handler says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import NotSupported
from headrace.session.context import Context
from headrace.session.result import Pending, Result, ResultColumn
from headrace.sql import statements as st

if TYPE_CHECKING:
    from headrace.coordinator.writes.requests import Request
    from headrace.session.execution.row_writes import RowPlan
    from headrace.session.reading.read_planning import PlannedRead

S = TypeVar("S", bound=st.Statement)
Types: TypeAlias = Sequence[str | None]
"""Spark types of a statement's parameters, None where they are open."""
Columns: TypeAlias = list[ResultColumn] | None
"""The columns of what a statement returns; None for no rows at all."""


class Started(Pending, Protocol):
    """A statement that has been started, with what it waits for."""

    @property
    def request(self) -> Request:
        """What is to be committed for it."""
        ...


class Server(Enum):
    """Which server a statement needs."""

    ANY = "any"
    """Also one that only follows another one."""
    ACTIVE = "active"
    """One that may write."""
    READY = "ready"
    """One that may write, and has taken up all that it has to keep up to date."""


class InScript(Enum):
    """What a statement does where several stand in one text, which are one transaction from the first write on."""

    JOINS = "joins"
    """Takes part in the transaction if there is one."""
    OPENS = "opens"
    """Begins it, unless nothing follows."""
    COMMITS = "commits"
    """Takes effect at once and cannot be taken back, so what came before is committed first."""
    ENDS = "ends"
    """Ends it."""


class Needs(Enum):
    """What right a statement takes. The function that runs it asks for it, once it knows what names stand for."""

    NOTHING = "nothing"
    """None: it concerns the session alone, or shows what everybody may see."""
    STATEMENT = "statement"
    """That of the statement which it is about."""
    READ = "read"
    """SELECT on what it reads, or what it explains does; of a subscription to use its schema."""
    WRITE = "write"
    """The `privileges` that the record declares, on the table that it changes; and to read what it reads."""
    CREATE = "create"
    """CREATE in the schema of what it makes; and to read what it reads, to use what it names."""
    OWNER = "owner"
    """To own what it changes. A session is its user's."""
    ROLES = "roles"
    """An attribute of the own role (CREATEROLE, CREATEDB), or the right to let others in or to become another."""
    FILES = "files"
    """Membership in a role which lets it read or write outside of the database; and to read what it reads."""
    PROGRAM = "program"
    """Membership in the role which lets it run programs in the server; and as `CREATE`."""
    SUPERUSER = "superuser"
    """To be a superuser."""


def never(statement: st.Statement) -> bool:
    """For what holds of no statement of a kind."""
    return False


def always(statement: st.Statement) -> bool:
    """For what holds of every statement of a kind."""
    return True


def nothing(context: Context, statement: st.Statement, types: Types = ()) -> None:
    """For a kind that returns no rows, is not planned once for many runs, or tells nothing of its parameters."""


def anywhere(statement: st.Statement) -> None:
    """For a kind that may stand in a transaction."""


def not_yet(context: Context, statement: st.Statement) -> Result:
    """For a kind that is read, and not carried out. Raises `NotSupported`."""
    raise NotSupported(f"{statement.words} is not supported yet", hint="docs/sql.md lists what is")


@dataclass(frozen=True)
class Handler(Generic[S]):
    """What a kind of statement does, what it may do, and what it gives.

    Whether it writes and what a client is told of it (`tag`) stand in its class, because a statement is asked that
    without a session, too.
    """

    kind: type[S]
    run: Callable[[Context, S], Result]
    """Runs it. Its result has the tag that the statement declares; only a failed COMMIT is told as what it does."""
    describe: Callable[[Context, S, Types], Columns] = nothing
    """The columns of its result, without running it: just those that come when it is run."""
    explain: Callable[[Context, S], list[str]] | None = None
    """The lines of EXPLAIN; None where EXPLAIN does not take it."""
    plan: Callable[[Context, S, Types], PlannedRead | RowPlan | None] = nothing
    """A plan that is run again and again with other values; None where there is none. Raises what is wrong with it."""
    infer: Callable[[Context, S, list[str | None]], None] = nothing
    """Fills in the open ones of its parameters' types, from where the parameters stand."""
    binds: bool = True
    """Whether the parameters in its text are its own."""
    start: Callable[[Context, S], Result | Started] | None = None
    """Runs it without waiting for its commit; None where that is not possible."""
    starts_now: Callable[[Context], bool] = lambda context: True
    """Whether starting it blocks nobody, as things are in the session."""
    needs: Needs = field(kw_only=True)
    asks: Server | None = None
    """The server that it needs; by default a ready one if it writes."""
    script: InScript | None = None
    """What it does in a script; by default it commits what came before if it writes, else it joins."""
    in_failed: Callable[[S], bool] = never
    """Whether it is run in a transaction that has failed."""
    outside: Callable[[S], str | None] = anywhere
    """What it is called if it must not stand in a transaction."""
    audited: bool = False
    """Whether the audit log has it though it defines nothing."""

    @cached_property
    def server(self) -> Server:
        """The server that it needs."""
        return self.asks or (Server.READY if self.kind.writes else Server.ANY)

    @cached_property
    def is_audited(self) -> bool:
        """Whether the audit log has it: what it does concerns others than whoever runs it."""
        return self.audited or (self.kind.writes and self.in_script is InScript.COMMITS)

    @cached_property
    def in_script(self) -> InScript:
        """What it does in a script."""
        return self.script or (InScript.COMMITS if self.kind.writes else InScript.JOINS)
