"""What another name of an object changes in the catalog: itself, what is hidden behind it, and texts that name it.

Jobs, indexes, sinks and subscriptions know what they read by id, rights and comments belong to the object: they go on.
What has names in it is text: the query of a plain view, which is read by it, and definitions, which are shown. They get
the new name, or the change is refused. So is one that would let a plain view read something else. Pure functions of
the catalog's content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import (
    Content,
    IndexContent,
    MaterializedViewContent,
    SchemaContent,
    SinkContent,
    SourceContent,
    ViewContent,
)
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.connectors import refusals
from headrace.coordinator.decide import automatic
from headrace.coordinator.decide.former import formers_of
from headrace.errors import NotSupported
from headrace.plan.tree import Sharable
from headrace.session.hidden_views import is_part, parts_of
from headrace.session.names import label
from headrace.sql import renaming
from headrace.sql.parser import parse_query
from headrace.sql.renaming import Spell, Uncertain
from headrace.sql.statements import TableName

_DEFINED: Final = ("create", "alter")
"""The words that a definition begins with that is a statement."""


def renamed(state: CatalogState, object_id: int, name: str) -> list[ObjectRecord]:
    """What is stored of objects when one of them has another name: first of that one.

    Raises `NotSupported` where a text cannot be made to say it.
    """
    record = state.objects[object_id]
    naming = _Naming(state, record, name)
    found = {record.id: naming.itself()}
    found.update((part.id, part) for part in naming.hidden())
    for reader in naming.readers():
        found[reader.id] = naming.reader(found.get(reader.id, reader))
    for view in state.objects_of(ViewContent):
        found[view.id] = naming.view(found.get(view.id, view))
    return [o for o in found.values() if o != state.objects[o.id]]


@dataclass(frozen=True)
class _Naming:
    """One object that gets another name in its schema."""

    state: CatalogState
    record: ObjectRecord
    name: str

    # ---- itself, and what is hidden behind it

    def itself(self) -> ObjectRecord:
        return self._named(self.record, self.name, self.record.content)

    def hidden(self) -> Iterator[ObjectRecord]:
        """What it is made of alone, and the indexes that the system has made on it: their names have its name."""
        old = self.record.name
        for part in parts_of(self.state, [self.record.id]):
            content = part.content
            if isinstance(content, (MaterializedViewContent, SourceContent)) and content.part == old:
                yield self._named(part, self.name + part.name.removeprefix(old), replace(content, part=self.name))
        for index in (self.state.objects[i] for i in self.state.dependents(self.record.id)):
            content = index.content
            if automatic.is_automatic(index) and isinstance(content, IndexContent) and not automatic.is_lasting(index):
                side = Sharable(self.record.id, content.key)
                shown = automatic.name_of(replace(self.record, name=self.name), self.state.jobs[index.id].group, side)
                yield replace(self._named(index, shown, content), definition=f"-- {shown}")

    def _named(self, record: ObjectRecord, name: str, content: Content) -> ObjectRecord:
        if content.in_graph and not isinstance(content, SinkContent):
            called = content.called or record.name
            content = replace(content, called=None if called == name else called)
        definition = self._text(record, self.name, lambda _: None)
        return replace(record, name=name, content=content, definition=definition)

    # ---- what names it

    def readers(self) -> Iterator[ObjectRecord]:
        """What is built on it, or on what it was before it got columns; of a shared source its tables, too."""
        state = self.state
        below = [self.record.id, *(former.id for former in formers_of(state, self.record.id))]
        for reader in (state.objects[i] for each in below for i in state.dependents(each)):
            if isinstance(reader.content, SourceContent):
                yield from (state.objects[i] for i in state.dependents(reader.id))
            if not isinstance(reader.content, ViewContent) and not automatic.is_automatic(reader):
                yield reader

    def reader(self, record: ObjectRecord) -> ObjectRecord:
        """What is stored of one of those, which knows it by id: its definition is shown."""
        content = record.content
        if isinstance(content, SinkContent) and content.dead_letters == self.record.id:
            raise self._refused(record, f"it is in its option {refusals.TABLE}")
        others = {
            o.name for o in (self.state.objects[i] for i in record.depends_on if i in self.state.objects)
            if o.schema != self.record.schema and not is_part(o)
        }  # fmt: skip

        def spell(name: TableName) -> TableName | None:
            if name.name != self.record.name or name.schema not in (None, self.record.schema):
                return None
            if name.schema is None and name.name in others:
                raise Uncertain(f'"{name}" may be one of several relations')
            return TableName(name.schema, self.name)

        return replace(record, definition=self._text(record, None, spell))

    def view(self, record: ObjectRecord) -> ObjectRecord:
        """What is stored of a plain view, which knows all that it reads by names along a search path of its own."""
        content = record.content_as(ViewContent)
        if not any(_may_say(content.query, name) for name in (self.name, self.record.name)):
            return record

        def spell(name: TableName) -> TableName | None:
            before, after = self._find(content, name, now=False), self._find(content, name, now=True)
            if before == after:
                return None
            if before is None:
                raise Uncertain(f'it would read "{label(self.record)}" by the name "{name}"')
            known = self.state.objects[before]
            shown = self.name if before == self.record.id else known.name
            alone = TableName(None, shown)
            visible = name.schema is None and self._find(content, alone, now=True) == before
            return alone if visible else TableName(known.schema, shown)

        try:
            if any(spell(TableName(None, function)) for function in parse_query(content.query).functions()):
                raise Uncertain("a function that it calls has the name")
            query = renaming.query_with(content.query, spell)
        except Uncertain as error:
            raise self._refused(record, str(error)) from None
        if query == content.query:
            return record
        return replace(record, content=replace(content, query=query), definition=self._text(record, None, spell))

    def _find(self, view: ViewContent, name: TableName, *, now: bool) -> int | None:
        """The id of what a view means by a name: as it is, or with the new name."""
        for schema in (name.schema,) if name.schema else view.search_path:
            found = self.state.object_named(schema, name.name)
            if now and schema == self.record.schema and name.name in (self.name, self.record.name):
                found = self.record if name.name == self.name else None
            if found is not None and not isinstance(found.content, SchemaContent):
                return found.id
        return None

    def _text(self, record: ObjectRecord, own: str | None, spell: Spell) -> str:
        text = record.definition
        if not text.lstrip().casefold().startswith(_DEFINED):  # it was not made by a statement
            return text
        try:
            return renaming.definition_with(text, own, spell)
        except Uncertain as error:
            raise self._refused(record, str(error)) from None

    def _refused(self, record: ObjectRecord, reason: str) -> NotSupported:
        shown = label(record)
        return NotSupported(
            f'another name of {self.record.kind_name} "{label(self.record)}"',
            detail=f"{record.in_words}: {reason}",
            hint=f'drop "{shown}" before, and create it again'
            if record.id != self.record.id else "create another one, and drop this one",
        )  # fmt: skip


def _may_say(text: str, name: str) -> bool:
    """Whether a text may have a name in it, in quotes or not."""
    return name.casefold().replace('"', '""') in text.casefold()
