"""Functions that users create: checked, kept in the catalog, and made known to Spark's sessions.

A function is an object of the catalog, of kind `function`, with its source or its pickle as its content. Functions are
made known before anything is planned at a start.

`sql/function_calls.py` and `sql/binder/routines.py` rewrite calls, `dataflow/operators/python_calls.py` runs in the
workers. A traceback is cut down to the user's frames (`plan/failures.py`).
"""

from __future__ import annotations

import base64
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_string
from pyspark.sql.udtf import UserDefinedTableFunction
from pyspark.util import PythonEvalType

from headrace.catalog.contents import FunctionContent, FunctionForm, Vectorized
from headrace.catalog.records import ObjectRecord
from headrace.common.columns import arrow_type
from headrace.dataflow.operators import python_calls as code
from headrace.dataflow.operators.python_calls import FunctionCode, NoFunction
from headrace.errors import HeadraceError, InvalidParameter, NotSupported, StatementError, SyntaxFault
from headrace.plan.catalyst.java_calls import register_function
from headrace.sql.binder.world import Routine
from headrace.sql.statements import CreateFunction
from headrace.sql.type_names import is_own, pg_type_text

LANGUAGES = ("python", "plpython3u", "plpythonu")
_ANNOTATIONS: dict[str, tuple[str, ...]] = {
    "int": ("tinyint", "smallint", "int", "bigint"), "float": ("float", "double"), "str": ("string",),
    "bool": ("boolean",), "bytes": ("binary",), "Decimal": ("decimal",), "date": ("date",),
    "datetime": ("timestamp", "timestamp_ntz"), "list": ("array",), "dict": ("map", "struct"),
}  # fmt: skip
"""Annotations that say what Spark type an argument or a result has."""


class InvalidFunction(StatementError):
    """A function's body does not fit its declaration."""

    sqlstate = "42P13"


# ---- contents: what the catalog holds of a function


def content_of(statement: CreateFunction) -> FunctionContent:
    """The stored form of a function. Raises `NotSupported`, `InvalidParameter`, `SyntaxFault`, `InvalidFunction`."""
    if statement.language not in LANGUAGES:
        raise NotSupported(f"functions in the language {statement.language}", hint="write it in Python")
    options = dict(statement.options)
    vectorized = options.pop("vectorized", "")
    if options:
        raise InvalidParameter(f"unknown option {next(iter(options))} of a function", hint="the option is: vectorized")
    names = tuple(name for name, _ in statement.arguments if name is not None)
    return checked(FunctionContent(
        language="python", source=code.code_of(statement.body), pickle=None,
        form="aggregate" if statement.aggregate else "table" if statement.table is not None else "scalar",
        names=names if len(names) == len(statement.arguments) else None,
        arguments=tuple(kind for _, kind in statement.arguments), returns=statement.returns,
        columns=tuple(statement.table or ()), vectorized=cast(Vectorized, vectorized),
        strict=statement.strict, deterministic=statement.volatility != "volatile",
    ), statement.name.name)  # fmt: skip


def definition_of(name: str, content: FunctionContent) -> FunctionCode:
    """What Spark's workers must know of a stored function."""
    pickled = None if content.pickle is None else base64.b64decode(content.pickle)
    return FunctionCode(name, content.source, pickled, content.names, content.strict, content.vectorized)


def spark_name(record: ObjectRecord) -> str:
    """The name under which Spark SQL knows a function; its plain name may be taken in another schema."""
    return f"hr_f{record.id}"


def routine_of(record: ObjectRecord) -> Routine:
    """What queries must know of a function."""
    content = record.content_as(FunctionContent)
    return Routine(
        record.name, spark_name(record), content.form, content.arguments, content.returns, content.columns,
        not content.deterministic,
    )  # fmt: skip


def signature(record: ObjectRecord) -> tuple[str, str]:
    """Arguments and result of a function, as SHOW FUNCTIONS spells them."""
    content = record.content_as(FunctionContent)
    kinds = [pg_type_text(kind) for kind in content.arguments or ()]
    names = content.names or [None] * len(kinds)
    given = ", ".join(kind if name is None else f"{name} {kind}" for name, kind in zip(names, kinds))
    if content.form == "table":
        return given, "TABLE (" + ", ".join(f"{n} {pg_type_text(t)}" for n, t in content.columns) + ")"
    assert content.returns is not None
    return ("..." if content.arguments is None else given), pg_type_text(content.returns)


# ---- checks


