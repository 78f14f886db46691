"""Expressions: PostgreSQL's syntax tree in, typed expressions out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from postgast import pg_query_pb2 as pb

from headrace.errors import HeadraceError, NumericOutOfRange
from headrace.sql.binder import comparisons
from headrace.sql.binder import types as t
from headrace.sql.binder.arrays import array, part_of
from headrace.sql.binder.bound_tree import (
    BoundAggregate,
    BoundColumn,
    Call,
    Constant,
    Expr,
    Parameter,
    conjunction,
    walk,
)
from headrace.sql.binder.call_binder import call_function
from headrace.sql.binder.casts import cast
from headrace.sql.binder.catalogue.functions import FUNCTIONS
from headrace.sql.binder.catalogue.operators import OPERATORS, PREFIXES
from headrace.sql.binder.catalogue.patterns import matches
from headrace.sql.binder.coerce import coerce, common_type, literal, to_common
from headrace.sql.binder.json_paths import json_text
from headrace.sql.binder.logic import boolean_test, logic, null_test
from headrace.sql.binder.overloads import apply, operator
from headrace.sql.binder.own import extreme
from headrace.sql.binder.parse_tree import Message, NotBound, declare, inner, kind_of, place, refuse, strings
from headrace.sql.binder.scope import Located, Missing, Scope, Wrong
from headrace.sql.binder.session_values import now_as, value_function
from headrace.sql.binder.set_functions import rows_of
from headrace.sql.binder.structs import field_of, record
from headrace.sql.binder.sublinks import query_in_expression
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

_COLLATIONS: Final = frozenset(("default", "C", "POSIX", "ucs_basic"))


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
        self.named_windows: dict[str, pb.WindowDef] = {}
        self.sets: list[Expr] | None = None
        """The arrays of set-returning functions called in the outputs of a query; None where none may be called."""
        self.set_relation = 0
        self.has_aggregates = False
        self.test = False
        """Whether what is bound now is a condition in which null counts as false."""

    def bind(self, node: pb.Node) -> Expr:
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

    def known(self, node: pb.Node) -> Expr:
        """The expression, a literal of unknown type as text."""
        found = self.bind(node)
        return coerce(found, t.TEXT, "implicit") if found.type.name == "unknown" else found

    def condition(self, node: pb.Node, what: str) -> Expr:
        """A boolean expression; `what` is how messages call it."""
        before, self.test = self.test, True
        try:
            found = self.bind(node)
        finally:
            self.test = before
        return self.boolean(found, what, node)

    def boolean(self, found: Expr, what: str, node: pb.Node) -> Expr:
        """A value that has to be a boolean one."""
        if found.type.name == "unknown":
            return self.converted(found, t.BOOL, node)
        if found.type.name != "bool":
            raise Wrong(f"argument of {what} must be type boolean, not type {found.type}", "42804", place(node))
        return found

    def converted(self, expr: Expr, target: Type, node: Message | None, context: t.Context = "implicit") -> Expr:
        """A cast, its errors with a place."""
        try:
            return coerce(expr, target, context)
        except HeadraceError as error:
            if error.position is None and (at := place(node)) is not None:
                error.position = self.binder.position(at)
            raise

    # ---- constants and names

    def _constant(self, message: pb.A_Const) -> Expr:
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

    def _number(self, text: str, message: Message) -> Expr:
        if re.fullmatch(r"-?\d+", text, re.ASCII) and -(2**63) <= int(text) < 2**63:
            return Constant(t.INT4 if -(2**31) <= int(text) < 2**31 else t.INT8, str(int(text)))
        if not re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text, re.ASCII):
            refuse("this number", message)
        try:
            return literal(text, t.NUMERIC)
        except (NotBound, NumericOutOfRange):
            return Constant(t.NUMERIC, text)  # it may still be a float

    def _column(self, message: pb.ColumnRef) -> Expr:
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

    def _parameter(self, message: pb.ParamRef) -> Expr:
        found = self.binder.parameters
        return Parameter(found.get(message.number, t.UNKNOWN), message.number, found)

    def _collated(self, message: pb.CollateClause) -> Expr:
        if strings(message.collname)[-1] not in _COLLATIONS:
            refuse("COLLATE", message)
        return self.bind(message.arg)

    # ---- operators

    def _operation(self, message: pb.A_Expr) -> Expr:
        read = _OPERATIONS.get(message.kind)
        if read is None:
            refuse(pb.A_Expr_Kind.Name(message.kind), message)
        return read(self, message)

    def symbol(self, message: pb.A_Expr) -> str:
        """The operator that is written."""
        names = strings(message.name)
        if len(names) > 1 and names[0] != "pg_catalog":
            refuse("an operator of a schema", message)
        return "<>" if names[-1] == "!=" else names[-1]

    def _plain(self, message: pb.A_Expr) -> Expr:
        symbol = self.symbol(message)
        if not message.HasField("lexpr"):
            return self._prefixed(symbol, message)
        if kind_of(message.lexpr) == "RowExpr" and kind_of(message.rexpr) == "RowExpr":
            return comparisons.rows(self, symbol, message)
        if symbol == "->>" and self._document(message).type.name in (*t.TEXTS, "unknown"):
            return json_text(self, message)
        left, right = self.bind(message.lexpr), self.bind(message.rexpr)
        return self.operate(symbol, left, right, message)

    def _document(self, message: pb.A_Expr) -> Expr:
        """What a chain of `->` begins with."""
        node = message.lexpr
        while kind_of(node) == "A_Expr" and node.a_expr.name and strings(node.a_expr.name)[-1] == "->":
            node = node.a_expr.lexpr
        return self.bind(node)

    def operate(self, symbol: str, left: Expr, right: Expr, message: Message | None) -> Expr:
        """An operator between two values."""
        if symbol in ("~", "~*", "!~", "!~*"):
            parts = [self.converted(e, t.TEXT, message) for e in (left, right)]
            return matches(parts, "*" in symbol, symbol.startswith("!"))
        return operator(OPERATORS, symbol, (left, right), message)

    def _prefixed(self, symbol: str, message: pb.A_Expr) -> Expr:
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

    def _in(self, message: pb.A_Expr) -> Expr:
        symbol = self.symbol(message)
        items = list(inner(message.rexpr).items)
        if kind_of(message.lexpr) == "RowExpr":
            found = [comparisons.row_equals(self, message.lexpr, item, message) for item in items]
        else:
            found = self._listed(message, items)
        whole = conjunction("OR", found)
        return whole if symbol == "=" else Call(t.BOOL, "(NOT {0})", (whole,))

    def _listed(self, message: pb.A_Expr, items: Sequence[pb.Node]) -> list[Expr]:
        left = self.bind(message.lexpr)
        values = [self.bind(item) for item in items]
        simple = left.type.name != "unknown" and all(not v.children() for v in values) and len(values) > 1
        if simple:
            unified = to_common((left, *values), "IN")
            if unified[0].type == left.type and left.type.name not in t.LOOSE:
                holes = ", ".join(f"{{{i + 1}}}" for i in range(len(values)))
                return [Call(t.BOOL, f"({{0}} IN ({holes}))", unified)]
        return [self.operate("=", left, value, message) for value in self._of_one_type(left, values)]

    def _of_one_type(self, left: Expr, values: list[Expr]) -> list[Expr]:
        """Of those without columns PostgreSQL makes an array where there are several and one type fits them all."""
        known = [not any(isinstance(part, BoundColumn) for part in walk(value)) for value in values]
        fixed = [left, *(value for value, is_known in zip(values, known, strict=True) if is_known)]
        categories = {e.type.category for e in fixed if e.type.name != "unknown"}
        if len(fixed) < 3 or len(categories) != 1 or "A" in categories:
            return values
        target = common_type(fixed, "IN")
        return [coerce(v, target, "implicit") if is_known else v for v, is_known in zip(values, known, strict=True)]

    # ---- conditional expressions

    def _case(self, message: pb.CaseExpr) -> Expr:
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

    def _coalesce(self, message: pb.CoalesceExpr) -> Expr:
        return self._unified("coalesce", "COALESCE", message)

    def _extreme(self, message: pb.MinMaxExpr) -> Expr:
        greatest = message.op == pb.IS_GREATEST
        if len(message.args) == 1:
            return self.known(message.args[0])
        return self._unified("greatest" if greatest else "least", "GREATEST" if greatest else "LEAST", message)

    def _unified(self, function: str, what: str, message: pb.CoalesceExpr | pb.MinMaxExpr) -> Expr:
        bound = [self.bind(arg) for arg in message.args]
        target = common_type(bound, what)
        values = tuple(self.converted(e, target, message) for e in bound)
        if function != "coalesce" and target.element is not None and target.element.name in t.LOOSE:
            refuse(f"an order of {target}", message)
        if function != "coalesce" and (target.is_array or target.name in t.LOOSE):
            return extreme(function, values)
        return Call(target, f"{function}({', '.join(f'{{{i}}}' for i in range(len(values)))})", values)

    # ---- casts, arrays, calls

    def _indirection(self, message: pb.A_Indirection) -> Expr:
        found = self.bind(message.arg)
        if found.type.is_array and sum(kind_of(part) == "A_Indices" for part in message.indirection) > 1:
            refuse("a subscript of several dimensions", message)
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
                found = part_of(self, found, inner(part), message)
                continue
            index = self.converted(self.bind(inner(part).uidx), t.INT4, message)
            form = "CASE WHEN {1} > 0 THEN try_element_at({0}, {1}) END"
            if isinstance(index, Constant) and index.text is not None:
                form = "try_element_at({0}, {1})" if int(index.text) > 0 else f"CAST(NULL AS {element.spark})"
            found = Call(element, form, (found, index))
        return found

    def _row(self, message: pb.RowExpr) -> Expr:
        return record([self.known(arg) for arg in message.args])

    def _grouping(self, message: pb.GroupingFunc) -> Expr:
        if not self.aggregates:
            raise Wrong(f"grouping operations are not allowed in {self.clause}", "42803", message.location)
        self.has_aggregates = True
        found = tuple(self.known(arg) for arg in message.args)
        bits = [f"CAST(grouping({{{i}}}) AS INT) * {2 ** (len(found) - 1 - i)}" for i in range(len(found))]
        return BoundAggregate(t.INT4, f"({' + '.join(bits)}){{w}}", found, False, (), None)

    def _session_value(self, message: pb.SQLValueFunction) -> Expr:
        if message.op == pb.SVFOP_LOCALTIME and message.typmod in (0, -1):
            return self.converted(now_as(t.TIMESTAMPTZ), t.TIME, message, "explicit")
        return value_function(self.binder.world, message)

    def _function(self, message: pb.FuncCall) -> Expr:
        return call_function(self, message)

    def set_of(self, name: str, message: pb.FuncCall) -> Expr:
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
        return BoundColumn(rows.kinds[0], self.set_relation, f"set{len(found) - 1}", name)

    def called(self, name: str, arguments: Sequence[Expr], message: Message) -> Expr:
        """A function of the catalogue."""
        return apply(FUNCTIONS, name, arguments, message)

    def _sublink(self, message: pb.SubLink) -> Expr:
        return query_in_expression(self, message, self.test)


_Reader = Callable[[Expressions, Any], Expr]
_READERS: Final[dict[str, _Reader]] = {
    "A_Const": Expressions._constant,
    "ColumnRef": Expressions._column,
    "A_Expr": Expressions._operation,
    "BoolExpr": logic,
    "NullTest": null_test,
    "BooleanTest": boolean_test,
    "CaseExpr": Expressions._case,
    "CoalesceExpr": Expressions._coalesce,
    "MinMaxExpr": Expressions._extreme,
    "TypeCast": cast,
    "A_ArrayExpr": array,
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
    pb.AEXPR_DISTINCT: comparisons.distinct,
    pb.AEXPR_NOT_DISTINCT: comparisons.distinct,
    pb.AEXPR_NULLIF: comparisons.nullif,
    pb.AEXPR_IN: Expressions._in,
    pb.AEXPR_LIKE: comparisons.like,
    pb.AEXPR_ILIKE: comparisons.like,
    pb.AEXPR_SIMILAR: comparisons.similar,
    pb.AEXPR_BETWEEN: comparisons.between,
    pb.AEXPR_NOT_BETWEEN: comparisons.between,
    pb.AEXPR_BETWEEN_SYM: comparisons.between,
    pb.AEXPR_NOT_BETWEEN_SYM: comparisons.between,
    pb.AEXPR_OP_ANY: comparisons.any_all,
    pb.AEXPR_OP_ALL: comparisons.any_all,
}
__all__ = ["Expressions", "Located", "conjunction"]
