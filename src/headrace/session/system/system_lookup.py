"""System relations by their names; the modules that define them do so when the first one is looked up."""

from __future__ import annotations

from functools import cache

from headrace.session.system import (
    activity,
    dependencies,
    headrace,
    information,
    pg_catalog,
    state_relations,
    table_rights,
)
from headrace.session.system.system_relations import SystemRelation, defined


def system_relation(schema: str | None, name: str) -> SystemRelation | None:
    """The system relation of that name; without a schema one of `pg_catalog`."""
    _load()
    return defined(schema or "pg_catalog", name)


@cache
def _load() -> None:
    for module in (pg_catalog, dependencies, activity, table_rights, information, headrace, state_relations):
        module.load()
