"""Errors of Spark and of users' functions as headrace's."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkValueError

from headrace.errors import FunctionFailed, JobFailed, SparkLost
from headrace.plan.failures import translate

TEXT = """Job aborted due to stage failure: Task 0 failed: org.apache.spark.api.python.PythonException:
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/pyspark/worker.py", line 90, in main
    process()
  File "/app/headrace/dataflow/operators/python_calls.py", line 9, in call
    return function_of(definition)(*arguments)
  File "<function picky>", line 2, in picky
    raise ValueError("no\\nmore")
           ^^^^^^^^^^
ValueError: no
more SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.foo(PythonRunner.scala:1)
"""


def test_a_users_traceback_is_what_remains() -> None:
    error = translate(RuntimeError(TEXT))
    assert isinstance(error, FunctionFailed) and error.sqlstate == "38000"
    assert error.message == "a Python function failed: ValueError: no (line 2 of picky)"
    assert error.detail == (
        "Traceback (most recent call last):\n"
        '  File "<function picky>", line 2, in picky\n'
        '    raise ValueError("no\\nmore")\n'
        "           ^^^^^^^^^^\n"
        "ValueError: no\nmore"
    )


def test_an_operator_that_fails_is_no_users_function() -> None:
    text = TEXT.replace(
        '"<function picky>", line 2, in picky', '"/app/headrace/dataflow/operators/join.py", line 2, in run'
    )
    error = translate(RuntimeError(text))
    assert isinstance(error, JobFailed) and not isinstance(error, FunctionFailed)


def test_a_defect_is_told_without_java() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0.0 failed\n\n"
        "java.lang.ClassCastException: class org.apache.spark.unsafe.types.UTF8String cannot be cast to class "
        "java.lang.Integer (they are in unnamed module of loader 'app')\n\tat org.apache.spark.Foo.bar(Foo.scala:1)\n"
        "\t... 3 more"
    )
    error = translate(RuntimeError(text))
    assert isinstance(error, JobFailed) and error.message == "Spark failed to compute this"
    assert "java" not in str(error.detail) and "\tat " not in str(error.detail) and "Job aborted" in str(error.detail)


def test_what_a_plan_may_raise_is_not_what_was_raised() -> None:
    plan = "+- Project [CASE WHEN true THEN raise_error('headrace.errors.InvalidDatetime: date out of range') END]"
    text = f"[MISSING_GROUP_BY] The query does not include a GROUP BY clause. SQLSTATE: 42803;\n{plan}"
    error = translate(AnalysisException(text))
    assert (error.sqlstate, error.message) == ("42803", "The query does not include a GROUP BY clause.")


def test_what_a_part_of_a_query_may_raise_is_not_what_was_raised() -> None:
    shown = (
        "== SQL (line 1, position 8) ==\n(a / CASE WHEN b THEN\n"
        "raise_error('headrace.errors.NumericOutOfRange: out of range') END) ...\n^^^^^^^^^^^^\n"
    )
    text = f"[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n{shown}"
    assert translate(RuntimeError(text)).sqlstate == "22012"
    raised = f"[USER_RAISED_EXCEPTION] headrace.errors.DataError: [2201E] too small SQLSTATE: P0001\n{shown}"
    assert translate(RuntimeError(raised)).sqlstate == "2201E"


def test_an_operator_says_what_to_do() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "/app/headrace/connectors/policy.py", line 9, in apply\n'
        "headrace.errors.SourceError: clicks[0], offset 3: malformed\nDETAIL: so it is\nHINT: do this\n SQLSTATE: 38000"
    )
    error = translate(RuntimeError(text))
    assert (error.message, error.detail, error.hint) == ("clicks[0], offset 3: malformed", "so it is", "do this")
    error = translate(RuntimeError(text.replace("DETAIL: so it is\n", "")))
    assert (error.message, error.detail, error.hint) == ("clicks[0], offset 3: malformed", None, "do this")


def test_too_many_digits() -> None:
    error = translate(AnalysisException(
        "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] 789 cannot be represented as Decimal(8, 6). If necessary "
        'set "spark.sql.ansi.enabled" to "false" to bypass this error, and return NULL instead. SQLSTATE: 22003'
    ))  # fmt: skip
    assert (error.sqlstate, error.message) == ("22003", "numeric field overflow")
    assert error.detail == "A field with precision 8, scale 6 must round to an absolute value less than 10^2."


@pytest.mark.parametrize(
    ("said", "state", "message"),
    [
        ("""[CAST_INVALID_INPUT] The value 'o'ne' of the type "STRING" cannot be cast to "INT" because it is """
         "malformed. Correct the value as per the syntax, or change its target type. SQLSTATE: 22018",
         "22P02", """invalid input syntax for type integer: "o'ne\""""),
        ("""[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "TIMESTAMP_NTZ" because it is """
         "malformed. SQLSTATE: 22018",
         "22007", 'invalid input syntax for type timestamp without time zone: "x"'),
        ("""[CAST_OVERFLOW] The value 300000L of the type "BIGINT" cannot be cast to "SMALLINT" due to an overflow. """
         "Use `try_cast` to tolerate overflow and return NULL instead. SQLSTATE: 22003",
         "22003", "smallint out of range"),
    ],
)  # fmt: skip
def test_casts_fail_in_postgresqls_words(said: str, state: str, message: str) -> None:
    error = translate(AnalysisException(said))
    assert (error.sqlstate, error.message) == (state, message)


