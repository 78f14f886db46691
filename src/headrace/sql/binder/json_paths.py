"""`j -> 'a' ->> 'b'`: the text of what stands at a place in a JSON document, which is kept as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import Call, Constant, Expr
from headrace.sql.binder.parse_tree import inner, kind_of, place, refuse, strings
from headrace.sql.binder.scope import Wrong

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

    from headrace.sql.binder.expression_binder import Expressions


def is_json(type_name: pb.TypeName) -> bool:
    """Whether a type's name is `json`, which is kept as text."""
    return bool(type_name.names) and type_name.names[-1].string.sval == "json"


def json_literal(found: Expr, message: pb.TypeCast) -> Expr:
    """A document that is written out: `json` keeps its text."""
    if not isinstance(found, Constant) or message.type_name.array_bounds:
        refuse("a cast to json of what is no literal", message)
    if found.text is not None:
        try:
            json.loads(found.text, parse_constant=_refuse_constant)
        except ValueError:
            raise Wrong("invalid input syntax for type json", "22P02", place(message)) from None
    return Constant(t.TEXT, found.text)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def json_text(at: Expressions, message: pb.A_Expr) -> Expr:
    """The text at a path of literal keys and places."""
    path, node = [_step(at, message.rexpr)], message.lexpr
    while kind_of(node) == "A_Expr" and strings(node.a_expr.name)[-1] == "->":
        path.append(_step(at, inner(node).rexpr))
        node = node.a_expr.lexpr
    document = at.known(node)
    if document.type.name not in t.TEXTS:
        refuse(f"->> of {document.type}", message)
    return Call(t.TEXT, "get_json_object({0}, {1})", (document, Constant(t.TEXT, "$" + "".join(reversed(path)))))


def _step(at: Expressions, node: pb.Node) -> str:
    found = at.bind(node)
    if not isinstance(found, Constant) or found.text is None:
        refuse("a JSON operator with a key that is no literal", node)
    if found.type.name == "int4" and not found.text.startswith("-"):
        return f"[{found.text}]"
    if found.type.name not in ("unknown", *t.TEXTS) or set(found.text) & set("'\\[]*"):
        refuse("this key of a JSON document", node)
    return f"['{found.text}']"
