"""Roles: who may connect, what proves that it is them, and what they are members of. Stored as objects of the catalog.

What a role may do to an object is in `rights.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Final

from headrace.catalog.contents import DefaultGrant, RoleContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import HeadraceError

ROLES_SCHEMA: Final = "pg_authid"
"""Where roles are in the catalog: no schema of a user is called so, and their names clash with none of a relation."""
ROOT: Final = "root"
"""The role that is always there."""
ROOT_OID: Final = 2_000_000_010
"""Its oid, which is none that an object has."""


PREDEFINED: Final[Mapping[str, int]] = {
    "pg_monitor": -3373, "pg_read_server_files": -4569, "pg_write_server_files": -4570,
    "pg_execute_server_program": -4571, "pg_read_all_data": -6181, "pg_write_all_data": -6182,
}  # fmt: skip
"""Roles that are always there, and their ids: minus the oids that PostgreSQL has for them."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role with its attributes and memberships, as the catalog has it now."""

    name: str
    can_login: bool = True
    password: str | None = field(default=None, repr=False)
    """What checks a password, as PostgreSQL writes it (SCRAM-SHA-256$...); None: it has none."""
    connection_limit: int = -1
    """Most connections at once; -1: no limit of its own."""
    valid_until_ms: int | None = None
    """When the password ends, milliseconds since 1970 in UTC; None: never."""
    superuser: bool = True
    """Whether it may do everything."""
    create_role: bool = False
    create_db: bool = False
    """Whether it may make schemas: there is only one database."""
    inherit: bool = True
    """Whether it has the rights of the roles that it is a member of without `SET ROLE`."""
    member_of: Mapping[int, bool] = field(default_factory=dict)
    """Id of each role that it is a member of -> whether it may let others in."""
    defaults: tuple[DefaultGrant, ...] = ()
    """What is granted on what it makes."""
    kept: RoleContent | None = field(default=None, repr=False, compare=False)
    """What is stored of it, which may be more than this program knows; None if nothing is."""

    @classmethod
    def of(cls, record: ObjectRecord) -> Role:
        """Of what is stored. A role from before there were rights may do everything."""
        stored = record.content_as(RoleContent)
        return cls(record.name, **{name: getattr(stored, name) for name in _ATTRIBUTES}, kept=stored)

    @property
    def content(self) -> RoleContent:
        """To be stored."""
        attributes = {name: getattr(self, name) for name in _ATTRIBUTES}
        return RoleContent(**attributes) if self.kept is None else replace(self.kept, **attributes)

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


_ATTRIBUTES: Final = tuple(f.name for f in fields(Role) if f.name not in ("name", "kept"))


def record_of(state: CatalogState, name: str) -> ObjectRecord | None:
    """What is stored of a role."""
    return state.object_named(ROLES_SCHEMA, name)


def all_roles(state: CatalogState) -> Mapping[int, Role]:
    """All roles by their oids."""
    found = {ROOT_OID: Role(ROOT)}
    for record in state.objects_of(RoleContent):
        found[ROOT_OID if record.name == ROOT else record.id] = Role.of(record)
    return found | {-number: Role(name, can_login=False, superuser=False) for name, number in PREDEFINED.items()}


def role_of(state: CatalogState, name: str, now_ms: int) -> Role | None:
    """Who somebody is that connects under a name; None for nobody.

    As long as no role has been made, anybody who is trusted may use any name, as on a laptop.
    """
    record = record_of(state, name)
    if record is not None:
        return Role.of(record).at(now_ms)
    return Role(name) if name == ROOT or not state.objects_of(RoleContent) else None