def unparsed() -> PySparkValueError:
    """What PySpark makes of a schema that it does not get."""
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except Exception as error:
            raise PySparkValueError(errorClass="CANNOT_PARSE_DATATYPE", messageParameters={"msg": str(error)})  # noqa: B904
    except PySparkValueError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        unparsed(),
        Py4JNetworkError("Error while sending or receiving"),
        Py4JError("An error occurred while calling o17.count"),
        Py4JError("org.apache.spark.sql.classic does not exist in the JVM"),
        ConnectionRefusedError(111, "Connection refused"),
        EOFError(),
    ],
    ids=str,
)
def test_calls_that_nobody_answers_are_of_a_spark_that_has_ended(error: Exception) -> None:
    """PC-42: they are told from failures of the query itself, so that no view is blamed for them."""
    found = translate(error)
    assert type(found) is SparkLost and found.sqlstate == "58000" and found.hint is not None


def test_calls_that_java_refuses_are_not() -> None:
    trace = "An error occurred while calling o17.gone. Trace:\npy4j.Py4JException: Method gone([]) does not exist"
    assert type(translate(Py4JError(trace))) is JobFailed


def test_no_class_of_java_is_told() -> None:
    rounded = "java.lang.ArithmeticException: rounded value is out of range for input 8.64E40 and rounding mode HALF_UP"
    found = translate(ValueError(rounded))
    assert (found.sqlstate, found.message) == ("22003", "numeric value out of range")
    other = translate(ValueError("org.apache.spark.SparkException: java.lang.IllegalStateException: no more"))
    assert "java" not in other.message and "apache" not in other.message and "no more" in other.message


def test_no_advice_of_sparks_is_told() -> None:
    text = (
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If "
    )
    found = translate(
        ValueError(f'{text}necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012')
    )
    assert (found.sqlstate, found.message) == ("22012", "division by zero")


@pytest.mark.parametrize(
    ("told", "sqlstate", "message"),
    [
        ("[REMAINDER_BY_ZERO] Remainder by zero. Use `try_mod` to tolerate divisor being 0. SQLSTATE: 22012", "22012",
         "division by zero"),
        ("[ARITHMETIC_OVERFLOW] integer overflow. Use 'try_add' to tolerate overflow. SQLSTATE: 22003", "22003",
         "integer out of range"),
        ("[ARITHMETIC_OVERFLOW] overflow. Use 'try_add' to tolerate overflow. SQLSTATE: 22003", "22003",
         "value out of range"),
        ("[BINARY_ARITHMETIC_OVERFLOW] 1S + 32767S caused overflow. Use `try_add` to ignore it. SQLSTATE: 22003",
         "22003", "smallint out of range"),
        ("[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000", "21000",
         "more than one row returned by a subquery used as an expression"),
        ("[COLLECTION_SIZE_LIMIT_EXCEEDED.FUNCTION] Can't create array. SQLSTATE: 54000", "54000",
         "an array would have too many elements"),
        ("[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] The `ceil` requires 1 parameters. Please, refer to "
         "'https://spark.apache.org/docs/latest/sql-ref-functions.html' for a fix. SQLSTATE: 42605", "42605",
         "The `ceil` requires 1 parameters."),
        ("[INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND] Could not find j#105 in [id#90]. SQLSTATE: XX000", "HR020",
         "Spark failed to compute this"),
        ("[INVALID_ARRAY_INDEX] The index 9 is out of bounds. Use the SQL function `get()` to tolerate it. "
         "SQLSTATE: 22003", "22003", "The index 9 is out of bounds."),
    ],
)  # fmt: skip
def test_what_postgres_has_words_for(told: str, sqlstate: str, message: str) -> None:
    found = translate(RuntimeError(told))
    assert (found.sqlstate, found.message) == (sqlstate, message)
