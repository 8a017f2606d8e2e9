"""Rates of a device that are typed in: figures are those of a file that says them; bad ones are marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmir
from tests import browser
from tests.commands import Run

TYPED = """
const [key, text] = arguments, box = document.getElementById(`rate-${key}`);
box.value = text;
box.dispatchEvent(new Event("input"));
return [box.getAttribute("aria-invalid"), document.getElementById(`rate-${key}-why`).textContent];
"""
SETUP = "#setup=3&batch=8&prompt=1000&generate=10"  # of an H100, tp 2


@browser.real
def test_figures_are_those_of_a_file_that_says_the_same(
    page: Path, chromium: Any, run: Run, tmp_path: Path
) -> None:
    browser.opened(chromium, page, SETUP)
    before = chromium.execute_script("return llmirPage.view.figures")
    rates = {
        "matrix_tflops.bf16": "1,500",
        "vector_tflops.fp32": "80.5",
        "memory_GBps": "2900",
        "links.nvlink.GBps": "200",
        "memory_GB": "96",
    }
    for key, text in rates.items():
        assert chromium.execute_script(TYPED, key, text)[0] is None
    browser.settled(chromium)
    assert "5 typed in" in chromium.find_element("id", "change").text
    shown, memory, error = chromium.execute_script(
        "const { figures, memory, steps } = llmirPage.view;"
        "return [figures, memory, steps.decode.ops.map((op) => op.error)]"
    )
    assert shown["tpot_s"] != before["tpot_s"]
    python, command = chromium.execute_script(
        "const own = llmirPage.views[0]; return [own.python(), own.command()]"
    )
    names: dict[str, Any] = {"llmir": llmir}
    write, call = python.split("\n")
    exec(write, names)
    job = eval(call, names)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert browser.off(shown[name], getattr(job, name)) < browser.OFF
    assert (memory["bytes"], memory["largest"]) == (job.peak_bytes(job.batch), job.max_batch)
    assert browser.off(memory["capacity"], job.capacity_bytes) < browser.OFF
    assert error == pytest.approx([op.error for op in job.decode.work], rel=1e-12, abs=0)
    assert "> device.yaml && llmir analyze" in command
    done = run(*command.partition("&& ")[2].split()[1:], "--format", "json")
    assert browser.off(shown["tpot_s"], json.loads(done.out)["tpot_s"]) < browser.OFF
    browser.opened(chromium, page, chromium.execute_script("return location.hash"))
    assert chromium.execute_script("return llmirPage.view.figures") == shown
    chromium.execute_script("document.querySelector('#rates button').click()")
    browser.settled(chromium)
    assert chromium.execute_script("return llmirPage.view.figures") == before


@browser.real
def test_a_bad_rate_is_marked_and_the_picture_stays(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page, SETUP)
    before = chromium.find_element("id", "figures").text
    for key, text, why in (
        ("memory_GBps", "", "a number from 33.5 to 335,000"),
        ("memory_GBps", "0", "a number"),
        ("memory_GBps", "-1", "a number"),
        ("memory_GBps", "1e3", "a number"),
        ("memory_GBps", "9999999", "a number"),
        ("links.nvlink.GBps", "64", "or another link is faster"),
        ("memory_GB", "24", "takes other steps"),
    ):
        invalid, said = chromium.execute_script(TYPED, key, text)
        assert (invalid, why in said) == ("true", True), said
        browser.settled(chromium)
        assert chromium.find_element("id", "figures").text == before
    assert browser.console(chromium) == []


@browser.real
def test_what_is_pinned_keeps_its_rates_and_another_device_has_its_own(page: Path, chromium: Any) -> None:
    from selenium.webdriver.support.ui import Select

    browser.opened(chromium, page, f"{SETUP}&rates=memory_GBps:2000")
    slow = chromium.execute_script("return llmirPage.view.figures.tpot_s")
    chromium.find_element("id", "pin").click()
    chromium.execute_script(TYPED, "memory_GBps", "3350")
    browser.settled(chromium)
    pinned, now = chromium.execute_script(
        "const { pinned, figures } = llmirPage.view; return [pinned.figures.tpot_s, figures.tpot_s]"
    )
    assert pinned == slow > now
    assert "A has other rates" in chromium.find_element("id", "against").text
    hash = chromium.execute_script("return location.hash")
    browser.opened(chromium, page, hash)
    assert chromium.execute_script("return llmirPage.view.pinned.figures.tpot_s") == slow
    chromium.execute_script(TYPED, "memory_GBps", "3000")
    Select(chromium.find_element("id", "menu-device")).select_by_visible_text("H200-SXM")
    browser.settled(chromium)
    assert chromium.execute_script("return [llmirPage.state.typed, llmirPage.setups.length]")[0] == {}
