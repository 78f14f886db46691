"""System relations by their names; the modules that define them do so when the first one is looked up."""

from __future__ import annotations

from headrace.session.system import headrace, information, pg_catalog, state_relations
from headrace.session.system.system_relations import SystemRelation, defined


def system_relation(schema: str | None, name: str) -> SystemRelation | None:
    """The system relation of that name; without a schema one of `pg_catalog`."""
    pg_catalog.load()
    information.load()
    headrace.load()
    state_relations.load()
    return defined(schema or "pg_catalog", name)
