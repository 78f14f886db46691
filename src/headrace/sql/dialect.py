"""The SQL dialect: RisingWave's, as sqlglot knows it, with errors that point at a token."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.parsers.risingwave import RisingWaveParser
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotSupported, SyntaxFault

_MAX_DEPTH_MESSAGE = "the statement is nested too deeply"


_UNITS = {"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}


class _Fault(ParseError):
    """A parse error that remembers the token it stumbled over (None: the end of the input)."""

    def __init__(self, message: str, token: Token | None):
        super().__init__(message)
        self.token = token


class _Parser(RisingWaveParser):
    FUNC_TOKENS = {*RisingWaveParser.FUNC_TOKENS, TokenType.SESSION}
    FUNCTIONS = {
        **RisingWaveParser.FUNCTIONS,
        "TO_CHAR": lambda args: exp.Anonymous(this="to_char", expressions=args),
        "TO_DATE": lambda args: exp.Anonymous(this="to_date", expressions=args),
        "TO_TIMESTAMP": lambda args: exp.Anonymous(this="to_timestamp", expressions=args),
    }

    def raise_error(self, message: str, token: Any = None) -> None:
        raise _Fault(message, self._curr or None)

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

    def _parse_as_command(self, start: Token) -> exp.Command:
        raise _Fault("unknown statement", self._curr or start)


class Headrace(RisingWave):
    """PostgreSQL's dialect as RisingWave speaks it; no statement swallows its own text as an opaque command."""

    class Tokenizer(RisingWave.Tokenizer):
        """RisingWave's tokens; commands are tokenised like everything else."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        COMMAND_PREFIX_TOKENS: ClassVar[set[TokenType]] = set()

    Parser = _Parser


def _unterminated(sql: str) -> tuple[str, int]:
    """What is left open at the end of `sql`, and the 0-based offset where it starts."""
    pattern = re.compile(
        r"""--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$\w*\$).*?\1""",
        re.DOTALL,
    )
    names = {"'": "quoted string", '"': "quoted identifier", "/": "/* comment"}
    at = 0
    while at < len(sql):
        match = pattern.match(sql, at)
        if match:
            at = match.end()
        elif sql[at] in "'\"" or sql.startswith("/*", at):
            return names[sql[at]], at
        elif re.match(r"\$\w*\$", sql[at:]):
            return "dollar-quoted string", at
        else:
            at += 1
    return "input", len(sql)


def tokenize(sql: str) -> list[Token]:
    """The tokens of `sql`, semicolons included. Raises `SyntaxFault` for what never ends."""
    try:
        return list(Headrace().tokenize(sql))
    except TokenError:
        what, at = _unterminated(sql)
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
    """A scalar expression."""
    return run_parser(sql, tokens, lambda parser: parser._parse_disjunction(), following)


def parse_type_tokens(sql: str, tokens: Sequence[Token], following: Token | None = None) -> exp.DataType:
    """A data type."""
    found = run_parser(sql, tokens, lambda parser: parser._parse_types(check_func=False), following)
    if not isinstance(found, exp.DataType):
        raise syntax_fault(sql, tokens[0])
    return found


def parse_statement_tokens(sql: str, tokens: Sequence[Token], following: Token | None = None) -> exp.Expr:
    """A query or a DML statement."""
    return run_parser(sql, tokens, lambda parser: parser._parse_statement(), following)
