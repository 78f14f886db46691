"""Reading PostgreSQL's syntax tree: whatever is set on a node has to be named by whoever reads it.

A reader says with `reads` which class of nodes it takes and which arguments of it. A class without a reader, and an
argument that is set and not named, raise `NotBound`: nothing can be overlooked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

from google.protobuf import message as protobuf

if TYPE_CHECKING:
    from postgast import pg_query_pb2 as pb

Message: TypeAlias = protobuf.Message
"""A message of libpg_query: a node, or what a `Node` holds."""

M = TypeVar("M", bound=Message)
Nodes: TypeAlias = "Sequence[pb.Node]"
"""A list in a tree."""

PLACES: Final = frozenset(("location", "rexpr_list_start", "rexpr_list_end", "list_start", "list_end"))
"""Arguments that say where a node stands."""


_WORDS: Final = {
    "CurrentOfExpr": "WHERE CURRENT OF", "MultiAssignRef": "several columns set by one value",
    "NamedArgExpr": "an argument by name", "RangeTableFunc": "XMLTABLE", "RangeTableSample": "TABLESAMPLE",
    "SetToDefault": "DEFAULT in an expression", "XmlExpr": "XML", "XmlSerialize": "XML",
    "alias in JoinExpr": "an alias of a join", "bsval in A_Const": "a bit string",
    "coldeflist in RangeFunction": "a function with a list of columns", "cycle_clause in CommonTableExpr": "CYCLE",
    "func_variadic in FuncCall": "VARIADIC", "group_distinct in SelectStmt": "GROUP BY DISTINCT",
    "into_clause in SelectStmt": "SELECT INTO", "is_rowsfrom in RangeFunction": "ROWS FROM",
    "join_using_alias in JoinExpr": "an alias of USING", "locked_rels in LockingClause": "FOR UPDATE OF",
    "search_clause in CommonTableExpr": "SEARCH", "use_op in SortBy": "ORDER BY ... USING",
}  # fmt: skip
"""How messages call what the parser calls otherwise."""


class NotBound(Exception):
    """What the binder does not know; `location` is where it stands, in bytes."""

    def __init__(self, what: str, location: int | None = None):
        super().__init__(what)
        self.what = what
        self.location = location

    @property
    def words(self) -> str:
        """How messages call it."""
        return _WORDS.get(self.what, self.what)


READ: Final[dict[str, frozenset[str]]] = {}
"""For each class of nodes that is read, its arguments that are looked at."""


def declare(kind: str, arguments: str) -> str:
    """Say which arguments of a class of nodes are looked at; returns the name of the class."""
    READ[kind] = READ.get(kind, frozenset()) | frozenset(arguments.split())
    return kind


def check(message: M) -> M:
    """Raises `NotBound` if something is set on a node that nobody looks at; returns the node."""
    kind = message.DESCRIPTOR.name
    known = READ.get(kind)
    if known is None:
        refuse(kind, message)
    for field, _ in message.ListFields():
        name = field.name
        if name not in known and name not in PLACES:
            refuse(f"{name} in {kind}", message)
    return message


def inner(node: Message) -> Any:
    """What a `Node` holds, checked: a message of one of very many classes, as `kind_of` calls it."""
    if node.DESCRIPTOR.name != "Node":
        return check(node)
    which = node.WhichOneof("node")
    if which is None:
        raise NotBound("an empty node")
    return check(getattr(node, which))


def kind_of(node: pb.Node) -> str:
    """The class of what a `Node` holds."""
    which = node.WhichOneof("node")
    return str(getattr(node, which).DESCRIPTOR.name) if which else ""


def refuse(what: str, message: Message | None = None) -> NoReturn:
    """Raise `NotBound` at a node."""
    raise NotBound(what, place(message))


def place(message: Message | None) -> int | None:
    """Where a node, or the first one in it that knows, stands, in bytes. None where nobody knows."""
    if message is None:
        return None
    names = [f.name for f, _ in message.ListFields()]
    at = getattr(message, "location", None)
    if isinstance(at, int):
        return at
    for name in names:
        value = getattr(message, name)
        for part in [value] if hasattr(value, "ListFields") else value if hasattr(value, "__iter__") else ():
            if hasattr(part, "ListFields"):
                found = place(part)
                if found is not None:
                    return found
    return None


def strings(nodes: Nodes) -> list[str]:
    """The texts of a list of `String` nodes."""
    return [str(inner(n).sval) for n in nodes]


declare("String", "sval")
declare("Integer", "ival")
