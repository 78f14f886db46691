"""From PostgreSQL's syntax tree of a query over the system catalogs to DuckDB's SQL.

Both have one grammar, so most of the tree stays. What changes is what the two call differently: relations and types of
the system, functions, regular expressions, series in SELECT lists, where arrays begin. Functions, operators and casts
that are not known here are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Final

from google.protobuf.message import Message
from postgast import deparse
from postgast import pg_query_pb2 as pb

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import InvalidParameter, NotSupported, UndefinedFunction, UndefinedTable
from headrace.session.introspection import syntax_nodes
from headrace.session.introspection.macros import MACROS, NATIVE, RIGHTS, macro_name, table_name
from headrace.sql.binder.output_names import output_name
from headrace.sql.postgres import ParsedStatement, parse_statement

SCHEMAS: Final = ("pg_catalog", "information_schema", "rw_catalog")
"""The schemas whose relations are looked up here."""
VECTORS: Final = ("indkey", "indclass", "indoption", "indcollation", "proargtypes", "tgattr")
"""Columns whose arrays begin with element 0."""
_TYPES: Final = {
    "name": "varchar", "char": "varchar", "oid": "int8", "xid": "int8", "sql_identifier": "varchar",
    "cardinal_number": "int4", "yes_or_no": "varchar", "character_data": "varchar", "bpchar": "varchar",
    "regproc": "varchar", "jsonb": "json", "int2vector": "int2", "oidvector": "int8", "aclitem": "varchar",
    "pg_node_tree": "varchar",
    **{n: n for n in ("text", "varchar", "int2", "int4", "int8", "float4", "float8", "numeric", "bool", "date",
                      "timestamp", "timestamptz", "time", "interval", "json", "uuid")},
}  # fmt: skip
_FUNCTIONS: Final = (
    "typinput",
    "typoutput",
    "typreceive",
    "typsend",
    "typmodin",
    "typmodout",
    "typanalyze",
    "typsubscript",
)
"""Columns with the names of functions, which PostgreSQL compares with 0 for none."""
_OBJECTS: Final = ("regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole")
_OWN: Final = (*_OBJECTS, "oid", "name", "char", "xid")
"""Types of the system catalogs' own that a query without relations may have casts to."""
_OPERATORS: Final = frozenset("= <> != < > <= >= + - * / % || @> <@ && & | << >>".split())  # noqa: SIM905
_MOST_ELEMENTS: Final = 1_000_000
_QUERY: Final = "hr_with_"
"""What the names of queries in WITH begin with."""
_NAMED_BY: Final = {"relation": "regclass", "schema": "regnamespace", "role": "regrole"}
_LIKES: Final = ("~~", "!~~", "~~*", "!~~*")
_MATCHES: Final = {"~": (False, ""), "~*": (False, "i"), "!~": (True, ""), "!~*": (True, "i")}
_RIGHTS: Final = {
    "has_table_privilege": "relation", "has_any_column_privilege": "relation", "has_column_privilege": "relation",
    "has_schema_privilege": "schema", "has_function_privilege": "function", "has_database_privilege": "database",
    "has_type_privilege": "type", "has_sequence_privilege": "relation", "has_language_privilege": "language",
    "pg_has_role": "role", "has_server_privilege": "server", "has_foreign_data_wrapper_privilege": "server",
    "has_tablespace_privilege": "tablespace",
}  # fmt: skip


