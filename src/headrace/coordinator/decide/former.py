"""Tables that got columns: another one has the name of the first, which goes on, hidden, for what was built on it.

A table that follows one outside gets columns by another table being filled beside it, with the rows as they are there.
Both are bound to one place in the same log at every epoch (`Ticker`), or read one source, which has got columns
(`widths.py`): so the first one is at each epoch what the other one is without the new columns. Then, in one
transaction, the other one gets the name (`succession`), and the first one is a *former* table: what is built on it goes
on reading it, and sees no difference. It goes with the last that reads it. Pure functions of the catalog's content.

Plain views are no readers: their queries are put in the place of their names, and read whatever has the name of the
table, in the width that it had when they were made (`Content.width_before`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from headrace.catalog.contents import Earlier, IndexContent, MaterializedViewContent, SourceContent, ViewContent
from headrace.catalog.edits import AddEvent, Edit, Put
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.coordinator.decide import automatic


def is_former(record: ObjectRecord) -> bool:
    """Whether it is there only for what was built on it before a table got columns."""
    return isinstance(record.content, MaterializedViewContent) and record.content.former_of is not None


def table_of(state: CatalogState, record: ObjectRecord) -> ObjectRecord:
    """The table that people know a former one as; anything else itself."""
    content = record.content
    if isinstance(content, MaterializedViewContent) and content.former_of is not None:
        return state.objects.get(content.former_of, record)
    return record


def formers(state: CatalogState) -> Mapping[int, list[ObjectRecord]]:
    """The former tables of each table that has some, by id."""
    found: dict[int, list[ObjectRecord]] = {}
    for record in state.objects_of(MaterializedViewContent):
        table = record.content_as(MaterializedViewContent).former_of
        if table is not None:
            found.setdefault(table, []).append(record)
    return found


def formers_of(state: CatalogState, table_id: int) -> list[ObjectRecord]:
    """The former tables of a table, by id."""
    return formers(state).get(table_id, [])


def earlier_ids(record: ObjectRecord) -> tuple[int, ...]:
    """The ids of what had a relation's name before it got columns."""
    content = record.content
    return tuple(e.relation for e in content.earlier) if isinstance(content, MaterializedViewContent) else ()


def serves_formers(state: CatalogState, record: ObjectRecord) -> bool:
    """Whether it is the hidden source of former tables, and of nothing else."""
    readers = [state.objects[i] for i in state.dependents(record.id)]
    return isinstance(record.content, SourceContent) and bool(readers) and all(map(is_former, readers))


def unread(state: CatalogState, gone: Collection[int]) -> Iterator[int]:
    """Former tables that nothing reads but what goes, with their sources: a crash came between the change of names and
    their drop.
    """
    for former in state.objects_of(MaterializedViewContent):
        if is_former(former) and set(state.dependents(former.id)) <= set(gone):
            yield former.id
            yield from (i for i in former.depends_on if serves_formers(state, state.objects[i]))


def succession(state: CatalogState, new_id: int, old_id: int, indexes: Mapping[int, int], until: int) -> list[Edit]:
    """What gives one table the place of another: names, rights, comments; new indexes those of the old ones.

    `until` is an id above those of all objects. `indexes` are the new ones, each with the old one that it is for.
    """
    old, new = state.objects[old_id], state.objects[new_id]
    known = old.content_as(MaterializedViewContent)
    content = new.content_as(MaterializedViewContent)
    earlier = (*known.earlier, Earlier(old_id, until, len(old.columns)))
    name = f"{old.name}${old_id}"
    made = [
        replace(old, name=name, content=replace(known, pipeline=None, former_of=new_id, called=_planned(old))),
        named_as(old, replace(new, content=replace(content, earlier=earlier, pipeline=known.pipeline, called=None))),
        *_sources(state, old, new, name),
        *(_of_table(former, new_id) for former in formers_of(state, old_id)),
        *views_over(state, old_id, new_id),
    ]
    for index, before in indexes.items():
        was = state.objects[before]
        made += [_automatic(state, was), named_as(was, state.objects[index])]
    event = AddEvent("table_altered", new_id, f'table "{old.name}" has new columns')
    return [*map(Put, made), event]


def _planned(record: ObjectRecord) -> str:
    """The name by which plans know it."""
    return record.content.called or record.name


def _of_table(former: ObjectRecord, table_id: int) -> ObjectRecord:
    return replace(former, content=replace(former.content_as(MaterializedViewContent), former_of=table_id))


def named_as(old: ObjectRecord, new: ObjectRecord) -> ObjectRecord:
    """With the name of what was there before, and what belongs to that."""
    return replace(new, schema=old.schema, name=old.name, owner=old.owner, grants=old.grants, comments=old.comments)


def _sources(state: CatalogState, old: ObjectRecord, new: ObjectRecord, former: str) -> Iterator[ObjectRecord]:
    """The hidden sources of both tables, each by the name that its table has from now on."""
    was, comes = source_of(state, old), source_of(state, new)
    if was is None or comes is None:
        return  # both read one source, which goes by the name of the table
    content = replace(was.content_as(SourceContent), part=former, called=_planned(was))
    yield replace(was, name=f"{former}$changes", content=content)
    content = replace(comes.content_as(SourceContent), part=old.name, called=None)
    yield replace(named_as(was, comes), content=content)


def views_over(state: CatalogState, old_id: int, new_id: int) -> Iterator[ObjectRecord]:
    """The plain views over the old table: they are put in place of their names, over the new one from now on."""
    for view in (state.objects[i] for i in state.dependents(old_id)):
        if isinstance(view.content, ViewContent):
            yield replace(view, depends_on=tuple(new_id if i == old_id else i for i in view.depends_on))


def _automatic(state: CatalogState, index: ObjectRecord) -> ObjectRecord:
    """An index of a former table: it is there for the joins that look rows up in it, and goes with the last."""
    content = replace(index.content_as(IndexContent), automatic=True, called=_planned(index))
    return replace(index, schema=automatic.SCHEMA, name=f"{automatic.FORMER}{index.name} ({index.id})", content=content)


def indexes_of(state: CatalogState, table_id: int) -> list[ObjectRecord]:
    """The indexes that somebody has created on a table."""
    found = state.objects_of(IndexContent)
    return [o for o in found if o.content_as(IndexContent).on == table_id and not automatic.is_automatic(o)]


def source_of(state: CatalogState, record: ObjectRecord) -> ObjectRecord | None:
    """The hidden source of which a table with a connector is the view; None of anything else."""
    below = (state.objects.get(i) for i in record.depends_on)
    sources = (o for o in below if o is not None and isinstance(o.content, SourceContent))
    return next((o for o in sources if o.content_as(SourceContent).part == record.name), None)
