"""A job's place in its group: every move from every place, the picture of it, and what it makes void."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import headrace
from headrace.catalog.records import JobRecord
from headrace.coordinator.decide.membership import GroupPlace, Membership, Move, step

PICTURE = Path(headrace.__file__).parents[2] / "docs" / "ARCHITECTURE.md"
POSSIBLE = {
    (GroupPlace.APART, Move.ADMITTED, GroupPlace.JOINING),
    (GroupPlace.APART, Move.LEADS, GroupPlace.IN_STEP),
    (GroupPlace.JOINING, Move.TAKEN_ALONG, GroupPlace.IN_STEP),
    (GroupPlace.JOINING, Move.LEFT, GroupPlace.APART),
    (GroupPlace.IN_STEP, Move.LEFT, GroupPlace.APART),
    (GroupPlace.IN_STEP, Move.TAKEN_ALONG, GroupPlace.IN_STEP),
}


@pytest.mark.parametrize(("place", "move"), product(GroupPlace, Move))
def test_every_move_from_every_place(place: GroupPlace, move: Move) -> None:
    after = next((a for p, m, a in POSSIBLE if (p, m) == (place, move)), None)
    before = Membership("g", place, 7)
    if after is None:
        with pytest.raises(AssertionError, match=f"a job that is {place.name} cannot be {move.name}"):
            step(before, move)
        return
    found = step(before, move)
    assert (found.group, found.place) == ("g", after)
    void = move is not Move.TAKEN_ALONG
    assert found.version == 7 + void, "what was begun in another lane is not committed; what a checkpoint has, is"
    assert found.joined is (after is not GroupPlace.APART) and found.joining is (after is GroupPlace.JOINING)


def test_the_picture_shows_all_moves_and_nothing_else() -> None:
    found = re.findall(r"^    ([A-Z_]+) --> ([A-Z_]+): ([A-Z_]+)", PICTURE.read_text(), re.MULTILINE)
    drawn = {(GroupPlace[a], Move[move], GroupPlace[b]) for a, b, move in found}
    assert drawn == {(a, m, b) for a, m, b in POSSIBLE if a is not b}


def test_who_is_altered_without_a_move_stays_where_it_is() -> None:
    """A record knows of no job that is about to join: that is not forgotten by an ALTER of an option."""
    joining = Membership("g", GroupPlace.JOINING, 3)
    assert joining.altered(JobRecord(1, "g", "created", joined=False)) is joining
    moved = joining.altered(JobRecord(1, "h", "created", joined=False))
    assert moved == Membership("h", GroupPlace.APART, 4)
    assert joining.altered(JobRecord(1, "h", "created", joined=True)) == Membership("h", GroupPlace.IN_STEP, 4)


def test_what_is_taken_back_leaves_void_what_was_begun_before() -> None:
    before = Membership("g", GroupPlace.IN_STEP, 3)
    left = step(before, Move.LEFT)
    assert left.taken_back(before) == Membership("g", GroupPlace.IN_STEP, 5), "and what was begun in between"
