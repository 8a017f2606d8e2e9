"""Readers find answers by links from the front page, and by the search of the site (`make docs`)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmir.api.page import setups
from tests.browser import browser, real

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
INCLUDED = {"project/contributing": ROOT / "CONTRIBUTING.md", "project/changes": ROOT / "CHANGELOG.md"}
built = pytest.mark.skipif(not (SITE / "searchindex.js").exists(), reason="make docs has not run")

# A question, the clicks from the front page, and a part of the answer in the last page or section.
QUESTIONS = [
    (
        "How do I add a GPU?",
        ["project/contributing", "project/contributing#add-a-device"],
        "hw/devices/NAME.yaml",
    ),
    ("What does TPOT mean here?", ["glossary"], "mean time per token after the first"),
    ("Why does my server differ from the estimate?", ["server"], "check this list from the top"),
    ("Which GPUs do I need for my request rate?", ["plans"], "llmir plan "),
    ("What does the ± beside a time mean?", ["basis", "basis#error"], "mean relative error"),
    ("Does llmir know the class of my config?", ["families"], "`Qwen3MoeForCausalLM`"),
    ("How many requests fit into the KV cache?", ["max"], "| `memory` |"),
    ("What does --max-num-seqs do?", ["reference/cli"], ":nested: full"),
    ("How do I write my own pass?", ["extend", "extend#a-pass"], "from llmir.ir import Rule, rewrite"),
    ("Which keys has the JSON of analyze?", ["json"], "`tpot_s`"),
    ("Why is a time not available for a TPU's kernels?", ["troubleshoot"], "all times are rooflines"),
    ("What changed since the last release?", ["project/changes"], "### Added"),
]


@pytest.mark.slow
def test_a_cell_of_the_gallery_opens_the_configuration_that_it_shows() -> None:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "scripts" / "gallery.py")
    assert spec is not None and spec.loader is not None
    gallery = sys.modules["gallery"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    assert len(gallery.MODELS) == 12 and len(gallery.DEVICES) == 4
    model = "qwen3-32b"
    configurations = setups(model, {"hw": gallery.DEVICES, "tp": gallery.TP})
    for device, tp in (("h100-sxm", 2), ("mi300x", 1)):  # 65.5 GB of weights do not leave room on 80 GB
        found = gallery.cell(model, device)
        assert found.tp == tp
        assert configurations[found.setup].values == {"hw": device, "tp": tp}


@cache
def text(page: str) -> str:
    """The source of a page of the site, with the file that it includes."""
    return (INCLUDED.get(page) or DOCS / f"{page}.md").read_text("utf-8")


@cache
def sidebar() -> frozenset[str]:
    """The pages that the sidebar of every page links to: the tables of contents of the front page."""
    contents = re.findall(r"```\{toctree\}\n(?::.*\n)*\n([^`]*)```", text("index"))
    return frozenset(line for block in contents for line in block.split())


def sections(page: str) -> dict[str, str]:
    """The text below each heading of a page, by the heading's anchor."""
    parts = re.split(r"^#+ (.+)\n", text(page), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", head).lower().replace(" ", "-"): body
        for head, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize(("question", "clicks", "answer"), QUESTIONS, ids=[q for q, *_ in QUESTIONS])
def test_a_question_is_answered_within_three_clicks(question: str, clicks: list[str], answer: str) -> None:
    assert len(clicks) <= 3
    seen, found = "index", ""
    for click in clicks:
        page, _, anchor = click.partition("#")
        linked = {target.partition("#")[0] for target in re.findall(r"\]\(([\w/-]+)\.md[)#]", text(seen))}
        assert page == seen or page in sidebar() | linked, f"{seen} has no link to {page}"
        seen, found = page, sections(page)[anchor] if anchor else text(page)
    assert answer in found


def test_the_sidebar_has_every_page() -> None:
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    assert sidebar() == pages - {"index", "README"}


def pages_with(word: str) -> set[str]:
    """The pages that the index of the built site has for a stem."""
    index = json.loads((SITE / "searchindex.js").read_text("utf-8").partition("(")[2].rpartition(")")[0])
    found: Any = index["terms"].get(word, [])
    return {index["docnames"][n] for n in ([found] if isinstance(found, int) else found)}


@built
@pytest.mark.parametrize(
    ("stem", "page"),
    [
        ("preempt", "glossary"),
        ("preempt", "servers"),
        ("tpot", "glossary"),
        ("marlin", "engines"),
        ("eplb", "glossary"),
    ],
)
def test_the_index_of_the_site_leads_from_a_word_to_its_page(stem: str, page: str) -> None:
    assert page in pages_with(stem)


@built
def test_the_links_of_the_site_lead_to_its_files() -> None:
    pages = [*SITE.glob("*.html"), *SITE.glob("gallery/index.html"), *SITE.glob("project/*.html")]
    hrefs = {
        (page.parent, link)
        for page in pages
        for link in re.findall(r'href="([^"#:?]+)["#?]', page.read_text("utf-8"))
    }
    links = {Path(os.path.normpath(folder / link)) for folder, link in hrefs}
    assert SITE / "gallery" / "index.html" in links
    assert len({link for link in links if link.parent.name == "gallery"}) >= 13
    assert [str(link) for link in links if not link.exists()] == []


@pytest.mark.slow
@built
@real
def test_the_search_of_the_site_works_without_a_network() -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with browser() as driver:
        driver.get(f"{(SITE / 'search.html').as_uri()}?q=preemption")
        WebDriverWait(driver, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#search-results li a"))
        found = [
            a.get_attribute("href") for a in driver.find_elements(By.CSS_SELECTOR, "#search-results li a")
        ]
    assert any("glossary.html" in str(link) for link in found)
