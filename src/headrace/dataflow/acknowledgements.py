"""How what tasks have written reaches the driver: an accumulator of acknowledgements.

Workers load its class with every stage, so it has a module that imports nothing else.
"""

from __future__ import annotations

from typing import Any

from pyspark import AccumulatorParam


class Acknowledgements(AccumulatorParam[list[dict[str, Any]]]):
    """Adds up lists of acknowledgements, for Spark's accumulator."""

    def zero(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The empty list that a task begins with."""
        return []

    def addInPlace(self, value1: list[dict[str, Any]], value2: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Puts two lists together."""
        value1.extend(value2)
        return value1
