"""The exception hierarchy of headrace.

Every error that can reach a user is a `HeadraceError` and carries the five-character SQLSTATE that a
PostgreSQL client sees, a message that says what and where, and a hint that says what to do.

    HeadraceError                      XX000  internal error
      StatementError                   42000  the statement is at fault
        SyntaxFault                    42601
        UndefinedColumn                42703
        UndefinedFunction              42883
        UndefinedTable                 42P01
        UndefinedObject                42704
        DuplicateObject                42710
          DuplicateTable               42P07
        WrongObjectType                42809
        DatatypeMismatch               42804
        InvalidParameter               22023
        DependentObjectsExist          2BP01
        InsufficientPrivilege          42501
        NotSupported                   0A000
      DataError                        22000  a value is at fault
        DivisionByZero                 22012
        NumericOutOfRange              22003
        InvalidText                    22P02
        InvalidDatetime                22007
        BadCopyData                    22P04
        NotNullViolation               23502
        UniqueViolation                23505
      TransactionError                 25000
        SnapshotUnavailable            40001
        SerializationFailure           40001
        ReadOnlyTransaction            25006
      EpochError                       HR000  a snapshot or log range that can't be served
        EpochTooOld                    HR001
        EpochTooNew                    HR002
      OperationalError                 58000  the surroundings are at fault
        StorageError                   58030
          CorruptObject                XX001
            ObjectMissing              XX001
        DiskFull                       53100
        OutOfBudget                    53200
        TooManyRows                    54000
        SourceError                    HR010
        SinkError                      HR011
        JobFailed                      HR020
          FunctionFailed               38000
          LogLost                      HR021
          TasksChanged                 HR020
          NotPlannable                 HR020
          NotVectorized                HR020
        SparkLost                      58000
        QueryCanceled                  57014
        ShuttingDown                   57P01
          Fenced                       57P01
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class HeadraceError(Exception):
    """Base of every error that headrace raises on purpose."""

    sqlstate: ClassVar[str] = "XX000"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        position: int | None = None,
        sqlstate: str | None = None,
    ):
        super().__init__(message)
        if sqlstate is not None:
            self.sqlstate = sqlstate  # type: ignore[misc]  # an instance may be more precise than its class
        self.message = message
        self.hint = hint
        self.detail = detail
        self.position = position
        """1-based character offset in the statement, where there is one."""
        self.context: str | None = None
        """What was being done: of COPY, the line and the column."""
        self.about: Mapping[str, str] = {}
        """What it is about: `schema`, `table`, `column`, `datatype` and `constraint`, as far as they are known."""
        self.noted = False
        """Whether the audit log has it."""


class StatementError(HeadraceError):
    """The statement itself is at fault."""

    sqlstate = "42000"


class SyntaxFault(StatementError):
    """The text is not a statement of the dialect."""

    sqlstate = "42601"


class UndefinedColumn(StatementError):
    """A column that no relation in scope has."""

    sqlstate = "42703"


class UndefinedFunction(StatementError):
    """A function, or an overload of one, that does not exist."""

    sqlstate = "42883"


class UndefinedTable(StatementError):
    """A relation that does not exist."""

    sqlstate = "42P01"


class UndefinedObject(StatementError):
    """A setting, role or other object that does not exist."""

    sqlstate = "42704"


class DuplicateObject(StatementError):
    """The name is taken."""

    sqlstate = "42710"


class DuplicateTable(DuplicateObject):
    """The relation name is taken."""

    sqlstate = "42P07"


class WrongObjectType(StatementError):
    """The object exists, but is of another kind than the statement needs."""

    sqlstate = "42809"


class DatatypeMismatch(StatementError):
    """Types that do not fit together."""

    sqlstate = "42804"


class InvalidParameter(StatementError):
    """An option or parameter with an impossible value."""

    sqlstate = "22023"


class DependentObjectsExist(StatementError):
    """Other objects are built on the one to be dropped."""

    sqlstate = "2BP01"


class InsufficientPrivilege(StatementError):
    """The role has no right to do that."""

    sqlstate = "42501"


class NotSupported(StatementError):
    """Understood, and refused: the message names the construct and the way around it."""

    sqlstate = "0A000"


class DataError(HeadraceError):
    """A value is at fault."""

    sqlstate = "22000"


class DivisionByZero(DataError):
    """Division by zero on a row."""

    sqlstate = "22012"


class NumericOutOfRange(DataError):
    """A number that its type cannot hold."""

    sqlstate = "22003"


class BadCopyData(DataError):
    """What a client sends in COPY has not the form that the statement says."""

    sqlstate = "22P04"


class InvalidText(DataError):
    """Text that does not spell a value of the type asked for."""

    sqlstate = "22P02"


class InvalidDatetime(DataError):
    """Text that does not spell a date or time."""

    sqlstate = "22007"


class NotNullViolation(DataError):
    """NULL in a column that may not hold it."""

    sqlstate = "23502"


class UniqueViolation(DataError):
    """Two rows with one primary key in one statement."""

    sqlstate = "23505"


class TransactionError(HeadraceError):
    """The transaction cannot do this."""

    sqlstate = "25000"


class SnapshotUnavailable(TransactionError):
    """No snapshot satisfies the consistency asked for."""

    sqlstate = "40001"


class SerializationFailure(TransactionError):
    """Another transaction has changed what this one has read: it can be run again."""

    sqlstate = "40001"
    relation: int | None = None
    """The id of the table whose rows were changed, where one is known."""


class ReadOnlyTransaction(TransactionError):
    """A write in a read-only transaction."""

    sqlstate = "25006"


class EpochError(HeadraceError):
    """A snapshot or log range that cannot be served."""

    sqlstate = "HR000"


class EpochTooOld(EpochError):
    """The epoch lies below the table's safe epoch: its history is merged away."""

    sqlstate = "HR001"