@dataclass
class Rewriter:
    """Rewrites one query, and gathers the relations, macros and values that it needs."""

    parsed: ParsedStatement
    value_of: Callable[..., str | int | bool | list[str] | None]
    """What the session says: `current_user`, or `current_setting` with its arguments."""
    resolve: Callable[[str, str], int]
    """The oid of what a literal names: `regclass` and so on, and its text."""
    holds: Callable[[str, str | None], str]
    """How a privilege of a class is asked for: the class, and the privilege's words."""
    superuser: bool
    knows: Callable[[str, str], bool]
    """Whether there is a system relation, by schema and name."""
    tables: set[tuple[str, str]] = field(default_factory=set)
    macros: set[str] = field(default_factory=set)
    roles: set[str] = field(default_factory=set)
    """Whose rights it asks for."""
    asks_for_tables: bool = False
    """Whether it asks of which relation rows are: `tableoid`."""
    _named: set[str] = field(default_factory=set)
    _objects: list[str] = field(default_factory=list)
    """Macros that have been put in the place of casts."""
    _asks_for_words: bool = False

    def text(self) -> str:
        """The query for DuckDB. Raises `NotSupported`, `UndefinedFunction`, `UndefinedTable`."""
        tree = pb.Node()
        tree.CopyFrom(self.parsed.tree)
        self._named = {cte.ctename for cte in syntax_nodes.messages(tree, pb.CommonTableExpr)}
        self._name_outputs(tree)
        self._bound_series(tree)
        self._spell_vectors(tree.select_stmt)
        self._spell_objects(tree.select_stmt)
        self._visit(tree)
        if self.asks_for_tables:
            self._refuse_all_columns(tree)
        return deparse(pb.ParseResult(version=160000, stmts=[pb.RawStmt(stmt=tree)]))

    # ---- walking

    def _visit(self, message: Message) -> None:
        """Rewrite a message's parts, and then itself."""
        if isinstance(message, pb.SelectStmt):
            self._refuse_clauses(message)
            self._series(message)
        if isinstance(message, pb.Node):
            self._replace(message)
        for descriptor, value in message.ListFields():
            if descriptor.type != descriptor.TYPE_MESSAGE:
                continue
            for part in value if descriptor.is_repeated else (value,):
                self._visit(part)
        if isinstance(message, pb.Node):
            self._rewrite(message)
        elif isinstance(message, pb.RangeVar):
            self._relation(message)
        elif isinstance(message, pb.CommonTableExpr):
            message.ctename = f"{_QUERY}{message.ctename}"

    def _replace(self, node: pb.Node) -> None:
        """Rewrite what means something only as a whole, before its parts."""
        kind = node.WhichOneof("node")
        if kind == "range_function":
            self._function_relation(node)
        elif kind == "type_cast" and syntax_nodes.type_name(node) in ("oid", "int8", "int4"):
            inner = node.type_cast.arg
            of = syntax_nodes.type_name(inner) if inner.WhichOneof("node") == "type_cast" else ""
            if of in _OBJECTS:
                literal = syntax_nodes.text_of(inner.type_cast.arg)
                if literal is not None and not literal.isdecimal():
                    node.CopyFrom(syntax_nodes.number(self.resolve(of, literal)))
                elif f"{of}_oid" in MACROS:
                    self._objects.append(f"{of}_oid")
                    node.CopyFrom(syntax_nodes.call(f"{of}_oid", inner.type_cast.arg))

    def _rewrite(self, node: pb.Node) -> None:
        kind = node.WhichOneof("node")
        rewrite = {
            "column_ref": self._column, "func_call": self._call, "type_cast": self._cast, "a_expr": self._operator,
            "collate_clause": self._without_collation, "sqlvalue_function": self._value,
            "a_indirection": self._element,
            "current_of_expr": self._refuse, "set_to_default": self._refuse, "xml_expr": self._refuse,
            "json_func_expr": self._refuse, "param_ref": self._refuse, "multi_assign_ref": self._refuse,
        }.get(kind)  # fmt: skip
        if rewrite is not None:
            rewrite(node)

    def _refuse(self, node: pb.Node) -> None:
        raise NotSupported(f"{node.WhichOneof('node').replace('_', ' ')} in a query over the system catalogs")

    def _at(self, location: int) -> int:
        return self.parsed.position(location)

    def _refuse_clauses(self, select: pb.SelectStmt) -> None:
        if select.locking_clause or select.HasField("into_clause"):
            what = "FOR UPDATE" if select.locking_clause else "INTO"
            raise NotSupported(f"{what} in a query over the system catalogs")

    def _refuse_all_columns(self, tree: pb.Node) -> None:
        """`tableoid` is one of the columns here; in PostgreSQL it is none of those that `*` and NATURAL mean."""
        if any(syntax_nodes.messages(tree, pb.A_Star)) or any(
            j.is_natural for j in syntax_nodes.messages(tree, pb.JoinExpr)
        ):
            raise NotSupported("tableoid beside * or NATURAL in a query over the system catalogs")

    def _name_outputs(self, tree: pb.Node) -> None:
        """Name the outputs as PostgreSQL does, which the rewritten expressions would not be."""
        for select in syntax_nodes.messages(tree, pb.SelectStmt):
            for item in select.target_list:
                target = item.res_target
                if not target.name and target.val.WhichOneof("node") != "column_ref":  # whose name is the same in both
                    target.name = output_name(target.val)

    def _bound_series(self, tree: pb.Node) -> None:
        """See to it that no series is too long. Those in FROM come row by row, all others are held whole."""
        in_from = {
            function.list.items[0].func_call.location
            for relation in syntax_nodes.messages(tree, pb.RangeFunction)
            for function in relation.functions
        }
        for call in reversed(list(syntax_nodes.messages(tree, pb.FuncCall))):  # those within others come first
            name = call.funcname[-1].string.sval
            if name == "range" or (name == "generate_series" and len(call.args) not in (2, 3)):
                raise UndefinedFunction(
                    f"function {name} of system catalogs does not exist", position=self._at(call.location)
                )
            if name == "generate_series" and call.location not in in_from:
                call.CopyFrom(_bounded_series(list(call.args)).func_call)

    def _spell_vectors(self, select: pb.SelectStmt) -> None:
        """What is sent of a vector is its elements with blanks between them."""
        for item in select.target_list:
            value = item.res_target.val
            if _is_vector(value):
                item.res_target.name = item.res_target.name or syntax_nodes.column_name(value) or ""
                array = pb.Node()
                array.CopyFrom(value)
                value.CopyFrom(syntax_nodes.call("array_to_string", array, syntax_nodes.literal(" ")))

    def _spell_objects(self, select: pb.SelectStmt) -> None:
        """What is sent of an object that a literal names is its name, which may be another one than is written."""
        for item in select.target_list:
            value = item.res_target.val
            if value.WhichOneof("node") != "type_cast" or value.type_cast.type_name.array_bounds:
                continue
            kind, literal = syntax_nodes.type_name(value), syntax_nodes.text_of(value.type_cast.arg)
            if f"{kind}_oid" in MACROS and literal is not None and not literal.isdecimal():
                value.type_cast.arg.CopyFrom(syntax_nodes.number(self.resolve(kind, literal)))

    # ---- relations and columns

    def _relation(self, table: pb.RangeVar) -> None:
        if not table.schemaname and table.relname in self._named:
            # By a name that nothing else has: where it is not in scope, it is not to mean a relation of DuckDB's.
            if not table.HasField("alias"):
                table.alias.aliasname = table.relname
            table.relname = f"{_QUERY}{table.relname}"
            return
        key = (table.schemaname or "pg_catalog", table.relname)
        if not self.knows(*key):
            raise UndefinedTable(f'relation "{table.relname}" does not exist', position=self._at(table.location))
        if not table.HasField("alias"):
            table.alias.aliasname = table.relname
        self.tables.add(key)
        table.ClearField("catalogname")
        table.ClearField("schemaname")
        table.relname = table_name(*key)

    def _column(self, node: pb.Node) -> None:
        fields = node.column_ref.fields
        if len(fields) > 2 and fields[0].string.sval in SCHEMAS:
            del fields[0]
        if fields[-1].string.sval == "tableoid":
            self.asks_for_tables = True

    def _function_relation(self, node: pb.Node) -> None:
        """A function in FROM: a series, an array's elements; or one that has no rows here."""
        relation = node.range_function
        for item in relation.functions:
            call = item.list.items[0]
            name = syntax_nodes.function_name(call)
            query = _ROWS.get(name)
            self._asks_for_words = self._asks_for_words or name == "pg_get_keywords"
            if query is None and name in _SESSION:
                query = f"(SELECT {name}() AS {name})"
            if query is not None:
                alias = pb.Alias(aliasname=name)
                alias.CopyFrom(relation.alias if relation.HasField("alias") else alias)
                subquery = syntax_nodes.expression(query).sub_link.subselect
                if name in _SESSION:
                    next(syntax_nodes.messages(subquery, pb.FuncCall)).args.extend(call.func_call.args)
                node.CopyFrom(pb.Node(range_subselect=pb.RangeSubselect(subquery=subquery, alias=alias)))
                return
        self._scalar_relation(relation)

    def _scalar_relation(self, relation: pb.RangeFunction) -> None:
        """A function that gives one value is a relation of one row in PostgreSQL, and no relation in DuckDB."""
        if len(relation.functions) != 1 or relation.alias.colnames or relation.ordinality:
            return
        call = relation.functions[0].list.items[0]
        name = syntax_nodes.function_name(call)
        if name in _SETS or name not in (*MACROS, *NATIVE):
            return
        value = pb.Node()
        value.CopyFrom(call)  # the element of an array that has no other
        call.CopyFrom(syntax_nodes.call("unnest", pb.Node(a_array_expr=pb.A_ArrayExpr(elements=[value]))))
        alias = relation.alias.aliasname or name
        relation.alias.aliasname = alias
        relation.alias.colnames.append(syntax_nodes.identifier(alias))

    def _series(self, select: pb.SelectStmt) -> None:
        """In SELECT lists DuckDB's series are arrays, whose elements PostgreSQL has as rows."""
        for item in select.target_list:
            for call in list(syntax_nodes.messages(item, pb.FuncCall, within_queries=False)):
                name = call.funcname[-1].string.sval
                if name == "generate_subscripts":
                    array = pb.Node()
                    array.CopyFrom(call.args[0])
                    start = 0 if _is_vector(array) else 1
                    made = syntax_nodes.call(
                        "range", syntax_nodes.number(start), syntax_nodes.plus(syntax_nodes.call("len", array), start)
                    )
                elif name == "generate_series":
                    made = pb.Node(func_call=call)
                else:
                    continue
                call.CopyFrom(syntax_nodes.call("unnest", made).func_call)

    # ---- expressions

    def _call(self, node: pb.Node) -> None:
        call = node.func_call
        schema = call.funcname[0].string.sval if len(call.funcname) > 1 else "pg_catalog"
        name = call.funcname[-1].string.sval
        if name in ("len", "range", "generate_series", "like_escape", "error") and schema == "pg_catalog":
            syntax_nodes.put_in(call.funcname, syntax_nodes.identifier(name))
        elif name == "current_setting" and len(call.args) == 1 and syntax_nodes.text_of(call.args[0]) is None:
            self._macro(node, "setting_named")
        elif name in ("current_setting", "set_config", *_SESSION):
            self._session_value(node, name)
        elif name == "format":
            self._format(node)
        elif name in _RIGHTS:
            self._privilege(node, name)
        elif name in self._objects:
            self._macro(node, name)
        elif name == "duckdb_keywords" and self._asks_for_words:
            return
        elif name in ("to_regclass", "to_regtype", "to_regnamespace"):
            self._macro(node, name.removeprefix("to_") + "_oid")
        elif schema not in ("pg_catalog", "information_schema") or name not in (*MACROS, *NATIVE):
            raise UndefinedFunction(
                f"function {name} of system catalogs does not exist", position=self._at(call.location)
            )
        elif name in MACROS:
            self._macro(node, name)
        else:
            syntax_nodes.put_in(call.funcname, syntax_nodes.identifier(NATIVE[name]))

    def _macro(self, node: pb.Node, name: str) -> None:
        self.macros.add(name)
        self.tables.update(MACROS[name].reads)
        syntax_nodes.put_in(node.func_call.funcname, syntax_nodes.identifier(macro_name(name)))

    def _format(self, node: pb.Node) -> None:
        """Text with values in it: its pieces and the values, one after another."""
        arguments = list(node.func_call.args)
        template = syntax_nodes.text_of(arguments[0]) if arguments else None
        pieces = None if template is None else _format_pieces(template)
        if pieces is None:
            raise NotSupported(
                "this text of format() in a query over the system catalogs", hint="It may have %s, %I, %L and %%.",
                position=self._at(node.func_call.location),
            )  # fmt: skip
        values, parts = iter(arguments[1:]), []
        for text, letter in pieces:
            value = next(values, None) if letter else None
            if letter and value is None:
                raise InvalidParameter("too few arguments for format()")
            parts.append(syntax_nodes.literal(text) if value is None else self._formatted(value, letter))
        node.CopyFrom(syntax_nodes.call("concat", syntax_nodes.literal(""), *parts))

    def _formatted(self, value: pb.Node, letter: str) -> pb.Node:
        if letter == "s":
            return value
        quoting = {"I": "quote_ident", "L": "quote_nullable"}[letter]
        quoted = syntax_nodes.call(quoting, value)
        self._macro(quoted, quoting)
        return quoted

    def _session_value(self, node: pb.Node, name: str) -> None:
        arguments = node.func_call.args
        if name == "set_config":
            raise NotSupported("set_config in a query over the system catalogs", hint="Use SET.")
        given = [syntax_nodes.constant_of(argument) for argument in arguments]
        if None in given:
            raise NotSupported(f"{name} of what is no literal in a query over the system catalogs")
        node.CopyFrom(syntax_nodes.literal(self.value_of(name, *given)))

    def _privilege(self, node: pb.Node, name: str) -> None:
        """A superuser may do everything; of others a relation says what they may."""
        arguments = list(node.func_call.args)
        kind = _RIGHTS[name]
        whole = 3 if name != "has_column_privilege" else 4
        if len(arguments) == whole:
            if syntax_nodes.text_of(arguments[0]) is None:
                raise NotSupported(f"{name} of another role that is no literal")
            user = syntax_nodes.text_of(arguments.pop(0))
        else:
            user = None
        wanted = syntax_nodes.text_of(arguments[-1])
        if wanted is None:
            raise NotSupported(f"{name} of a privilege that is no literal")
        node.CopyFrom(self._held(kind, user, arguments[0], wanted))

    def _held(self, kind: str, user: str | None, subject: pb.Node, wanted: str) -> pb.Node:
        condition = self.holds(kind, wanted)
        literal, reg = syntax_nodes.text_of(subject), _NAMED_BY.get(kind)
        if literal is not None and not literal.isdecimal() and reg is not None:
            subject = syntax_nodes.number(self.resolve(reg, literal))
        if user is not None:
            self.resolve("regrole", user)
        if self.superuser and user is None:
            return syntax_nodes.expression("true")
        if condition in ("true", "false"):
            return syntax_nodes.expression(condition)
        self.tables.add(RIGHTS)
        by_name = {"relation": "regclass_oid", "schema": "regnamespace_oid", "role": "regrole_oid"}.get(kind)
        found = pb.Node()
        found.CopyFrom(subject)
        if by_name is not None:
            found = syntax_nodes.call(by_name, subject)
            self._macro(found, by_name)
        role = str(self.value_of("current_user") if user is None else user)
        self.roles.add(role)
        # The subject is computed where no name of the relation of rights stands in its way.
        query = syntax_nodes.expression(
            f"EXISTS (SELECT 1 FROM (SELECT $3 AS hr_o) hr_p, {table_name(*RIGHTS)} hr WHERE hr.role = $1 AND "
            f"hr.class = $2 AND hr.oid = hr_p.hr_o AND ({condition}))"
        )
        syntax_nodes.put_parameters(query, {1: syntax_nodes.literal(role), 2: syntax_nodes.literal(kind), 3: found})
        return query

    def _cast(self, node: pb.Node) -> None:
        cast = node.type_cast
        names = [n.string.sval for n in cast.type_name.names]
        kind, is_array = names[-1], bool(cast.type_name.array_bounds)
        inner = pb.Node()
        inner.CopyFrom(cast.arg)
        literal = syntax_nodes.text_of(inner)
        if kind in _OBJECTS and not is_array:
            if kind == "regproc" and literal is not None:
                node.CopyFrom(
                    syntax_nodes.literal(literal.rsplit(".", 1)[-1])
                )  # the columns that hold one have its name
            elif literal is not None and not literal.isdecimal():
                node.CopyFrom(syntax_nodes.number(self.resolve(kind, literal)))
            elif kind == "regprocedure":
                raise NotSupported("regprocedure of what is no literal")
            else:
                node.CopyFrom(syntax_nodes.call("x", inner))
                self._macro(node, f"{kind}_text")
            return
        if kind not in _TYPES or len(names) > 2 or (len(names) == 2 and names[0] not in SCHEMAS):
            raise NotSupported(f"a cast to {'.'.join(names)} in a query over the system catalogs")
        if literal is not None and (is_array or kind.endswith("vector")):
            inner = syntax_nodes.array_of(literal)
        cast.arg.CopyFrom(inner)
        syntax_nodes.put_in(cast.type_name.names, syntax_nodes.identifier(_TYPES[kind]))
        typmods = [syntax_nodes.constant_of(modifier) for modifier in cast.type_name.typmods]
        if kind == "numeric" and typmods:
            return
        cast.type_name.ClearField("typmods")
        letters = typmods[0] if typmods else 1 if kind == "char" else None
        if letters is not None:
            if kind not in ("char", "bpchar", "varchar") or is_array:
                raise NotSupported(f"a cast to {kind} with a modifier in a query over the system catalogs")
            whole = pb.Node()
            whole.CopyFrom(node)
            node.CopyFrom(syntax_nodes.call("left", whole, syntax_nodes.number(int(letters))))
            return
        if kind.endswith("vector") and not is_array:
            cast.type_name.array_bounds.append(pb.Node(integer=pb.Integer(ival=-1)))

    def _operator(self, node: pb.Node) -> None:
        expression = node.a_expr
        name = expression.name[-1].string.sval if expression.name else ""
        syntax_nodes.put_in(expression.name, syntax_nodes.identifier(name))
        if name in _LIKES and expression.kind == pb.AEXPR_OP:
            expression.kind = pb.AEXPR_LIKE if not name.endswith("*") else pb.AEXPR_ILIKE
        match = _MATCHES.get(name)
        if match is not None and expression.kind == pb.AEXPR_OP:
            negated, options = match
            arguments = [expression.lexpr, expression.rexpr, *([syntax_nodes.literal(options)] if options else [])]
            made = syntax_nodes.call("regexp_matches", *arguments)
            negation = pb.Node(bool_expr=pb.BoolExpr(boolop=pb.NOT_EXPR, args=[made]))
            node.CopyFrom(negation if negated else made)
            return
        if expression.kind in (pb.AEXPR_OP_ANY, pb.AEXPR_OP_ALL):
            literal = syntax_nodes.text_of(expression.rexpr)
            if literal is not None:
                expression.rexpr.CopyFrom(syntax_nodes.array_of(literal))
        if expression.kind in (pb.AEXPR_LIKE, pb.AEXPR_ILIKE):
            node.CopyFrom(_liked(expression, name))
            return
        if expression.kind in (pb.AEXPR_NOT_DISTINCT, pb.AEXPR_DISTINCT, pb.AEXPR_IN,
                               pb.AEXPR_NULLIF, pb.AEXPR_BETWEEN, pb.AEXPR_NOT_BETWEEN):  # fmt: skip
            return
        for one, other in ((expression.lexpr, expression.rexpr), (expression.rexpr, expression.lexpr)):
            if (
                syntax_nodes.column_name(one) in _FUNCTIONS
                and other.WhichOneof("node") == "a_const"
                and other.a_const.HasField("ival")
            ):
                other.CopyFrom(syntax_nodes.literal("-"))
        if name not in _OPERATORS:
            raise NotSupported(
                f"operator {name} in a query over the system catalogs", position=self._at(expression.location)
            )

    def _without_collation(self, node: pb.Node) -> None:
        inner = pb.Node()
        inner.CopyFrom(node.collate_clause.arg)
        node.CopyFrom(inner)

    def _value(self, node: pb.Node) -> None:
        name = output_name(node)
        if name in _SESSION:
            node.CopyFrom(syntax_nodes.literal(self.value_of(name)))

    def _element(self, node: pb.Node) -> None:
        """An element of an array that begins with 0 is the next one of DuckDB's, which begin with 1."""
        for part in node.a_indirection.indirection:
            if part.HasField("a_indices"):
                if part.a_indices.is_slice:
                    raise NotSupported("a slice in a query over the system catalogs")
                if _is_vector(node.a_indirection.arg):
                    index = pb.Node()
                    index.CopyFrom(part.a_indices.uidx)
                    part.a_indices.uidx.CopyFrom(syntax_nodes.plus(index, 1))


