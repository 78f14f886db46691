"""Spark's errors as headrace's: the same SQLSTATE, a message without a stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException

from headrace import errors
from headrace.errors import HeadraceError
from headrace.plan.catalyst.answers import CallFailed, is_bare, is_of_a_lost_application, text_of

_CLASS_AND_STATE = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]\s*(.*?)\s*SQLSTATE:\s*([0-9A-Z]{5})", re.DOTALL)
_OF_SPARK = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_RAISED = re.compile(r"headrace\.errors\.(\w+): (.*?)(?:\n\s*\n|\n\tat |\nTraceback|$)", re.DOTALL)
_SHOWN = re.compile(r"^== [^\n]*==\n.*?\n[ \t]*\^+[^\n]*$", re.DOTALL | re.MULTILINE)
"""The part of a query that Spark says is at fault."""
_OWN_STATE = re.compile(r"\[([0-9A-Z]{5})\] ")
"""In front of a message that an expression raises with a state of its own."""
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception)): (.*)$", re.MULTILINE)

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$')
# Frames of Spark and of headrace say nothing about the user's code.
_CALLING = r"/headrace/dataflow/operators/(?:python_calls|calls)\.py"
_MACHINERY = re.compile(rf'File "[^"]*(?:/pyspark/|/pyspark\.zip/|{_CALLING}|<frozen )')
_OPERATOR = re.compile(r'File "[^"]*/headrace/(?:dataflow|state|connectors|session)/')

_ARITHMETIC = re.compile(r"java\.lang\.ArithmeticException")
_DEFECT = re.compile(
    r"\bjava\.\w+\.(?:ClassCast|NullPointer|NoSuchElement|IndexOutOfBounds)Exception|\bscala\.MatchError\b"
)
"""What is no user's fault, and tells users nothing."""
_JAVA_CLASS = re.compile(r"\b(?:java|javax|scala|py4j|org\.apache)(?:\.[\w$]+)+(?::\s*)?")
_ADVICE = re.compile(
    r"\s*If necessary set \S+ to \S+( \([^)]*\))? to bypass this error(, and return NULL instead)?\."
    r"|\s*Use [`']?try_\w+[`']? to tolerate [^.]*\."
    r"|\s*(?:Use the SQL function|To avoid this error,) [^.]*\."
    r"|\s*Please,? refer to '[^']*' for a fix\."
)
_TOO_MANY_DIGITS = re.compile(r"^\S+ cannot be represented as Decimal\((\d+), (\d+)\)")
_TO_DATETIME = re.compile(r'cannot be cast to "(DATE|TIMESTAMP|TIMESTAMP_NTZ|TIME)\b')

_WORDS = {
    "DIVIDE_BY_ZERO": ("22012", "division by zero"),
    "REMAINDER_BY_ZERO": ("22012", "division by zero"),
    "INTERVAL_DIVIDED_BY_ZERO": ("22012", "division by zero"),
    "ARITHMETIC_OVERFLOW": ("22003", "{} out of range"),
    "BINARY_ARITHMETIC_OVERFLOW": ("22003", "{} out of range"),
    "INTERVAL_ARITHMETIC_OVERFLOW": ("22008", "interval out of range"),
    "DATETIME_OVERFLOW": ("22008", "timestamp out of range"),
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": ("21000", "more than one row returned by a subquery used as an expression"),
    "COLLECTION_SIZE_LIMIT_EXCEEDED": ("54000", "an array would have too many elements"),
    "RECURSION_LEVEL_LIMIT_EXCEEDED": ("54001", "WITH RECURSIVE takes too many steps"),
    "RECURSION_ROW_LIMIT_EXCEEDED": ("54000", "WITH RECURSIVE makes too many rows"),
}
"""PostgreSQL's states and words for what Spark calls by these names."""
# Spark's states where PostgreSQL's clients know another one.
_STATES = {
    "42703": errors.UndefinedColumn,
    "42704": errors.UndefinedColumn,
    "42883": errors.UndefinedFunction,
    "42P01": errors.UndefinedTable,
    "42K09": errors.DatatypeMismatch,
    "22012": errors.DivisionByZero,
    "22003": errors.NumericOutOfRange,
    "22018": errors.InvalidText,
    "22007": errors.InvalidDatetime,
    "22008": errors.InvalidDatetime,
    "42601": errors.SyntaxFault,
    "53100": errors.DiskFull,
    "0A000": errors.NotSupported,
}


