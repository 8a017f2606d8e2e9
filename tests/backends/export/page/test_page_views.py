"""What a page shows is one: graph, roofline, table, the pinned side, what is copied."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import llmir
from llmir.backends.export import units
from tests import browser
from tests.commands import Run
from tests.flat import records


@browser.real
def test_a_choice_is_one_in_graph_roofline_and_table(page: Path, chromium: Any) -> None:
    chosen = """
      const texts = (of) => [...document.querySelectorAll(of)].map((node) => node.textContent);
      const bubbles = document.querySelectorAll(".bubble.chosen").length;
      return [texts(".op.chosen .name"), texts("tr.chosen th"), texts("#op h2"), bubbles];
    """
    browser.opened(chromium, page)
    clicks = (
        "[...document.querySelectorAll('.op')].find((n) => n.textContent.startsWith('o_proj')).click()",
        """document.querySelector('.bubble[aria-label^="layer.down_proj, decode"]')
             .dispatchEvent(new Event('click'))""",
        """[...document.querySelectorAll('#table th button')]
             .find((n) => n.textContent.endsWith('qkv_proj')).click()""",
    )
    for click, name in zip(clicks, ("o_proj", "down_proj", "qkv_proj"), strict=True):
        chromium.execute_script(click)
        browser.settled(chromium)
        graph, table, op, bubbles = chromium.execute_script(chosen)
        assert graph == [name]
        assert table == [f"layer.{name}"]
        assert op[0].startswith(f"layer.{name} ")
        assert bubbles == 2  # of prefill and of decode
    browser.opened(chromium, page, chromium.execute_script("return location.hash"))
    assert chromium.execute_script(chosen)[0] == ["qkv_proj"]


@browser.real
def test_boxes_that_are_out_of_sight_say_the_same_step(page: Path, chromium: Any) -> None:
    costs = "return llmirPage.views.flatMap(({ sections }) => sections ?? [])"
    costs += ".flatMap(({ boxes }) => boxes.map(({ own, cost }) => [own.name, cost.textContent]))"
    far = "return llmirPage.views.find(({ far }) => far).far.size"
    job = llmir.workload(
        browser.program_of(browser.MODEL, {"weights": "bf16"}),
        "h100-sxm",
        **records(llmir.workload, **browser.START),
    )
    assert job.decode is not None
    expected = {op.name: units.time(float(op.time_s)) for op in job.decode.work}
    try:
        browser.resize(chromium, 1440, 500)
        browser.opened(chromium, page, "#batch=1")
        browser.settled(chromium)
        assert chromium.execute_script(far) > 5
        chromium.execute_script("llmirPage.changed({ batch: arguments[0] })", browser.START["batch"])
        browser.settled(chromium)
        chromium.execute_script(
            "document.querySelectorAll('.fold[aria-expanded=false]').forEach((n) => n.click())"
        )
        found = dict(chromium.execute_script(costs))
    finally:
        browser.resize(chromium, 1440)
    assert found and found == {name: expected[name] for name in found}


@browser.real
def test_keys_alone_choose_and_fold(page: Path, chromium: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        for key in keys:
            ActionChains(chromium).send_keys(key).perform()

    browser.opened(chromium, page)
    focused = "return document.activeElement.textContent"
    chromium.execute_script("document.querySelector('.fold[tabindex=\"0\"]').focus()")
    press(Keys.ARROW_DOWN)
    assert chromium.execute_script(focused).startswith("layer × 64")
    press(Keys.ENTER)
    assert chromium.execute_script("return document.activeElement.getAttribute('aria-expanded')") == "false"
    press(Keys.ENTER, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    browser.settled(chromium)
    assert chromium.execute_script("return llmirPage.state.op") == "layer.qkv_proj"
    assert chromium.execute_script("return document.querySelectorAll('#graph [tabindex=\"0\"]').length") == 1


@browser.real
def test_what_is_pinned_stays_beside_it_and_differences_add_up(page: Path, chromium: Any) -> None:
    from selenium.webdriver.support.ui import Select

    browser.opened(chromium, page, "#batch=32&prompt=4000&generate=500")
    chromium.find_element("id", "pin").click()
    Select(chromium.find_element("id", "menu-weights")).select_by_visible_text("fp8")
    browser.settled(chromium)
    programs = [browser.program_of("qwen3-32b", {"weights": weights}) for weights in ("bf16", "fp8")]
    then, now = (llmir.workload(p, "h100-sxm", **records(llmir.workload, **browser.START)) for p in programs)
    said = chromium.find_element("id", "ttft_s").text
    assert units.time(then.ttft_s) in said
    assert units.digits(now.ttft_s / then.ttft_s) in said
    assert "A has weights bf16" in chromium.find_element("id", "against").text
    assert then.decode is not None
    assert now.decode is not None
    rows = chromium.execute_script(
        "return [...document.querySelectorAll('#against tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    (total,) = (row for row in rows if row[0] == "last decode step")
    change = now.decode.time_s - then.decode.time_s
    assert total[1:4] == [units.time(float(t)) for t in (then.decode.time_s, now.decode.time_s, change)]
    hash = chromium.execute_script("return location.hash")
    browser.opened(chromium, page, hash)
    assert chromium.find_element("id", "ttft_s").text == said


@browser.real
def test_the_table_is_sorted_found_in_and_copied(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    shown = (
        "return [...document.querySelectorAll('#table tbody tr:not([hidden]) th')].map((n) => n.textContent)"
    )
    chromium.execute_script("document.querySelector('th.share button').click()")
    assert chromium.execute_script(shown)[:2] == ["layer.flash_attention", "layer.gate_up_proj"]
    assert chromium.find_element("css selector", "th.share").get_attribute("aria-sort") == "descending"
    chromium.find_element("id", "filter").send_keys("norm")
    assert {name.rpartition("_")[2] for name in chromium.execute_script(shown)} == {"norm"}
    chromium.execute_script(
        "document.getElementById('copy').click(); document.getElementById('save-csv').click()"
    )
    text = chromium.execute_script(
        "return decodeURIComponent(llmirPage.views[0].saved.url.split(',').slice(1).join(','))"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    job = llmir.workload(
        browser.program_of("qwen3-32b", {"weights": "bf16"}),
        "h100-sxm",
        **records(llmir.workload, **browser.START),
    )
    assert job.decode is not None
    assert [row["op"] for row in rows if row["phase"] == "decode"] == [op.name for op in job.decode.ops]
    times = {row["op"]: float(row["time_s"]) for row in rows if row["phase"] == "prefill"}
    assert all(browser.off(times[op.name], op.time_s) < browser.OFF for op in job.prefill.work)


@browser.real
def test_what_is_copied_gives_the_same(page: Path, chromium: Any, run: Run) -> None:
    browser.opened(chromium, page, "#setup=3&batch=8&prompt=1000&generate=10")
    command, python, link = (
        chromium.execute_async_script(
            "const [act, done] = arguments, own = llmirPage.views[0];"
            "own.text(own[act]()).then(() => done(own.copied))",
            act,
        )
        for act in ("command", "python", "link")
    )
    done = run(*command.split()[1:], "--format", "json")
    tpot = chromium.execute_script("return llmirPage.view.figures.tpot_s")
    assert browser.off(tpot, json.loads(done.out)["tpot_s"]) < browser.OFF
    assert browser.off(tpot, eval(python, {"llmir": llmir}).tpot_s) < browser.OFF
    browser.opened(chromium, page, f"#{link.partition('#')[2]}")
    assert chromium.execute_script("return llmirPage.view.figures.tpot_s") == tpot


@browser.real
def test_a_step_over_stages_is_shown_where_there_are_some(chromium: Any, tmp_path: Path) -> None:
    page = llmir.page("llama3.2-1b", {"pp": (1, 2), "micro_batches": 3, "hw": "h100-sxm"}, batch=6)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    shown = """
      const place = document.getElementById("lanes");
      const texts = (of) => [...place.querySelectorAll(of)].map((node) => node.textContent);
      return place.hidden ? null : [texts("title"), texts(".inside").filter((text) => /^\\d$/.test(text))];
    """
    browser.opened(chromium, tmp_path / "page.html", "#setup=0")
    assert chromium.execute_script(shown) is None
    browser.opened(chromium, tmp_path / "page.html", "#setup=1&batch=6&prompt=1000&generate=9")
    titles, parts = chromium.execute_script(shown)
    program = llmir.run(
        llmir.load("llama3.2-1b"), f"stages{{pp=2, micro_batches=3}},{llmir.pipeline_of('vllm')}"
    )
    step = llmir.workload(program, "h100-sxm", batch=6, prompt=1000, generate=9).decode
    assert step is not None
    for stage, title in enumerate(titles):
        waits = sum(s.time_s for s in step.timeline() if s.stage == stage and s.bound == "bubble")
        assert title.startswith(f"stage {stage}: ")
        assert title.endswith(f", {units.time(waits)} of waits")
    assert parts == ["0", "1", "2"] * 2
    assert browser.console(chromium) == []
