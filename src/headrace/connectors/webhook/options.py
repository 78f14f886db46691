"""The options of a table whose rows come in HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.common.columns import Column
from headrace.common.jsonb.document import SPARK_TYPE as JSONB
from headrace.connectors.declared import DeclaredOptions, Option
from headrace.connectors.leaving import own_type
from headrace.connectors.option_reader import COMMON_OPTIONS
from headrace.connectors.webhook.validation import PREFIX
from headrace.errors import InvalidParameter, NotSupported

NAME: Final = "webhook"
"""The connector's name."""
OPTIONS: Final = DeclaredOptions(
    (Option("is_batched", "Each line of a body is a JSON document of its own.", "boolean", "false"),)
)


def is_webhook(options: Mapping[str, str]) -> bool:
    """Whether the rows of a table with these options come in requests."""
    return options.get("connector") == NAME


def check_options(options: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` for an option that the connector does not have."""
    for name in options:
        if name in COMMON_OPTIONS and name != "connector":
            raise InvalidParameter(
                f"option {name} is not one of connector {NAME}",
                hint="a request with a row that cannot be understood is answered by an error, and none of it is kept",
            )
    OPTIONS.read(options)


def check_columns(columns: Sequence[Column]) -> None:
    """Raise `NotSupported` for a column that JSON does not fill."""
    for column in columns:
        kind = None if column.type == JSONB else own_type(column.type)
        if kind is not None:
            raise NotSupported(
                f'the column "{column.name}" of type {kind} of connector {NAME}',
                hint="declare it as text, and cast it in a view",
            )


def by_lines(options: Mapping[str, str]) -> bool:
    """Whether each line of a body is a document."""
    return bool(OPTIONS.read({k: v for k, v in options.items() if not k.startswith(PREFIX)})["is_batched"])
