"""The pages for whoever changes the code: short where they have to be, and naming only what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [DOCS / "ARCHITECTURE.md", DOCS / "GLOSSARY.md", DOCS / "EXTENDING.md", *sorted(DOCS.glob("design/*.md"))]
MOST_WORDS = 3000


def ids(page: Path) -> str:
    return page.stem


def known() -> set[str]:
    """Every file and folder, by each of the ends of its path."""
    found: set[str] = set()
    for top in ("src", "tests", "docs", "benchmarks"):
        found.add(f"{top}/")
        for path in (ROOT / top).rglob("*"):
            parts = path.relative_to(ROOT).parts
            name = "/".join(parts) + ("/" if path.is_dir() else "")
            found.update(name.split("/", i)[-1] for i in range(len(parts)))
    return found | {path.name for path in ROOT.iterdir()}


def test_the_architecture_is_a_page() -> None:
    """Rules belong next to their code, stories into design records."""
    assert len((DOCS / "ARCHITECTURE.md").read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`([\w/]+(?:\.py|\.md|/))(?:::\w+)?`", page.read_text())
    assert set(named) - known() == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_design_record_is_listed() -> None:
    index = (DOCS / "design" / "README.md").read_text()
    assert {path.name for path in DOCS.glob("design/0*.md")} == set(re.findall(r"\]\((0\d{3}-[\w-]+\.md)\)", index))


def test_records_that_the_code_names_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {number for text in texts for number in re.findall(r"docs/design/(\d{4})", text)}
    assert named and named <= {path.name[:4] for path in DOCS.glob("design/0*.md")}
