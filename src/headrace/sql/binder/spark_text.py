"""Typed trees as Spark SQL text that cannot be misread.

Every relation has an alias of its own, every column is qualified by it, every name is quoted and every value has its
type: no name that a user gives is ever looked up by Spark, but those of the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Final

from headrace.common.jsonb.document import KEY, TEXT
from headrace.common.time_of_day import FIELD, parse
from headrace.sql.binder import spans
from headrace.sql.binder import types as t
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Called,
    Constant,
    Derived,
    Expr,
    Itself,
    JoinedRelation,
    Nested,
    Over,
    Parameter,
    Produced,
    Query,
    Recursive,
    Relation,
    Scan,
    SelectQuery,
    Sessions,
    SetOperation,
    SortKey,
    Values,
    WindowedRelation,
    fill,
    walk,
)  # fmt: skip
from headrace.sql.binder.from_clause import unique_names
from headrace.sql.binder.own import calls_kernel
from headrace.sql.binder.parse_tree import NotBound
from headrace.sql.binder.types import Type
from headrace.sql.sort_comparators import array_comparator
from headrace.sql.statements import LOOKUP_SUFFIX, TableName
from headrace.sql.text_values import parse_text, to_text

Rename = Callable[[TableName], str]


def spark_text(query: Query, rename: Rename) -> str:
    """The text of a query; `rename` gives the text that stands for a relation."""
    return _Writer(rename).query(query, query.names)


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def string(text: str) -> str:
    """A string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class _Writer:
    def __init__(self, rename: Rename):
        self._rename = rename

    # ---- queries

    def query(self, query: Query, names: Sequence[str]) -> str:
        """A query, its outputs called by some names."""
        if isinstance(query, SelectQuery):
            text = self._select(query, names)
        elif isinstance(query, Values):
            text = self._values(query, names)
        elif isinstance(query, Recursive):
            text = self._recursive(query, names)
        else:
            assert isinstance(query, SetOperation)
            text = self._set_operation(query, names)
        return text + self._bounds(query)

    def _bounds(self, query: Query) -> str:
        text = ""
        if query.order:
            text += " ORDER BY " + ", ".join(self._key(key) for key in query.order)
        if query.limit is not None:
            text += f" LIMIT {_count(query.limit)}"
        if query.offset is not None:
            text += f" OFFSET {_count(query.offset)}"
        return text

    def _select(self, query: SelectQuery, names: Sequence[str]) -> str:
        items = ", ".join(
            f"{self.expr(o.value)} AS {quoted(n)}" for o, n in zip(query.outputs, names, strict=True)
        )  # fmt: skip
        text = f"SELECT {'DISTINCT ' if query.distinct else ''}{items or '1'}"
        if query.source is not None:
            text += f" FROM {self.relation(query.source)}"
        if query.where is not None:
            text += f" WHERE {self.expr(query.where)}"
        if query.grouping:
            text += f" GROUP BY {fill(query.grouping, [self.expr(g) for g in query.groups])}"
        if query.having is not None:
            text += f" HAVING {self.expr(query.having)}"
        return text

    def _values(self, query: Values, names: Sequence[str]) -> str:
        rows = ", ".join("(" + ", ".join(self.expr(c) for c in row) + ")" for row in query.rows)
        columns = ", ".join(quoted(f"c{i}") for i in range(len(names)))
        items = ", ".join(f"`_v`.{quoted(f'c{i}')} AS {quoted(n)}" for i, n in enumerate(names))
        return f"SELECT {items} FROM VALUES {rows} AS `_v`({columns})"

    def _set_operation(self, query: SetOperation, names: Sequence[str]) -> str:
        own = unique_names(names)
        left, right = (self.query(side, own) for side in (query.left, query.right))
        text = f"({left}) {query.operator} ({right})"
        if tuple(names) == own and not query.order:
            return text
        items = ", ".join(f"`_u`.{quoted(o)} AS {quoted(n)}" for o, n in zip(own, names, strict=True))
        return f"SELECT {items} FROM ({text}) AS `_u`"

    def _recursive(self, query: Recursive, names: Sequence[str]) -> str:
        own = unique_names(query.names)
        name = _recursion(query.number)
        first, following = (self.query(part, own) for part in (query.first, query.following))
        items = ", ".join(f"{quoted(o)} AS {quoted(n)}" for o, n in zip(own, names, strict=True))
        return (
            f"WITH RECURSIVE {name}({', '.join(map(quoted, own))}) MAX RECURSION LEVEL {_MOST_RECURSIONS} "
            f"AS (({first}) UNION ALL ({following})) SELECT {items} FROM {name}"
        )

    def _key(self, key: SortKey) -> str:
        value = str(key.output) if key.output is not None else self.expr(key.value)
        return value + _direction(key)

    # ---- relations

    def relation(self, relation: Relation) -> str:
        """A relation with its alias."""
        if isinstance(relation, Scan):
            text = self._rename(relation.table)
            if relation.looked_up and text.startswith("`"):
                text = f"{text[:-1]}{LOOKUP_SUFFIX}`"
            return f"{text} AS {alias(relation.id)}"
        if isinstance(relation, Derived):
            lateral = "LATERAL " if relation.lateral else ""
            return f"{lateral}({self.query(relation.query, relation.columns)}) AS {alias(relation.id)}"
        if isinstance(relation, Produced):
            lateral = "LATERAL " if relation.lateral else ""
            names = ", ".join(map(quoted, relation.columns))
            names = f"({names})" if len(relation.columns) > 1 else names
            return f"{lateral}(SELECT {self.expr(relation.call)} AS {names}) AS {alias(relation.id)}"
        if isinstance(relation, Called):
            lateral = "LATERAL " if relation.lateral else ""
            return f"{lateral}{self.expr(relation.call)} AS {alias(relation.id)}"
        if isinstance(relation, WindowedRelation):
            return self._windowed(relation)
        if isinstance(relation, Sessions):
            return self._sessions(relation)
        if isinstance(relation, Itself):
            return f"{_recursion(relation.number)} AS {alias(relation.id)}"
        assert isinstance(relation, JoinedRelation)
        right = self.relation(relation.right)
        if isinstance(relation.right, JoinedRelation):
            right = f"({right})"
        text = f"{self.relation(relation.left)} {relation.kind} {right}"
        return text if relation.condition is None else f"{text} ON {self.expr(relation.condition)}"

    def _windowed(self, relation: WindowedRelation) -> str:
        """All columns of a relation as they are, and the bounds of the window."""
        widths = ", ".join(map(string, relation.widths))
        window = f"window({self.expr(relation.time)}, {widths}) AS `__window`"
        inner = f"SELECT *, {window} FROM {self.relation(relation.source)}"
        bounds = "`__window`.`start` AS `window_start`, `__window`.`end` AS `window_end`"
        return f"(SELECT * EXCEPT (`__window`), {bounds} FROM ({inner}) AS `__windowed`) AS {alias(relation.id)}"

    def _sessions(self, relation: Sessions) -> str:
        """A row begins a session where the one before it is too far back: the last beginning up to a row is its own."""
        time, gap = self.expr(relation.time), self.expr(relation.gap)
        keys = list(map(quoted, relation.keys))
        parted = f"PARTITION BY {', '.join(keys)} " if keys else ""
        ordered = f"({parted}ORDER BY `__time`)"
        timed = f"SELECT *, {time} AS `__time` FROM {self.relation(relation.source)} WHERE {time} IS NOT NULL"
        begun = (
            f"SELECT *, CASE WHEN lag(`__time`) OVER {ordered} + {gap} > `__time` THEN NULL ELSE `__time` END "
            f"AS `__first` FROM ({timed}) AS `__timed`"
        )
        started = f"SELECT *, max(`__first`) OVER {ordered} AS `window_start` FROM ({begun}) AS `__begun`"
        whole = f"max(`__time`) OVER (PARTITION BY {', '.join([*keys, '`window_start`'])}) + {gap} AS `window_end`"
        columns = "* EXCEPT (`__time`, `__first`)"
        return f"(SELECT {columns}, {whole} FROM ({started}) AS `__sessions`) AS {alias(relation.id)}"

    # ---- expressions

    def expr(self, expr: Expr) -> str:
        """An expression; its text can stand anywhere."""
        if isinstance(expr, BoundColumn):
            return f"{alias(expr.relation)}.{quoted(expr.name)}"
        if isinstance(expr, Constant):
            return constant(expr)
        if isinstance(expr, Parameter):
            raise NotBound("a parameter without a value")
        if isinstance(expr, Call):
            if "->" in expr.form:
                whole = _inside(expr)
                if not isinstance(whole, Call):
                    return self.expr(whole)
                expr = whole
                _require_plain_elements(expr)
            return fill(expr.form, [self.expr(a) for a in expr.arguments])
        if isinstance(expr, BoundAggregate):
            return self._aggregate(expr, "")
        if isinstance(expr, Over):
            return self._over(expr)
        assert isinstance(expr, Nested)
        query = expr.query
        return fill(
            expr.form, [self.expr(a) for a in expr.arguments], {"q": self.query(query, unique_names(query.names))}
        )  # fmt: skip

    def _aggregate(self, expr: BoundAggregate, over: str) -> str:
        where = f" FILTER (WHERE {self.expr(expr.where)})" if expr.where is not None else ""
        if expr.form in ("array_agg", "list"):
            return self._array_agg(expr, where + over)
        distinct = "DISTINCT " if expr.distinct else ""
        form = expr.form if "{w}" in expr.form else expr.form + "{w}"
        order = ""
        if expr.order:
            order = " WITHIN GROUP (ORDER BY " + ", ".join(self._key(k) for k in expr.order) + ")"
        return fill(form, [self.expr(a) for a in expr.arguments], {"d": distinct, "w": f"{order}{where}{over}"})

    def _array_agg(self, expr: BoundAggregate, where: str) -> str:
        """Values travel in structs, since Spark's lists drop bare nulls."""
        if any(isinstance(part, Nested) for child in expr.children() for part in walk(child)):
            raise NotBound(f"a query inside of an aggregate of type {expr.type}")
        fields = [f"{self.expr(expr.arguments[0])} AS `v`"]
        fields += [f"{self.expr(k.value)} AS `k{i}`" for i, k in enumerate(expr.order)]
        function = "collect_set" if expr.distinct else "collect_list"
        text = f"{function}(struct({', '.join(fields)})){where}"
        keys = [(f"k{i}", k.descending, k.nulls_first) for i, k in enumerate(expr.order)]
        if keys or expr.distinct:
            text = f"array_sort({text}, {array_comparator(keys or [('v', False, False)])})"
        text = f"transform({text}, `__s` -> `__s`.`v`)"
        return text if expr.form == "list" else f"nullif({text}, array())"

    def _over(self, expr: Over) -> str:
        parts = []
        if expr.partition:
            parts.append("PARTITION BY " + ", ".join(self.expr(p) for p in expr.partition))
        if expr.order:
            parts.append("ORDER BY " + ", ".join(self.expr(k.value) + _direction(k) for k in expr.order))
        if expr.frame:
            parts.append(expr.frame)
        assert isinstance(expr.function, BoundAggregate)
        return self._aggregate(expr.function, f" OVER ({' '.join(parts)})")