_SESSION: Final = (
    "current_user", "user", "current_role", "session_user", "current_catalog", "current_database", "current_schema",
    "version", "pg_backend_pid", "pg_is_in_recovery", "current_schemas",
)  # fmt: skip


_ROWS: Final = {
    "pg_options_to_table": "(SELECT q.* FROM (SELECT '' AS option_name, '' AS option_value) q WHERE false)",
    "aclexplode": "(SELECT q.* FROM (SELECT 0 AS grantor, 0 AS grantee, '' AS privilege_type, true AS is_grantable) q "
    "WHERE false)",
    "pg_get_keywords": "(SELECT q.keyword_name AS word, upper(left(q.keyword_category, 1)) AS catcode, "
    "q.keyword_category AS catdesc FROM duckdb_keywords() q)",
}  # fmt: skip
"""Functions in FROM that are queries here."""
_SETS: Final = ("unnest", "_pg_expandarray", "generate_series", "generate_subscripts")
"""Functions that give several rows."""
_HINT: Final = re.compile(
    r"\b(?:pg_|has_|to_reg|reg(?:class|type|proc|role|namespace)|format_type|obj_desc|col_desc|current_|version|"
    r"oid|name|char|xid)",
    re.IGNORECASE,
)
"""What a text has that asks the system catalogs without naming a relation; others have it, too."""
_ASKING: Final = frozenset(
    name for name in (*MACROS, *_RIGHTS, *_ROWS, "to_regclass", "to_regtype", "to_regnamespace")
    if not name.startswith(("array_", "quote_", "reg")) and name not in ("cardinality", "age", "txid_current")
)  # fmt: skip
"""Functions that only the system catalogs can answer."""


