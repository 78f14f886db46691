"""`headrace state` over real databases: served and stopped, sound and damaged."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_database import Database

from headrace.catalog.catalog import Catalog
from headrace.cli import main
from headrace.state.run import OPEN_RUNS
from support import WAIT_S

Cli = Callable[..., tuple[int, str]]
GRACE_S = 3600


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Database]:
    db = Database(tmp_path, compaction_trigger_runs=2)
    t = db.table("t", key=True)
    db.insert(t, 1, 2, 3)
    db.delete(t, 2)
    db.view("v", t)
    db.c.flush(WAIT_S)
    yield db
    db.close()
    OPEN_RUNS.clear()


@pytest.fixture
def stopped(served: Database) -> Path:
    served.close()
    return Path(served.settings.data_dir)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `headrace state ...` on the database; returns its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "state", *arguments, "--data", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return run


def orphan(root: Path, name: str, age_s: float) -> Path:
    path = root / "state" / "9" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left over")
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def run_of(root: Path, table: str) -> Path:
    with Catalog.open(root / "catalog.db", read_only=True) as catalog:
        state = catalog.image
        relation = state.object_named("public", table)
        assert relation is not None
        tables = state.tables_of(relation.id)
        return root / "state" / state.runs_of(tables[0].id)[0].ref.path


def test_ls_and_show_on_a_running_database(served: Database, cli: Cli) -> None:
    code, text = cli("ls")
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "|" in line]
    assert code == 0 and lines[0][:4] == ["id", "name", "owner", "operator"]
    assert [line[1] for line in lines[1:]] == ["t.view.rows", "v.view.rows", "v.0.state"]
    assert lines[1][4:6] == ["2", "4"]
    code, text = cli("show", "t.view.rows")
    assert code == 0 and text.count(".run |") == 2 and "(2 rows)" in text
    first = next(line.split("|") for line in text.splitlines() if ".run |" in line)
    code, text = cli("show", lines[1][0], "--rows")
    assert code == 0 and "(2 rows)" in text
    code, text = cli("show", "t.view.rows", "--epoch", first[3].strip())
    assert code == 0 and "(3 rows)" in text, "as of the first write"
    assert served.insert(served.core.live.graph.relations and next(iter(served.core.live.graph.relations)), 9), (
        "nobody was shut out"
    )


def test_show_says_what_is_readable(stopped: Path, cli: Cli) -> None:
    code, text = cli("show", "t.view.rows", "--epoch", str(2**62))
    assert code == 1 and "is not there yet" in text and "readable from epoch 0 to" in text
    code, text = cli("show", "nothing")
    assert code == 1 and 'there is no state table "nothing"' in text and "state ls" in text


def test_verify_finds_nothing_wrong(served: Database, cli: Cli) -> None:
    served.c.compact()
    code, text = cli("verify")
    assert code == 0 and "0 problems" in text, text


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "swap"])
def test_verify_names_what_is_damaged(stopped: Path, cli: Cli, damage: str) -> None:
    """FS-12: exit code 1, the state table, and the name of the object."""
    path, other = run_of(stopped, "t"), run_of(stopped, "v")
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "swap":
        path.write_bytes(other.read_bytes())
    code, text = cli("verify")
    name = path.relative_to(stopped / "state").as_posix()
    wrong = [line for line in text.splitlines() if line.startswith("WRONG")]
    assert code == 1 and len(wrong) == 1 and name in wrong[0] and "t.view.rows" in wrong[0], text


def test_verify_reports_what_is_unreferenced(stopped: Path, cli: Cli) -> None:
    orphan(stopped, "young.run", 5)
    code, text = cli("verify")
    assert code == 0 and "unreferenced: 9/young.run" in text and "1 unreferenced objects, 0 problems" in text
    orphan(stopped, ".old.run.0a.tmp", GRACE_S + 5)
    code, text = cli("verify")
    assert code == 1 and "WRONG: object 9/.old.run.0a.tmp is referenced by nothing" in text


def test_verify_checks_the_catalog_against_the_rows(stopped: Path, cli: Cli) -> None:
    """What a run says of itself is compared with what the catalog says of it."""
    import sqlite3

    with sqlite3.connect(stopped / "catalog.db") as connection:
        path = run_of(stopped, "t").relative_to(stopped / "state").as_posix()
        connection.execute(
            "UPDATE record SET value = replace(value, '\"rows\":3', '\"rows\":4') WHERE key = ?", [f"{path}:0"]
        )
        connection.execute(
            "UPDATE record SET value = replace(value, '\"committed_epoch\":', '\"committed_epoch\":1') "
            "WHERE collection = 'job'"
        )
    code, text = cli("verify")
    assert code == 1 and "holds 3 rows, not 4" in text and "its job at 1" in text, text


def test_gc_deletes_what_is_old_and_unreferenced(stopped: Path, cli: Cli) -> None:
    """XC-5, CK-12: and nothing else, and nothing in a dry run."""
    kept = {p for p in (stopped / "state").rglob("*") if p.is_file()}
    young, old = orphan(stopped, "young.run", 5), orphan(stopped, "old.run", GRACE_S + 5)
    code, text = cli("gc", "--dry-run")
    assert code == 0 and "9/old.run\nwould delete 1 objects, 1 are within the grace period" in text and old.exists()
    code, text = cli("gc")
    assert code == 0 and "deleted 1 objects, 1 are" in text and not old.exists()
    assert {p for p in (stopped / "state").rglob("*") if p.is_file()} == kept | {young}


def test_gc_leaves_a_served_database_alone(served: Database, cli: Cli) -> None:
    old = orphan(Path(served.settings.data_dir), "old.run", GRACE_S + 5)
    code, text = cli("gc")
    assert code == 1 and "is being served" in text and old.exists()
    code, text = cli("gc", "--dry-run")
    assert code == 0 and "would delete 1 objects" in text
    code, text = cli("verify")
    assert code == 0 and "unreferenced: 9/old.run" in text, "its vacuum takes care of it"
    assert served.read(next(iter(served.core.live.graph.relations))) == [[1, 3]], "nobody was shut out"
    served.close()
    assert cli("gc")[0] == 0 and not old.exists()


def test_without_a_database_nothing_is_made(tmp_path: Path, cli: Cli) -> None:
    for command in ("ls", "verify", "gc"):
        code, text = cli(command)
        assert code == 1 and "there is no catalog" in text
    assert list(tmp_path.iterdir()) == []
