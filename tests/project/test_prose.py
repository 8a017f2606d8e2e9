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

DOCS = ROOT / "docs"
SOURCES = [
    path
    for folder in ("backends", "frontends", "hw", "llmir", "passes")
    for path in (ROOT / folder).rglob("*.py")
]
PAGES = {
    "README": [ROOT / "README.md"],
    "CONTRIBUTING": [ROOT / "CONTRIBUTING.md"],
    "CHANGELOG": [ROOT / "CHANGELOG.md"],
    "docs": sorted([*DOCS.glob("*.md"), *DOCS.glob("dev/*.md")]),
}


@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
def test_pages_have_few_dialect_phrases_and_long_sentences(pages: list[Path]) -> None:
    counts = sum(map(prose.count, pages), prose.Counts())
    assert counts.dialect_per_1000_words <= 10, f"python scripts/prose.py --show {pages[0]} …"
    assert counts.long_share <= 0.05
    assert counts.long_lines == 0


@pytest.mark.slow
def test_docstrings_and_comments_have_few_dialect_phrases_and_long_sentences() -> None:
    counts = sum(map(prose.count, sorted(SOURCES)[::6]), prose.Counts())  # all files take 15 s
    assert counts.words > 10_000
    assert counts.dialect_per_1000_words <= 7, "python scripts/prose.py --show FILE.py …"
    assert counts.long_share <= 0.02


def test_the_counts_of_a_file_are_those_of_its_docstrings_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    long = " ".join(["word"] * 31)
    file.write_text(
        f'''"""Nothing is held here.

    >>> held = "an example is not prose"
"""

held = 1  # a short comment
# {long},
# which continues.
def f(held):
    """Return a value.

    Args:
        held: The value that is held.
    """
''',
        "utf-8",
    )
    counts = prose.count(file)
    assert [text.text for text in prose.texts_of(file)][2] == "The value that is held."
    assert (counts.dialect, counts.long_sentences, counts.sentences) == (2, 1, 5)


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
    pages = {path.relative_to(DOCS).as_posix(): path for path in PAGES["docs"]}
    pages = {name: path for name, path in pages.items() if name not in ("README.md", "index.md")}
    index = (DOCS / "README.md").read_text("utf-8")
    assert [name for name in pages if f"({name})" not in index] == []
    site = (DOCS / "index.md").read_text("utf-8").splitlines()
    assert [name for name in pages if name.removesuffix(".md") not in site] == []
    sizes = {name: path.stat().st_size for name, path in pages.items()}
    assert [name for name, size in sizes.items() if size > 15_000] == []
    assert sum(size for name, size in sizes.items() if name.startswith("dev/")) <= 30_000
