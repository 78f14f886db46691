"""What a client sends in COPY as text or CSV: bytes to records of fields, by PostgreSQL's rules.

Bytes are taken in as they come, and handed out as whole records when there are enough of them. What has no backslash
and no quote is split by the interpreter's own loops; all else by regular expressions that spell the format's grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.common.lazy_dataclass import dataclass
from headrace.errors import BadCopyData, HeadraceError, InvalidText
from headrace.sql.copying import CopyFormat

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are split together, about."""
_SHOWN_BYTES: Final = 100
_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.)|\Z)", re.DOTALL)
_TEXT_LINE: Final = re.compile(r"((?:[^\\\r\n]++|\\(?!\.).)*+)(\\\.|\r\n|\n|\r|\\?\Z)", re.DOTALL)
_LETTERS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass
class Records:
    """Records as rows of fields, None for NULL; for each the number of its last line, and its text."""

    rows: list[Sequence[str | None]]
    lines: Sequence[int]
    raws: Sequence[str]
    partial: Sequence[str | None] = ()
    """The fields of a record that has too few and comes after these: they are looked at before that is said."""


def shown(text: str) -> str:
    """Text as a context has it: not too much of it."""
    data = text.encode()
    return text if len(data) <= _SHOWN_BYTES else data[:_SHOWN_BYTES].decode("utf-8", "ignore") + "..."


