"""Nodes of PostgreSQL's syntax tree: looking into them, and making new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableSequence
from typing import Final, TypeVar

from google.protobuf.message import Message
from postgast import parse
from postgast import pg_query_pb2 as pb

from headrace.errors import InvalidText

M = TypeVar("M", bound=Message)
_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,"]+)', re.DOTALL)
"""An element of an array's literal: with quotes, or without."""


def messages(message: Message, kind: type[M], *, within_queries: bool = True) -> Iterator[M]:
    """All messages of a kind."""
    if isinstance(message, kind):
        yield message
    if type(message) is pb.SelectStmt and not within_queries:
        return
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for part in value if descriptor.is_repeated else (value,):
                yield from messages(part, kind, within_queries=within_queries)


def messages_of_query(select: pb.SelectStmt, kind: type[M]) -> Iterator[M]:
    """All messages of a kind in a query, without those of the queries in it."""
    for descriptor, value in select.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for part in value if descriptor.is_repeated else (value,):
                yield from messages(part, kind, within_queries=False)


def queries_of_query(select: pb.SelectStmt) -> Iterator[pb.SelectStmt]:
    """The queries right inside of a query, but for those in its WITH."""
    for descriptor, value in select.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE and descriptor.name != "with_clause":
            for part in value if descriptor.is_repeated else (value,):
                yield from messages(part, pb.SelectStmt, within_queries=False)


def expression(text: str) -> pb.Node:
    """The node of an expression."""
    node = pb.Node()
    node.CopyFrom(parse(f"SELECT {text}").stmts[0].stmt.select_stmt.target_list[0].res_target.val)
    return node


def put_parameters(tree: pb.Node, values: Mapping[int, pb.Node]) -> None:
    """Put nodes in the place of parameters."""
    for node in list(messages(tree, pb.Node)):
        if node.WhichOneof("node") == "param_ref":
            node.CopyFrom(values[node.param_ref.number])


def put_in(parts: MutableSequence[pb.Node], *nodes: pb.Node) -> None:
    """Put nodes in the place of all that a list has."""
    del parts[:]
    parts.extend(nodes)


def identifier(text: str) -> pb.Node:
    """A part of a name."""
    return pb.Node(string=pb.String(sval=text))


def number(value: int) -> pb.Node:
    """A number."""
    return expression(str(value))


def literal(value: str | int | bool | list[str] | None) -> pb.Node:
    """A value as a literal."""
    if value is None:
        return expression("NULL::text")
    if isinstance(value, bool):
        return expression("true" if value else "false")
    if isinstance(value, int):
        return number(value)
    if isinstance(value, list):
        return pb.Node(a_array_expr=pb.A_ArrayExpr(elements=[literal(v) for v in value]))
    return pb.Node(a_const=pb.A_Const(sval=pb.String(sval=value)))


def call(name: str, *arguments: pb.Node) -> pb.Node:
    """A call of a function."""
    return pb.Node(func_call=pb.FuncCall(funcname=[identifier(name)], args=list(arguments)))


def plus(node: pb.Node, size: int) -> pb.Node:
    """The sum of an expression and a number."""
    if not size:
        return node
    return pb.Node(a_expr=pb.A_Expr(kind=pb.AEXPR_OP, name=[identifier("+")], lexpr=node, rexpr=number(size)))


def text_of(node: pb.Node) -> str | None:
    """The text of a literal; also of one with a cast to text."""
    while node.WhichOneof("node") == "type_cast" and node.type_cast.type_name.names[-1].string.sval in (
        "text", "varchar", "name"
    ) and not node.type_cast.type_name.array_bounds:  # fmt: skip
        node = node.type_cast.arg
    if node.WhichOneof("node") != "a_const" or node.a_const.WhichOneof("val") != "sval":
        return None
    return str(node.a_const.sval.sval)


def constant_of(node: pb.Node) -> str | int | bool | None:
    """The value of a literal of any kind; None for what is none."""
    text = text_of(node)
    if text is not None:
        return text
    if node.WhichOneof("node") != "a_const":
        return None
    constant = node.a_const
    kind = constant.WhichOneof("val")
    if kind == "boolval":
        return bool(constant.boolval.boolval)
    return int(constant.ival.ival) if kind == "ival" else None


def array_of(text: str) -> pb.Node:
    """The array that a literal spells."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")) or "{" in inner[1:]:
        raise InvalidText(f'malformed array literal: "{text}"')
    items = [_element_of(m) for m in _ELEMENT.finditer(inner[1:-1])]
    return pb.Node(a_array_expr=pb.A_ArrayExpr(elements=[literal(i) for i in items]))


def _element_of(match: re.Match[str]) -> str | None:
    quoted, plain = match.group(1), match.group(2)
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted)
    return None if plain.upper() == "NULL" else plain.strip()


def column_name(node: pb.Node) -> str | None:
    """The name of the column that an expression is; None for any other."""
    if node.WhichOneof("node") != "column_ref":
        return None
    last = node.column_ref.fields[-1]
    return str(last.string.sval) if last.HasField("string") else None


def function_name(node: pb.Node) -> str:
    """The name of the function that an expression calls; empty for any other."""
    return str(node.func_call.funcname[-1].string.sval) if node.WhichOneof("node") == "func_call" else ""


def type_name(node: pb.Node) -> str:
    """The last part of the type that a cast is to."""
    names = node.type_cast.type_name.names
    return str(names[-1].string.sval) if names else ""
