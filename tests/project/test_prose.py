"""Pages are written in plain English, as far as `scripts/prose.py` can count it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
assert SPEC is not None and SPEC.loader is not None
prose = importlib.util.module_from_spec(SPEC)
sys.modules["prose"] = prose
SPEC.loader.exec_module(prose)

LABORATORY = {ROOT / "docs" / "results.md"}  # notes of measurements
PAGES = {
    "README": [ROOT / "README.md"],
    "CONTRIBUTING": [ROOT / "CONTRIBUTING.md"],
    "CHANGELOG": [ROOT / "CHANGELOG.md"],
    "docs": sorted({*ROOT.glob("docs/*.md")} - LABORATORY),
}


@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
def test_pages_have_few_dialect_phrases_and_long_sentences(pages: list[Path]) -> None:
    counts = sum(map(prose.count, pages), prose.Counts())
    assert counts.dialect_per_1000_words <= 10, f"python scripts/prose.py --show {pages[0]} …"
    assert counts.long_share <= 0.05
    assert counts.long_lines == 0


def test_the_counts_of_a_page_are_those_of_its_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = " ".join(["word"] * 31)
    page.write_text(
        f"# Nothing is held here\n\nA {long}. Two short words.\n\n"
        "| a | b |\n|---|---|\n| of what a cell is made | `held` |\n\n    held = 'code'\n\n"
        "```\nheld\n```\n" + "x" * 121 + "\n",
        "utf-8",
    )
    counts = prose.count(page)
    assert (counts.dialect, counts.long_sentences, counts.long_lines) == (
        3,
        1,
        2,
    )  # the long sentence is on a long line, too
    assert counts.sentences == 4


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 150
    assert len(readme.partition("## Install")[0].split()) <= 200


def test_the_changelog_is_short() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert len(changes.encode()) <= 12_000
    assert [line for line in changes.splitlines() if line.startswith("  ")] == []  # an entry is one line


def test_pages_are_short_and_each_is_in_the_index() -> None:
    pages = {path for path in PAGES["docs"] if path.name not in ("README.md", "index.md")}
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [page.name for page in pages if f"({page.name})" not in index] == []
    site = (ROOT / "docs" / "index.md").read_text("utf-8").splitlines()
    assert [page.name for page in pages if page.stem not in site] == []
    assert [page.name for page in pages if page.stat().st_size > 15_000] == []
