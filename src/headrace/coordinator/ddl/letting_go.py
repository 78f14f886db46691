"""What sources hold where they read, as a slot of PostgreSQL's log: let go of when they are dropped.

A drop is one transaction, and outside nothing is done before it is durable. So it notes what is to be let go of, which
is forgotten once that is done or was tried: a server that ends in between leaves the note to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import SourceContent
from headrace.catalog.edits import Delete
from headrace.catalog.records import LeavingRecord, ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.faults import fault_point
from headrace.common.loggers import get_logger
from headrace.connectors.sources import holds, open_source
from headrace.errors import Fenced, HeadraceError


def leaving(state: CatalogState, ids: Sequence[int]) -> list[LeavingRecord]:
    """What a drop of objects has to note, in the order in which it is let go of."""
    gone = [state.objects[i] for i in ids]
    found = [o for o in gone if o.content.external and holds(o.options) and not is_held(state, o, gone)]
    return [LeavingRecord(o, tuple(state.objects[i] for i in sorted({*o.secrets.values()}))) for o in found]


def is_held(state: CatalogState, record: ObjectRecord, gone: Sequence[ObjectRecord] = ()) -> bool:
    """Whether a source holds nothing there by itself.

    Of a table of a shared source another one follows the same table there, or the source is among those that go, with
    all that it holds. Any other may have been made again with its slot, before somebody came to let go of that.
    """
    origin, ids = _origin(record), {record.id, *(o.id for o in gone)}
    if origin is None:
        others = (o for o in state.objects_of(SourceContent) if o.id not in ids and holds(o.options))
        return "slot.name" in record.options and any(_origin(o) is None and _slot(o) == _slot(record) for o in others)
    alike = (o for o in state.objects_of(SourceContent) if _origin(o) == origin and o.id not in ids)
    names = ("schema.name", "table.name")
    return origin in ids or any(all(o.options.get(n) == record.options.get(n) for n in names) for o in alike)


def _origin(record: ObjectRecord) -> int | None:
    return record.content.origin if isinstance(record.content, SourceContent) else None


def _slot(record: ObjectRecord) -> tuple[str | None, ...]:
    options = record.options
    return options.get("hostname", "localhost"), options.get("port", "5432"), options.get("slot.name")


def let_go(
    catalog: Catalog, ids: Sequence[int], values: Callable[[Sequence[ObjectRecord]], Mapping[int, str]]
) -> list[str]:  # fmt: skip
    """Let go of what sources held, by their ids, and forget them; what to tell of what is there still."""
    state = catalog.state
    left = [state.leaving[i] for i in ids if i in state.leaving]
    if not left:
        return []
    fault_point("source.dropped.after")
    told = [text for record in left for text in released(state, record, values)]
    try:
        catalog.transact([Delete("leaving", record.key) for record in left])
    except Fenced:
        raise
    except HeadraceError as error:  # what was said to be done is: the next start finds nothing to let go of
        get_logger("headrace").warning(f"what sources had held is let go of again at the next start: {error}")
    return told


def released(
    state: CatalogState, left: LeavingRecord, values: Callable[[Sequence[ObjectRecord]], Mapping[int, str]]
) -> list[str]:  # fmt: skip
    """The same of one of them, which is not forgotten by that. `values` tells those of secrets, by id."""
    record = left.source
    if is_held(state, record):
        return []
    try:
        known = values(left.secrets)
        given = {option: known[i] for option, i in record.secrets.items()}
        open_source(record.options, record.columns, (lambda: given) if given else None).discard()
    except HeadraceError as error:
        return [f'what source "{record.name}" holds where it reads is still there: {error.message}']
    return []
