"""Where a database's catalog is, as its settings say: opened, followed to where it has moved, or moved there first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.catalog.catalog import Catalog
from headrace.catalog.edits import Put
from headrace.catalog.following import FollowedCatalog
from headrace.catalog.moving import MoveReport, Places, find_truth, move
from headrace.catalog.places import PlaceOptions, canonical, shown
from headrace.catalog.records import SettingRecord
from headrace.common.clock import Clock
from headrace.config import Settings
from headrace.coordinator.ddl.location import LOCATION, shown_location
from headrace.coordinator.run.lease_keeper import kept_by
from headrace.errors import InvalidParameter, StorageError

Told = Callable[[str], None]


def places_of(settings: Settings, *others: str | None) -> Places:
    """How the places of a database are reached, and those of `others`."""
    options = PlaceOptions(
        full_sync=settings.catalog_commit_sync,
        busy_timeout_ms=settings.catalog_busy_timeout_ms,
        connect_timeout_ms=min(settings.catalog_timeout_ms, PlaceOptions.connect_timeout_ms),
        timeout_ms=settings.catalog_timeout_ms,
        lease_ms=settings.catalog_lease_ms,
        object_options=settings.catalog_options or settings.state_options,
        concurrency=settings.io_concurrency,
        generation=settings.deploy_generation,
    )
    return Places.known([settings.catalog_location, settings.catalog_from, settings.catalog_shadow, *others], options)


def own_place(settings: Settings) -> str:
    """The place of the catalog that is within the data directory, if it is there."""
    return canonical(settings.data_dir / "catalog.db")


def open_catalog(settings: Settings, told: Told, clock: Clock | None = None) -> tuple[Catalog, Settings]:
    """The database's catalog, and the settings with where it is.

    A catalog that is in `catalog_from`, or in the data directory, is moved to `catalog_url` first. Raises as `move` and
    `Catalog.open` do.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    places, at = places_of(settings), canonical(settings.catalog_location)
    source = canonical(settings.catalog_from) if settings.catalog_from else own_place(settings)
    if source != at and _is_to_move(source, at, places):
        move_catalog(settings, source, at, told)
    catalog = Catalog.find(at, places, clock=clock, told=told, shadow=settings.catalog_shadow)
    return catalog, settled(settings, catalog, places)


def follow_catalog(settings: Settings, told: Told, clock: Clock | None = None) -> tuple[FollowedCatalog, Settings]:
    """The catalog of a database that another server serves, for a standby; and the settings with where it is.

    Raises `InvalidParameter` for one that only one machine and process can use, `StorageError` where there is none.
    """
    if not kept_by(settings.catalog_location):
        raise InvalidParameter(
            f"no standby can follow the catalog in {shown(settings.catalog_location)}: a SQLite file is for one",
            hint="give both servers a --catalog that they share: postgresql://, s3://bucket/prefix, or file:/// on one "
            "machine; headrace catalog migrate moves one there",
        )
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    places = places_of(settings)
    try:
        catalog = FollowedCatalog.begin(
            settings.catalog_location, places, clock=clock, told=told, shadow=settings.catalog_shadow
        )
    except StorageError as error:
        error.hint = error.hint or "a standby needs a server to stand by for: start the first one without --standby"
        raise
    return catalog, settled(settings, catalog, places)


def settled(settings: Settings, catalog: Catalog, places: Places) -> Settings:
    """The settings with the place where the catalog is instead of the one where it was looked for."""
    found = canonical(catalog.location)
    if found == canonical(settings.catalog_location):
        return settings
    url = None if found == own_place(settings) else places.locations.get(found, found)
    return settings.replaced(catalog_url=url)


def look_up(settings: Settings) -> tuple[Catalog, Settings]:
    """The database's catalog, wherever it is, read-only; and the settings with where that is."""
    places = places_of(settings)
    catalog = Catalog.find(settings.catalog_location, places, read_only=True)
    return catalog, settled(settings, catalog, places)


def _is_to_move(source: str, at: str, places: Places) -> bool:
    here, there = places.peek(source), places.peek(at)
    if here.is_empty:
        return False
    if there.is_empty:
        return True
    if there.database_id == here.database_id and not here.is_true:
        return False  # it has been there; where it is now is what that place says
    if there.database_id == here.database_id and not there.is_true:
        return True
    same = "this database, too, and both are in use" if there.database_id == here.database_id else "another database"
    raise InvalidParameter(
        f"{shown(source)} holds a catalog, and {shown(at)} that of {same}",
        hint="give the directory of that database, or decide with headrace catalog migrate --overwrite",
    )


def move_catalog(
    settings: Settings, source: str, target: str, told: Told, *, overwrite: bool = False, dry_run: bool = False
) -> MoveReport:
    """Move the catalog of a database; with what it says of the state's place made good for the new one."""
    places = places_of(settings, source, target)
    source, target = canonical(source), canonical(target)
    truth = find_truth(source, places, told)
    if truth != target and not dry_run:
        _settle_state(settings, truth, places)
    return move(source, target, places, told=told, overwrite=overwrite, dry_run=dry_run)


def _settle_state(settings: Settings, truth: str, places: Places) -> None:
    """A place relative to the data directory means nothing in a catalog that is elsewhere."""
    with Catalog.find(truth, places) as catalog:
        known = catalog.state.settings.get(LOCATION)
        if known is not None and "://" not in known.value and not Path(known.value).is_absolute():
            catalog.transact([Put(SettingRecord(LOCATION, shown_location(settings, known.value)))])
