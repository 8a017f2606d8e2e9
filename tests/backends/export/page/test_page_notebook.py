"""Notebooks show pages in a frame that may run scripts, and do nothing else."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import LlmirError
from llmir.base.formats import FRAME
from tests import browser
from tests.flat import records

# A notebook's page: it listens, and has something that a frame must not reach.
NOTEBOOK = """<!doctype html><title>notebook</title><script>globalThis.secret = 1</script>
<p>In [1]: job.page()</p>{}"""


@pytest.fixture(scope="module")
def job() -> Any:
    program = browser.program_of("qwen3-32b", {"weights": "fp8", "tp": 2})
    return llmir.workload(program, "h100-sxm", **records(llmir.workload, **browser.START))


@browser.real
def test_a_workload_shows_its_page_in_a_sandbox(job: Any, chromium: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    (tmp_path / "notebook.html").write_text(NOTEBOOK.format(job.page()._repr_html_()), encoding="utf-8")
    browser.console(chromium)
    browser.requests(chromium)
    chromium.get((tmp_path / "notebook.html").as_uri())
    assert chromium.execute_script("return document.querySelector('iframe').contentDocument") is None
    chromium.switch_to.frame(0)
    try:
        ready = "return document.documentElement.hasAttribute('data-ready')"
        WebDriverWait(chromium, 20).until(lambda d: d.execute_script(ready))
        browser.settled(chromium)
        assert chromium.execute_script("return [origin, location.protocol]") == ["null", "about:"]
        figures = chromium.execute_script("return llmirPage.view.figures")
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            assert browser.off(figures[name], getattr(job, name)) < browser.OFF
        # Sliders move, and no address is asked to change; the frame reaches nothing around it.
        chromium.execute_script("llmirPage.changed({ batch: 64 })")
        browser.settled(chromium)
        assert chromium.execute_script("return llmirPage.view.at.batch") == 64
        reach = "try { return parent.secret ?? null } catch (error) { return error.name }"
        assert chromium.execute_script(reach) == "SecurityError"
        hidden = (
            "return ['link', 'command', 'python'].map((w) => document.getElementById('copy-' + w).hidden)"
        )
        assert chromium.execute_script(hidden) == [True, True, True]
    finally:
        chromium.switch_to.default_content()
    assert browser.console(chromium) == []
    assert browser.requests(chromium) == [(tmp_path / "notebook.html").as_uri()]


def test_the_frame_holds_the_page_as_it_is(job: Any) -> None:
    page = job.page()
    frame = page._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(source) == page
    assert f'sandbox="{FRAME}"' in frame
    assert "same-origin" not in FRAME
    assert repr(page) == f"<Page of {len(page.encode()):,} bytes>"
    assert llmir.page("llama3.2-1b")._repr_html_().startswith("<iframe")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"chunk": 512}, "page: does not support chunk"),
        ({"cached": 10, "reserve_bytes": 10}, "page: does not support cached and reserve_bytes"),
        ({"cache_policy": "paged"}, "page: does not support cache_policy"),
        ({"concurrency": 4}, "page: expected a plain workload, got a ClosedLoopWorkload"),
    ],
)
def test_what_the_page_has_no_place_for_is_refused(how: dict[str, Any], why: str) -> None:
    program = browser.program_of("llama3.2-1b", {})
    with pytest.raises(LlmirError, match=why):
        llmir.workload(program, "h100-sxm", **records(llmir.workload, **how)).page()
    with pytest.raises(LlmirError, match="max_size"):
        llmir.workload(program, "h100-sxm").page(max_size=0)
    with pytest.raises(LlmirError, match="more than 10"):
        llmir.workload(program, "h100-sxm").page(max_size=10)