def translate(error: BaseException) -> HeadraceError:
    """The headrace error that says the same as an error of Spark or of an operator in one of its tasks."""
    if isinstance(error, HeadraceError):
        return error
    if is_of_a_lost_application(error):
        return errors.SparkLost(
            "Spark ended while this was running, and is being started again",
            hint="run it again; a DataFrame that was made before has to be made again",
            detail=str(error) if is_bare(error) else None,
        )
    text = text_of(error)
    # What Spark shows of a plan or of a query has in it what its expressions may raise.
    raised = None if isinstance(error, AnalysisException) else _RAISED.search(_SHOWN.sub("", text))
    if raised is not None and hasattr(errors, raised.group(1)):
        kind: type[HeadraceError] = getattr(errors, raised.group(1))
        # Spark adds a state of its own to the last line of what a worker has raised.
        said, _, hint = _OF_SPARK.sub("", raised.group(2)).strip().partition("\nHINT: ")
        message, _, detail = said.partition("\nDETAIL: ")
        state = _OWN_STATE.match(message)
        if state is not None:
            return kind(message[state.end() :], sqlstate=state[1], detail=detail or None, hint=hint or None)
        return kind(message, detail=detail or None, hint=hint or None)
    found = None
    for match in _CLASS_AND_STATE.finditer(text):
        # A Python worker's failure wraps the error that is really at fault, and is repeated around it.
        if match.group(1) not in ("PYTHON_EXCEPTION", "FAILED_EXECUTE_UDF", "STREAM_FAILED", "TASK_FAILED"):
            found = match
            break
    if found is not None:
        known = _WORDS.get(found.group(1).partition(".")[0])
        if known is not None:
            return _of_words(*known, found.group(2))
        if found.group(1).startswith("INTERNAL_ERROR"):
            return _defect(text)
        return _of_state(found.group(3), _shortened(found.group(2)))
    if "java.lang.StackOverflowError" in text:
        hint = "write the regular expression, or the query, in a simpler way"
        return errors.StatementError("stack depth limit exceeded", sqlstate="54001", hint=hint)
    raising = _raised_by_user(text)
    if raising is not None:
        return raising
    if _ARITHMETIC.search(text):
        return errors.NumericOutOfRange("numeric value out of range")
    if _DEFECT.search(text):
        return _defect(text)
    python = _PYTHON.findall(text)
    if python:
        return errors.JobFailed(_shortened(f"{python[-1][0]}: {python[-1][1]}"), detail=_traceless(text))
    return errors.JobFailed(_shortened(text), detail=_traceless(text))


def _defect(text: str) -> HeadraceError:
    return errors.JobFailed(
        "Spark failed to compute this", detail=_traceless(text),
        hint="write it in another way, and report what was written",
    )  # fmt: skip


def _raised_by_user(text: str) -> errors.FunctionFailed | None:
    """The failure of a user's function: its last line as the message, the user's frames as the detail."""
    at = text.rfind(_TRACEBACK)
    if at < 0:
        return None
    lines = text[at + len(_TRACEBACK) :].strip("\n").split("\n")
    frames: list[list[str]] = []
    for i, line in enumerate(lines):
        if _FRAME.match(line):
            frames.append([line])
        elif line.startswith("    ") and frames:
            frames[-1].append(line)
        else:
            last = "\n".join(lines[i:])
            break
    else:
        return None
    own = [f for f in frames if not _MACHINERY.search(f[0])]
    if not own or any(_OPERATOR.search(f[0]) for f in own):
        return None
    last = re.sub(r"\s*SQLSTATE: \w{5}\s*$", "", _shortened(last))
    function = _FRAME.match(own[-1][0])
    where = f" (line {function[2]} of {function[3]})" if function is not None else ""
    detail = "\n".join([_TRACEBACK, *(line for f in own for line in f), last])
    return errors.FunctionFailed(
        f"a Python function failed: {last.splitlines()[0]}{where}", detail=detail[:4000],
        hint="correct the rows that it fails on, or replace the function",
    )  # fmt: skip


