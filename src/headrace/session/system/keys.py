"""Primary keys and indexes as PostgreSQL's catalogs show them: a primary key has an index of its own there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.catalog.contents import IndexContent
from headrace.catalog.records import ObjectRecord
from headrace.common.identifiers import shown_name
from headrace.common.lazy_dataclass import dataclass
from headrace.session.system.system_relations import Rows

CONSTRAINTS: Final = 1_000_000
"""How far the oid of a primary key lies above that of its table."""
_KEY_INDEXES: Final = 2_000_000
"""The same of the index that PostgreSQL would have for it."""


@dataclass(frozen=True)
class Index:
    """An index as PostgreSQL's catalogs show it; a primary key shows one, too."""

    oid: int
    name: str
    on: ObjectRecord
    columns: tuple[str, ...]
    included: tuple[str, ...] = ()
    primary: bool = False

    @property
    def schema(self) -> str:
        """The schema that it is in."""
        return self.on.schema

    @property
    def constraint_oid(self) -> int:
        """The oid of the primary key that it belongs to."""
        return self.on.id + CONSTRAINTS

    @property
    def numbers(self) -> list[int]:
        """The numbers of its columns in the table."""
        places = {c.name: i for i, c in enumerate(self.on.columns, 1)}
        return [places[n] for n in (*self.columns, *self.included)]

    @property
    def text(self) -> str:
        """The statement that would make it, as `pg_get_indexdef` writes it."""
        unique = "UNIQUE " if self.primary else ""
        target = f"{shown_name(self.schema)}.{shown_name(self.on.name)}"
        columns = ", ".join(map(shown_name, self.columns))
        rest = f" INCLUDE ({', '.join(map(shown_name, self.included))})" if self.included else ""
        return f"CREATE {unique}INDEX {shown_name(self.name)} ON {target} USING btree ({columns}){rest}"


def indexes(records: Iterable[ObjectRecord]) -> Iterator[Index]:
    """All indexes of some relations."""
    known = {o.id: o for o in records}
    for record in known.values():
        if record.primary_key:
            yield Index(
                record.id + _KEY_INDEXES, f"{record.name}_pkey", record, tuple(record.primary_key), primary=True
            )
        elif isinstance(record.content, IndexContent) and record.content.on in known:
            key, on = record.content.key, known[record.content.on]
            included = tuple(c.name for c in record.columns if c.name not in key)
            every = {c.name for c in on.columns} == {*key, *included}
            yield Index(record.id, record.name, on, key, () if every else included)


def index_rows(found: Iterable[Index]) -> Rows:
    """Rows of `pg_index`."""
    for index in found:
        width = len(index.numbers)
        yield {
            "indexrelid": index.oid, "indrelid": index.on.id, "indnatts": width, "indnkeyatts": len(index.columns),
            "indisunique": index.primary, "indisprimary": index.primary, "indkey": index.numbers,
            "indoption": [0] * len(index.columns), "indclass": [0] * len(index.columns),
            "indcollation": [0] * len(index.columns),
        }  # fmt: skip


def constraint_rows(found: Iterable[Index]) -> Rows:
    """Rows of `pg_constraint`: primary keys."""
    for index in found:
        if index.primary:
            yield {"oid": index.constraint_oid, "conname": index.name, "contype": "p", "conrelid": index.on.id,
                   "conindid": index.oid, "conkey": index.numbers}  # fmt: skip
