"""Roles: who may connect, and what proves that it is them. What is stored is an object of the catalog.

There are no rights of relations yet: whoever is let in may do everything, so every role is a superuser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.errors import HeadraceError

ROLES_SCHEMA: Final = "pg_authid"
"""Where roles are in the catalog: no schema of a user is called so, and their names clash with none of a relation."""
ROOT: Final = "root"
"""The role that is always there."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role as of now."""

    name: str
    can_login: bool = True
    password: str | None = field(default=None, repr=False)
    """What checks a password, as PostgreSQL writes it (SCRAM-SHA-256$...); None: it has none."""
    connection_limit: int = -1
    """Most connections at once; -1: no limit of its own."""
    valid_until_ms: int | None = None
    """When the password ends, milliseconds since 1970 in UTC; None: never."""

    @classmethod
    def of(cls, record: ObjectRecord) -> Role:
        """Of what is stored."""
        return cls(record.name, **record.payload)

    @property
    def payload(self) -> dict[str, Any]:
        """To be stored."""
        return {
            "can_login": self.can_login, "password": self.password, "connection_limit": self.connection_limit,
            "valid_until_ms": self.valid_until_ms,
        }  # fmt: skip

    def at(self, now_ms: int) -> Role:
        """Without its password if that has ended."""
        ended = self.valid_until_ms is not None and self.valid_until_ms <= now_ms
        return replace(self, password=None) if ended else self

    def check_login(self) -> None:
        """Raise `HeadraceError` (28000) if it may not connect."""
        if not self.can_login:
            raise HeadraceError(
                f'role "{self.name}" is not permitted to log in',
                sqlstate="28000",
                hint="ALTER ROLE ... LOGIN permits it.",
            )


def record_of(state: CatalogState, name: str) -> ObjectRecord | None:
    """What is stored of a role."""
    return state.object_named(ROLES_SCHEMA, name)


def all_roles(state: CatalogState) -> Mapping[int, Role]:
    """All roles by their oids."""
    found = {record.id: Role.of(record) for record in state.objects_of("role")}
    return found if any(role.name == ROOT for role in found.values()) else {10: Role(ROOT), **found}


def role_of(state: CatalogState, name: str, now_ms: int) -> Role | None:
    """Who somebody is that connects under a name; None for nobody.

    As long as no role has been made, anybody who is trusted may use any name, as on a laptop.
    """
    record = record_of(state, name)
    if record is not None:
        return Role.of(record).at(now_ms)
    return Role(name) if name == ROOT or not state.objects_of("role") else None
