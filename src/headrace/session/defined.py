"""The time zone in which an object was defined: it holds for what its definition says, whoever reads or writes it."""

from __future__ import annotations

from headrace.catalog.contents import MaterializedViewContent, SinkContent, TableContent
from headrace.catalog.records import ObjectRecord
from headrace.common.zones import UTC, Zone, zone_of_setting
from headrace.errors import NotSupported


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


def definition_of(record: ObjectRecord) -> str:
    """The statement that defined an object, and the time zone in which it did, if that is not UTC."""
    name = _name(record)
    return record.definition if name is None else f"-- SET TIME ZONE '{name}';\n{record.definition}"