def checked(content: FunctionContent, name: str) -> FunctionContent:
    """The content, if the code fits it. Raises `SyntaxFault`, `InvalidFunction` or `InvalidParameter`."""
    if content.vectorized not in ("", "pandas", "arrow"):
        raise InvalidParameter(f"vectorized = {content.vectorized}", hint="it is pandas or arrow")
    if content.vectorized and content.form == "table":
        raise NotSupported("a vectorized table function", hint="leave the option out: its rows travel as Arrow anyway")
    if content.vectorized and content.strict:
        raise NotSupported("STRICT for a vectorized function", hint="let it deal with missing values itself")
    if content.form == "aggregate" and content.arguments == ():
        raise NotSupported("an aggregate without arguments", hint="give it one, for instance a key")
    for kind in [*(content.arguments or ()), content.returns, *(t for _, t in content.columns)]:
        if kind is not None and is_own(kind):
            raise NotSupported(
                f"a function with values of type {pg_type_text(kind)}",
                hint="declare it with text, and cast in the query",
            )
        if kind is not None:
            try:
                arrow_type(kind)
            except ValueError:
                raise NotSupported(f"a function with values of type {kind}") from None
    definition = definition_of(name, content)
    try:
        _check_code(definition, content)
    except SyntaxError as error:
        where = f" at line {error.lineno}" if error.lineno else ""
        text = (error.text or "").strip()
        message = f"the body of function {name} is not Python: {error.msg}{where}"
        raise SyntaxFault(message, detail=text or None) from None
    except NoFunction as error:
        raise InvalidFunction(
            str(error), hint=f"define it with def {name}(...), or give the lines inside of it, with return or yield"
        ) from None
    except HeadraceError:
        raise
    except Exception as error:
        raise InvalidFunction(
            f"the body of function {name} raises {type(error).__name__}: {error}{_line_of(error, definition)}",
            detail="".join(traceback.format_exception_only(error)).strip(),
        ) from None
    return content


def _line_of(error: BaseException, definition: FunctionCode) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == definition.filename), None)
    return f" at line {line}" if line else ""


def _check_code(definition: FunctionCode, content: FunctionContent) -> None:
    if content.form == "aggregate" and not content.vectorized:
        function = code.state_functions(definition)[1]
        _check_count(definition, function, content, extra=1)
        return
    function = code.function_of(definition)
    if inspect.iscoroutinefunction(function):
        raise NoFunction(f"{definition.name} is an async function")
    _check_count(definition, function, content, extra=0)
    if not content.vectorized:
        _check_annotations(definition, function, content)


def _check_count(definition: FunctionCode, function: Any, content: FunctionContent, extra: int) -> None:
    if content.arguments is None:
        return
    count = len(content.arguments) + extra
    try:
        inspect.signature(function).bind(*([None] * count))
    except ValueError:  # a built-in function that does not tell
        return
    except TypeError as error:
        raise InvalidFunction(
            f"function {definition.name} is declared with {len(content.arguments)} arguments, "
            f"which its code does not take: {error}{_defined_at(function)}"
        ) from None


def _defined_at(function: object) -> str:
    found = getattr(function, "__code__", None)
    return f" (line {found.co_firstlineno})" if found is not None else ""


def _check_annotations(definition: FunctionCode, function: object, content: FunctionContent) -> None:
    """Annotations with Python's own types must fit the declared types."""
    notes = dict(getattr(function, "__annotations__", {}))
    returned = notes.pop("return", None)
    pairs = [(f"argument {n}", a, k) for (n, a), k in zip(_in_order(function, notes), content.arguments or ())]
    if content.form == "scalar" and content.returns is not None:
        pairs.append(("the result", returned, content.returns))
    for what, annotation, kind in pairs:
        name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        allowed = _ANNOTATIONS.get(str(name))
        if allowed is not None and kind is not None and not kind.startswith(allowed):
            raise InvalidFunction(
                f"{what} of function {definition.name} is annotated {name}, but declared "
                f"{pg_type_text(kind)}{_defined_at(function)}"
            )


