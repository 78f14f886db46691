"""Whose a new object is, and what its maker grants by default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.catalog.records import ObjectRecord
from headrace.session.context import Context
from headrace.session.rights import default_grants
from headrace.session.stored_roles import Role, record_of


def ordered(letters: Iterable[str]) -> str:
    """Letters of privileges in the order that PostgreSQL writes them."""
    return "".join(sorted(letters, key="arwdXUC".index))


def owned(context: Context, record: ObjectRecord) -> ObjectRecord:
    """A new object as its maker's, with what that grants by default."""
    rights, granted_as = context.rights, record.content.granted_as
    record = replace(record, owner=rights.owner_id)
    if granted_as is None:
        return record
    own = record_of(rights.state, rights.name)
    given = [g for g in (Role.of(own).defaults if own is not None else ()) if g.kind == granted_as]
    found = default_grants(granted_as, record.name)
    for grant in given:
        if not grant.schema:  # which says all that there is, others add to it
            found[str(grant.grantee)] = grant.letters
    for grant in given:
        if grant.schema and grant.schema == record.schema:
            found[str(grant.grantee)] = ordered({*found.get(str(grant.grantee), ""), *grant.letters})
    found = {grantee: letters for grantee, letters in found.items() if letters}
    return replace(record, grants=found) if given and found != default_grants(granted_as, record.name) else record
