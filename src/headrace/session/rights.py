"""What a role may do: ownership, grants and memberships, as PostgreSQL has them. Decided by the catalog alone.

An object belongs to the role that made it. Its owner and superusers may do everything with it; others what is granted
to them, to everybody, or to a role of which they are members. A view reads with the rights of its owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from headrace.catalog.contents import RoleContent
from headrace.catalog.records import ObjectRecord
from headrace.catalog.state import CatalogState
from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InsufficientPrivilege, UndefinedObject
from headrace.session.stored_roles import PREDEFINED, ROOT, Role, record_of

EVERYBODY: Final = 0
"""Who `PUBLIC` is among grantees."""
PRIVILEGES: Final[Mapping[str, str]] = {
    "SELECT": "r", "INSERT": "a", "UPDATE": "w", "DELETE": "d", "USAGE": "U", "CREATE": "C", "EXECUTE": "X",
}  # fmt: skip
"""The letters that PostgreSQL has for them."""
CLASSES: Final[Mapping[str, str]] = {
    "relation": "arwd", "schema": "UC", "function": "X", "secret": "U",
    "connection": "U",
}  # fmt: skip
"""The privileges that there are on each class of objects."""


def default_grants(granted_as: str | None, name: str) -> dict[str, str]:
    """What is granted on an object of a class of which nothing is stored: everybody may call functions, and look into
    `public`.
    """
    if granted_as == "function":
        return {"0": "X"}
    return {"0": "U"} if granted_as == "schema" and name == "public" else {}


def grants_of(record: ObjectRecord) -> Mapping[str, str]:
    """What is granted on an object."""
    return default_grants(record.content.granted_as, record.name) if record.grants is None else record.grants


def role_name(state: CatalogState, role_id: int) -> str:
    """The name of a role by its id."""
    record = state.objects.get(role_id)
    predefined = next((name for name, number in PREDEFINED.items() if number == role_id), None)
    return predefined or (ROOT if role_id == 0 or record is None else record.name)


def acl_items(state: CatalogState, record: ObjectRecord) -> list[str] | None:
    """What is granted on an object as PostgreSQL's `aclitem`s; None where nothing is stored of it."""
    every = CLASSES.get(record.content.granted_as or "")
    if record.grants is None or every is None:
        return None
    owner = role_name(state, record.owner)
    held = {int(k): letters for k, letters in record.grants.items() if int(k) in (EVERYBODY, *state.objects)}
    names = {k: "" if k == EVERYBODY else role_name(state, k) for k in held}
    return [f"{owner}={every}/{owner}", *(f"{names[k]}={letters}/{owner}" for k, letters in held.items())]


def described(record: ObjectRecord) -> str:
    """An object as messages about rights name it."""
    return f"{record.kind_name} {record.name}"


