"""Expressions: PostgreSQL's syntax tree in, typed expressions out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from postgast import pg_query_pb2 as pb

from headrace.errors import HeadraceError
from headrace.sql.binder import types as t
from headrace.sql.binder.calls import SPARK, call_function, spark_call
from headrace.sql.binder.catalogue.functions import FUNCTIONS
from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES
from headrace.sql.binder.catalogue.patterns import matches
from headrace.sql.binder.coerce import coerce, common_type, literal, to_common
from headrace.sql.binder.json_paths import is_json, json_literal, json_text
from headrace.sql.binder.overloads import apply, operator
from headrace.sql.binder.own import extreme
from headrace.sql.binder.reading import NotBound, declare, inner, kind_of, place, refuse, strings
from headrace.sql.binder.records import field_of, is_null, record
from headrace.sql.binder.rows import rows_of
from headrace.sql.binder.scope import Located, Missing, Scope, Wrong
from headrace.sql.binder.session import SESSION_VALUES, session_value
from headrace.sql.binder.sublinks import query_in_expression
from headrace.sql.binder.tree import Aggregate, Call, Column, Constant, Expr, Parameter, conjunction
from headrace.sql.binder.typenames import interval_unit, named_type
from headrace.sql.binder.types import Type
from headrace.sql.statements import DATABASE

if TYPE_CHECKING:
    from headrace.sql.binder.bind import Binder

for _kind, _arguments in {
    "A_Const": "ival fval boolval sval isnull",
    "Float": "fval",
    "Boolean": "boolval",
    "ColumnRef": "fields",
    "A_Expr": "kind name lexpr rexpr",
    "BoolExpr": "boolop args",
    "NullTest": "arg nulltesttype",
    "BooleanTest": "arg booltesttype",
    "CaseExpr": "arg args defresult",
    "CaseWhen": "expr result",
    "CoalesceExpr": "args",
    "MinMaxExpr": "op args",
    "TypeCast": "arg type_name",
    "SubLink": "sub_link_type testexpr oper_name subselect",
    "A_ArrayExpr": "elements",
    "A_Indirection": "arg indirection",
    "A_Indices": "is_slice lidx uidx",
    "GroupingFunc": "args",
    "RowExpr": "args row_format",
    "SQLValueFunction": "op typmod",
    "CollateClause": "arg collname",
    "List": "items",
    "ParamRef": "number",
}.items():
    declare(_kind, _arguments)

_NUMBER: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_YEARS: Final = re.compile(r"\s*[+-]?\d+-\d+\s*", re.ASCII)
_COLLATIONS: Final = frozenset(("default", "C", "POSIX", "ucs_basic"))
_TESTS: Final = {
    pb.IS_TRUE: "({0} <=> TRUE)",
    pb.IS_NOT_TRUE: "(NOT {0} <=> TRUE)",
    pb.IS_FALSE: "({0} <=> FALSE)",
    pb.IS_NOT_FALSE: "(NOT {0} <=> FALSE)",
    pb.IS_UNKNOWN: "({0} IS NULL)",
    pb.IS_NOT_UNKNOWN: "({0} IS NOT NULL)",
}


class Expressions:
    """Binds the expressions of one query in one of its clauses.

    `clause` is how messages call it; `aggregates` and `windows` say whether they may be called there.
    """

    def __init__(self, binder: Binder, scope: Scope, clause: str, aggregates: bool = False, windows: bool = False):
        self.binder = binder
        self.scope = scope
        self.clause = clause
        self.aggregates = aggregates
        self.windows = windows
        self.inside = False
        """Whether what is bound now is an argument of an aggregate."""
        self.named_windows: dict[str, Any] = {}
        self.sets: list[Expr] | None = None
        """The arrays of set-returning functions called in the outputs of a query; None where none may be called."""
        self.set_relation = 0
        self.has_aggregates = False
        self.test = False
        """Whether what is bound now is a condition in which null counts as false."""

    def bind(self, node: Any) -> Expr:
        """The expression; its type is `unknown` for a string literal or a null without one."""
        test, self.test = self.test, False
        sets = self.sets
        try:
            kind = kind_of(node)
            if kind in ("CaseExpr", "CoalesceExpr"):
                self.sets = None
            read = _READERS.get(kind)
            if read is None:
                refuse(kind, node)
            message = inner(node)
            if kind in ("SubLink", "BoolExpr"):
                self.test = test
            return read(self, message)
        except HeadraceError as error:
            if error.position is None and (at := place(node)) is not None:
                error.position = self.binder.position(at)
            raise
        except NotBound as unknown:
            if unknown.location is None:
                unknown.location = place(node)
            raise
        finally:
            self.test, self.sets = test, sets

    def known(self, node: Any) -> Expr:
        """The expression, a literal of unknown type as text."""
        found = self.bind(node)
        return coerce(found, t.TEXT, "implicit") if found.type.name == "unknown" else found

    def condition(self, node: Any, what: str) -> Expr:
        """A boolean expression; `what` is how messages call it."""
        before, self.test = self.test, True
        try:
            found = self.bind(node)
        finally:
            self.test = before
        return self.boolean(found, what, node)

    def boolean(self, found: Expr, what: str, node: Any) -> Expr:
        """A value that has to be a boolean one."""
        if found.type.name == "unknown":
            return self.converted(found, t.BOOL, node)
        if found.type.name != "bool":
            raise Wrong(f"argument of {what} must be type boolean, not type {found.type}", "42804", place(node))
        return found

    def converted(self, expr: Expr, target: Type, node: Any, context: t.Context = "implicit") -> Expr:
        """A cast, its errors with a place."""
        try:
            return coerce(expr, target, context)
        except HeadraceError as error:
            if error.position is None and (at := place(node)) is not None:
                error.position = self.binder.position(at)
            raise

    # ---- constants and names

    def _constant(self, message: Any) -> Expr:
        which = message.WhichOneof("val")
        if message.isnull:
            return Constant(t.UNKNOWN, None)
        if which == "ival":
            return Constant(t.INT4, str(message.ival.ival))
        if which == "boolval":
            return Constant(t.BOOL, "true" if message.boolval.boolval else "false")
        if which == "sval":
            return Constant(t.UNKNOWN, message.sval.sval)
        if which == "fval":
            return self._number(message.fval.fval, message)
        refuse("a bit string", message)

    def _number(self, text: str, message: Any) -> Expr:
        if re.fullmatch(r"-?\d+", text, re.ASCII) and -(2**63) <= int(text) < 2**63:
            return Constant(t.INT4 if -(2**31) <= int(text) < 2**31 else t.INT8, str(int(text)))
        if not re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text, re.ASCII):
            refuse("this number", message)
        return literal(text, t.NUMERIC)

    def _column(self, message: Any) -> Expr:
        fields = message.fields
        if kind_of(fields[-1]) != "String":
            refuse("a star in an expression", message)
        names = [f.string.sval for f in fields]
        if len(names) == 1:
            found = self.scope.column(names[0], message.location)
            if found is not None:
                return found
            if self.scope.has(names[0]):
                item = self.scope.item(names[0], None, message.location)
                if item.scalar:
                    return item.columns[0][1]
                refuse("a whole row as a value", message)
            raise Missing(f'column "{names[0]}" does not exist', message.location)
        if len(names) == 4 and names[0] == DATABASE:
            names = names[1:]
        if len(names) > 3:
            refuse("a column with the name of its database", message)
        schema, relation, name = (None, *names) if len(names) == 2 else names
        if len(names) == 2 and not self.scope.has(relation or ""):
            whole = self.scope.column(relation or "", message.location)
            if whole is not None:
                refuse("a field of a column without brackets around the column", message)
        return self.scope.qualified(relation or "", schema, name or "", message.location)

    def _parameter(self, message: Any) -> Expr:
        found = self.binder.parameters
        return Parameter(found.get(message.number, t.UNKNOWN), message.number, found)

    def _collated(self, message: Any) -> Expr:
        if strings(message.collname)[-1] not in _COLLATIONS:
            refuse("COLLATE", message)
        return self.bind(message.arg)

    # ---- operators

    def _operation(self, message: Any) -> Expr:
        read = _OPERATIONS.get(message.kind)
        if read is None:
            refuse(pb.A_Expr_Kind.Name(message.kind), message)
        return read(self, message)

    def _symbol(self, message: Any) -> str:
        names = strings(message.name)
        if len(names) > 1 and names[0] != "pg_catalog":
            refuse("an operator of a schema", message)
        return "<>" if names[-1] == "!=" else names[-1]

    def _plain(self, message: Any) -> Expr:
        symbol = self._symbol(message)
        if not message.HasField("lexpr"):
            return self._prefixed(symbol, message)
        if kind_of(message.lexpr) == "RowExpr" and kind_of(message.rexpr) == "RowExpr":
            return self._rows(symbol, message)
        if symbol == "->>" and self._document(message).type.name in (*t.TEXTS, "unknown"):
            return json_text(self, message)
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        return self.operate(symbol, left, right, message)

    def _document(self, message: Any) -> Expr:
        """What a chain of `->` begins with."""
        node = message.lexpr
        while kind_of(node) == "A_Expr" and node.a_expr.name and strings(node.a_expr.name)[-1] == "->":
            node = node.a_expr.lexpr
        return self.bind(node)

    def operate(self, symbol: str, left: Expr, right: Expr, message: Any) -> Expr:
        """An operator between two values."""
        if symbol in ("~", "~*", "!~", "!~*"):
            parts = [self.converted(e, t.TEXT, message) for e in (left, right)]
            return matches(parts, "*" in symbol, symbol.startswith("!"))
        return operator(OPERATORS, symbol, (left, right), message)

    def _prefixed(self, symbol: str, message: Any) -> Expr:
        found = self.bind(message.rexpr)
        numeric = isinstance(found, Constant) and found.text is not None and found.type.name in (*t.INTEGERS, "numeric")
        if (
            symbol == "-"
            and numeric
            and isinstance(found, Constant)
            and found.text is not None
            and found.text[0] != "-"
        ):
            return Constant(found.type, f"-{found.text}")
        return operator(PREFIXES, symbol, (found,), message)

    def _rows(self, symbol: str, message: Any) -> Expr:
        """`(a, b) = (c, d)`; of the comparisons only `=` and `<>`."""
        left, right = (inner(m).args for m in (message.lexpr, message.rexpr))
        if len(left) != len(right):
            raise Wrong("unequal number of entries in row expressions", "42601", place(message))
        if symbol not in ("=", "<>"):
            refuse("an order of rows", message)
        parts = [self.operate(symbol, self.bind(a), self.bind(b), message) for a, b in zip(left, right, strict=True)]
        return conjunction("AND" if symbol == "=" else "OR", parts)

    def _distinct(self, message: Any) -> Expr:
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        nulls = [e for e in (left, right) if isinstance(e, Constant) and e.text is None]
        if nulls:
            other = right if nulls[0] is left else left
            form = "({0} IS NOT NULL)" if message.kind == pb.AEXPR_DISTINCT else "({0} IS NULL)"
            return Call(t.BOOL, form, (coerce(other, t.TEXT, "implicit") if other.type.name == "unknown" else other,))
        compared = self.operate("=", left, right, message)
        assert isinstance(compared, Call)
        form = "(NOT {0} <=> {1})" if message.kind == pb.AEXPR_DISTINCT else "({0} <=> {1})"
        return Call(t.BOOL, form, compared.arguments)

    def _nullif(self, message: Any) -> Expr:
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        compared = self.operate("=", left, right, message)
        if left.type.name == "unknown":
            left = coerce(left, t.TEXT, "implicit")
        return Call(left.type, "CASE WHEN {1} THEN NULL ELSE {0} END", (left, compared))

    def _in(self, message: Any) -> Expr:
        symbol = self._symbol(message)
        items = list(inner(message.rexpr).items)
        if kind_of(message.lexpr) == "RowExpr":
            found = [self._row_equals(message.lexpr, item, message) for item in items]
        else:
            found = self._listed(message, items)
        whole = conjunction("OR", found)
        return whole if symbol == "=" else Call(t.BOOL, "(NOT {0})", (whole,))

    def _listed(self, message: Any, items: Sequence[Any]) -> list[Expr]:
        left = self.bind(message.lexpr)
        values = [self.bind(item) for item in items]
        simple = all(not v.children() for v in values) and len(values) > 1
        if simple:
            unified = to_common((left, *values), "IN")
            if unified[0].type == left.type and left.type.name not in t.LOOSE:
                holes = ", ".join(f"{{{i + 1}}}" for i in range(len(values)))
                return [Call(t.BOOL, f"({{0}} IN ({holes}))", unified)]
        return [self.operate("=", left, value, message) for value in values]

    def _row_equals(self, left: Any, right: Any, message: Any) -> Expr:
        if kind_of(right) != "RowExpr":
            refuse("a row compared with something else", message)
        a, b = inner(left).args, inner(right).args
        if len(a) != len(b):
            raise Wrong("unequal number of entries in row expressions", "42601", place(message))
        return conjunction(
            "AND", [self.operate("=", self.bind(x), self.bind(y), message) for x, y in zip(a, b, strict=True)]
        )

    def _like(self, message: Any) -> Expr:
        if kind_of(message.rexpr) == "FuncCall" and strings(message.rexpr.func_call.funcname)[-1] == "like_escape":
            return self._like_escape(message)
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        return self.operate(self._symbol(message), left, right, message)

    def _like_escape(self, message: Any) -> Expr:
        """`LIKE ... ESCAPE 'c'`."""
        pattern, escape = (self.bind(arg) for arg in inner(message.rexpr).args)
        if not isinstance(escape, Constant) or escape.text is None or len(escape.text) != 1 or escape.text == "'":
            refuse("this ESCAPE", message)
        left = self.bind(message.lexpr)
        symbol = self._symbol(message)
        compared = operator(OPERATORS, symbol, (left, pattern), message)
        assert isinstance(compared, Call)
        if "*" in symbol:
            refuse("ILIKE with ESCAPE", message)
        word = "\\\\" if escape.text == "\\" else escape.text
        form = f"({{0}} LIKE {{1}} ESCAPE '{word}')"
        return Call(t.BOOL, f"(NOT {form})" if symbol.startswith("!") else form, compared.arguments)

    def _between(self, message: Any) -> Expr:
        low, high = inner(message.rexpr).items
        value = self.bind(message.lexpr)
        parts = [
            self.operate(">=", value, self.bind(low), message), self.operate("<=", value, self.bind(high), message),
        ]  # fmt: skip
        whole = conjunction("AND", parts)
        return Call(t.BOOL, "(NOT {0})", (whole,)) if message.kind == pb.AEXPR_NOT_BETWEEN else whole

    def _any_all(self, message: Any) -> Expr:
        """`x op ANY (array)` and `x op ALL (array)`."""
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        if right.type.name == "unknown":
            if left.type.name == "unknown":
                refuse("ANY of a literal", message)
            right = self.converted(right, t.array_of(left.type), message.rexpr)
        if right.type.element is None:
            raise Wrong("op ANY/ALL (array) requires array on right side", "42809", place(message))
        item = Call(right.type.element, "`__item`", ())
        compared = self.operate(self._symbol(message), left, item, message)
        function = "exists" if message.kind == pb.AEXPR_OP_ANY else "forall"
        return Call(t.BOOL, f"{function}({{0}}, `__item` -> {{1}})", (right, compared))

    def _logic(self, message: Any) -> Expr:
        names = {pb.AND_EXPR: "AND", pb.OR_EXPR: "OR", pb.NOT_EXPR: "NOT"}
        name = names[message.boolop]
        if name == "NOT":
            negated, self.test = self.test, False
            found = self._part(message.args[0], name, negated)
            return Call(t.BOOL, "(NOT {0})", (found,))
        test = self.test
        parts = []
        for arg in message.args:
            self.test = test
            parts.append(self.boolean(self.bind(arg), name, arg))
        return conjunction(name, parts)

    def _part(self, node: Any, name: str, negated: bool) -> Expr:
        """What NOT stands before; NOT IN a query at the top of a condition Spark knows itself."""
        self.test = negated and kind_of(node) == "SubLink"
        try:
            return self.boolean(self.bind(node), name, node)
        finally:
            self.test = False

    def _null_test(self, message: Any) -> Expr:
        negative = message.nulltesttype == pb.IS_NOT_NULL
        form = "({0} IS NOT NULL)" if negative else "({0} IS NULL)"
        if kind_of(message.arg) == "RowExpr":
            parts: list[Expr] = [Call(t.BOOL, form, (self.known(arg),)) for arg in inner(message.arg).args]
            return conjunction("AND", parts)
        found = self.known(message.arg)
        if found.type.name == "record":
            return is_null(found, negative)
        return Call(t.BOOL, form, (found,))

    def _boolean_test(self, message: Any) -> Expr:
        return Call(
            t.BOOL, _TESTS[message.booltesttype], (self.boolean(self.bind(message.arg), "IS TRUE", message.arg),)
        )

    # ---- conditional expressions

    def _case(self, message: Any) -> Expr:
        subject = self.known(message.arg) if message.HasField("arg") else None
        conditions, results = [], []
        for arm in message.args:
            when = inner(arm)
            if subject is None:
                conditions.append(self.boolean(self.bind(when.expr), "CASE/WHEN", when.expr))
            else:
                conditions.append(self.operate("=", subject, self.bind(when.expr), when))
            results.append(self.bind(when.result))
        default = self.bind(message.defresult) if message.HasField("defresult") else Constant(t.UNKNOWN, None)
        target = common_type([default, *results], "CASE")
        values = [self.converted(r, target, message) for r in [*results, default]]
        arms = " ".join(f"WHEN {{{2 * i}}} THEN {{{2 * i + 1}}}" for i in range(len(results)))
        parts = [part for pair in zip(conditions, values, strict=False) for part in pair]
        return Call(target, f"CASE {arms} ELSE {{{2 * len(results)}}} END", (*parts, values[-1]))

    def _coalesce(self, message: Any) -> Expr:
        return self._unified("coalesce", "COALESCE", message)

    def _extreme(self, message: Any) -> Expr:
        greatest = message.op == pb.IS_GREATEST
        if len(message.args) == 1:
            return self.known(message.args[0])
        return self._unified("greatest" if greatest else "least", "GREATEST" if greatest else "LEAST", message)

    def _unified(self, function: str, what: str, message: Any) -> Expr:
        bound = [self.bind(arg) for arg in message.args]
        target = common_type(bound, what)
        if target.is_array and function != "coalesce":
            refuse("an order of arrays", message)
        values = tuple(self.converted(e, target, message) for e in bound)
        if target.name in t.LOOSE and function != "coalesce":
            return extreme(function, values)
        return Call(target, f"{function}({', '.join(f'{{{i}}}' for i in range(len(values)))})", values)

    # ---- casts, arrays, calls

    def _cast(self, message: Any) -> Expr:
        unit = interval_unit(message.type_name)
        if unit is not None:
            return self._interval(message, unit)
        if is_json(message.type_name):
            return json_literal(self.bind(message.arg), message)
        target = named_type(message.type_name)
        if kind_of(message.arg) == "FuncCall" and strings(message.arg.func_call.funcname)[0] == SPARK:
            return spark_call(self, inner(message.arg), target)
        if kind_of(message.arg) == "A_Const" and target.name in t.FLOATS and message.arg.a_const.HasField("fval"):
            return literal(message.arg.a_const.fval.fval, target)
        if kind_of(message.arg) == "A_ArrayExpr" and target.element is not None:
            return self._array(inner(message.arg), target)
        found = self.bind(message.arg)
        return self.converted(found, target, message, "explicit")

    def _interval(self, message: Any, unit: str) -> Expr:
        """`INTERVAL '2' DAY`."""
        found = self.bind(message.arg)
        if not isinstance(found, Constant) or found.text is None:
            refuse("an interval with units beside what is no literal", message)
        if unit == "year to month" and _YEARS.fullmatch(found.text):
            return literal(found.text, t.INTERVAL)
        if " to " in unit or not _NUMBER.fullmatch(found.text):
            refuse("an interval with units beside its text", message)
        return literal(f"{found.text.strip()} {unit}", t.INTERVAL)

    def _array(self, message: Any, target: Type | None = None) -> Expr:
        items = [self.bind(e) for e in message.elements]
        if any(i.type.is_array for i in items):
            refuse("an array of arrays", message)
        if not items and target is None:
            hint = "Explicitly cast to the desired type, for example ARRAY[]::integer[]."
            raise Wrong("cannot determine type of empty array", "42P18", message.location, hint)
        element = target.element if target is not None else common_type(items, "ARRAY")
        assert element is not None
        context: t.Context = "explicit" if target is not None else "implicit"
        values = tuple(self.converted(i, element, message, context) for i in items)
        kind = t.array_of(values[0].type if values and element.name == "numeric" and len(values) == 1 else element)
        holes = ", ".join(f"CAST({{{i}}} AS {element.spark})" if element.name == "numeric" else f"{{{i}}}"
                          for i in range(len(values)))  # fmt: skip
        kind = t.array_of(element)
        return Call(kind, f"CAST(array({holes}) AS {kind.spark})", values)

    def _indirection(self, message: Any) -> Expr:
        found = self.bind(message.arg)
        for part in message.indirection:
            if kind_of(part) == "String":
                found = field_of(found, part.string.sval, message)
                continue
            if kind_of(part) != "A_Indices":
                refuse("a star behind a value", message)
            element = found.type.element
            if found.type.name == "jsonb" and not inner(part).is_slice:
                found = self.operate("->", found, self.bind(inner(part).uidx), message)
                continue
            if element is None:
                raise Wrong(f"cannot subscript type {found.type} because it does not support subscripting", "42804",
                            place(message))  # fmt: skip
            if inner(part).is_slice:
                found = self._slice(found, inner(part), message)
                continue
            index = self.converted(self.bind(inner(part).uidx), t.INT4, message)
            form = "CASE WHEN {1} > 0 THEN try_element_at({0}, {1}) END"
            if isinstance(index, Constant) and index.text is not None:
                form = "try_element_at({0}, {1})" if int(index.text) > 0 else f"CAST(NULL AS {element.spark})"
            found = Call(element, form, (found, index))
        return found

    def _slice(self, found: Expr, part: Any, message: Any) -> Expr:
        """`a[low:high]`, each of them left out for the array's own bound."""
        low: Expr = Constant(t.INT4, "1")
        if part.HasField("lidx"):
            low = self.converted(self.bind(part.lidx), t.INT4, message)
        high: Expr = Call(t.INT4, "size({0})", (found,))
        if part.HasField("uidx"):
            high = self.converted(self.bind(part.uidx), t.INT4, message)
        form = (
            "CASE WHEN {1} IS NOT NULL AND {2} IS NOT NULL THEN "
            "slice({0}, greatest({1}, 1), greatest(least({2}, size({0})) - greatest({1}, 1) + 1, 0)) END"
        )
        return Call(found.type, form, (found, low, high))

    def _row(self, message: Any) -> Expr:
        return record([self.known(arg) for arg in message.args])

    def _grouping(self, message: Any) -> Expr:
        if not self.aggregates:
            raise Wrong(f"grouping operations are not allowed in {self.clause}", "42803", message.location)
        self.has_aggregates = True
        found = tuple(self.known(arg) for arg in message.args)
        bits = [f"CAST(grouping({{{i}}}) AS INT) * {2 ** (len(found) - 1 - i)}" for i in range(len(found))]
        return Aggregate(t.INT4, f"({' + '.join(bits)}){{w}}", found, False, (), None)

    def _session_value(self, message: Any) -> Expr:
        values = {pb.SVFOP_CURRENT_TIMESTAMP: (t.TIMESTAMPTZ, "current_timestamp()"),
                  pb.SVFOP_CURRENT_DATE: (t.DATE, "current_date()"),
                  pb.SVFOP_LOCALTIMESTAMP: (t.TIMESTAMP, "CAST(current_timestamp() AS TIMESTAMP_NTZ)")}  # fmt: skip
        if message.op == pb.SVFOP_LOCALTIME and message.typmod in (0, -1):
            return self.converted(Call(t.TIMESTAMPTZ, "current_timestamp()", ()), t.TIME, message, "explicit")
        name = pb.SQLValueFunctionOp.Name(message.op).removeprefix("SVFOP_").lower()
        if message.op not in values and name in SESSION_VALUES:
            return session_value(self.binder.world, name, message)
        if message.op not in values or message.typmod not in (0, -1):
            refuse(f"this {name.upper().removesuffix('_N')}", message)
        kind, form = values[message.op]
        return Call(kind, form, ())

    def _function(self, message: Any) -> Expr:
        return call_function(self, message)

    def set_of(self, name: str, message: Any) -> Expr:
        """A function that returns a set, in the list of outputs: what it has at the place of the row."""
        if self.sets is None or self.inside:
            raise Wrong("set-returning functions are not allowed here", "0A000", message.location)
        found, self.sets = self.sets, None
        rows = rows_of(name, [self.bind(arg) for arg in message.args], message)
        if len(rows.arrays) != 1:
            refuse("unnest of several arrays outside of FROM", message)
        self.sets = found
        found.append(rows.arrays[0])
        self.set_relation = self.set_relation or self.binder.next_id()
        return Column(rows.kinds[0], self.set_relation, f"set{len(found) - 1}", name)

    def called(self, name: str, arguments: Sequence[Expr], message: Any) -> Expr:
        """A function of the catalogue."""
        return apply(FUNCTIONS, name, arguments, message)

    def _sublink(self, message: Any) -> Expr:
        return query_in_expression(self, message, self.test)


