"""How a page looks: no text is cut or lies outside its place, also with wider letters; strips to scale."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import llmir
from tests import browser

WIDER = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("* { letter-spacing: 0.085em !important }");  // of letters about 0.57 em wide
document.adoptedStyleSheets = [sheet];
"""
# What is cut in its element, or reaches out of its card or picture.
CUT = """
const bad = [];
for (const node of document.querySelectorAll("main *, header *, footer *")) {
  if (!node.getClientRects().length || node.closest(".unseen, svg, #table, #against-body")) continue;
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const block = getComputedStyle(node).display !== "inline" && node.clientWidth;
  if (own && block && node.scrollWidth > node.clientWidth + 1) bad.push(["cut", node.textContent]);
  const card = node.closest(".card"), box = node.getBoundingClientRect();
  const end = card && card !== node && box.width ? card.getBoundingClientRect().right : Infinity;
  if (box.right > end + 1) bad.push(["outside", node.textContent]);
}
for (const text of document.querySelectorAll("svg text")) {
  if (!text.textContent || !text.getClientRects().length) continue;
  const whole = text.ownerSVGElement.getBoundingClientRect(), box = text.getBoundingClientRect();
  if (box.left < whole.left - 1 || box.right > whole.right + 1) bad.push(["picture", text.textContent]);
}
if (document.documentElement.scrollWidth > innerWidth) bad.push(["page"]);
return bad;
"""


@browser.real
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_no_text_is_cut_with_letters_a_seventh_wider(width: int, page: Path, chromium: Any) -> None:
    browser.resize(chromium, width)
    try:
        browser.opened(chromium, page, "#setup=3&batch=8&prompt=4000&generate=500&pin=2,8,4000,500")
        chromium.find_element("id", "change").click()
        for wider in ("", WIDER):
            chromium.execute_script(wider)
            tabs = chromium.execute_script("return document.querySelectorAll('#tabs button').length")
            for tab in range(tabs if width < 900 else 1):
                chromium.execute_script(
                    "document.querySelectorAll('#tabs button')[arguments[0]].click()", tab
                )
                browser.settled(chromium)
                assert chromium.execute_script(CUT) == []
    finally:
        browser.resize(chromium, 1440)


@browser.real
def test_the_strip_under_memory_is_the_ops_of_the_step_to_scale(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page, "#setup=3&batch=8&prompt=4000&generate=500")
    browser.settled(chromium)
    drawn, times = chromium.execute_script(
        "const view = llmirPage.view; document.getElementById('skyline').scrollIntoView();"
        "const rects = [...document.querySelectorAll('#skyline-chart .slice')];"
        "return [rects.map((r) => [Number(r.getAttribute('x')), Number(r.getAttribute('width'))]),"
        "  view.step.ops.map((op) => op.total_s)]"
    )
    assert len(drawn) == len(times)
    (first, _), (last, wide) = drawn[0], drawn[-1]
    scale, at = (last + wide - first) / sum(times), first
    for (left, width), time in zip(drawn, times, strict=True):
        assert left == pytest.approx(at, abs=0.6)
        assert width == pytest.approx(max(0.5, time * scale), abs=0.6)
        at += time * scale


@browser.real
def test_what_the_engine_adds_has_rows_and_no_share_of_a_block_exceeds_the_step(
    page: Path, chromium: Any
) -> None:
    browser.opened(chromium, page, "#setup=3&batch=8&prompt=4000&generate=500")
    for phase in ("decode", "prefill"):
        chromium.find_element("id", f"phase-{phase}").click()
        browser.settled(chromium)
        extras = chromium.execute_script(
            "return llmirPage.view.step.extras.map((op) => [op.name, op.time_s])"
        )
        assert "engine_cpu" in dict(extras)
        assert min(time for _, time in extras) > 0
        graph, table = (chromium.find_element("id", id).text for id in ("graph", "ops"))
        for name, _ in extras:
            assert name in table
            assert f"{name.replace('_', ' ').replace('cpu', 'CPU')} ·" in graph
        assert max(float(share) for share in re.findall(r"([\d.]+)%", graph)) <= 100