class TextReader:
    """Takes in bytes, gives records. Errors have their line as the context, without the name of the table."""

    def __init__(self, form: CopyFormat, columns: Sequence[str]) -> None:
        """`columns` are the names of those that are copied."""
        self._form = form
        self._columns = columns
        self._csv = form.form == "csv"
        self._left = b""
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._enough_bytes = CHUNK_BYTES
        self.line = 0
        """Lines that have been read."""
        self._newline = ""
        """What ends a line; not known before the first one."""
        self._header = form.header != "none"
        self._ended = False
        """Whether the client has said so within its data: what follows does not count."""
        forced = set(form.force_null)
        self._force_null = [i for i, name in enumerate(columns) if name in forced]
        kept = set(form.force_not_null)
        self._force_not_null = frozenset(i for i, name in enumerate(columns) if name in kept)
        delimiter, quote, escape = (re.escape(c) for c in (form.delimiter, form.quote, form.escape))
        # Inside of quotes: an escape takes a quote or itself along; where it is the quote, a single one ends the field.
        inner = f"[^{quote}]++|{quote}{quote}" if quote == escape else (
            f"[^{quote}{escape}]++|{escape}[{quote}{escape}]|{escape}(?![{quote}{escape}])"
        )  # fmt: skip
        self._csv_field = re.compile(rf"((?:[^{quote}{delimiter}\r\n]++|{quote}(?:{inner})*+{quote})*+)(.?)", re.DOTALL)
        self._csv_quoted = re.compile(f"{quote}((?:{inner})*+){quote}")
        self._csv_escaped = re.compile(f"{escape}([{quote}{escape}])")
        self._text_field = re.compile(rf"((?:[^\\{delimiter}]++|\\.|\\\Z)*+)(.?)", re.DOTALL)

    def feed(self, data: bytes) -> Iterator[Records]:
        """Take in bytes; the records that are whole now, once there are enough."""
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._enough_bytes:
            yield from self._split(final=False)

    def finish(self) -> Iterator[Records]:
        """The records that are left."""
        yield from self._split(final=True)
        if self._header:  # not even that has come
            problem = self._header_problem([None if self._form.null == "" else ""])
            if problem is not None:
                raise self._placed(BadCopyData(problem), 1, "")

    def _split(self, *, final: bool) -> Iterator[Records]:
        data = b"".join((self._left, *self._pieces))
        self._pieces, self._held_bytes, self._left = [], 0, b""
        if self._ended or not data:
            return
        cut = len(data) if final else max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        text, wrong = self._decoded(data[:cut])
        found, taken = Records([], [], []), len(text)
        try:
            taken = self._read(text, final and wrong is None, found)
        except HeadraceError as error:
            wrong = error
        wrong = self._check(found) or wrong
        if found.rows or found.partial:
            yield found
        if wrong is not None:  # after what comes before it: that may be wrong, too
            raise wrong
        self._left = text[taken:].encode() + data[cut:]
        self._enough_bytes = max(CHUNK_BYTES, len(self._left))  # a long record is not looked through again and again

    def _read(self, text: str, final: bool, found: Records) -> int:
        """Add the records of a text; returns how much of it was taken."""
        if self._is_plain(text):
            return self._plain_records(text, final, found)
        return self._quoted_records(text, final, found) if self._csv else self._escaped_records(text, final, found)

    def _decoded(self, data: bytes) -> tuple[str, HeadraceError | None]:
        """The text, up to the line in which bytes are no text, and the error for these."""
        try:
            text = data.decode()
            if "\0" not in text:
                return text, None
            at, length = data.index(b"\0"), 1
        except UnicodeDecodeError as error:
            at, length = error.start, _length(data[error.start])
        start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        wrong = self._placed(_no_text(data[at : at + length]), self.line + 1 + data.count(b"\n", 0, start))
        return data[:start].decode(), wrong

    def _is_plain(self, text: str) -> bool:
        """Whether a text is lines of fields without escapes and quotes, all lines with the same end."""
        if (self._form.quote in text or "\\." in text) if self._csv else "\\" in text:
            return False
        returns, newline = text.count("\r"), self._newline or _first_newline(text)
        if newline == "\r\n":
            return returns == text.count("\n") == text.count("\r\n")
        return newline != "\r" and not returns

    def _plain_records(self, text: str, final: bool, found: Records) -> int:
        self._newline = self._newline or _first_newline(text)
        lines = text.split(self._newline or "\n")
        last = lines.pop()
        if final and last:
            lines.append(last)
        delimiter, null, kept = self._form.delimiter, self._form.null, self._force_not_null
        rows: list[Sequence[str | None]] = [line.split(delimiter) for line in lines]
        if kept:
            rows = [[f if f != null or i in kept else None for i, f in enumerate(row)] for row in rows]
        elif null in text:
            rows = [[None if field == null else field for field in row] for row in rows]
        first = self.line + 1
        self.line += len(lines)
        found.rows, found.lines, found.raws = rows, range(first, first + len(lines)), lines
        return len(text) if final else len(text) - len(last)

    # ---- text

    def _escaped_records(self, text: str, final: bool, found: Records) -> int:
        at, lines, raws = 0, list(found.lines), list(found.raws)
        found.lines, found.raws = lines, raws
        for match in _TEXT_LINE.finditer(text):
            line, end = match[1], match[2]
            if (not final and end in ("", "\\")) or not match[0]:
                break
            if end == "\\.":
                if not self._ends(text, match.end(), final):
                    break
                self._ended = True
            elif end in ("\r", "\n", "\r\n"):
                self._check_newline(end, self.line + 1)
            at = match.end()
            line += end if end == "\\" else ""
            if not self._ended or line:
                self.line += 1
                raws.append(line)
                lines.append(self.line)
                found.rows.append(self._escaped_fields(line))
            if self._ended:
                return len(text)
        return at

    def _ends(self, text: str, at: int, final: bool) -> bool:
        """Whether the data end with the marker in front of a place; not if that is not known yet."""
        rest = text[at : at + 2]
        if not rest and not final:
            return False
        found = "\r\n" if rest == "\r\n" else rest[:1]
        if found not in ("\r", "\n", "\r\n"):
            problem = "end-of-copy marker corrupt"
        elif self._newline in ("", found):
            return True
        else:
            problem = "end-of-copy marker does not match previous newline style"
        if self._csv and (found not in ("\r", "\n", "\r\n") or self._newline == "\r\n"):
            return False  # it is a value like others
        raise self._placed(BadCopyData(problem), self.line + 1)

    def _escaped_fields(self, line: str) -> list[str | None]:
        if "\\" not in line:
            found: list[str | None] = list(line.split(self._form.delimiter))
            return [None if field == self._form.null else field for field in found]
        fields: list[str | None] = []
        at = 0
        while True:
            match = self._text_field.match(line, at)
            assert match is not None
            raw = match[1]
            fields.append(None if raw == self._form.null else self._unescaped(raw, line))
            if not match[2]:
                return fields
            at = match.end()

    def _unescaped(self, raw: str, line: str) -> str:
        if "\\" not in raw:
            return raw
        data = _ESCAPE.sub(_character, raw.encode())
        try:
            text = data.decode()
            if "\0" not in text:
                return text
            at, length = data.index(b"\0"), 1
        except UnicodeDecodeError as error:
            at, length = error.start, _length(data[error.start])
        raise self._placed(_no_text(data[at : at + length]), self.line, line)

    # ---- CSV

    def _quoted_records(self, text: str, final: bool, found: Records) -> int:
        start, lines, raws = 0, list(found.lines), list(found.raws)
        found.lines, found.raws = lines, raws
        while start < len(text):
            newline = "\n" if self._newline == "\n" else "\r"
            record = self._quoted_record(text, start, final, newline)
            if record is None:
                break
            fields, end, stop = record
            raw = text[start:end]
            if raw == "\\." and self._ends(text, end, final):
                self._ended = True
                return len(text)
            self.line += 1 + raw.count(newline)
            if stop > end:
                self._check_newline(text[end:stop], self.line)
            found.rows.append(fields)
            lines.append(self.line)
            raws.append(raw)
            start = stop
        return start

    def _quoted_record(
        self, text: str, start: int, final: bool, newline: str
    ) -> tuple[list[str | None], int, int] | None:  # fmt: skip
        """The fields of a record, where it ends, and where the next one begins; None where its end is missing."""
        fields: list[str | None] = []
        at = start
        while True:
            match = self._csv_field.match(text, at)
            assert match is not None
            raw, end = match[1], match[2]
            if end == self._form.quote or (not end and not final):
                if end and final:
                    line = self.line + 1 + text.count(newline, start)
                    raise self._placed(BadCopyData("unterminated CSV quoted field"), line, text[start:])
                return None
            fields.append(self._csv_value(raw, len(fields)))
            if end == self._form.delimiter:
                at = match.end()
                continue
            stop = match.end()
            if end == "\r" and text[stop : stop + 1] == "\n":
                stop += 1
            return fields, match.end(1), stop

    def _csv_value(self, raw: str, column: int) -> str | None:
        form = self._form
        if form.quote not in raw:
            return None if raw == form.null and column not in self._force_not_null else raw
        value = self._csv_quoted.sub(lambda match: self._csv_escaped.sub(r"\1", match[1]), raw)
        return None if value == form.null and column in self._force_null else value

    # ---- both

    def _check_newline(self, found: str, line: int) -> None:
        """Raise `BadCopyData` for a newline that is not of the kind of the first."""
        if not self._newline:
            self._newline = found
        if found == self._newline:
            return
        name, sign = ("newline", "\\n") if found == "\n" else ("carriage return", "\\r")
        if self._csv:
            hint = f"Use quoted CSV field to represent {name}."
            raise self._placed(BadCopyData(f"unquoted {name} found in data", hint=hint), line)
        raise self._placed(
            BadCopyData(f"literal {name} found in data", hint=f'Use "{sign}" to represent {name}.'), line
        )

    def _check(self, found: Records) -> HeadraceError | None:
        """Leave out the header, and what comes after a record with another number of fields; the error of that."""
        if self._header and found.rows:
            self._header = False
            problem = self._header_problem(found.rows[0])
            if problem is not None:
                error = self._placed(BadCopyData(problem), found.lines[0], found.raws[0])
                del found.rows[:]
                return error
            del found.rows[0]
            found.lines, found.raws = found.lines[1:], found.raws[1:]
        width = len(self._columns)
        at = next((i for i, row in enumerate(found.rows) if len(row) != width), None)
        if at is None:
            return None
        count = len(found.rows[at])
        if count > width:
            error = BadCopyData("extra data after last expected column")
        else:
            error = BadCopyData(f'missing data for column "{self._columns[count]}"')
            found.partial = found.rows[at]
        del found.rows[at:]
        return self._placed(error, found.lines[at], found.raws[at])

    def _header_problem(self, fields: Sequence[str | None]) -> str | None:
        """What is wrong with a header that is to name the columns."""
        if self._form.header != "match":
            return None
        if len(fields) != len(self._columns):
            return f"wrong number of fields in header line: got {len(fields)}, expected {len(self._columns)}"
        for number, (field, wanted) in enumerate(zip(fields, self._columns), 1):
            if field != wanted:
                got = f'null value ("{self._form.null}")' if field is None else f'"{field}"'
                return f'column name mismatch in header line field {number}: got {got}, expected "{wanted}"'
        return None

    def _placed(self, error: HeadraceError, line: int, raw: str | None = None) -> HeadraceError:
        error.context = f"line {line}" if raw is None else f'line {line}: "{shown(raw)}"'
        return error


def _length(lead: int) -> int:
    """Bytes of the character that a byte begins."""
    return next((n for n, low in ((1, 0xF8), (4, 0xF0), (3, 0xE0), (2, 0xC0)) if lead >= low), 1)


def _no_text(data: bytes) -> InvalidText:
    shown_bytes = " ".join(f"0x{byte:02x}" for byte in data)
    return InvalidText(f'invalid byte sequence for encoding "UTF8": {shown_bytes}', sqlstate="22021")


def _first_newline(text: str) -> str:
    found = re.search(r"\r\n|\n|\r", text)
    return found[0] if found else ""


def _character(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return b"" if other is None else _LETTERS.get(other, other)
