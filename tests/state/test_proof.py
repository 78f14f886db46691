"""Processes on other hosts have to show that they use the server's store, and what they write has to arrive there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import StorageError
from headrace.state import stores
from headrace.state.proof import answer_proof, asking_for_proof, check_answers, confirm, put_proof, remove_proof
from headrace.state.run import Section, write_run
from headrace.state.schema import RunRef, TableSchema
from headrace.state.stores import StoreRoot, root_from_json, root_to_json, store_of


@pytest.fixture(autouse=True)
def fresh_processes() -> None:
    """No store has been opened yet, as in a process that has just begun."""
    stores._opened.cache_clear()


def elsewhere(root: StoreRoot, folder: Path) -> StoreRoot:
    """The same address on a host where it is another directory."""
    return replace(root, url=str(folder / "other" / "state"))


def files(root: StoreRoot) -> list[str]:
    return sorted(o.path for o in store_of(replace(root, proof="")).list())


def test_who_sees_the_store_may_open_it(tmp_path: Path) -> None:
    root = asking_for_proof(StoreRoot(str(tmp_path / "state")))
    put_proof(root)
    told = root_from_json(json.loads(json.dumps(root_to_json(root))))
    assert isinstance(told, StoreRoot) and told == root
    answers = [answer_proof(told) for _ in range(3)]
    check_answers(root, answers)
    assert files(root) == [root.proof], "the answers are tidied away"
    put_proof(later := asking_for_proof(StoreRoot(str(tmp_path / "state"))))
    assert files(root) == [later.proof], "one for each server that is open"
    remove_proof(later)
    assert files(root) == []


def test_who_sees_another_store_may_not_open_it(tmp_path: Path) -> None:
    root = asking_for_proof(StoreRoot(str(tmp_path / "state")))
    put_proof(root)
    with pytest.raises(StorageError, match=r"does not see the server's object proof/.* in the state store .*other"):
        store_of(elsewhere(root, tmp_path))
    good, bad = answer_proof(root), answer_proof(elsewhere(root, tmp_path))
    with pytest.raises(StorageError, match=f"host {bad[0]} does not use the same store for the state as the server"):
        check_answers(root, [good, bad])
    assert files(elsewhere(root, tmp_path)) == [], "nothing is written there"


def test_what_is_written_aside_is_found_out(tmp_path: Path) -> None:
    """A host that reads the server's store, and writes to a layer of its own above it."""
    root = asking_for_proof(StoreRoot(str(tmp_path / "state")))
    put_proof(root)
    host, answer, _ = answer_proof(root)
    (tmp_path / "state" / answer).rename(tmp_path / "aside")
    with pytest.raises(StorageError, match="the server does not see object proof/"):
        check_answers(root, [(host, answer, "")])


def run_at(root: StoreRoot, path: str) -> RunRef:
    schema = TableSchema((pa.field("k", pa.int64()),), (), ((pa.field("n", pa.int64()), "add"),))
    layout = schema.arrow()
    rows = pa.RecordBatch.from_arrays([pa.array([1]).cast(field.type) for field in layout], schema=layout)
    (ref,) = write_run(root, path, [Section(1, schema, [rows], 5)])
    return ref


def test_what_tasks_have_written_is_looked_for_before_it_counts(tmp_path: Path) -> None:
    root = StoreRoot(str(tmp_path / "state"))
    seen = [run_at(root, f"1/{n}.run") for n in range(3)]
    confirm(root, seen)
    confirm(root, [])
    lost = run_at(elsewhere(root, tmp_path), "1/9.run")
    with pytest.raises(StorageError, match=r"object 1/9\.run that a task has written is not in the server's store"):
        confirm(root, [*seen, lost])
