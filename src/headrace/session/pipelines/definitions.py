"""Definitions of a pipeline's relations, as decorated functions collect them. Nothing is run or created here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import DuplicateObject, InvalidParameter, StatementError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Kind = Literal["source", "table", "view", "materialized view", "function"]
F = TypeVar("F", bound=Callable[..., object])
Read = Callable[[str], "DataFrame"]
"""Gives the DataFrame that a definition gets for another relation's name."""


@dataclass(frozen=True)
class Definition:
    """One relation or function of a pipeline; `arguments` are what only its kind has."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    comment: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it is defined."""
        code = getattr(self.function, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "(unknown)"


class Pipeline:
    """Collects definitions. A function may read any relation by `table(name)`, in whatever order they are defined."""

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}
        self._reading: list[Read] = []

    @contextmanager
    def reading(self, read: Read) -> Iterator[None]:
        """While the block runs, `table(name)` gives what `read` gives."""
        self._reading.append(read)
        try:
            yield
        finally:
            self._reading.pop()

    @property
    def is_reading(self) -> bool:
        """Whether the function of a definition runs."""
        return bool(self._reading)

    def read(self, name: str) -> DataFrame:
        """A relation as it stands in definitions, to build DataFrames from."""
        if not self._reading:
            raise StatementError(
                f'"{name}" can be read only inside the function of a view',
                hint="the pipeline calls these functions when it is run",
            )
        return self._reading[-1](name)

    # ---- decorators

    @overload
    def materialized_view(self, function: F) -> F: ...
    @overload
    def materialized_view(
        self,
        *,
        name: str | None = None,
        comment: str = "",
        options: Mapping[str, object] | None = None,
        on_window_close: bool = False,
    ) -> Callable[[F], F]: ...
    def materialized_view(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        comment: str = "",
        options: Mapping[str, object] | None = None,
        on_window_close: bool = False,
    ) -> F | Callable[[F], F]:
        """A view that is kept up to date; its function returns a DataFrame, or SQL text.

        With `on_window_close` its rows come out when the watermark has passed them, as `EMIT ON WINDOW CLOSE` says.
        """
        arguments = {"on_window_close": True} if on_window_close else {}
        return self._decorated(function, "materialized view", name, comment, options, arguments)

    @overload
    def view(self, function: F) -> F: ...
    @overload
    def view(self, *, name: str | None = None, comment: str = "") -> Callable[[F], F]: ...
    def view(self, function: F | None = None, *, name: str | None = None, comment: str = "") -> F | Callable[[F], F]:
        """A query with a name. SQL text becomes a view of the database; a DataFrame is known to this pipeline only."""
        return self._decorated(function, "view", name, comment, None, {})

    @overload
    def table(self, function: str) -> DataFrame: ...
    @overload
    def table(self, function: F) -> F: ...
    @overload
    def table(
        self,
        *,
        columns: str,
        name: str | None = None,
        comment: str = "",
        primary_key: Sequence[str] = (),
        append_only: bool = False,
    ) -> Callable[[F], F]: ...
    def table(
        self,
        function: F | str | None = None,
        *,
        columns: str = "",
        name: str | None = None,
        comment: str = "",
        primary_key: Sequence[str] = (),
        append_only: bool = False,
    ) -> F | Callable[[F], F] | DataFrame:
        """A table, with the rows that its function returns as its first content: tuples, dicts, a DataFrame of pandas
        or an Arrow table; or none. Its columns are SQL: "id int PRIMARY KEY, name text".

        Called with a name, the relation of that name, as `read` gives it.
        """
        if isinstance(function, str):
            return self.read(function)
        if not columns:
            raise InvalidParameter(
                "a table needs its columns", hint='@db.table(columns="id int PRIMARY KEY, name text")'
            )
        arguments = {"columns": columns, "primary_key": tuple(primary_key), "append_only": append_only}
        return self._decorated(function, "table", name, comment, None, arguments)

    def source(
        self, function: F | None = None, *, columns: str = "", name: str | None = None, comment: str = ""
    ) -> F | Callable[[F], F]:
        """A source; its function returns its options: {"connector": "files", "path": ...}. Columns may be inferred."""
        return self._decorated(function, "source", name, comment, None, {"columns": columns})

    def function(
        self,
        function: F | None = None,
        *,
        returns: object = None,
        args: Sequence[str] | None = None,
        name: str | None = None,
        comment: str = "",
    ) -> F | Callable[[F], F]:
        """A function for SQL, as `Database.create_function` makes it."""
        return self._decorated(function, "function", name, comment, None, {"returns": returns, "args": args})

    def _decorated(
        self,
        function: F | None,
        kind: Kind,
        name: str | None,
        comment: str,
        options: Mapping[str, object] | None,
        arguments: Mapping[str, object],
    ) -> F | Callable[[F], F]:
        def add(made: F) -> F:
            chosen = name or str(getattr(made, "__name__", ""))
            texts = {key: str(value) for key, value in (options or {}).items()}
            text = comment or str(getattr(made, "__doc__", None) or "").strip().partition("\n")[0]
            self.add(Definition(chosen, kind, made, text, texts, arguments))
            return made

        return add if function is None else add(function)

    def merge(self, other: Pipeline) -> None:
        """Take up the definitions of another pipeline, whose functions then read from this one."""
        for definition in other.definitions.values():
            self.add(definition)
        other._reading = self._reading

    def add(self, definition: Definition) -> None:
        """Take up a definition. Raises `DuplicateObject` for a name that another one has."""
        other = self.definitions.get(definition.name)
        if not definition.name.isidentifier():
            raise InvalidParameter(f"{definition.name!r} is no name for a {definition.kind}", hint="give name=...")
        if other is not None and other.place != definition.place:
            raise DuplicateObject(
                f'"{definition.name}" is defined twice', detail=f"{other.place}\n{definition.place}",
                hint="give one of them another name",
            )  # fmt: skip
        self.definitions[definition.name] = definition  # the same place again: a notebook's cell that was run again
