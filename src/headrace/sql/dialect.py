"""The SQL dialect: RisingWave's, as sqlglot knows it, with errors that point at a token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.parsers.risingwave import RisingWaveParser
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import HeadraceError, NotSupported, SyntaxFault
from headrace.sql import builtin, law
from headrace.sql.lexemes import parameters, unterminated

_MAX_DEPTH_MESSAGE = "the statement is nested too deeply"


_PARAMETER_SIGN: Final = "\ue000"
"""What the tokenizer is shown for the `$` of a parameter: a character that is part of nothing else."""
_UNITS = {"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}


_BRACKETS: Final = (TokenType.L_BRACKET, TokenType.R_BRACKET)


def _is_of_oids(kind: exp.DataType) -> bool:
    """Whether a type is `oid` or one of those that show oids by name, or an array of such."""
    return isinstance(kind, exp.ObjectIdentifier) or (
        kind.this == exp.DType.ARRAY and len(kind.expressions) == 1 and _is_of_oids(kind.expressions[0])
    )


class _Fault(ParseError):
    """A parse error that remembers the token it stumbled over (None: the end of the input)."""

    def __init__(self, message: str, token: Token | None):
        super().__init__(message)
        self.token = token


def _date_trunc(args: list[exp.Expr]) -> exp.Expr:
    """`date_trunc(unit, value [, zone])`; with a unit that is no literal the binder alone knows it."""
    if len(args) not in (2, 3) or not isinstance(args[0], exp.Literal):
        return exp.Anonymous(this=law.OPEN_UNIT, expressions=args)
    zone = args[2] if len(args) > 2 else None
    return exp.TimestampTrunc(this=args[1], unit=exp.var(args[0].name.upper()), zone=zone)


def _known(parsers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parsers of functions whose names are PostgreSQL's; other names are those of users' functions."""
    return {name: parse for name, parse in parsers.items() if name.lower() in builtin.PARSED}


class _Parser(RisingWaveParser):
    FUNC_TOKENS = {*RisingWaveParser.FUNC_TOKENS, TokenType.SESSION}
    FUNCTION_PARSERS = _known(RisingWaveParser.FUNCTION_PARSERS)
    FUNCTIONS = {
        **_known(RisingWaveParser.FUNCTIONS),
        "DATE_TRUNC": _date_trunc,
        "TO_CHAR": lambda args: exp.Anonymous(this="to_char", expressions=args),
        "TO_DATE": lambda args: exp.Anonymous(this="to_date", expressions=args),
        "TO_TIMESTAMP": lambda args: exp.Anonymous(this="to_timestamp", expressions=args),
    }

    def raise_error(self, message: str, token: object = None) -> None:
        raise _Fault(message, self._curr or None)

    def _advance_any(self, ignore_reserved: bool = False) -> Token | None:
        """Take every word after AS and after a dot for a name, as PostgreSQL does: `select`, too."""
        named = bool(self._prev) and self._prev.token_type in (TokenType.ALIAS, TokenType.DOT)
        word = bool(self._curr) and self._curr.token_type == TokenType.SELECT
        return super()._advance_any(ignore_reserved or (named and word))

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Add | exp.Interval | None:
        """Keep an interval's text whole where no unit follows it."""
        at = self._index
        if self._match(TokenType.INTERVAL) and self._curr.token_type == TokenType.STRING:
            text = self._curr.text
            self._advance()
            if not (self._curr and self._curr.text.upper().rstrip("S") in _UNITS):
                return self.expression(exp.Interval(this=exp.Literal.string(text)))
        self._retreat(at)
        return super()._parse_interval(require_interval, parse_function_unit)

    def _parse_version(self) -> exp.Version | None:
        """Also RisingWave's `NOW() - '5' MINUTE`, whose unit would else be taken for the relation's alias."""
        found = super()._parse_version()
        time = found.args.get("expression") if found is not None else None
        if isinstance(time, (exp.Add, exp.Sub)) and isinstance(time.expression, exp.Literal) and self._curr:
            unit = self._curr.text.upper()
            if time.expression.is_string and unit.rstrip("S") in _UNITS:
                self._advance()
                time.set("expression", exp.Interval(this=time.expression.copy(), unit=exp.var(unit)))
        return found

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        """Also arrays of types whose values are oids, whose names sqlglot takes for no types of anything else."""
        found = super()._parse_types(check_func, schema, allow_identifiers, with_collation)
        while isinstance(found, exp.DataType) and _is_of_oids(found) and self._match_pair(*_BRACKETS):
            found = exp.DataType(this=exp.DType.ARRAY, expressions=[found], nested=True)
        return found

    def _parse_using_identifiers(self) -> list[exp.Expr]:
        """Names alone: what qualifies one would be lost."""

        def name() -> exp.Expr | None:
            found = self._parse_column()
            if (
                not isinstance(found, exp.Column)
                or found.args.get("table")
                or not isinstance(found.this, exp.Identifier)
            ):
                raise _Fault("a qualified name in USING", self._prev)
            return found.this

        return self._parse_wrapped_csv(name)

    def _parse_as_command(self, start: Token) -> exp.Command:
        raise _Fault("unknown statement", self._curr or start)