@browser.real
@pytest.mark.parametrize("pp", [1, 2])
def test_each_time_has_its_strip_and_the_head_says_how_many_devices(
    pp: int, tmp_path: Path, chromium: Any
) -> None:
    path = tmp_path / "page.html"
    axes = {"pp": pp, "micro_batches": pp}
    path.write_text(llmir.page("llama3.2-1b", axes, batch=4), encoding="utf-8")
    browser.opened(chromium, path)
    browser.settled(chromium)
    strips = chromium.execute_script(
        "return ['ttft_s', 'tpot_s', 'e2e_s'].map((id) =>"
        " getComputedStyle(document.querySelector(`#${id} .strip`)).backgroundImage)"
    )
    assert all(strip.startswith("linear-gradient") for strip in strips), strips
    device = chromium.find_element("css selector", "[data-menu=device]").text
    assert device.split("\n")[0] == ("2 devices" if pp > 1 else "device")


def printed(driver: Any) -> int:
    """How many pages of paper it takes."""
    browser.settled(driver)
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    return base64.b64decode(pdf).count(b"/Type /Page\n")


@browser.real
def test_paper_is_one_page(page: Path, chromium: Any) -> None:
    for pin in ("", "&pin=2,8,4000,500"):
        browser.opened(chromium, page, f"#setup=3&batch=8&prompt=4000&generate=500{pin}")
        assert printed(chromium) == 1


MANY: dict[str, dict[str, Any]] = {
    "llama3.1-405b": {"tp": 8, "pp": 4, "micro_batches": 4},
    "qwen3-235b-a22b": {"tp": 8, "ep": 8},
    "deepseek-v3": {"tp": 8, "pp": 4},
}


@browser.real
@pytest.mark.parametrize("model", MANY)
def test_paper_of_many_ops_is_one_page(model: str, tmp_path: Path, chromium: Any) -> None:
    path = tmp_path / "page.html"
    path.write_text(llmir.page(model, MANY[model], batch=16), encoding="utf-8")
    browser.opened(chromium, path)
    assert printed(chromium) == 1
    step = "const { ops, extras } = llmirPage.view.step, all = [...ops, ...extras];"
    shown = "[...document.querySelectorAll('#table tbody tr')].filter((row) => row.offsetHeight)"
    assert chromium.execute_script(f"{step} return {shown}.length === all.length")
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.settled(chromium)
        rows, most, said = chromium.execute_script(
            f"{step} const rows = {shown}.map((row) => row.cells[0].textContent.split(':')[0]);"
            "const most = all.sort((a, b) => Math.abs(b.total_s) - Math.abs(a.total_s)).map((op) => op.name);"
            "return [rows, most, document.querySelector('#table .paper').textContent]"
        )
    finally:
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert set(rows) == set(most[: len(rows)]), "not those that take most"
    assert said.startswith(f"… {len(most) - len(rows)} more ") if len(most) > len(rows) else not said


@browser.real
def test_paper_is_light_and_as_wide_as_the_table(tmp_path: Path, chromium: Any) -> None:
    path = tmp_path / "page.html"
    path.write_text(llmir.page("llama3.1-70b", {"tp": 2, "pp": 2}, batch=4), encoding="utf-8")
    paper = round((210 - 2 * 9) / 25.4 * 96)  # pixels of A4 between its margins
    try:
        browser.opened(chromium, path, "#theme=dark")
        browser.resize(chromium, paper)
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        browser.settled(chromium)
        fill, scheme, table, card = chromium.execute_script(
            "const look = getComputedStyle(document.documentElement);"
            "const right = (of) => document.querySelector(of).getBoundingClientRect().right;"
            "return [look.getPropertyValue('--compute-fill'), look.colorScheme,"
            " right('#table table'), right('#ops')]"
        )
        assert int(fill.strip()[1:3], 16) > 0xE0 and scheme == "light"
        assert table <= card <= paper
    finally:
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.resize(chromium, 1440)
