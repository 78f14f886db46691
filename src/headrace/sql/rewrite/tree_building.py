"""Short ways to build syntax trees of Spark expressions."""

from __future__ import annotations

from sqlglot import exp

Types = dict[int, exp.DataType]
"""The inferred type of a node, by the node's `id`."""

_D = exp.DType
INTEGERS = {_D.TINYINT: 1, _D.SMALLINT: 2, _D.INT: 3, _D.BIGINT: 4}
FLOATS = {_D.FLOAT, _D.DOUBLE}
ZONELESS = {_D.TIMESTAMP, _D.TIMESTAMPNTZ}
ZONED = {_D.TIMESTAMPTZ, _D.TIMESTAMPLTZ}
TEXTS = {_D.TEXT, _D.VARCHAR, _D.CHAR, _D.BPCHAR, _D.NAME}


def fn(name: str, *args: exp.Expr) -> exp.Anonymous:
    """A call of a Spark function by its name."""
    return exp.Anonymous(this=name, expressions=list(args))


def raw(text: str) -> exp.Var:
    """Spark SQL text as it is."""
    return exp.Var(this=text)


def number(value: int) -> exp.Expr:
    """An integer literal."""
    return exp.Literal.number(value)


def cast(node: exp.Expr, kind: exp.DType | str) -> exp.Cast:
    """A cast to a type of the dialect (`TIMESTAMP` is the one without zone)."""
    return exp.Cast(this=node, to=exp.DataType.build(kind, dialect="postgres"))


def kind_of(types: Types, node: exp.Expr | None) -> exp.DType | None:
    """The type of a node as far as it is known."""
    while isinstance(node, exp.Paren):
        node = node.this
    if node is None:
        return None
    if isinstance(node, exp.Cast):
        return _kind(node.to)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return None
        return (_D.INT if abs(int(node.this)) < 2**31 else _D.BIGINT) if node.is_int else _D.DECIMAL
    if isinstance(node, exp.CurrentTimestamp):
        return _D.TIMESTAMPTZ
    if isinstance(node, exp.Neg):
        return kind_of(types, node.this)
    known = types.get(id(node))
    return _kind(known) if known is not None else None


def _kind(data_type: exp.DataType) -> exp.DType | None:
    kind = data_type.this
    return kind if isinstance(kind, exp.DType) and kind not in (_D.UNKNOWN, _D.NULL) else None
