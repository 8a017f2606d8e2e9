"""Pages run nothing that a name says, ask nobody, and are there for everybody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.cost.models import model
from llmir.backends.export.page.bundle import page as made
from llmir.backends.export.page.setups import Setup
from llmir.hw import library
from tests import browser

HOSTILE = (
    "<img src=x onerror=globalThis.run=1>",
    "<script>globalThis.run=1</script>",
    "</script><script>globalThis.run=1</script>",
    "javascript:globalThis.run=1",
    '"><svg onload=globalThis.run=1>',
    "{{script}} \\u003c &lt; ${globalThis.run=1}",
)


@browser.real
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_and_run_nothing(name: str, chromium: Any, tmp_path: Path) -> None:
    program = llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of())
    program = program.replace(name=name, notes=(name,))
    device = replace(library.load("h100-sxm"), name=name)
    setups = [Setup({"hw": name}, program, model(device, "ideal")), Setup({"hw": "b"}, why=name)]
    (tmp_path / "page.html").write_text(made(setups, browser.START, name), encoding="utf-8")
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, tmp_path / "page.html", "#" + "op=" + name.replace("#", ""))
    assert chromium.execute_script("return globalThis.run") is None
    assert chromium.title == f"{name}: llmir".strip()
    text = chromium.execute_script("return document.body.textContent")
    assert text.count(name) >= 3  # model, device, note
    assert (
        chromium.execute_script(
            "return document.querySelectorAll('img, body svg svg, [onerror], [onload]').length"
        )
        == 0
    )
    assert browser.console(chromium) == []
    assert len(browser.requests(chromium)) == 1


@browser.real
@pytest.mark.parametrize("name", ["<img/src/onerror>", "<svg/onload>x</svg>", "<script>y</script>"])
def test_names_of_ops_are_text(name: str, chromium: Any, tmp_path: Path) -> None:
    program = llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of())
    program = llmir.parse_program(str(program).replace("%qkv_proj", f"%{name}"))
    (tmp_path / "page.html").write_text(llmir.page(program), encoding="utf-8")
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, tmp_path / "page.html", "#pin=0,8,1000,10")
    choose = "llmirPage.changed({ op: arguments[0], batch: 4 })"
    chromium.execute_script(choose, f"layer.{name}")
    browser.settled(chromium)
    tags = "return ['img', '.card script', 'svg svg', '[onerror], [onload]'].map((of) =>"
    assert chromium.execute_script(f"{tags} document.querySelectorAll(of).length)") == [0] * 4
    for place in ("graph-body", "table", "op-body", "against-body"):
        text = chromium.execute_script("return document.getElementById(arguments[0]).textContent", place)
        assert name in text, place
    said = chromium.find_element("css selector", ".bubble.chosen").get_attribute("aria-label")
    assert said.startswith(f"layer.{name}, ")
    assert len(browser.requests(chromium)) == 1
    assert browser.console(chromium) == []


@browser.real
def test_a_policy_of_hashes_keeps_other_scripts_out(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    policy = chromium.find_element("css selector", "meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "blob:" not in policy
    chromium.execute_script(
        "const script = document.createElement('script'); script.textContent = 'globalThis.run = 1';"
        "document.head.append(script)"
    )
    assert chromium.execute_script("return globalThis.run") is None
    browser.console(chromium)


@browser.real
def test_an_old_browser_is_told_which_can(page: Path, chromium: Any) -> None:
    gone = chromium.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": "delete globalThis.DecompressionStream"}
    )
    try:
        chromium.get("about:blank")
        chromium.get(page.as_uri())
        assert "Firefox from 113" in chromium.find_element("id", "old").text
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", gone)
    assert browser.console(chromium) == []


@browser.real
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_nothing_is_cut_or_scrolls_sideways(width: int, page: Path, chromium: Any) -> None:
    wide = """
      const own = document.documentElement.clientWidth;
      return [...document.querySelectorAll("body *")].filter((node) => {
        const { right, width } = node.getBoundingClientRect();
        return width && right > own + 1 && !node.closest("#table, #against-body, .unseen, svg");
      }).map((node) => `${node.tagName} ${node.id} ${node.className}`);
    """
    try:
        browser.resize(chromium, width)
        for hash in ("", "#pin=1,32,4000,500", "#setup=0&batch=256&prompt=131072"):
            browser.opened(chromium, page, hash)
            assert chromium.execute_script(wide) == []
            assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.resize(chromium, 1440)


@browser.real
def test_bubbles_of_a_chart_that_is_given_its_width_late_have_names(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    browser.settled(chromium)
    late = """
      const chart = llmirPage.views.find((each) => each.bubbles);
      for (const { node } of chart.bubbles.values()) node.remove();
      chart.bubbles.clear();
      chart.again();
      return [...document.querySelectorAll(".bubble")].map((node) => node.getAttribute("aria-label"));
    """
    names = chromium.execute_script(late)
    assert names and all(names)


@browser.real
@browser.axe
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_axe_finds_no_serious_fault(theme: str, width: int, page: Path, chromium: Any) -> None:
    try:
        browser.resize(chromium, width)
        browser.opened(chromium, page, f"#theme={theme}&setup=2&pin=3,32,4000,500")
        browser.settled(chromium)
        assert browser.faults(chromium) == {}
    finally:
        browser.resize(chromium, 1440)
        browser.console(chromium)
