"""Whatever is set on a node of PostgreSQL's syntax tree is read by the binder, or the query is not bound."""

from __future__ import annotations

import pytest
from postgast import pg_query_pb2 as pb

import headrace.sql.binder.bind  # noqa: F401  (the readers say what they read when they are imported)
from headrace.sql.binder.parse_tree import PLACES, READ, NotBound, check

KINDS = {f.message_type.name: f.message_type for f in pb.Node.DESCRIPTOR.fields if f.message_type is not None}


def test_the_readers_name_classes_and_arguments_that_there_are() -> None:
    for kind, arguments in READ.items():
        assert kind in KINDS, kind
        assert arguments <= {f.name for f in KINDS[kind].fields}, kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_class_and_argument_is_read_or_not_bound(kind: str) -> None:
    for field in KINDS[kind].fields:
        message = getattr(pb, kind)()
        _put(message, field)
        if kind in READ and (field.name in READ[kind] or field.name in PLACES):
            assert check(message) is message
            continue
        with pytest.raises(NotBound) as raised:
            check(message)
        assert raised.value.what == (f"{field.name} in {kind}" if kind in READ else kind)


def _put(message: object, field: object) -> None:
    """Set an argument to something that is not its default."""
    name = field.name  # type: ignore[attr-defined]
    value = getattr(message, name)
    if field.is_repeated:  # type: ignore[attr-defined]
        if field.message_type is not None:  # type: ignore[attr-defined]
            value.add()
        else:
            value.append(1)
    elif field.message_type is not None:  # type: ignore[attr-defined]
        value.SetInParent()
    else:
        setattr(message, name, {str: "x", bool: True, float: 1.0}.get(type(value), 1))
