"""What sources hold where they read, as a slot of PostgreSQL's log: let go of when they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.connectors.sources import Secrets, holds, open_source
from headrace.errors import HeadraceError

Discard: TypeAlias = Callable[[], list[str]]
"""Lets go of it; what to tell of what is there still."""


def discards(
    state: CatalogState, gone: Sequence[ObjectRecord], secrets: Callable[[Mapping[str, int]], Secrets | None]
) -> list[Discard]:  # fmt: skip
    """What is to be done for objects that go together; they may have been dropped by then, with their secrets."""
    return [_discarding(o, secrets) for o in gone if o.content.external and not is_held(state, o, gone)]


def is_held(state: CatalogState, record: ObjectRecord, gone: Sequence[ObjectRecord] = ()) -> bool:
    """Whether a table of a shared source holds nothing there by itself.

    Another one follows the same table there, or the source is among those that go, with all that it holds.
    """
    origin, ids = _origin(record), {record.id, *(o.id for o in gone)}
    if origin is None:
        return False
    alike = (o for o in state.objects_of(SourceContent) if _origin(o) == origin and o.id not in ids)
    names = ("schema.name", "table.name")
    return origin in ids or any(all(o.options.get(n) == record.options.get(n) for n in names) for o in alike)


def _origin(record: ObjectRecord) -> int | None:
    return record.content.origin if isinstance(record.content, SourceContent) else None


def _discarding(record: ObjectRecord, secrets: Callable[[Mapping[str, int]], Secrets | None]) -> Discard:
    if not holds(record.options):
        return lambda: []

    def failed(error: HeadraceError) -> list[str]:
        return [f'what source "{record.name}" holds where it reads is still there: {error.message}']

    try:
        found = secrets(record.secrets)
        values = dict(found()) if found is not None else None
    except HeadraceError as error:
        told = failed(error)
        return lambda: told

    def discard() -> list[str]:
        try:
            open_source(record.options, record.columns, None if values is None else lambda: values).discard()
        except HeadraceError as error:
            return failed(error)
        return []

    return discard
