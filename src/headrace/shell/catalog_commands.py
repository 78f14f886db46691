"""`headrace catalog`: what it prints, and what it returns to the caller."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.catalog.catalog import Catalog
from headrace.catalog.contents import Content, RoleContent, SecretContent
from headrace.catalog.edits import FENCING_KEY
from headrace.catalog.marks import CatalogPlace
from headrace.catalog.moving import find_truth, make_true
from headrace.catalog.places import canonical, shown
from headrace.catalog.records import LeavingRecord, ObjectRecord, encode
from headrace.catalog.sealing import unseal
from headrace.catalog.shadow import differences
from headrace.catalog.state import CatalogState
from headrace.catalog.store import FORMAT_VERSION, describe_owner
from headrace.config import Settings
from headrace.coordinator.ddl.place import move_catalog, places_of
from headrace.coordinator.ddl.secrets import all_secrets, identity, keys_of, reencrypt
from headrace.errors import HeadraceError, OperationalError, StorageError
from headrace.shell.link import Heading
from headrace.shell.table import aligned

_COLUMNS = ("place", "role", "transaction", "token", "generation", "format", "opened last by")
_NUMBERS = frozenset({"transaction", "token", "generation", "format"})


class CatalogShell:
    """Looks at a database's catalog from outside, and moves it: `headrace catalog`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._at = canonical(settings.catalog_location)
        self._places = places_of(settings)

    def status(self) -> bool:
        """Print all places that the catalog is or was in, as far as they name each other; whether one is the truth."""
        rows, truth = list[Sequence[str | None]](), self._truth()
        for at in self._chain():
            try:
                rows.append(_row(self._places.peek(at), at == truth))
            except HeadraceError as error:
                rows.append((at, f"cannot be asked: {error.message}", "", "", "", "", ""))
        headings = [Heading(name, name in _NUMBERS) for name in _COLUMNS]
        for line in aligned(headings, iter(rows)):
            print(line)
        if truth is not None and not self._places.peek(truth).is_empty:
            with Catalog.find(truth, self._places, read_only=True) as catalog:
                print(_sizes(catalog.image))
        return truth is not None

    def _truth(self) -> str | None:
        try:
            return find_truth(self._at, self._places)
        except HeadraceError as error:
            print(f"WRONG: {error.message}")
            return None

    def _chain(self) -> Iterator[str]:
        """The places that are named, one after the other."""
        waiting, seen = [self._at], set[str]()
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            yield at
            try:
                place = self._places.peek(at)
            except HeadraceError:
                continue
            waiting += [place.moved.to] if place.moved else []
            waiting += [place.copy.source] if place.copy else []

    def dump(self) -> None:
        """Print all records as lines of JSON, the config collection first."""
        with Catalog.find(self._at, self._places, read_only=True) as catalog:
            print(json.dumps({"collection": "config", **dict(sorted(catalog.image.config.items()))}))
            for record in catalog.image.records():
                if isinstance(record, ObjectRecord):
                    record = replace(record, content=_shown(record.content))
                elif isinstance(record, LeavingRecord):
                    secrets = (replace(s, content=_shown(s.content)) for s in record.secrets)
                    record = replace(record, secrets=tuple(secrets))
                print(f'{{"collection":"{record.COLLECTION}",{encode(record)[1:]}')

    def verify(self) -> bool:
        """Read all of the catalog, check that what its records name is there; whether all is well."""
        try:
            with Catalog.find(self._at, self._places, read_only=True) as catalog:
                state, place = catalog.image, catalog.location
        except (StorageError, OperationalError) as error:
            print(f"WRONG: {error.message}")
            return False
        problems = [*dangling(state), *self._unreadable(state), *self._differences(canonical(place))]
        for problem in problems:
            print(f"WRONG: {problem}")
        print(f"{shown(place)}: {_sizes(state)}, {len(problems)} problems")
        return not problems

    def _differences(self, at: str) -> list[str]:
        if self._settings.catalog_shadow is None:
            return []
        sides = []
        for place in (at, canonical(self._settings.catalog_shadow)):
            store = self._places.store(place, read_only=True)
            sides.append(store.load(FORMAT_VERSION))
            store.close()
        return differences(*sides)

    def reencrypt(self) -> None:
        """Encrypt all secrets by the first key."""
        keys = keys_of(self._settings)
        number, _ = keys.first
        with Catalog.find(self._at, self._places) as catalog:
            changed, there = reencrypt(catalog, keys), len(all_secrets(catalog.state))
        print(f"{changed} of {there} secrets were encrypted anew; all are by key {number}")

    def _unreadable(self, state: CatalogState) -> Iterator[str]:
        """What is wrong with secrets, if there are keys to tell."""
        keys = keys_of(self._settings)
        for record in all_secrets(state) if keys.known else ():
            try:
                unseal(record.content.to_json(), identity(record, state), keys)
            except HeadraceError as error:
                yield error.message

    def migrate(self, to: str, *, dry_run: bool, overwrite: bool) -> None:
        """Move the catalog to another place."""
        report = move_catalog(self._settings, self._location(), to, _progress, overwrite=overwrite, dry_run=dry_run)
        if not report.done:
            print(f"the catalog is in {report.target} already")
        elif dry_run:
            print(f"would move {report.records} records from {report.source} to {report.target}")
        else:
            print(f"moved {report.records} records from {report.source} to {report.target}")

    def rollback(self, *, dry_run: bool, overwrite: bool, force: bool) -> None:
        """Move the catalog back to the place that is asked; with `force` use what that holds, whatever it says."""
        if force:
            before = make_true(self._at, self._places, _progress)
            if before.is_true:
                print(f"the catalog is in {self._at} already")
            return
        self.migrate(self._location(), dry_run=dry_run, overwrite=overwrite)

    def _location(self) -> str:
        return self._settings.catalog_location


