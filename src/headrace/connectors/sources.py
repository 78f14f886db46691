"""The sources that there are, by the names of their connectors: opened, or asked what they would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module

from headrace.common.columns import Column
from headrace.connectors.base import MAX_MB, RATE, Offsets, Source
from headrace.connectors.confidential import ConfidentialSource, hiding
from headrace.connectors.option_reader import OptionReader, check_secrets
from headrace.errors import InvalidParameter

_CONNECTORS: dict[str, tuple[str, str]] = {
    "deltalake": ("headrace.connectors.lake.delta_source", "DeltaSource"),
    "iceberg": ("headrace.connectors.lake.iceberg_source", "IcebergSource"),
    "postgres-cdc": ("headrace.connectors.postgres.variants", "PostgresCdc"),
    "kafka": ("headrace.connectors.kafka.source", "KafkaSource"),
    "datagen": ("headrace.connectors.datagen", "DatagenSource"),
    "files": ("headrace.connectors.files.source", "FileSource"),
    "nexmark": ("headrace.connectors.nexmark", "NexmarkSource"),
}


Secrets = Callable[[], Mapping[str, str]]
"""Returns option -> the value of the secret that it was given, as of now."""


def open_source(options: Mapping[str, str], columns: Sequence[Column], secrets: Secrets | None = None) -> Source:
    """The source that `options['connector']` names; what has `secrets` tells them to nobody.

    Raises `InvalidParameter` for an option that is unknown, missing or impossible.
    """
    connector = _connector(options)
    for option in (MAX_MB, RATE):  # the ticker's
        option.read(OptionReader(options))
    if secrets is None:
        return connector(options, columns)
    return ConfidentialSource(lambda values: connector({**options, **values}, columns), columns, secrets)


def infer_columns(options: Mapping[str, str], secrets: Secrets | None = None) -> list[Column]:
    """The columns that the source of `options` has by itself; see `Source.infer_columns`."""
    if secrets is None:
        return _connector(options).infer_columns(options)
    values = secrets()
    with hiding([*values.values()]):
        return _connector(options).infer_columns({**options, **values})


def declares(options: Mapping[str, str], *names: str) -> bool:
    """Return True if the connector that `options` name has these options of its own."""
    declared = _connector(options).declared
    return declared is not None and {*names} <= {option.name for option in declared.options}


def settled(options: Mapping[str, str]) -> dict[str, str]:
    """See `Source.settled`."""
    return _connector(options).settled(options)


def feeds(options: Mapping[str, str]) -> bool:
    """See `Source.feeds`."""
    return _connector(options).feeds


def retracts(options: Mapping[str, str]) -> bool:
    """See `Source.retracts`; a connector that this program does not know takes nothing back."""
    return options.get("connector") in _CONNECTORS and _connector(options).retracts(options)


def refreshes(options: Mapping[str, str]) -> bool:
    """See `Source.refreshes`; of a connector that this program does not know nothing can be had."""
    return options.get("connector") in _CONNECTORS and _connector(options).refreshes(options)


def widens(options: Mapping[str, str]) -> bool:
    """See `Source.widens`; of a connector that this program does not know nothing can be had."""
    return options.get("connector") in _CONNECTORS and _connector(options).widens(options)


def renews(options: Mapping[str, str]) -> bool:
    """See `Source.renews`; of a connector that this program does not know nothing can be had."""
    return options.get("connector") in _CONNECTORS and _connector(options).renews


def as_shared(options: Mapping[str, str]) -> dict[str, str]:
    """See `Source.as_shared`."""
    return _connector(options).as_shared(options)


def holds(options: Mapping[str, str]) -> bool:
    """See `Source.holds`; a connector that this program does not know holds nothing."""
    return options.get("connector") in _CONNECTORS and _connector(options).holds


def is_shared(options: Mapping[str, str]) -> bool:
    """See `Source.shared`; a connector that this program does not know is refused where it is opened."""
    return options.get("connector") in _CONNECTORS and _connector(options).shared


def is_whole(options: Mapping[str, str], offsets: Offsets) -> bool:
    """See `Source.whole`; a connector that this program does not know is taken at its word."""
    return options.get("connector") not in _CONNECTORS or _connector(options).whole(offsets)


def of_splits(options: Mapping[str, str], offsets: Offsets) -> Offsets:
    """See `Source.of_splits`; of a connector that this program does not know, all that there is."""
    return _connector(options).of_splits(offsets) if options.get("connector") in _CONNECTORS else dict(offsets)


def added_columns(options: Mapping[str, str]) -> list[Column]:
    """See `Source.added_columns`."""
    return _connector(options).added_columns(options)


def check_secret_options(options: Mapping[str, str], names: Iterable[str]) -> None:
    """See `check_secrets`."""
    check_secrets(_connector(options).takes_secret, options, names)


def connector_names() -> list[str]:
    """The connectors that can be opened as sources."""
    return sorted(_CONNECTORS)


def _connector(options: Mapping[str, str]) -> type[Source]:
    name = options.get("connector")
    if name is None:
        raise InvalidParameter("a source needs the option connector", hint=f"one of {', '.join(connector_names())}")
    if name not in _CONNECTORS:
        raise InvalidParameter(f"option connector must be one of {', '.join(connector_names())}, not {name!r}")
    module, attribute = _CONNECTORS[name]
    cls: type[Source] = getattr(import_module(module), attribute)
    return cls.variant(options)
