"""The time zone in which an object was defined: it holds for what its definition says, whoever reads or writes it."""

from __future__ import annotations

from headrace.catalog.records import ObjectRecord
from headrace.common.zones import UTC, Zone, zone_of_setting

ZONE = "time_zone"
"""Set in the payload of what was defined in another zone than UTC: its name. What it says holds for ever."""


def declared_zone(record: ObjectRecord) -> Zone:
    """The time zone in which an object was defined."""
    return zone_of_setting(record.payload.get(ZONE, UTC.name))


def definition_of(record: ObjectRecord) -> str:
    """The statement that defined an object, and the time zone in which it did, if that is not UTC."""
    zone = record.payload.get(ZONE)
    return record.definition if zone is None else f"-- SET TIME ZONE '{zone}';\n{record.definition}"