class EpochTooNew(EpochError):
    """The epoch lies above the table's committed epoch."""

    sqlstate = "HR002"


class OperationalError(HeadraceError):
    """The surroundings are at fault, not the statement."""

    sqlstate = "58000"


class StorageError(OperationalError):
    """The state's storage failed."""

    sqlstate = "58030"


class CorruptObject(StorageError):
    """A stored object is missing, truncated or fails its checksum; the message names it."""

    sqlstate = "XX001"


class ObjectMissing(CorruptObject):
    """A stored object that is named is not there. To a standby it may be gone: others replace and delete objects."""


class DiskFull(OperationalError):
    """No space left where the state lives."""

    sqlstate = "53100"


class OutOfBudget(OperationalError):
    """The memory budget is exhausted."""

    sqlstate = "53200"


class TooManyRows(OperationalError):
    """A query returns more rows than `max_result_rows` allows."""

    sqlstate = "54000"


class SourceError(OperationalError):
    """A source cannot be read, or a row of it cannot be understood."""

    sqlstate = "HR010"


class SinkError(OperationalError):
    """A sink's target cannot be reached, or does not take what it is given."""

    sqlstate = "HR011"


class JobFailed(OperationalError):
    """A job's epoch failed; the message names the job and the cause, which may have values of rows in it."""

    sqlstate = "HR020"
    job_id: int = 0
    """The job, where others than who made it may be told."""
    job_name: str = ""


class FunctionFailed(JobFailed):
    """A user's Python function has raised; the detail is its traceback."""

    sqlstate = "38000"


class NotVectorized(JobFailed):
    """A worker met values that only Spark's own expressions are sure of; the step runs again with these."""


class LogLost(JobFailed):
    """The changes that a job has not read yet are gone: it cannot go on, and must be built anew."""

    sqlstate = "HR021"


class TasksChanged(JobFailed):
    """A source's range is not cut as it was when steps of a job read some of it: these steps are given up."""


class NotPlannable(JobFailed):
    """A view cannot be planned as it was when its state was made: it stands still, and another start tries again."""


class SparkLost(OperationalError):
    """The Spark application that this ran on has ended; where headrace started it, it starts another one."""


class QueryCanceled(OperationalError):
    """The statement was cancelled or ran into its time limit."""

    sqlstate = "57014"


class ShuttingDown(OperationalError):
    """The server is going away."""

    sqlstate = "57P01"


FENCED_EXIT_CODE = 3
"""How a server's process ends that has lost its database to another one."""


class Fenced(ShuttingDown):
    """Another process opened this database; this one must stop."""
