"""The time zone in which an object was defined: it holds for what its definition says, whoever reads or writes it."""

from __future__ import annotations

from headrace.catalog.contents import MaterializedViewContent, SinkContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.zones import UTC, Zone, zone_of_setting


def _name(record: ObjectRecord) -> str | None:
    content = record.content
    return content.time_zone if isinstance(content, (TableContent, MaterializedViewContent, SinkContent)) else None


def declared_zone(record: ObjectRecord) -> Zone:
    """The time zone in which an object was defined."""
    name = _name(record)
    return UTC if name is None else zone_of_setting(name)


def definition_of(record: ObjectRecord) -> str:
    """The statement that defined an object, and the time zone in which it did, if that is not UTC."""
    name = _name(record)
    return record.definition if name is None else f"-- SET TIME ZONE '{name}';\n{record.definition}"