def is_catalog_function(name: str) -> bool:
    """Whether only the system catalogs can answer the function of this name."""
    return name.lower() in _ASKING


def asks_catalog(text: str) -> bool:
    """Whether a query without relations calls a function, or has a cast, that the system catalogs answer."""
    if not _HINT.search(text):
        return False
    tree = parse_statement(text).tree
    if tree is None:
        return False
    if any(call.funcname[-1].string.sval in _ASKING for call in syntax_nodes.messages(tree, pb.FuncCall)):
        return True
    for relation in syntax_nodes.messages(tree, pb.RangeFunction):
        if any(syntax_nodes.function_name(item.list.items[0]) in _SESSION for item in relation.functions):
            return True
    return any(name.names[-1].string.sval in _OWN for name in syntax_nodes.messages(tree, pb.TypeName) if name.names)


def _format_pieces(template: str) -> list[tuple[str, str]] | None:
    """The pieces of a text of `format`: text, or the letter of a value; None for what has more than that."""
    found, at = [], 0
    for match in re.finditer(r"%(.?)", template, re.DOTALL):
        found.append((template[at : match.start()], ""))
        if match.group(1) == "%":
            found.append(("%", ""))
        elif match.group(1) in ("s", "I", "L"):
            found.append(("", match.group(1)))
        else:
            return None
        at = match.end()
    return [*found, (template[at:], "")]


