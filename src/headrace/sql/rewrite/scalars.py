"""Rules for numbers, casts, text and arrays."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from headrace.common.regular import java_replacement
from headrace.errors import NotSupported
from headrace.sql.datatypes import spark_type
from headrace.sql.intervals import spark_interval
from headrace.sql.normalize import interval_words
from headrace.sql.rewrite.tree_building import FLOATS, INTEGERS, TEXTS, ZONED, Types, cast, fn, kind_of, number, raw
from headrace.sql.text_values import parse_text, to_text

_D = exp.DType
Rule = Callable[[exp.Expr, Types], exp.Expr]


def division(node: exp.Expr, types: Types) -> exp.Expr:
    """`/` on two integers truncates and keeps the wider of their types."""
    left, right = kind_of(types, node.this), kind_of(types, node.expression)
    if left in INTEGERS and right in INTEGERS:
        wider = left if INTEGERS[left] >= INTEGERS[right] else right
        quotient = exp.Paren(this=exp.IntDiv(this=_wrapped(node.this), expression=_wrapped(node.expression)))
        return cast(quotient, wider)
    return exp.Div(this=node.this, expression=node.expression, typed=False, safe=False)


def _wrapped(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node) if isinstance(node, exp.Binary) else node


def casting(node: exp.Expr, types: Types) -> exp.Expr:
    """Casts: fractions round to integers, text is spelled as PostgreSQL spells it, `varchar(n)` cuts."""
    assert isinstance(node, exp.Cast)
    source, target = kind_of(types, node.this), node.to.this
    if target == _D.INTERVAL:
        inner = node.this
        if isinstance(inner, exp.Literal) and inner.is_string:
            return raw(spark_interval(inner.name))
        return node
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return _literal_cast(node, node.this.name)
    if target in INTEGERS and source in FLOATS:
        return exp.Cast(this=fn("RINT", node.this), to=node.to)
    if target in INTEGERS and source == _D.DECIMAL:
        return exp.Cast(this=fn("ROUND", node.this), to=node.to)
    if target in TEXTS:
        return _to_text(node, source)
    return node


def _literal_cast(node: exp.Cast, text: str) -> exp.Expr:
    """A cast of a string literal: read here by PostgreSQL's rules, and passed on in a spelling that Spark reads."""
    kind = spark_type(node.to)
    if kind == "string":
        return _to_text(node, None)
    if kind.startswith(("struct<", "map<", "void")):
        return node
    return _spelled(parse_text(text, kind), node.to)


def _spelled(value: object, kind: exp.DataType) -> exp.Expr:
    if isinstance(value, list):
        inner = kind.expressions[0]
        assert isinstance(inner, exp.DataType)
        items = exp.Array(expressions=[_spelled(item, inner) for item in value])
        return exp.Cast(this=items, to=kind.copy())
    if value is None:
        return exp.Cast(this=exp.Null(), to=kind.copy())
    if isinstance(value, bytes):
        return fn("UNHEX", exp.Literal.string(value.hex()))
    return exp.Cast(this=exp.Literal.string(to_text(value)), to=kind.copy())


def regexp_ilike(node: exp.Expr, types: Types) -> exp.Expr:
    """`~*` matches without regard to case."""
    return exp.RegexpLike(this=node.this, expression=fn("CONCAT", exp.Literal.string("(?i)"), node.expression))


def _to_text(node: exp.Cast, source: exp.DType | None) -> exp.Expr:
    text: exp.Expr = cast(node.this, _D.TEXT)
    if source in FLOATS:
        text = fn("REGEXP_REPLACE", text, exp.Literal.string("\\.0$"), exp.Literal.string(""))
    elif source in ZONED:
        text = fn("CONCAT", text, exp.Literal.string("+00"))
    sizes = node.to.expressions
    if sizes and sizes[0].name.isdigit():
        return fn("LEFT", text, number(int(sizes[0].name)))
    return text


def interval(node: exp.Expr, types: Types) -> exp.Expr:
    """Interval literals in Spark's spelling."""
    inner = node.this
    if not isinstance(inner, exp.Literal):
        return node
    return raw(spark_interval(interval_words(node)))


def element(node: exp.Expr, types: Types) -> exp.Expr:
    """`a[i]` counts from 1 and is NULL outside the array."""
    assert isinstance(node, exp.Bracket)
    if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
        return node
    index = node.expressions[0]
    if isinstance(index, exp.Literal) and index.is_int:
        return fn("TRY_ELEMENT_AT", node.this, index) if int(index.name) > 0 else exp.Null()
    return fn("TRY_ELEMENT_AT", node.this, fn("NULLIF", fn("GREATEST", index, number(0)), number(0)))


def array_length(node: exp.Expr, types: Types) -> exp.Expr:
    """`array_length` of an empty array is NULL."""
    return fn("NULLIF", fn("SIZE", node.this), number(0))


