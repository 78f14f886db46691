"""A cursor over a statement's tokens, for everything that is not a query or an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import NotSupported
from headrace.sql.dialect import syntax_fault, token_text
from headrace.sql.statements import DATABASE, TableName

_QUOTED = {TokenType.IDENTIFIER}
_TEXT = {TokenType.STRING, TokenType.HEREDOC_STRING, TokenType.RAW_STRING, TokenType.BYTE_STRING}
_OPEN = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSE = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
_RESERVED_WORDS = (
    "select from where group order having limit offset union intersect except with on using and or not null table "
    "create as case when then else end in is into values default check constraint primary references"
)
_RESERVED = frozenset(_RESERVED_WORDS.split())


def other_database(parts: Sequence[str], position: int | None) -> NotSupported:
    """The error for a name in another database than the only one."""
    return NotSupported(f'cross-database references are not implemented: "{".".join(parts)}"', position=position)


class Cursor:
    """The tokens of one statement, and how far they have been read."""

    def __init__(self, sql: str, tokens: Sequence[Token]):
        self.sql = sql
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token | None:
        """The token to read next; None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def fail(self) -> NoReturn:
        """Raise the syntax error for the next token."""
        raise syntax_fault(self.sql, self.token)

    def refuse(self, construct: str, hint: str | None = None) -> NoReturn:
        """Raise `NotSupported` for a construct that is understood but not offered."""
        position = self.token.start + 1 if self.token else None
        raise NotSupported(f"{construct} is not supported", hint=hint, position=position)

    def is_symbol(self, text: str, ahead: int = 0) -> bool:
        """Whether an unquoted token reads `text`, without regard to case."""
        at = self.at + ahead
        if at >= len(self.tokens):
            return False
        token = self.tokens[at]
        return token.token_type not in _QUOTED | _TEXT and token.text.upper() == text.upper()

    def peek(self, *words: str) -> int:
        """How many tokens spell `words` from here on; 0 if they do not."""
        at, left = self.at, [word.upper() for word in words]
        while left:
            if at >= len(self.tokens) or self.tokens[at].token_type in _QUOTED | _TEXT:
                return 0
            parts = self.tokens[at].text.upper().split() or [""]
            if left[: len(parts)] != parts:
                return 0
            left = left[len(parts) :]
            at += 1
        return at - self.at

    def match(self, *words: str) -> bool:
        """Read `words` if they come next."""
        count = self.peek(*words)
        self.at += count
        return count > 0

    def expect(self, *words: str) -> None:
        """Read `words`, or raise a syntax error."""
        if not self.match(*words):
            self.fail()

    def expect_end(self) -> None:
        """Raise a syntax error unless everything has been read."""
        if self.token is not None:
            self.fail()

    def identifier(self) -> str:
        """Read a name: as written when quoted, in lower case when not."""
        token = self.token
        if token is None:
            self.fail()
        if token.token_type in _QUOTED:
            self.at += 1
            return token.text
        text = token.text
        wordlike = bool(text) and (text[0].isalpha() or text[0] == "_") and " " not in text
        if token.token_type in _TEXT or not wordlike or text.lower() in _RESERVED:
            self.fail()
        self.at += 1
        return text.lower()

    def table_name(self) -> TableName:
        """Read `[schema.]name`, or `database.schema.name` of the only database. Raises `NotSupported`."""
        start = self.token
        parts = [self.identifier()]
        while self.match("."):
            parts.append(self.identifier())
        if len(parts) > 3:
            self.fail()
        if len(parts) == 3 and parts[0] != DATABASE:
            raise other_database(parts, start.start + 1 if start else None)
        return TableName(parts[-2] if len(parts) > 1 else None, parts[-1])

    def is_string(self) -> bool:
        """Whether a string literal comes next."""
        return self.token is not None and self.token.token_type in _TEXT

    def string(self) -> str:
        """Read a string literal."""
        token = self.token
        if token is None or token.token_type not in _TEXT:
            self.fail()
        self.at += 1
        return token.text

    def names(self) -> tuple[str, ...]:
        """Read `(a, b, ...)`."""
        self.expect("(")
        found = [self.identifier()]
        while self.match(","):
            found.append(self.identifier())
        self.expect(")")
        return tuple(found)

    def until(self, *stops: str) -> Sequence[Token]:
        """Read up to a top-level occurrence of one of `stops`, a closing bracket, or the end."""
        start, depth = self.at, 0
        while (token := self.token) is not None:
            if depth == 0 and self.at > start and any(self.peek(*stop.split()) for stop in stops):
                break
            if token.token_type in _OPEN:
                depth += 1
            elif token.token_type in _CLOSE:
                if depth == 0:
                    break
                depth -= 1
            self.at += 1
        return self.tokens[start : self.at]

    def rest(self) -> Sequence[Token]:
        """Read everything that is left."""
        start, self.at = self.at, len(self.tokens)
        return self.tokens[start:]

    def text_of(self, tokens: Sequence[Token]) -> str:
        """The source text that `tokens` span."""
        return self.sql[tokens[0].start : tokens[-1].end + 1] if tokens else ""

    def word(self) -> str:
        """Read any one token and return its text as written."""
        token = self.token
        if token is None:
            self.fail()
        self.at += 1
        return token_text(self.sql, token)
