"""The kernels of our own types, made known to Spark."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import _parse_datatype_string
from pyspark.util import PythonEvalType

from headrace.common.jsonb.column_kernels import SPARK_RESULTS, over_columns, spark_name
from headrace.plan.catalyst.java_calls import register_function


def register(sessions: Iterable[SparkSession]) -> None:
    """Let queries of these sessions call the kernels; before anything is planned in them."""
    made = {spark_name(result): _function(result, kind) for result, kind in SPARK_RESULTS.items()}
    for session in sessions:
        for name, function in made.items():
            register_function(session, name, function)


def _function(result: str, kind: str) -> object:
    def kernel(*columns: pa.Array) -> pa.Array:
        return over_columns(result, columns)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the kind is given as such here, not by annotations
        returned = _parse_datatype_string(f"struct<v:{kind},e:string>")
        function: Any = arrow_udf(kernel, returned, PythonEvalType.SQL_SCALAR_ARROW_UDF)
    return function._unwrapped
