"""`headrace state`: what it prints, and what it returns to the caller."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple

from headrace.catalog.state import CatalogState
from headrace.common.ownership import is_served, sole_access
from headrace.config import Settings, apply_parameters, is_parameter
from headrace.coordinator.ddl.location import location_edits
from headrace.coordinator.ddl.place import look_up
from headrace.coordinator.observe import inspection
from headrace.coordinator.run.storage import state_root
from headrace.coordinator.upkeep.owner import check_owner
from headrace.errors import EpochTooNew, EpochTooOld, OperationalError
from headrace.shell.link import Heading
from headrace.shell.table import aligned
from headrace.state.arrangement import Arrangement
from headrace.state.stores import StoreRoot, store_of

_TABLES = ("id", "name", "owner", "operator", "runs", "rows", "bytes", "levels", "committed epoch", "safe epoch")
_RUNS = ("object", "offset", "level", "first epoch", "last epoch", "lowest key", "highest key", "rows", "bytes")
_TEXTS = frozenset({"name", "owner", "operator", "levels", "object"})


class StateShell:
    """The state of the database in a directory, looked at from outside."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _root(self) -> StoreRoot:
        """Where the objects are. Raises `InvalidParameter` if the catalog knows another place."""
        state = self._look()
        location_edits(self._settings, state)
        return state_root(self._settings)

    def _grace_s(self) -> float:
        """The grace period, which SQL may have set."""
        changes = {name: record.value for name, record in self._look().settings.items() if is_parameter(name)}
        return apply_parameters(self._settings, changes).vacuum_grace_ms / 1000

    def _look(self) -> CatalogState:
        catalog, self._settings = look_up(self._settings)
        with catalog:
            return catalog.image

    def ls(self) -> None:
        """Print all state tables."""
        _print(_TABLES, (astuple(info) for info in inspection.table_infos(self._look())))

    def show(self, name: str, *, rows: bool, epoch: int | None) -> None:
        """Print a table's runs, or the rows that it has at an epoch: by default the committed one.

        Raises `UndefinedTable`, `EpochTooOld`, `EpochTooNew`, `CorruptObject`.
        """
        state = self._look()
        record = inspection.find_table(state, name)
        runs = state.runs_of(record.id)
        if not rows and epoch is None:
            _print(_RUNS, (
                (r.ref.path, r.ref.offset, r.level, r.ref.epoch_lo, r.ref.epoch_hi, r.ref.k_min, r.ref.k_max,
                 r.ref.rows, r.ref.length)
                for r in runs
            ))  # fmt: skip
            return
        at = record.committed_epoch if epoch is None else epoch
        readable = f"state table {name} is readable from epoch {record.safe_epoch} to {record.committed_epoch}"
        if at < record.safe_epoch:
            raise EpochTooOld(f"epoch {at} is too old", hint=readable)
        if at > record.committed_epoch:
            raise EpochTooNew(f"epoch {at} is not there yet", hint=readable)
        schema = record.to_table_schema()
        table = Arrangement(schema, [r.ref for r in runs], self._root(), as_of=at, watermark=record.watermark)
        names = [f.name for f in schema.arrow()]
        _print(names, (row for b in table.scan() for row in zip(*(c.to_pylist() for c in b.columns), strict=True)))

    def verify(self) -> bool:
        """Check everything, print what is wrong and what is unreferenced; whether all is well."""
        served = is_served(self._settings.data_dir)
        report = inspection.verify(self._look, self._root(), time.time(), self._grace_s(), served=served)
        for problem in report.problems:
            print(f"WRONG: {problem}")
        for loose in report.loose:
            print(f"unreferenced: {loose.path}, changed {loose.age_s:.0f} s ago")
        print(
            f"{report.runs} runs, {report.bytes} bytes, {len(report.loose)} unreferenced objects, "
            f"{len(report.problems)} problems"
        )
        return not report.problems

    def collect(self, *, dry_run: bool) -> None:
        """Delete what is unreferenced and older than the grace period. Raises `OperationalError` while it is served."""
        self._look()
        if dry_run:
            self._collect(dry_run=True)
            return
        with sole_access(self._settings.data_dir) as alone:
            if not alone:
                raise OperationalError(
                    f"the database in {self._settings.data_dir} is being served",
                    hint="its server deletes what is unreferenced by itself; --dry-run shows what is",
                )
            self._collect(dry_run=False)

    def _collect(self, *, dry_run: bool) -> None:
        if not dry_run:
            catalog, self._settings = look_up(self._settings)
            with catalog:
                check_owner(self._settings, catalog, store_of(self._root()))
        loose = inspection.unreferenced(self._look, self._root(), time.time())
        deleted = inspection.collect(self._root(), loose, self._grace_s(), dry_run=dry_run)
        for path in deleted:
            print(path)
        kept = len(loose) - len(deleted)
        print(f"{'would delete' if dry_run else 'deleted'} {len(deleted)} objects, {kept} are within the grace period")


def _print(names: Sequence[str], rows: Iterator[Sequence[object]]) -> None:
    headings = [Heading(name, name not in _TEXTS) for name in names]
    for line in aligned(headings, (["" if v is None else str(v) for v in row] for row in rows)):
        print(line)
