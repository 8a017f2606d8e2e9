"""What a page compares by eye is on one scale and in place: bars, marks, words, views under their tabs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.export import units
from llmir.backends.export.page.bundle import result_page
from llmir.backends.export.page.plans import plans
from tests import browser

from .page_results import made
from .test_page_text import CUT, WIDER

# Which model's graph has five ops beside one another, and which has marks that lie on each other.
HYBRID, MANY = "qwen3-next-80b-a3b", "deepseek-v3"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("scales"), {}
    for model, axes in ((HYBRID, {"tp": 2}), (MANY, {"tp": 8}), ("llama3.1-8b", {})):
        found[model] = folder / f"{model}.html"
        found[model].write_text(llmir.page(model, axes, batch=8), encoding="utf-8")
    return found


@pytest.fixture
def wide(chromium: Any) -> Iterator[Any]:
    """The browser, which has its usual width again afterwards."""
    yield chromium
    browser.resize(chromium, 1440)


BARS = """
return [...document.querySelectorAll("#op .bars .row")].map((row) => {
  const wide = (of) => row.querySelector(of).getBoundingClientRect().width;
  return [wide(".track"), wide("i"), row.lastChild.textContent.split(" · ")[0]];
});
"""
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@browser.real
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_bars_of_an_op_are_its_times_to_one_scale(width: int, pages: dict[str, Path], wide: Any) -> None:
    browser.resize(wide, width)
    browser.opened(wide, pages["llama3.1-8b"])
    browser.settled(wide)
    rows = wide.execute_script(BARS)
    times = [float(number) * UNITS[unit] for number, unit in (said.split() for *_, said in rows)]
    for (track, own, _), time in zip(rows, times, strict=True):
        assert track == pytest.approx(rows[0][0], abs=0.6)
        assert own == pytest.approx(track * time / max(times), abs=0.01 * track)


@browser.real
@pytest.mark.parametrize("width", [1440, 1000, 360])
@pytest.mark.parametrize("model", [HYBRID, MANY])
def test_shares_in_the_graph_are_to_one_scale_and_no_word_is_cut(
    model: str, width: int, pages: dict[str, Path], wide: Any
) -> None:
    browser.resize(wide, width)
    browser.opened(wide, pages[model])
    wide.execute_script("document.querySelectorAll('#tabs button')[1].click()")
    for head in wide.find_elements("css selector", ".fold[aria-expanded=false]"):
        head.click()
    browser.settled(wide)
    tracks = wide.execute_script(
        "document.querySelectorAll('.rank').forEach(({ style }) => (style.contentVisibility = 'visible'));"
        "return [...document.querySelectorAll('#graph .track')].map((i) => i.getBoundingClientRect().width)"
    )
    assert max(tracks) - min(tracks) < 1, (min(tracks), max(tracks))
    for wider in ("", WIDER):
        wide.execute_script(wider)
        assert wide.execute_script(CUT) == []


# Links of the graph that cross a box next to one of their ends.
CROSSED = """
const bad = [];
for (const path of document.querySelectorAll(".jumps path:not(.tip)")) {
  const frame = path.ownerSVGElement.getBoundingClientRect(), long = path.getTotalLength();
  for (const box of path.closest(".body").querySelectorAll(".op")) {
    const { left, right, top, bottom } = box.getBoundingClientRect();
    for (let at = 0; at < long; at += 4) {
      const point = path.getPointAtLength(at), x = frame.left + point.x, y = frame.top + point.y;
      if (x > left + 1 && x < right - 1 && y > top + 1 && y < bottom - 1) bad.push(box.textContent);
    }
  }
}
return bad;
"""


@browser.real
@pytest.mark.parametrize("model", [HYBRID, MANY])
def test_links_go_around_the_boxes(model: str, pages: dict[str, Path], wide: Any) -> None:
    browser.opened(wide, pages[model])
    browser.settled(wide)
    assert wide.execute_script("return document.querySelectorAll('.jumps path').length") > 4
    assert wide.execute_script(CROSSED) == []


ROOFLINE = """
const said = (node) => node.tagName === "path" || node.textContent;
const all = (of) => [...document.querySelectorAll(`#roofline ${of}`)].filter(said);
const box = (node) => {
  const { left, right, top, bottom } = node.getBoundingClientRect();
  return [left, top, right, bottom];
};
const marks = all(".bubble path").map(box), words = all(".names > text, .roofs text"), under = [];
const slope = document.querySelector("#roofline .names text[transform]"), matrix = slope.getScreenCTM();
for (let at = 0, long = slope.getComputedTextLength(); at < long; at += 4) {
  const { x, y } = new DOMPoint(at, -4).matrixTransform(matrix);
  if (marks.some(([a, b, c, d]) => x > a && x < c && y > b && y < d)) under.push(at);
}
const frame = box(document.querySelector("#roofline .grid")), letters = all(".letter").map(box);
const others = words.filter((text) => text !== slope).map(box);
return { marks, words: others, frame, under, slope: box(slope), letters };
"""


@browser.real
@pytest.mark.parametrize("width", [1440, 360])
@pytest.mark.parametrize("model", [HYBRID, MANY, "llama3.1-8b"])
def test_the_rooflines_words_stand_free_and_its_marks_are_whole(
    model: str, width: int, pages: dict[str, Path], wide: Any
) -> None:
    browser.resize(wide, width)
    browser.opened(wide, pages[model], "#batch=32")
    browser.settled(wide)
    told = wide.execute_script(ROOFLINE)
    assert wide.execute_script("return document.querySelector('#roofline .marks').tabIndex") == -1
    left, top, right, bottom = told["frame"]
    for a, b, c, d in told["marks"]:
        assert a >= left - 2 and c <= right + 2 and b >= top - 14 and d <= bottom + 2, "a mark is cut"
    assert told["under"] == [], "marks lie on what the bandwidth's roof is called"
    assert told["slope"][0] >= left, "the bandwidth's words are cut"
    words = told["words"]
    for i, (a, b, c, d) in enumerate(words):
        for e, f, g, h in words[:i]:
            across, down = min(c, g) - max(a, e), min(d, h) - max(b, f)
            assert across < 1 or down < 5, "words lie on each other"
    for a, b, c, d in told["letters"]:
        x, y = (a + c) / 2, (b + d) / 2
        own = min((g - e for e, f, g, h in told["marks"] if e < x < g and f < y < h), default=0)
        assert own > 2 * 6.5 - 1, "a letter lies under a small mark"


@browser.real
def test_a_phone_shows_each_view_right_under_its_tab(pages: dict[str, Path], wide: Any) -> None:
    browser.resize(wide, 360)
    browser.opened(wide, pages["llama3.1-8b"], "#pin=0,4,2048,128")
    browser.settled(wide)
    views = {"Roofline": "roofline", "Table": "ops", "Memory": "skyline", "A:B": "against"}
    for tab in wide.find_elements("css selector", "#tabs button"):
        if tab.text not in views:
            continue
        tab.click()
        browser.settled(wide)
        below, view, op = wide.execute_script(
            "return ['tabs', arguments[0], 'op'].map((id) => document.querySelector(`#${id}`))"
            ".map((node) => node.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])",
            views[tab.text],
        )
        assert 0 <= view[0] - below[1] < 20 and op[0] >= view[1], tab.text
    heights = wide.execute_script(
        "return [...document.querySelectorAll('#tabs button')].map((tab) => tab.getBoundingClientRect().top)"
    )
    assert max(heights) == min(heights), "tabs in two rows"


NUMBERS = """
const marks = [...document.querySelectorAll(".mark")].filter((mark) => mark.querySelector(".letter"));
const shapes = marks.map((mark) => mark.querySelector(".shape"));
return shapes.map((shape) => shape.getBoundingClientRect()).map(({ x, y }) => [x, y]);
"""


@browser.real
def test_numbers_of_plans_cover_none_and_threads_of_a_sweep_are_named(tmp_path: Path, wide: Any) -> None:
    llmir.save(made("plan"), tmp_path / "plan.html")
    browser.opened(wide, tmp_path / "plan.html")
    spots = wide.execute_script(NUMBERS)
    assert len(spots) > 1
    for i, (a, b) in enumerate(spots):
        assert all(abs(a - c) > 15 or abs(b - d) > 15 for c, d in spots[:i])
    llmir.save(made("sweep"), tmp_path / "sweep.html")
    browser.opened(wide, tmp_path / "sweep.html")
    wide.execute_script("llmirPage.views[0].pick('draw', 'rows')")
    said = [text.text for text in wide.find_elements("css selector", ".chart .inside")]
    assert {"tp 1", "tp 2"} <= set(said)
    chips = [chip.text.split("\n") for chip in wide.find_elements("css selector", ".chip")]
    assert ["new tokens each", "1"] in chips and ["cached tokens each", "2,000"] in chips


@browser.real
@pytest.mark.parametrize("share", [0.9996, 0.99, 1.0])
def test_a_share_of_requests_is_rounded_down(share: float, tmp_path: Path, wide: Any) -> None:
    told = dict(plans(made("plan")))
    card = next(each for each in told["figures"] if each["title"] == "within all limits")
    told["figures"] = [card | {"value": share}]
    (tmp_path / "page.html").write_text(result_page(told, 10**7, ""), encoding="utf-8")
    browser.opened(wide, tmp_path / "page.html")
    assert wide.find_element("css selector", ".figure .value").text == units.share_met(share)
