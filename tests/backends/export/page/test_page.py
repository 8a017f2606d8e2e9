"""Pages in a real browser say what `workload` says, for sliders as for typed numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.export import units
from llmir.base.errors import LlmirError
from tests import browser
from tests.commands import Run
from tests.flat import records

from .page_cases import differs

# The figures of a set-up at some sizes, by the code of the page, as its strip has them.
PRICED = """
const [setup, batch, prompt, generate] = arguments;
const { figures, memory, steps } = llmirPage.priced({ setup, batch, prompt, generate });
const ops = (step) => step && { time_s: step.time_s, ideal_time_s: step.ideal_time_s, error: step.error,
  ops: step.ops.map(({ name, time_s, ideal_time_s, flops, read_bytes, write_bytes, bound, basis, error }) =>
    ({ name, time_s, ideal_time_s, flops, read_bytes, write_bytes, bound, basis, error })) };
return { figures, memory, prefill: ops(steps.prefill), decode: ops(steps.decode) };
"""


@browser.real
def test_figures_are_those_of_workload(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    setups = chromium.execute_script("return llmirPage.setups.map(({ values, why }) => ({ values, why }))")
    draw, worst = random.Random(0), 0.0
    legal = [i for i, setup in enumerate(setups) if not setup["why"]]
    assert len(setups) == 12
    assert len(legal) == 8
    programs = {i: browser.program_of("qwen3-32b", setups[i]["values"]) for i in legal}
    for _ in range(50):
        setup = draw.choice(legal)
        at = (
            draw.choice((1, 2, 7, 32, 100, 256, 1500)),
            int(2 ** draw.uniform(0, 17)),
            draw.choice((1, 2, 9, 300)),
        )
        job = llmir.workload(
            programs[setup], setups[setup]["values"]["hw"], batch=at[0], prompt=at[1], generate=at[2]
        )
        worst = max(worst, differs(chromium.execute_script(PRICED, setup, *at), job))
    assert worst < browser.OFF


@browser.real
@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("llama3.1-405b", {"tp": 8, "pp": 2, "micro_batches": (1, 2)}),
        ("deepseek-v3", {"hw": "h200", "tp": 8, "ep": 8}),
        ("gpt-oss-20b", {"hw": "a100", "engine": ("sglang", "trtllm")}),
        ("llama-4-scout-17b-16e", {"hw": "h200", "tp": 8, "cost": "ideal"}),
        ("gemma-3-4b", {"hw": ("mi300x", "l4"), "cost": "ideal"}),
        ("mamba-1.4b", {}),
    ],
)
def test_figures_of_other_families(model: str, axes: dict[str, Any], chromium: Any, tmp_path: Path) -> None:
    from llmir.api.page import setups
    from llmir.hw import library

    (tmp_path / "page.html").write_text(llmir.page(model, axes), encoding="utf-8")
    browser.opened(chromium, tmp_path / "page.html")
    for number, setup in enumerate(setups(model, axes)):
        assert setup.program is not None
        parts = setup.program.micro_batches
        for batch, prompt, generate in ((1, 1, 1), (8, 3000, 40), (48, 20_001, 2)):
            how = {name: setup.values[name] for name in ("engine", "cost") if name in setup.values}
            at = {"batch": batch * parts, "prompt": prompt, "generate": generate}
            job = llmir.workload(
                setup.program, library.load(setup.values["hw"]), **records(llmir.workload, **at, **how)
            )
            assert differs(chromium.execute_script(PRICED, number, *at.values()), job) < browser.OFF


@browser.real
def test_it_says_nothing_and_asks_nobody(page: Path, chromium: Any) -> None:
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, page)
    assert browser.console(chromium) == []
    assert browser.requests(chromium) == [page.as_uri()]


@browser.real
def test_the_strip_says_what_the_sliders_ask_for(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page, "#setup=0&batch=8&prompt=1000&generate=100")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chromium.find_element(By.ID, "range-batch").send_keys(Keys.ARROW_RIGHT)
    chromium.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    batch = int(chromium.execute_script("return llmirPage.state.batch"))
    assert batch > 8
    program = browser.program_of("qwen3-32b", {"weights": "bf16"})
    job = llmir.workload(program, "h100-sxm", batch=batch, prompt=1000, generate=100)
    said = chromium.find_element(By.ID, "tpot_s").text
    assert units.time(float(job.tpot_s or 0)) in said
    assert chromium.find_element(By.ID, "batch").get_attribute("value") == str(batch)


@browser.real
def test_a_bad_number_is_marked_and_the_picture_stays(page: Path, chromium: Any) -> None:
    from selenium.webdriver.common.by import By

    browser.opened(chromium, page)
    box, before = chromium.find_element(By.ID, "prompt"), chromium.find_element(By.ID, "ttft_s").text
    typed = "const [box, said] = arguments; box.value = said; box.dispatchEvent(new Event('input'))"
    for bad in ("", "0", "-5", "1.5", "x", "1e3", "99999999"):
        chromium.execute_script(typed, box, bad)
        assert box.get_attribute("aria-invalid") == "true"
        assert "whole number" in chromium.find_element(By.ID, "prompt-why").text
    assert chromium.find_element(By.ID, "ttft_s").text == before
    box.clear()
    box.send_keys("2,000")
    assert box.get_attribute("aria-invalid") is None
    assert chromium.execute_script("return llmirPage.state.prompt") == 2000


@browser.real
def test_a_split_that_cannot_be_is_greyed_with_the_reason(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    script = (
        "return [...document.getElementById('menu-split').options].map((o) => [o.value, o.disabled, o.title])"
    )
    found = {value: (disabled, why) for value, disabled, why in chromium.execute_script(script)}
    assert [value for value, (disabled, _) in found.items() if disabled] == ["tp 3"]
    assert "cannot be split 3 ways" in found["tp 3"][1]


@browser.real
def test_the_address_holds_what_is_shown(page: Path, chromium: Any) -> None:
    from selenium.webdriver.support.ui import Select

    browser.opened(chromium, page, "#batch=16&prompt=777&generate=9")
    Select(chromium.find_element("id", "menu-split")).select_by_visible_text("tp 2")
    browser.settled(chromium)
    figures = chromium.find_element("id", "figures").text
    hash = chromium.execute_script("return location.hash")
    browser.opened(chromium, page, hash)
    assert chromium.find_element("id", "figures").text == figures
    assert chromium.execute_script("return [llmirPage.state.batch, llmirPage.state.prompt]") == [16, 777]
    for bad in ("#batch=0", "#setup=99", "#setup=x&batch=-1", "#pin=1,2", "#op=%00&phase=z", "#%%%"):
        browser.opened(chromium, page, bad)
    assert browser.console(chromium) == []


@pytest.mark.slow
def test_pages_are_small_and_alike_each_time() -> None:
    made = llmir.page("llama3.1-8b")
    assert len(made.encode()) < 250_000
    assert made == llmir.page("llama3.1-8b")
    axes = {"hw": "h100-sxm,h200", "tp": (1, 2, 4, 8), "weights": "bf16,fp8"}
    assert len(llmir.page("qwen3-32b", axes).encode()) < 300_000


@pytest.mark.parametrize(
    ("axes", "more", "why"),
    [
        ({"batch": 8}, {}, "batch: is a slider"),
        ({"tp": "1:65"}, {}, "65 configurations; a page has at most 64; leave some values out: tp has 65"),
        ({"tp": 3}, {}, "no configuration is possible"),
        ({"hw": "h100-sxm,h999"}, {}, "unknown device 'h999'"),
        ({}, {"max_size": 1000}, "more than 1,000; raise --max-size"),
        ({}, {"batch": 0}, "batch"),
    ],
)
def test_what_is_refused(axes: dict[str, Any], more: dict[str, Any], why: str) -> None:
    with pytest.raises(LlmirError, match=why):
        llmir.page("llama3.2-1b", axes, **more)


def test_the_command_writes_the_page(run: Run, tmp_path: Path) -> None:
    done = run("report", "llama3.2-1b", "--tp", "1,2", "-o", "l.html")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "l.html").read_text("utf-8") == llmir.page("llama3.2-1b", {"tp": (1, 2)})
    assert run("report", "llama3.2-1b", "-o", "l.pdf").code == 2
    done = run("report", "llama3.2-1b", "--max-size", "1kB", "-o", "m.html")
    assert done.code == 2
    assert "raise --max-size" in done.err
    assert not (tmp_path / "m.html").exists()
