"""What sources hold where they read, as a slot of PostgreSQL's log: let go of when they are dropped.

A drop is one transaction, and outside nothing is done before it is durable. So it notes what is to be let go of, which
is forgotten once that is done: until then `upkeep/leftovers.py` tries it again and again, after a restart, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import LeavingRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.connectors.sources import holds, open_source


def leaving(state: CatalogState, ids: Sequence[int], now_ms: int) -> list[LeavingRecord]:
    """What a drop of objects has to note, in the order in which it is let go of. Nobody binds them meanwhile."""
    gone = [state.objects[i] for i in ids]
    found = [o for o in gone if o.content.external and holds(o.options) and not is_held(state, o, gone)]
    return [_leaving(state, o, now_ms) for o in found]


def _leaving(state: CatalogState, record: ObjectRecord, now_ms: int) -> LeavingRecord:
    secrets = tuple(state.objects[i] for i in sorted({*record.secrets.values()}))
    newest = state.newest_remap(record.id)
    return LeavingRecord(record, secrets, {} if newest is None else newest.offsets, now_ms)


def is_held(state: CatalogState, record: ObjectRecord, gone: Sequence[ObjectRecord] = ()) -> bool:
    """Whether a source holds nothing there by itself.

    Of a table of a shared source another one follows the same table there, or the source is among those that go, with
    all that it holds. Any other may have been made again with its slot, before somebody came to let go of that.
    """
    origin, ids = _origin(record), {record.id, *(o.id for o in gone)}
    if origin is None:
        others = (o for o in state.objects_of(SourceContent) if o.id not in ids and holds(o.options))
        return "slot.name" in record.options and any(
            _origin(o) is None and slot_of(o.options) == slot_of(record.options) for o in others
        )
    alike = (o for o in state.objects_of(SourceContent) if _origin(o) == origin and o.id not in ids)
    names = ("schema.name", "table.name")
    return origin in ids or any(all(o.options.get(n) == record.options.get(n) for n in names) for o in alike)


def _origin(record: ObjectRecord) -> int | None:
    return record.content.origin if isinstance(record.content, SourceContent) else None


def slot_of(options: Mapping[str, str]) -> tuple[str | None, ...]:
    """What tells the slot that a source holds from others; `None` at the end where it has none."""
    return options.get("hostname", "localhost"), options.get("port", "5432"), options.get("slot.name")


def released(
    state: CatalogState, left: LeavingRecord, values: Callable[[Sequence[ObjectRecord]], Mapping[int, str]],
    *, later: bool,
) -> str | None:  # fmt: skip
    """Let go of what a source held; what to tell of what is left alone. `values` tells those of secrets, by id.

    `later` than its drop others may have made the same there again. Raises what the connector does, or `values`.
    """
    record = left.source
    if is_held(state, record):
        return None
    known = values(left.secrets)
    given = {option: known[i] for option, i in record.secrets.items()}
    source = open_source(record.options, record.columns, (lambda: given) if given else None)
    return source.discard(left.offsets if later else None)