def _in_order(function: Any, notes: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    try:
        return [(name, notes.get(name)) for name in inspect.signature(function).parameters]
    except ValueError:
        return []


# ---- from Python objects

_pickled: Callable[[object], bytes] = cloudpickle.dumps


def content_of_object(
    name: str, function: Any, returns: Any, arguments: Sequence[str] | None, aggregate: bool, strict: bool
) -> FunctionContent:
    """The stored form of a Python function, or of a UDF made by PySpark, which brings its own type and kind."""
    vectorized: Vectorized = ""
    deterministic = True
    columns: tuple[tuple[str, str], ...] = ()
    kind = getattr(function, "evalType", None)
    if isinstance(function, UserDefinedTableFunction):
        if function.returnType is None:
            raise NotSupported("a table function with a polymorphic result", hint="give it a returnType")
        returns = returns or function.returnType
        handler = function.func
        function, deterministic = _rows_of(handler), True
        if hasattr(handler, "terminate"):
            raise NotSupported("a table function with a method terminate", hint="yield all rows of a call in eval")
    elif kind is not None:
        if kind not in _VECTORIZED:
            raise NotSupported(
                "this kind of UDF as a function of the database", hint="scalar and grouped aggregate UDFs are"
            )
        vectorized, aggregate = _VECTORIZED[kind], kind in _AGGREGATES
        returns, deterministic, function = returns or function.returnType, function.deterministic, function.func
    if returns is None:
        raise InvalidParameter(f"function {name} needs the type of its result", hint="give returns=...")
    result = _as_type(returns)
    form: FunctionForm = "aggregate" if aggregate else "scalar"
    if isinstance(result, StructType) and not aggregate and (inspect.isgeneratorfunction(function) or kind is None):
        if inspect.isgeneratorfunction(function):
            form, columns = "table", tuple((f.name, f.dataType.simpleString()) for f in result.fields)
    elif inspect.isgeneratorfunction(function):
        raise InvalidParameter(f"the generator {name} needs the columns of its rows", hint='returns="x int, y text"')
    names = _parameter_names(function)
    if aggregate and arguments is None:
        raise InvalidParameter(f"the aggregate {name} needs the types of its arguments", hint='args=["bigint"]')
    all_named = arguments is not None and names and len(names) == len(arguments)
    return checked(FunctionContent(
        language="python", source=None, pickle=base64.b64encode(_pickled(function)).decode(),
        form=form, names=tuple(names) if names and all_named else None,
        arguments=tuple(_as_type(a).simpleString() for a in arguments) if arguments is not None else None,
        returns=None if form == "table" else result.simpleString(), columns=columns,
        vectorized=vectorized, strict=strict, deterministic=bool(deterministic),
    ), name)  # fmt: skip


_VECTORIZED: dict[int, Vectorized] = {
    PythonEvalType.SQL_BATCHED_UDF: "", PythonEvalType.SQL_ARROW_BATCHED_UDF: "",
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: "pandas", PythonEvalType.SQL_SCALAR_ARROW_UDF: "arrow",
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF: "pandas", PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF: "arrow",
}  # fmt: skip
_AGGREGATES = (PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF, PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF)


def _rows_of(handler: type) -> Callable[..., object]:
    """A table function's handler as a generator function."""

    def rows(*arguments: object) -> object:
        yield from handler().eval(*arguments)

    return rows


def _as_type(given: object) -> DataType:
    if isinstance(given, DataType):
        return given
    text = str(given)
    from headrace.sql.datatypes import parse_type

    try:
        return _parse_datatype_string(parse_type(text))
    except StatementError:
        pass
    for read in (_columns_type, _parse_datatype_string):
        try:
            return read(text)
        except (StatementError, PySparkException):
            continue
    raise InvalidParameter(f"{text!r} is no type", hint="for instance bigint, text, or 'x int, y text'")


def _columns_type(text: str) -> StructType:
    """`x int, y text` as a struct."""
    from headrace.sql.parser import parse_one
    from headrace.sql.statements import CreateTable

    made = parse_one(f"CREATE TABLE t ({text})")
    assert isinstance(made, CreateTable)
    return StructType([StructField(c.name, _parse_datatype_string(c.type)) for c in made.columns])


def _parameter_names(function: Any) -> list[str] | None:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return None


# ---- Spark


def register(sessions: Iterable[SparkSession], record: ObjectRecord) -> None:
    """Make a function known to Spark sessions, under the name queries use and, for DataFrames, under its own."""
    made = _spark_function(record)
    for session in sessions:
        for name in (spark_name(record), record.name):
            if isinstance(made, UserDefinedTableFunction):
                session.udtf.register(name, made)
            else:
                register_function(session, name, made)


def unregister(sessions: Iterable[SparkSession], record: ObjectRecord) -> None:
    """Takes a function out of Spark's sessions again."""
    for session in sessions:
        for name in (spark_name(record), record.name):
            session.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{name}`")


def _spark_function(record: ObjectRecord) -> object:
    content = record.content_as(FunctionContent)
    definition = definition_of(record.name, content)
    if content.form == "table":
        fields = [StructField(n, _parse_datatype_string(t)) for n, t in content.columns]
        handler = code.table(definition, len(fields))
        return UserDefinedTableFunction(
            handler, StructType(fields), record.name, PythonEvalType.SQL_ARROW_TABLE_UDF, content.deterministic
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # kinds are given as such here, not by annotations
        return _spark_udf(definition, content)


def _spark_udf(definition: FunctionCode, content: FunctionContent) -> object:
    assert content.returns is not None, "functions whose results are tables are made elsewhere"
    result = _parse_datatype_string(content.returns)
    made: Any
    if content.form == "aggregate":
        call = code.aggregate(definition, arrow_type(content.returns), len(content.arguments or ()))
        made = arrow_udf(call, result, PythonEvalType.SQL_SCALAR_ARROW_UDF)
    elif content.vectorized == "pandas":
        made = pandas_udf(code.scalar_frames(definition), result, PythonEvalType.SQL_SCALAR_PANDAS_UDF)  # type: ignore[call-overload]
    elif content.vectorized == "arrow":
        made = arrow_udf(code.scalar_arrays(definition), result, PythonEvalType.SQL_SCALAR_ARROW_UDF)
    else:
        made = udf(code.scalar(definition), result, useArrow=True)
    made = made if content.deterministic else made.asNondeterministic()
    return made._unwrapped
