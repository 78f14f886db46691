"""Errors of Spark and of users' functions as headrace's."""

from __future__ import annotations

from headrace.errors import FunctionFailed, JobFailed
from headrace.plan.failures import translate

TEXT = """Job aborted due to stage failure: Task 0 failed: org.apache.spark.api.python.PythonException:
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/pyspark/worker.py", line 90, in main
    process()
  File "/app/headrace/dataflow/operators/functions.py", line 9, in call
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
