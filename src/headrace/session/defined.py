"""How objects were defined: in which time zone, which holds for what the definition says, and what is altered since."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from headrace.catalog.contents import MaterializedViewContent, SinkContent, SourceContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.identifiers import shown_name
from headrace.common.zones import UTC, Zone, zone_of_setting
from headrace.connectors.base import ALTERABLE, RATE
from headrace.connectors.job_options import ON_ERROR
from headrace.coordinator.decide.former import source_of
from headrace.errors import HeadraceError, NotSupported
from headrace.session.hidden_views import is_part
from headrace.sql.parser import parse
from headrace.sql.statements import CreateSource, CreateTable

_ALTERED: Final = re.compile(r"(;\nALTER (SOURCE|TABLE) [^\n]+ SET \(\w+ = [^\n]+\))+\Z")


def _name(record: ObjectRecord) -> str | None:
    content = record.content
    return content.time_zone if isinstance(content, (TableContent, MaterializedViewContent, SinkContent)) else None


def declared_zone(record: ObjectRecord) -> Zone:
    """The time zone in which an object was defined. Raises `NotSupported` where that is unknown."""
    name = _name(record)
    try:
        return UTC if name is None else zone_of_setting(name)
    except ValueError:
        raise NotSupported(
            f'"{record.name}" was defined in the time zone {name}, which this machine does not know',
            hint="install the files of time zones (tzdata)",
        ) from None


def definition_of(record: ObjectRecord, state: CatalogState) -> str:
    """The statement that defined an object, and the time zone in which it did, if that is not UTC.

    Behind it stand those that make the options of a source what they have been altered to.
    """
    name = _name(record)
    text = ";\n".join([record.definition, *_alterations(record, state)])
    return text if name is None else f"-- SET TIME ZONE '{name}';\n{text}"


def as_created(definition: str) -> str:
    """What `definition_of` tells without what the options have been altered to."""
    return _ALTERED.sub("", definition)


def _alterations(record: ObjectRecord, state: CatalogState) -> Iterator[str]:
    holders = _holders(record, state)
    given = _given(record.definition) if holders else None
    if given is None:
        return
    kind = "SOURCE" if isinstance(record.content, SourceContent) else "TABLE"
    name = ".".join(map(shown_name, [record.name] if record.schema == "public" else [record.schema, record.name]))
    for option, holder in holders.items():
        now = holder.options.get(option)
        if now != given.get(option):
            value = "DEFAULT" if now is None else "'" + now.replace("'", "''") + "'"
            yield f"ALTER {kind} {name} SET ({option} = {value})"


def _holders(record: ObjectRecord, state: CatalogState) -> dict[str, ObjectRecord]:
    """The options of an object, or of the source of a table, that can be altered, and whose they are."""
    if isinstance(record.content, SourceContent):
        return dict.fromkeys([*ALTERABLE, ON_ERROR], record)
    source = source_of(state, record)
    if source is None:
        return {}
    origin = source.content_as(SourceContent).origin
    bound = source if origin is None else state.objects[origin]
    return {ON_ERROR: source, RATE.name: bound} if origin is None or is_part(bound) else {ON_ERROR: source}


@lru_cache(maxsize=256)
def _given(definition: str) -> Mapping[str, str] | None:
    """The options in the statement that made a source or a table; None if it cannot be read."""
    try:
        made = parse(definition)[0]
    except HeadraceError:
        return None
    return made.options if isinstance(made, (CreateSource, CreateTable)) else None
