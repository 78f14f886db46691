"""The time zone in which an object was defined: it holds for what its definition says, whoever reads or writes it."""

from __future__ import annotations

from headrace.catalog.contents import PlannedContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.zones import UTC, Zone, zone_of_setting


def declared_zone(record: ObjectRecord) -> Zone:
    """The time zone in which an object was defined."""
    return zone_of_setting(_zone(record) or UTC.name)


def definition_of(record: ObjectRecord) -> str:
    """The statement that defined an object, and the time zone in which it did, if that is not UTC."""
    zone = _zone(record)
    return record.definition if zone is None else f"-- SET TIME ZONE '{zone}';\n{record.definition}"


def _zone(record: ObjectRecord) -> str | None:
    content = record.content
    return content.time_zone if isinstance(content, TableContent | PlannedContent) else None
