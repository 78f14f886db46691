"""Types at the border between Catalyst and Arrow: everything nullable, everything in UTC."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from headrace.errors import NotSupported
from headrace.plan.catalyst.expressions import Expr


def relaxed(data_type: DataType) -> DataType:
    """The type with every nested part nullable: state must hold whatever Spark puts there."""
    if isinstance(data_type, ArrayType):
        return ArrayType(relaxed(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(relaxed(data_type.keyType), relaxed(data_type.valueType), True)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, relaxed(f.dataType), True) for f in data_type.fields])
    return data_type


def spark_of(expression: Expr) -> DataType:
    """The relaxed PySpark type of a Catalyst expression."""
    return relaxed(expression.spark_type)


def arrow_of_spark(data_type: DataType) -> pa.DataType:
    """The Arrow type of a PySpark type; `NotSupported` where there is none."""
    try:
        return to_arrow_type(relaxed(data_type), timezone="UTC")
    except Exception as error:
        raise NotSupported(
            f"values of type {data_type.simpleString()} cannot be kept in a view",
            hint="cast them to a type with a stored form, for instance to string",
        ) from error


def arrow_of(expression: Expr) -> pa.DataType:
    """The relaxed Arrow type of a Catalyst expression."""
    return arrow_of_spark(spark_of(expression))