def _shown(content: Content) -> Content:
    """A content as it may be printed."""
    if isinstance(content, SecretContent) and content.sealed is not None:
        return replace(content, sealed="***")
    if isinstance(content, RoleContent) and content.password:
        return replace(content, password="***")
    return content


def _progress(text: str) -> None:
    print(text, flush=True)


def _row(place: CatalogPlace, is_truth: bool) -> tuple[str, ...]:
    if place.is_empty:
        return (place.name, "nothing", "", "", "", "", "")
    if is_truth:
        role = "in use"
    elif place.moved is not None:
        role = f"moved to {place.moved.to}"
    else:
        role = f"copy of {place.copy.source}" if place.copy is not None else "not in use"
    owner = describe_owner(place.owner)
    numbers = (place.sequence, place.token, place.generation, place.format_version)
    return (place.name, role, *map(str, numbers), owner)


def _sizes(state: CatalogState) -> str:
    counts = Counter(record.COLLECTION for record in state.records())
    text = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    return f"{sum(counts.values())} records ({text or 'none'}), fencing token {state.config.get(FENCING_KEY, 0)}"


def dangling(state: CatalogState) -> Iterator[str]:
    """What records name that is not there."""
    for job in state.jobs.values():
        if job.id not in state.objects:
            yield f"job {job.id} is of an object that does not exist"
    for table in state.state_tables.values():
        if table.job_id not in state.jobs and table.job_id not in state.objects:
            yield f"state table {table.id} belongs to job {table.job_id}, which does not exist"
        if table.safe_epoch > table.committed_epoch:
            yield f"state table {table.id} is safe at epoch {table.safe_epoch}, above {table.committed_epoch}"
    for run in state.runs.values():
        if run.ref.table_id not in state.state_tables:
            yield f"run {run.id} belongs to state table {run.ref.table_id}, which does not exist"
    for found in state.objects.values():
        for needed in found.depends_on:
            if needed not in state.objects:
                yield f"{found.kind} {found.schema}.{found.name} depends on object {needed}, which does not exist"
    for position in state.positions.values():
        if position.job_id not in state.jobs:
            yield f"a position is of job {position.job_id}, which does not exist"
