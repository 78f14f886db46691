"""Sources that get columns while they are read: behind those that they have, for what is made from then on.

What was made before reads a source as it was (`Content.width_before`). The hidden source of a table is widened for a
table that is filled beside the first one; if none comes of it, the columns are taken away again. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.columns import Column
from headrace.connectors.base import FIELD_IDS


def wider(
    source: ObjectRecord, columns: Sequence[Column], options: Mapping[str, str], first: int
) -> ObjectRecord:  # fmt: skip
    """A source with those of some columns that it lacks, and the options by which it finds them.

    `first` is an id above those of all objects.
    """
    known = {c.name for c in source.columns}
    more = [c for c in columns if c.name not in known]
    if not more:
        return source
    content = source.content_as(SourceContent)
    content = replace(content, widths=(*content.widths, (first, len(source.columns))))
    return replace(source, columns=(*source.columns, *more), content=content, options={**source.options, **options})


def narrowed(state: CatalogState, source: ObjectRecord) -> ObjectRecord:
    """The hidden source of a table without the columns that came for a table which is not there."""
    content = source.content_as(SourceContent)
    if content.part is None:
        return source
    newest = max(state.dependents(source.id), default=0)
    kept = tuple((first, width) for first, width in content.widths if first <= newest)
    if kept == content.widths:
        return source
    width = content.widths[len(kept)][1]
    gone = {c.name for c in source.columns[width:]}
    options = _without(source.options, gone)
    return replace(source, columns=source.columns[:width], content=replace(content, widths=kept), options=options)


def _without(options: Mapping[str, str], columns: Collection[str]) -> dict[str, str]:
    """Options that do not say by what columns are found which are gone; an older program knows of none such."""
    found = {name: by for name, by in json.loads(options.get(FIELD_IDS, "{}")).items() if name not in columns}
    others = {name: value for name, value in options.items() if name != FIELD_IDS}
    return others | ({FIELD_IDS: json.dumps(found)} if found else {})


def left_wide(state: CatalogState) -> list[int]:
    """The sources that have such columns: a server ended meanwhile."""
    return [source.id for source in state.objects_of(SourceContent) if narrowed(state, source) != source]