class Headrace(RisingWave):
    """PostgreSQL's dialect as RisingWave speaks it; no statement swallows its own text as an opaque command."""

    INDEX_OFFSET = 0
    """Indexes of arrays stay as they are written: the parser could move those alone that it takes for numbers."""

    class Tokenizer(RisingWave.Tokenizer):
        """RisingWave's tokens; commands are tokenised like everything else."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        COMMAND_PREFIX_TOKENS: ClassVar[set[TokenType]] = set()
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {
            **RisingWave.Tokenizer.SINGLE_TOKENS,
            _PARAMETER_SIGN: TokenType.PARAMETER,
        }

    Parser = _Parser


def tokenize(sql: str) -> list[Token]:
    """The tokens of `sql`, semicolons included. Raises `SyntaxFault` for what never ends.

    A parameter is a token of type `PARAMETER` with a number right behind it. sqlglot would take what stands between
    the dollars of `$1,$2` for the tag of a dollar-quoted string, so it is shown another sign for them.
    """
    marks = parameters(sql) if "$" in sql else []
    shown = list(sql)
    for at in marks:
        shown[at] = _PARAMETER_SIGN
    tokens = _tokens("".join(shown), sql)
    wrong = {t.start for t in tokens if t.token_type == TokenType.PARAMETER}.symmetric_difference(marks)
    if wrong:
        at = min(wrong)
        raise SyntaxFault(f'syntax error at or near "{sql[at]}"', position=at + 1)
    for token in tokens:
        _check_number(sql, token)
    return tokens


_NUMBER: Final = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def _check_number(sql: str, token: Token) -> None:
    """Raises `SyntaxFault` for a number with something right behind it, which the parser would take for an alias."""
    based = token.token_type in (TokenType.HEX_STRING, TokenType.BIT_STRING) and sql[token.start] == "0"
    if token.token_type != TokenType.NUMBER and not based:
        return
    behind = sql[token.end + 1 : token.end + 2]
    if based or not _NUMBER.fullmatch(sql, token.start, token.end + 1) or behind == "_" or behind.isalpha():
        end = token.start + 2 if based else token.end + 2
        raise SyntaxFault(
            f'trailing junk after numeric literal at or near "{sql[token.start : end]}"', position=token.start + 1
        )


def _tokens(shown: str, sql: str) -> list[Token]:
    try:
        return list(Headrace().tokenize(shown))
    except TokenError:
        what, at = unterminated(sql)
        near = sql[at : at + 40]
        raise SyntaxFault(f'unterminated {what} at or near "{near}"', position=at + 1) from None


def token_text(sql: str, token: Token) -> str:
    """The token as the user wrote it."""
    return sql[token.start : token.end + 1]


def syntax_fault(sql: str, token: Token | None) -> SyntaxFault:
    """The error for a token that cannot stand where it does; None is the end of the input."""
    if token is None:
        return SyntaxFault("syntax error at end of input", position=len(sql.rstrip()) + 1)
    return SyntaxFault(f'syntax error at or near "{token_text(sql, token)}"', position=token.start + 1)


def run_parser(
    sql: str, tokens: Sequence[Token], method: Callable[[Any], exp.Expr | None], following: Token | None = None
) -> exp.Expr:
    """Parse exactly `tokens` (a slice of `sql`'s) by a method of the parser.

    `following` is the token after the slice: it is named where the slice ends too early.
    """
    parser = Headrace().parser(error_level=ErrorLevel.IMMEDIATE)
    try:
        found = parser._parse(method, list(tokens), sql)  # type: ignore[arg-type]
    except _Fault as fault:
        raise syntax_fault(sql, fault.token or following) from None
    except RecursionError:
        raise NotSupported(_MAX_DEPTH_MESSAGE, hint="Split it with WITH or with intermediate views.") from None
    except (ParseError, ValueError, AttributeError, TypeError):
        raise syntax_fault(sql, tokens[0] if tokens else following) from None
    if not found or found[0] is None:
        raise syntax_fault(sql, following)
    return found[0]


def parse_expression_tokens(sql: str, tokens: Sequence[Token], following: Token | None = None) -> exp.Expr:
    """A scalar expression. Raises `NotSupported` for what the translation does not handle."""
    found = run_parser(sql, tokens, lambda parser: parser._parse_disjunction(), following)
    law.check(found)
    return found


def parse_type_tokens(sql: str, tokens: Sequence[Token], following: Token | None = None) -> exp.DataType:
    """A data type."""
    found = run_parser(sql, tokens, lambda parser: parser._parse_types(check_func=False), following)
    if not isinstance(found, exp.DataType):
        raise syntax_fault(sql, tokens[0])
    return found


def parse_statement_tokens(sql: str, tokens: Sequence[Token], following: Token | None = None) -> exp.Expr:
    """A query or a DML statement. Raises `NotSupported` for what the translation does not handle."""
    found, refused = parse_tokens(sql, tokens, following)
    if refused is not None:
        raise refused
    return found


def parse_tokens(
    sql: str, tokens: Sequence[Token], following: Token | None = None
) -> tuple[exp.Expr, HeadraceError | None]:  # fmt: skip
    """A query or a DML statement, and why the translation does not handle it, if that is so."""
    found = run_parser(sql, tokens, lambda parser: parser._parse_statement(), following)
    try:
        law.check(found)
    except HeadraceError as error:
        return found, error
    return found, None