@lru_cache(maxsize=1000)
def _in_functions(form: str) -> frozenset[int]:
    """The places of the arguments that Spark's text uses inside of a function of each element."""
    found: set[int] = set()
    for arrow in re.finditer("->", form):
        depth, end = 0, arrow.end()
        while end < len(form) and depth >= 0:
            depth += {"(": 1, ")": -1}.get(form[end], 0)
            end += 1
        found.update(int(i) for i in re.findall(r"\{(\d+)\}", form[arrow.end() : end]))
    return frozenset(found)


def _inside(expr: Expr) -> Expr:
    """A function of what a query has as its one row, such as `ARRAY(query)`, as that query's output."""
    if not isinstance(expr, Call) or "->" not in expr.form:
        return expr
    arguments = tuple(map(_inside, expr.arguments))
    expr = replace(expr, arguments=arguments)
    queries = [a for a in arguments if isinstance(a, Nested) and _has_one_row(a)]
    others = [part for a in arguments if a is not queries[0] for part in walk(a)] if queries else []
    if len(queries) != 1 or any(isinstance(part, (BoundColumn, Nested, BoundAggregate, Over)) for part in others):
        return expr
    query = queries[0].query
    assert isinstance(query, SelectQuery)
    value = replace(expr, arguments=tuple(query.outputs[0].value if a is queries[0] else a for a in arguments))
    outputs = (replace(query.outputs[0], value=value),)
    return replace(queries[0], type=expr.type, query=replace(query, outputs=outputs, types=(expr.type,)))