@dataclass(frozen=True)
class Rights:
    """What a role may do, as of a state of the catalog. Everything raises `UndefinedObject` for a role that is gone."""

    state: CatalogState
    name: str
    """The role's name."""
    known_id: int = 0
    """The id that the role had when it was first asked for; another one of its name is another role."""

    @classmethod
    def of(cls, state: CatalogState, role_id: int) -> Rights:
        """Those of a role by its id; 0 is the one that is always there."""
        record = state.objects.get(role_id)
        if role_id and (record is None or not isinstance(record.content, RoleContent)):
            raise UndefinedObject(f"the role with the id {role_id} does not exist any more")
        return cls(state, ROOT if record is None else record.name)

    # ---- who it is

    @cached_property
    def _record(self) -> ObjectRecord | None:
        return record_of(self.state, self.name)

    @cached_property
    def role(self) -> Role:
        """The role that asks."""
        if self.known_id and self.role_id != self.known_id:
            raise UndefinedObject(f'role "{self.name}" does not exist', hint="It was dropped or renamed.")
        if self._record is not None:
            return Role.of(self._record)
        if self.name != ROOT and self.state.objects_of(RoleContent):
            raise UndefinedObject(f'role "{self.name}" does not exist', hint="It was dropped or renamed.")
        return Role(self.name)

    @cached_property
    def superuser(self) -> bool:
        """Whether the role may do everything."""
        return self.name == ROOT or self.role.superuser

    @property
    def owner_id(self) -> int:
        """Its id as the owner of what it makes; 0 for the role that is always there."""
        return 0 if self.name == ROOT or self._record is None else self._record.id

    @cached_property
    def inherited(self) -> frozenset[int]:
        """Ids of the roles whose rights it has, its own among them."""
        return frozenset(self._reached(by_inheritance=True))

    @cached_property
    def settable(self) -> frozenset[int]:
        """Ids of the roles that it may become by `SET ROLE`."""
        return frozenset(self._reached(by_inheritance=False))

    def _reached(self, *, by_inheritance: bool) -> Iterator[int]:
        seen: set[int] = set()
        left = [self.role_id]
        while left:
            role_id = left.pop()
            if role_id in seen:
                continue
            seen.add(role_id)
            yield role_id
            record = self.state.objects.get(role_id)
            if record is not None and isinstance(record.content, RoleContent):
                role = Role.of(record)
                left += role.member_of if role.inherit or not by_inheritance else ()

    @property
    def role_id(self) -> int:
        """Its id; 0 for one that is not stored."""
        return 0 if self._record is None else self._record.id

    def is_member(self, role: str) -> bool:
        """Whether it has the rights of a role that is always there, such as `pg_monitor`."""
        return self.superuser or PREDEFINED[role] in self.inherited

    # ---- what it may do

    def owns(self, record: ObjectRecord) -> bool:
        """Whether an object belongs to it, or to a role whose rights it has."""
        return self.superuser or (record.owner != 0 and record.owner in self.inherited)

    def may(self, letter: str, record: ObjectRecord) -> bool:
        """Whether it has a privilege on an object."""
        if self.owns(record):
            return True
        if self._may_with_all_data(letter, record.content.granted_as):
            return True
        return self._granted(letter, grants_of(record))

    def _granted(self, letter: str, grants: Mapping[str, str]) -> bool:
        return any(letter in grants.get(str(i), "") for i in (EVERYBODY, *self.inherited))

    def _may_with_all_data(self, letter: str, granted_as: str | None) -> bool:
        relation, usage = granted_as == "relation", granted_as == "schema" and letter == "U"
        if ((relation and letter == "r") or usage) and self.is_member("pg_read_all_data"):
            return True
        return ((relation and letter in "awd") or usage) and self.is_member("pg_write_all_data")

    def may_in(self, letter: str, schema: str) -> bool:
        """Whether it has a privilege on a schema, which need not be stored."""
        if self.superuser:
            return True
        record = self.state.object_named("", schema)
        if record is not None:
            return self.may(letter, record)
        return self._may_with_all_data(letter, "schema") or letter in default_grants("schema", schema).get("0", "")

    def may_know(self, object_id: int) -> bool:
        """Whether it may be told what failed in the job of an object, which may have values of rows in it."""
        record = self.state.objects.get(object_id)
        return self.is_member("pg_monitor") or (record is not None and self.owns(record))

    # ---- what it needs

    def require(self, letters: str, record: ObjectRecord) -> None:
        """Raise `InsufficientPrivilege` without the right to use its schema, and each of the privileges."""
        if self.superuser:
            return
        self.require_in("U", record.schema)
        for letter in letters:
            if not self.may(letter, record):
                raise InsufficientPrivilege(f"permission denied for {described(record)}", hint=_hint(letter, record))

    def require_in(self, letter: str, schema: str) -> None:
        """Raises `InsufficientPrivilege` where the role may not do that in a schema."""
        if not self.may_in(letter, schema):
            word = next(w for w, found in PRIVILEGES.items() if found == letter)
            raise InsufficientPrivilege(
                f"permission denied for schema {schema}", hint=f"GRANT {word} ON SCHEMA {schema} TO ... permits it."
            )

    def require_new(self, schema: str) -> None:
        """Raise it without the right to make something in a schema."""
        self.require_in("U", schema)
        self.require_in("C", schema)

    def require_owner(self, record: ObjectRecord, *, to_drop: bool = False) -> None:
        """Raise it for who does not own an object; to drop one the schema's owner will do."""
        if self.superuser or self.owns(record):
            return
        schema = self.state.object_named("", record.schema) if record.schema else None
        if not (to_drop and schema is not None and self.owns(schema)):
            raise InsufficientPrivilege(f"must be owner of {described(record)}")

    def require_superuser(self, action: str) -> None:
        """Raise it for who is none."""
        if not self.superuser:
            raise InsufficientPrivilege(f"permission denied to {action}", hint="Only superusers may.")

    def require_member(self, role: str, action: str) -> None:
        """Raise it for who is no member of a role that is always there."""
        if not self.is_member(role):
            raise InsufficientPrivilege(f"permission denied to {action}", hint=f"GRANT {role} TO ... permits it.")


def _hint(letter: str, record: ObjectRecord) -> str:
    word = next(w for w, found in PRIVILEGES.items() if found == letter)
    named = "" if record.content.granted_as == "relation" else f"{record.kind.upper()} "
    return f"GRANT {word} ON {named}{record.name} TO ..."