def _is_vector(node: pb.Node) -> bool:
    """Whether an expression is a column whose arrays begin with element 0."""
    return syntax_nodes.column_name(node) in VECTORS


def _liked(expression: pb.A_Expr, operator: str) -> pb.Node:
    """LIKE with its escape, which is a backslash where none is given."""
    name = "ilike_escape" if expression.kind == pb.AEXPR_ILIKE else "like_escape"
    name = f"not_{name}" if operator.startswith("!") else name
    given = [expression.rexpr, syntax_nodes.literal("\\")]
    if syntax_nodes.function_name(expression.rexpr) == "like_escape":
        given = list(expression.rexpr.func_call.args)
    return syntax_nodes.call(name, expression.lexpr, *given)


def _bounded_series(arguments: list[pb.Node]) -> pb.Node:
    """A series as an array, which is held whole.

    Its end is what is refused: a series of constants is made while the query is planned, whatever stands around it.
    """
    long, step = f"$2 - $1 > {_MOST_ELEMENTS}", ""
    if len(arguments) > 2:
        long, step = f"{long} OR ($3 < 0 AND $1 - $2 > {_MOST_ELEMENTS})", ", $3"
    end = f"CASE WHEN {long} THEN error('the series is too long') ELSE $2 END"
    made = syntax_nodes.expression(f"generate_series($1, {end}{step})")
    syntax_nodes.put_parameters(made, dict(enumerate(arguments, 1)))
    return made