def _has_one_row(nested: Nested) -> bool:
    query = nested.query
    if nested.form != "({q})" or not isinstance(query, SelectQuery) or query.grouping or query.having is not None:
        return False
    totals = any(isinstance(part, BoundAggregate) for part in walk(query.outputs[0].value))
    return totals and query.limit is None and query.offset is None and not query.distinct


def _require_plain_elements(expr: Call) -> None:
    """Spark has no queries in expressions with functions of each element, and no kernels in such functions."""
    if any(isinstance(part, Nested) for argument in expr.arguments for part in walk(argument)):
        raise NotBound(f"a query inside of this expression of type {expr.type}")
    if any(calls_kernel(expr.arguments[i]) for i in _in_functions(expr.form)):
        raise NotBound(f"a function of jsonb inside of this expression of type {expr.type}")


def alias(number: int) -> str:
    """The alias of a relation."""
    return f"`_r{number}`"


_MOST_RECURSIONS: Final = 10_000
"""Steps of a recursive query after which it fails."""


def _recursion(number: int) -> str:
    """The name of a recursive query."""
    return f"`_recursion{number}`"


def _direction(key: SortKey) -> str:
    return f" {'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _count(expr: Expr) -> str:
    if not isinstance(expr, Constant) or expr.text is None:
        raise NotBound("a LIMIT or OFFSET without a value")
    return str(int(expr.text))