_NAMES = {
    "SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint", "FLOAT": "real", "DOUBLE": "double precision",
    "DECIMAL": "numeric", "BOOLEAN": "boolean", "DATE": "date", "TIMESTAMP": "timestamp with time zone",
    "TIMESTAMP_NTZ": "timestamp without time zone",
}  # fmt: skip
"""Types that messages of PostgreSQL call by another name."""
_MALFORMED = re.compile(
    r"""^The value '(.*)' of the type "STRING" cannot be cast to "(\w+)[^"]*" because it is malformed""", re.DOTALL
)
_OVERFLOW = re.compile(r"""^The value \S+ of the type "[^"]+" cannot be cast to "(\w+)[^"]*" due to an overflow""")


def _in_own_words(message: str) -> str:
    """What Spark says of a cast that fails, as PostgreSQL says it."""
    malformed = _MALFORMED.match(message)
    if malformed is not None and malformed[2] in _NAMES:
        return f'invalid input syntax for type {_NAMES[malformed[2]]}: "{malformed[1]}"'
    overflow = _OVERFLOW.match(message)
    return f"{_NAMES[overflow[1]]} out of range" if overflow is not None and overflow[1] in _NAMES else message


def _of_words(state: str, words: str, told: str) -> HeadraceError:
    first = told.partition(" ")[0]
    kind = {"integer": "integer", "long": "bigint"}.get(first, "smallint" if first.endswith("S") else "value")
    found, message = _STATES.get(state), words.format(kind)
    return found(message, sqlstate=state) if found is not None else errors.StatementError(message, sqlstate=state)


def _of_state(state: str, message: str) -> HeadraceError:
    digits = _TOO_MANY_DIGITS.match(message)
    if digits is not None:
        precision, scale = map(int, digits.groups())
        bound = f"less than 10^{precision - scale}" if precision > scale else "less than 1"
        detail = f"A field with precision {precision}, scale {scale} must round to an absolute value {bound}."
        return errors.NumericOutOfRange("numeric field overflow", detail=detail)
    kind = _STATES.get(state)
    if kind is errors.InvalidText and _TO_DATETIME.search(message):
        kind = errors.InvalidDatetime
    message = _in_own_words(message)
    if kind is not None:
        return kind(message)
    if state.startswith("42"):
        return errors.StatementError(message, sqlstate=state)
    if state.startswith("22"):
        return errors.DataError(message, sqlstate=state)
    return errors.OperationalError(message, sqlstate=state)


def _shortened(text: str) -> str:
    first = text.strip().split("\n\tat ")[0].split("\nJVM stacktrace")[0]
    first = _ADVICE.sub("", first)
    first = _JAVA_CLASS.sub("", re.sub(r"\s*SQLSTATE: \w{5}\s*$", "", first)).strip()
    return first[:2000] or "Spark failed"


def _traceless(text: str) -> str:
    """What was said, without where in Java it was said."""
    lines = [
        line
        for line in text.splitlines()
        if not re.match(r"\s+(?:at |\.\.\. \d+ more)|(?:Driver|JVM) stacktrace", line)
    ]
    return _JAVA_CLASS.sub("", "\n".join(lines)).strip()[:4000]


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of Spark inside the block into headrace's."""
    try:
        yield
    except HeadraceError:
        raise
    except (CallFailed, ConnectionError, PySparkException) as error:
        raise translate(error) from error
