"""What `Database.sql` returns: a statement's rows in memory, which show themselves at a prompt and in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.session.result import ResultColumn
from headrace.sql.render import plain_table

if TYPE_CHECKING:
    import pandas as pd

_SHOWN_ROWS = 20


class QueryResult:
    """A statement's rows, held in memory."""

    def __init__(self, tag: str, columns: list[ResultColumn] | None, table: pa.Table, notices: list[str]):
        self.tag = tag
        self.columns = columns or []
        self.notices = notices
        self._table = plain_table(table, [c.type for c in self.columns])

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        return list(zip(*(c.to_pylist() for c in self._table.columns)))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self._table.to_pandas()

    def _texts(self) -> list[list[str]]:
        head = self._table.slice(0, _SHOWN_ROWS)
        return [["" if v is None else str(v) for v in row] for row in zip(*(c.to_pylist() for c in head.columns))]

    def _foot(self) -> str:
        more = len(self) - _SHOWN_ROWS
        count = f"({len(self)} row{'' if len(self) == 1 else 's'})"
        return f"... {more} more\n{count}" if more > 0 else count

    def __repr__(self) -> str:
        if not self.columns:
            return self.tag
        names = [c.name for c in self.columns]
        rows = self._texts()
        widths = [max(len(n), *(len(r[i]) for r in rows), 0) for i, n in enumerate(names)]
        lines = [" | ".join(n.center(w) for n, w in zip(names, widths)), "-+-".join("-" * w for w in widths)]
        lines += [" | ".join(text.ljust(w) for text, w in zip(row, widths)) for row in rows]
        return "\n".join(line.rstrip() for line in [*lines, self._foot()])

    def _repr_html_(self) -> str:
        if not self.columns:
            return f"<p>{html.escape(self.tag)}</p>"
        head = "".join(f"<th>{html.escape(c.name)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(t)}</td>" for t in row) + "</tr>" for row in self._texts())
        foot = html.escape(self._foot())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{foot}</p>"
