"""Deploy generations: what was deployed before does not come back by itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.catalog.catalog import Catalog, read_config
from headrace.catalog.edits import FENCING_KEY, GENERATION_KEY, EditRejected, Put, SetConfig
from headrace.catalog.moving import Places, move
from headrace.catalog.places import DEFAULTS, PlaceOptions, canonical
from headrace.catalog.records import SettingRecord
from headrace.catalog.store import check_generation
from headrace.errors import Fenced, HeadraceError, OperationalError


def of(generation: int) -> PlaceOptions:
    return replace(DEFAULTS, generation=generation)


def write(catalog: Catalog, value: str) -> None:
    catalog.transact([Put(SettingRecord("a", value))])


def test_a_lower_generation_is_refused_and_shuts_out_nobody(location: str) -> None:
    """CM-6: tokens order by generation, then by number; who has a lower one changes nothing and fences nobody."""
    with Catalog.open(location, options=of(1)) as old:
        write(old, "old")
        with Catalog.open(location, options=of(3)) as new:
            with pytest.raises(Fenced):
                write(old, "late")
            before = read_config(location)
            for generation in (0, 1, 2):
                with pytest.raises(OperationalError, match=f"generation {generation}, the catalog .* generation 3"):
                    Catalog.open(location, options=of(generation))
            assert read_config(location) == before and before[GENERATION_KEY] == 3
            write(new, "new")
            with Catalog.open(location, read_only=True) as reader:  # it shuts out nobody, so anyone may
                assert reader.state.settings["a"].value == "new"
    with Catalog.open(location, options=of(3)) as again:
        assert again.token == before[FENCING_KEY] + 1
        assert again.state.settings["a"].value == "new"


def test_without_generations_nothing_is_written_of_them(location: str) -> None:
    with Catalog.open(location) as catalog:
        write(catalog, "x")
        with pytest.raises(EditRejected, match="belongs to the catalog"):
            catalog.transact([SetConfig(GENERATION_KEY, 7)])
    assert GENERATION_KEY not in read_config(location)


@pytest.mark.parametrize("target", ["sqlite", "directory"])
def test_a_move_takes_the_generation_along(location: str, target: str, tmp_path: Path) -> None:
    """CM-6: a lower generation is refused by the new place as by the old one; a move by it fences neither."""
    to = f"sqlite:///{tmp_path}/new.db" if target == "sqlite" else f"file://{tmp_path}/new"
    here, there = canonical(location), canonical(to)
    with Catalog.open(location, options=of(2)) as owner:
        write(owner, "x")
        with pytest.raises(OperationalError, match="belongs to generation 2"):
            move(here, there, Places(of(1)))
        write(owner, "y")  # it has not been shut out
    move(here, there, Places(of(2)))
    assert read_config(to)[GENERATION_KEY] == 2
    with pytest.raises(OperationalError, match="belongs to generation 2"):
        Catalog.find(there, Places(of(1)))
    with Catalog.find(here, Places(of(4))) as catalog:
        assert catalog.state.settings["a"].value == "y"
    with pytest.raises(OperationalError, match="belongs to generation 4"):
        move(there, here, Places(of(3)))
    move(there, here, Places(of(4)))
    assert read_config(location)[GENERATION_KEY] == 4


def test_openers_of_several_generations_at_once(location: str) -> None:
    """CM-6: whoever comes first, in the end the highest generation has it and no lower one has come after."""
    found: list[HeadraceError] = []

    def opener(generation: int) -> None:
        for _ in range(3):
            try:
                Catalog.open(location, options=of(generation)).close()
            except HeadraceError as error:  # a lower one; or shut out while it was opening
                found.append(error)

    threads = [threading.Thread(target=opener, args=(g,)) for g in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Catalog.open(location, options=of(3)):
        assert read_config(location)[GENERATION_KEY] == 3
    for error in found:
        assert isinstance(error, Fenced) or "belongs to generation" in error.message, error
    with pytest.raises(OperationalError):
        Catalog.open(location, options=of(2))


def test_the_rule() -> None:
    check_generation(0, 0)
    check_generation(3, 4)
    with pytest.raises(OperationalError):
        check_generation(4, 3)
