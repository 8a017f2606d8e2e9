"""The served page in a real browser: what is chosen there comes to say what `workload` says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.export import units
from tests import browser
from tests.backends.export.page.page_cases import differs
from tests.backends.export.page.test_page import PRICED

from .serve_cases import TINY

CHOOSE = """
const [name, value] = arguments, field = document.getElementById(`ask-${name}`);
field.value = value;
field.dispatchEvent(new Event("change"));
"""
SAID = "return document.getElementById('asked').textContent"


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server of pages."""
    import uvicorn

    from llmir.page_server.app import app
    from llmir.page_server.listener import bound
    from llmir.page_server.worker import Worker

    listener, worker = bound("127.0.0.1", 0), Worker()
    server = uvicorn.Server(uvicorn.Config(app(worker=worker), log_level="error"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listener.close()
    worker.end()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as own:
        yield own


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser(reaches="127.0.0.1") as driver:
        yield driver


def opened(driver: Any, address: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get("about:blank")
    driver.get(address)
    ready = "return document.documentElement.hasAttribute('data-served')"
    WebDriverWait(driver, 60).until(lambda d: d.execute_script(ready))


def chosen(driver: Any, **fields: str) -> str:
    """What the page says after fields were set, one by one."""
    for name, value in fields.items():
        driver.execute_script(CHOOSE, name, value)
        end = time.monotonic() + 60
        while (said := driver.execute_script(SAID)) == "asking …":
            assert time.monotonic() < end
            time.sleep(0.05)
    browser.settled(driver)
    return said


@browser.real
def test_a_chosen_model_has_the_figures_of_workload(address: str, chromium: Any) -> None:
    opened(chromium, f"{address}#batch=8&prompt=1000&generate=100")
    browser.requests(chromium)
    assert chosen(chromium, model="qwen3-32b", hw="h200", tp="4", weights="fp8") == ""
    number = chromium.execute_script("return llmirPage.state.setup")
    program = browser.program_of("qwen3-32b", {"tp": 4, "weights": "fp8"})
    for batch, prompt, generate in ((8, 1000, 100), (1, 1, 1), (48, 20_001, 30)):
        job = llmir.workload(program, "h200", batch=batch, prompt=prompt, generate=generate)
        found = chromium.execute_script(PRICED, number, batch, prompt, generate)
        assert differs(found, job) < browser.OFF
    job = llmir.workload(program, "h200", batch=8, prompt=1000, generate=100)
    assert units.time(float(job.tpot_s or 0)) in chromium.find_element("id", "tpot_s").text
    assert chromium.title == "Qwen3-32B: llmir"
    sent = browser.requests(chromium)
    assert {url for url in sent if not url.startswith("data:")} == {f"{address}api/program"}
    for name in ("batch", "prompt"):  # sliders ask for nothing
        slider = chromium.find_element("id", f"range-{name}")
        slider.send_keys("\ue014")
    browser.settled(chromium)
    assert browser.requests(chromium) == []
    assert browser.console(chromium) == []


@browser.real
def test_a_split_that_cannot_be_says_why_and_the_picture_stays(address: str, chromium: Any) -> None:
    opened(chromium, address)
    before = chromium.find_element("id", "figures").text
    assert "cannot be split 3 ways" in chosen(chromium, tp="3")
    assert chromium.find_element("id", "ask-tp").get_attribute("aria-invalid") == "true"
    assert chromium.find_element("id", "figures").text == before
    assert chosen(chromium, tp="2") == ""
    assert chromium.find_element("id", "ask-tp").get_attribute("aria-invalid") is None
    assert chromium.find_element("id", "figures").text != before
    browser.console(chromium)  # which notes each status that is no 200


@browser.real
def test_two_models_stand_beside_each_other_and_the_address_holds_both(address: str, chromium: Any) -> None:
    opened(chromium, address)
    chosen(chromium, model="qwen3-32b", tp="2")
    chromium.find_element("id", "pin").click()
    chosen(chromium, model="<img src=x onerror=globalThis.run=1>")
    chosen(chromium, model="llama3.2-1b", tp="")
    assert "model Qwen3-32B" in chromium.find_element("id", "against-what").get_attribute("textContent")
    figures, hash = (
        chromium.find_element("id", "figures").text,
        chromium.execute_script("return location.hash"),
    )
    chromium.execute_script("document.getElementById('copy-command').click()")
    assert "llmir analyze Llama-3.2-1B --hw h100-sxm" in chromium.execute_script(
        "return llmirPage.views[0].copied"
    )
    browser.console(chromium)
    opened(chromium, f"{address}{hash}")
    browser.settled(chromium)
    assert chromium.find_element("id", "figures").text == figures
    assert chromium.find_element("id", "ask-model").get_attribute("value") == "llama3.2-1b"
    assert chromium.execute_script("return globalThis.run") is None
    for bad in ("#asks=x", "#asks=[1,2]&setup=1", '#asks=[null,{"model":"/etc/passwd"}]&setup=1'):
        opened(chromium, f"{address}{bad}")
        assert chromium.find_element("id", "figures").text
    browser.console(chromium)


@browser.real
def test_a_copied_link_says_that_it_holds_no_config(address: str, chromium: Any, tmp_path: Path) -> None:
    copied = (
        "document.getElementById('copy-link').click(); return document.querySelector('.done').textContent"
    )
    opened(chromium, address)
    assert "config" not in chromium.execute_script(copied)
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    chromium.find_element("css selector", "input[type=file]").send_keys(str(tmp_path / "config.json"))
    end = time.monotonic() + 60
    while chromium.execute_script("return llmirPage.state.setup") == 0:
        assert time.monotonic() < end
        time.sleep(0.05)
    browser.settled(chromium)
    chromium.execute_script(copied)
    browser.settled(chromium)
    assert "without your config" in chromium.execute_script(
        "return document.querySelector('.done').textContent"
    )
    browser.console(chromium)


@browser.real
def test_it_fits_a_phone_and_runs_nothing_else(address: str, chromium: Any) -> None:
    opened(chromium, address)
    browser.resize(chromium, 360)
    wide = "return [document.documentElement.scrollWidth, innerWidth]"
    scrolls, width = chromium.execute_script(wide)
    assert scrolls <= width
    browser.resize(chromium, 1440)
    browser.console(chromium)
    chromium.execute_script(
        "const script = document.createElement('script'); script.textContent = 'globalThis.run = 1';"
        "document.head.append(script)"
    )
    assert chromium.execute_script("return globalThis.run") is None
    assert "script-src" in " ".join(browser.console(chromium))


@browser.real
@browser.axe
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_axe_finds_no_serious_fault(theme: str, width: int, address: str, chromium: Any) -> None:
    try:
        browser.resize(chromium, width)
        opened(chromium, f"{address}#theme={theme}")
        chosen(chromium, model="qwen3-32b", tp="2")
        chromium.find_element("id", "pin").click()
        chosen(chromium, model="llama3.2-1b", tp="")
        chromium.find_element("id", "change").click()
        browser.settled(chromium)
        assert browser.faults(chromium) == {}
        assert "cannot be split 3 ways" in chosen(chromium, tp="3")
        assert browser.faults(chromium) == {}
    finally:
        browser.resize(chromium, 1440)
        browser.console(chromium)