# ---- literals

_PLAIN: Final = {"bool": str.upper, "text": string, "varchar": string}


def constant(expr: Constant) -> str:
    """A literal of exactly its type."""
    kind, text = expr.type, expr.text
    if text is None:
        return f"CAST(NULL AS {'string' if kind.name == 'unknown' else kind.spark})"
    if kind.name in _PLAIN:
        return _PLAIN[kind.name](text)
    if kind.name == "int4" and not text.startswith("-"):
        return text
    if kind.name == "time":
        return f"named_struct('{FIELD}', {parse(text)}L)"
    if kind.name == "interval":
        return spans.constant(text)
    if kind.name == "jsonb":
        value = parse_text(text, kind.spark)
        return f"named_struct('{KEY}', X'{value[KEY].hex()}', '{TEXT}', {string(value[TEXT])})"
    if kind.name == "bytea":
        return f"X'{parse_text(text, 'binary').hex()}'"
    if kind.element is not None:
        return _array(kind, kind.element, text)
    if kind.name == "unknown":
        return string(text)
    if kind == t.NUMERIC and not _fits(Decimal(text), *t.digits(kind)):
        raise NotBound("a number of more than 38 digits")
    return f"CAST({string(text)} AS {kind.spark})"


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    """Whether a number can be had with so many digits, so many of them behind the point."""
    return int(value.as_tuple().exponent) >= -scale and value.adjusted() < precision - scale


def _array(kind: Type, element: Type, text: str) -> str:
    items = parse_text(text, kind.spark)
    if any(isinstance(item, list) for item in items):
        raise NotBound("an array of arrays")
    texts = [None if i is None else i.hex() if isinstance(i, bytes) else to_text(i) for i in items]
    if element.name == "bytea":
        raise NotBound("a literal array of bytes")
    listed = ", ".join(constant(Constant(element, i)) for i in texts)
    return f"CAST(array({listed}) AS {kind.spark})"


_ = t
