"""ALTER ... SET of the options of a source, or of the hidden one of a table with a connector: its pace, and `on_error`.

Where `on_error` was 'fail' nobody has taken in a row that was found to be at fault: who found it could not go on. Which
rows a reader finds so does not depend on `on_error`. So what readers have is what they would have with another value of
it all along, and views made later agree with them. Rows that 'null' or 'skip' have let pass do stay as they are, so
there is no way back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.catalog.contents import SourceContent
from headrace.catalog.records import ObjectRecord
from headrace.connectors.base import ALTERABLE, RATE, WAITING
from headrace.connectors.job_options import ON_ERROR
from headrace.connectors.option_reader import OptionReader
from headrace.connectors.sources import declares
from headrace.coordinator.decide.former import formers_of
from headrace.errors import InvalidParameter, NotSupported
from headrace.session.context import Context
from headrace.session.execution import fed
from headrace.session.execution.refilling import check_not_refreshed
from headrace.session.execution.widening import called
from headrace.session.hidden_views import is_part
from headrace.session.names import label

_SETTABLE: Final = (*ALTERABLE, ON_ERROR)


def set_of_source(context: Context, source: ObjectRecord, options: Mapping[str, str]) -> None:
    """ALTER SOURCE ... SET; DEFAULT takes an option away."""
    wrong = sorted(set(options) - {*_SETTABLE})
    if wrong:
        raise NotSupported(
            f"another value of the option {wrong[0]} of a source",
            hint=f"{', '.join(_SETTABLE)} can be altered; for others drop the source and create it again",
        )
    if ON_ERROR in options and source.content_as(SourceContent).shared:
        raise InvalidParameter(
            f"{called(source)} has no {ON_ERROR}: each of its tables has its own",
            hint=f"ALTER TABLE t SET {ON_ERROR} = 'null'",
        )
    if (waiting := sorted(WAITING.keys() & options.keys())) and not waits(source):
        raise InvalidParameter(
            f"{called(source)} has no {waiting[0]}: it has no watermark, or one for all that it reads",
            hint="sources of kafka with WATERMARK have it",
        )
    _set(context, [source], source, options)


def set_of_table(context: Context, table: ObjectRecord, options: Mapping[str, str]) -> bool:
    """ALTER TABLE ... SET of a table with a connector, where the options are its source's and not its view's.

    Returns whether they are. Its rate is that of the source that is bound: of a table that shares its slot with what it
    was before, the one with the slot. What it was before has the same `on_error`.
    """
    state = context.catalog.state
    source = fed.source_of(state, table)
    if source is None or not set(options) & {RATE.name, ON_ERROR}:
        return False
    if len(options) > 1:
        raise NotSupported(f"{' and '.join(sorted(options))} of a table at once", hint="one ALTER for each")
    if RATE.name in options:
        _set(context, [_bound(context, table, source)], table, options)
        return True
    with context.coordinator.defining():  # nobody begins to add columns meanwhile, with the options of before
        state = context.catalog.state
        check_not_refreshed(state, table)
        below = [fed.source_of(state, each) for each in (table, *formers_of(state, table.id))]
        _set(context, [*{each.id: each for each in below if each is not None}.values()], table, options)
    return True


def _set(
    context: Context, sources: Sequence[ObjectRecord], shown: ObjectRecord, options: Mapping[str, str]
) -> None:  # fmt: skip
    given = {name: value for name, value in options.items() if value.lower() != "default"}
    for name in given:
        _read(name, given)
    policy = ON_ERROR in options

    def changed(found: ObjectRecord) -> ObjectRecord:
        if policy:
            _check_policy(found, shown, _read(ON_ERROR, given))
        kept = {name: value for name, value in found.options.items() if name not in options}
        return replace(found, options=kept | given)

    done = "goes on otherwise past what cannot be understood" if policy else "is read at another pace"
    context.coordinator.alter_sources([source.id for source in sources], changed, done)


def waits(source: ObjectRecord) -> bool:
    """Return True if the splits of a source wait for each other's times."""
    return source.content_as(SourceContent).watermark is not None and declares(source.options, *WAITING)


def _read(name: str, options: Mapping[str, str]) -> object:
    reader = OptionReader(options)
    return reader.on_error() if name == ON_ERROR else ALTERABLE[name].read(reader)


def _check_policy(source: ObjectRecord, shown: ObjectRecord, wanted: object) -> None:
    """Raise `NotSupported` where rows of the past would not be what they would be with `on_error` as it is wanted."""
    now = _read(ON_ERROR, source.options)
    if wanted == now:
        return
    what = f"{ON_ERROR} = '{wanted}' of {called(shown)}"
    if now != "fail":
        raise NotSupported(
            f"{what}, which has '{now}': rows that were let pass with that would stay as they are",
            hint="create another one with the option, and drop this one when what reads it has moved there",
        )
    if wanted == "skip" and not isinstance(shown.content, SourceContent):
        raise NotSupported(
            f"{what}, which has been read with 'fail': what it holds of a row follows from the records that were "
            "left out before",
            hint=f"SET {ON_ERROR} = 'null': a row whose key is at fault is left out with that, too",
        )


def _bound(context: Context, table: ObjectRecord, source: ObjectRecord) -> ObjectRecord:
    """The source by whose pace a table is read."""
    origin = source.content_as(SourceContent).origin
    if origin is None:
        return source
    bound = context.catalog.state.objects[origin]
    if not is_part(bound):
        raise InvalidParameter(
            f"{called(table)} is read at the pace of {called(bound)}",
            hint=f"ALTER SOURCE {label(bound)} SET {RATE.name} = ...",
        )
    return bound