_Reader = Callable[[Expressions, Any], Expr]
_READERS: Final[dict[str, _Reader]] = {
    "A_Const": Expressions._constant,
    "ColumnRef": Expressions._column,
    "A_Expr": Expressions._operation,
    "BoolExpr": Expressions._logic,
    "NullTest": Expressions._null_test,
    "BooleanTest": Expressions._boolean_test,
    "CaseExpr": Expressions._case,
    "CoalesceExpr": Expressions._coalesce,
    "MinMaxExpr": Expressions._extreme,
    "TypeCast": Expressions._cast,
    "A_ArrayExpr": Expressions._array,
    "A_Indirection": Expressions._indirection,
    "SQLValueFunction": Expressions._session_value,
    "FuncCall": Expressions._function,
    "SubLink": Expressions._sublink,
    "CollateClause": Expressions._collated,
    "ParamRef": Expressions._parameter,
    "RowExpr": Expressions._row,
    "GroupingFunc": Expressions._grouping,
}
_OPERATIONS: Final[dict[int, _Reader]] = {
    pb.AEXPR_OP: Expressions._plain,
    pb.AEXPR_DISTINCT: Expressions._distinct,
    pb.AEXPR_NOT_DISTINCT: Expressions._distinct,
    pb.AEXPR_NULLIF: Expressions._nullif,
    pb.AEXPR_IN: Expressions._in,
    pb.AEXPR_LIKE: Expressions._like,
    pb.AEXPR_ILIKE: Expressions._like,
    pb.AEXPR_BETWEEN: Expressions._between,
    pb.AEXPR_NOT_BETWEEN: Expressions._between,
    pb.AEXPR_OP_ANY: Expressions._any_all,
    pb.AEXPR_OP_ALL: Expressions._any_all,
}
__all__ = ["Expressions", "Located", "conjunction"]