def all_of_array(node: exp.Expr, types: Types) -> exp.Expr:
    """`x op ALL (array)` becomes `forall`, `x op ANY (array)` becomes `exists`."""
    right = node.expression
    if isinstance(right, exp.Any):
        return _any(node, right.this)
    if isinstance(right, exp.Anonymous) and right.name.lower() == "all" and len(right.expressions) == 1:
        variable = exp.to_identifier("__item", quoted=True)
        test = type(node)(this=node.this, expression=exp.Column(this=variable))
        return fn("FORALL", right.expressions[0], exp.Lambda(this=test, expressions=[variable.copy()]))
    return node


def _any(node: exp.Expr, of: exp.Expr) -> exp.Expr:
    while isinstance(of, exp.Paren):
        of = of.this
    if isinstance(of, (exp.Query, exp.Subquery)):
        if not isinstance(node, exp.EQ):
            raise NotSupported("ANY (query) is supported for = only", hint="Use EXISTS.")
        return exp.In(this=node.this, query=of if isinstance(of, exp.Subquery) else exp.Subquery(this=of))
    variable = exp.to_identifier("__item", quoted=True)
    test = type(node)(this=node.this, expression=exp.Column(this=variable))
    return fn("EXISTS", of, exp.Lambda(this=test, expressions=[variable.copy()]))


def regexp_replace(node: exp.Expr, types: Types) -> exp.Expr:
    """Without the flag `g` only the first match is replaced; group references are Java's."""
    flags = node.args.get("modifiers")
    flag_text = flags.name if isinstance(flags, exp.Literal) else ""
    pattern, replacement = node.expression, node.args.get("replacement") or exp.Literal.string("")
    if not (isinstance(pattern, exp.Literal) and isinstance(replacement, exp.Literal)):
        raise NotSupported("regexp_replace with a pattern or replacement that is no literal is not supported")
    prefix = "(?i)" if "i" in flag_text else ""
    if "g" in flag_text:
        found, new = prefix + pattern.name, java_replacement(replacement.name, 9)
    else:
        found = f"{prefix}^((?s:.*?))({pattern.name})((?s:.*))$"
        groups = pattern.name.count("(") - pattern.name.count("\\(") - pattern.name.count("(?")
        new = "$1" + java_replacement(replacement.name, 9, 2) + f"${groups + 3}"
    return fn("REGEXP_REPLACE", node.this, exp.Literal.string(found), exp.Literal.string(new))


def row_value(node: exp.Expr, types: Types) -> exp.Expr:
    """`ROW(a, b)` is a struct with the fields `f1`, `f2`, ..."""
    args = node.expressions
    parts = [part for i, arg in enumerate(args) for part in (exp.Literal.string(f"f{i + 1}"), arg)]
    return fn("NAMED_STRUCT", *parts)


def power(node: exp.Expr, types: Types) -> exp.Expr:
    """`^` is a power."""
    return fn("POWER", node.this, node.expression)


def _trim(name: str) -> Rule:
    def rule(node: exp.Expr, types: Types) -> exp.Expr:
        args = node.expressions
        if len(args) == 2:
            return fn(name, args[1], args[0])
        return fn(name, *args)

    return rule


ANONYMOUS: dict[str, Rule] = {
    "row": row_value,
    "ltrim": _trim("LTRIM"),
    "rtrim": _trim("RTRIM"),
    "proctime": lambda node, types: fn("CURRENT_TIMESTAMP"),
    "clock_timestamp": lambda node, types: fn("CURRENT_TIMESTAMP"),
    "statement_timestamp": lambda node, types: fn("CURRENT_TIMESTAMP"),
    "transaction_timestamp": lambda node, types: fn("CURRENT_TIMESTAMP"),
    "cardinality": lambda node, types: fn("SIZE", *node.expressions),
    "char_length": lambda node, types: fn("CHAR_LENGTH", *node.expressions),
    "trunc": lambda node, types: (
        cast(*_trunc_parts(node, types)) if len(node.expressions) == 1 else fn("TRUNC", *node.expressions)
    ),
}


def _trunc_parts(node: exp.Expr, types: Types) -> tuple[exp.Expr, exp.DType]:
    value = node.expressions[0]
    kind = kind_of(types, value)
    toward_zero = exp.Case(
        ifs=[exp.If(this=exp.LT(this=exp.Paren(this=value), expression=number(0)), true=fn("CEIL", value.copy()))],
        default=fn("FLOOR", value.copy()),
    )
    return toward_zero, kind if kind in FLOATS else _D.BIGINT


def logarithm(node: exp.Expr, types: Types) -> exp.Expr:
    """`log` of one number is the one to base ten."""
    return node if node.args.get("expression") is not None else fn("LOG10", node.this)


RULES: dict[type[exp.Expr], Rule] = {
    exp.Log: logarithm,
    exp.Div: division,
    exp.Cast: casting,
    exp.Interval: interval,
    exp.Bracket: element,
    exp.ArraySize: array_length,
    exp.RegexpReplace: regexp_replace,
    exp.Pow: power,
    exp.RegexpILike: regexp_ilike,
    exp.EQ: all_of_array,
    exp.NEQ: all_of_array,
    exp.LT: all_of_array,
    exp.LTE: all_of_array,
    exp.GT: all_of_array,
    exp.GTE: all_of_array,
}
