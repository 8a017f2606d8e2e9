"""Chromium without a window and without a network, and what tests of pages compare."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import llmir

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
REQUIRED = os.environ.get("LLMIR_REQUIRE_BROWSER") == "1"


def missing() -> str:
    """What a browser's tests lack, or nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    return "" if CHROMIUM and DRIVER else "chromium or chromedriver is not installed"


LACKS = missing()
if LACKS and REQUIRED:
    raise RuntimeError(f"LLMIR_REQUIRE_BROWSER=1, and {LACKS}")
real = pytest.mark.skipif(bool(LACKS), reason=LACKS or "there is a browser")

# What the page has that most tests open, by the fixture `page`.
MODEL = "qwen3-32b"
AXES: dict[str, Any] = {"hw": ("h100-sxm", "h200"), "tp": (1, 2, 3), "weights": ("bf16", "fp8")}
START = {"batch": 32, "prompt": 4000, "generate": 500}
OFF = 1e-12
SETTLED = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 450)"


@contextmanager
def browser(width: int = 1440, height: int = 1000, reaches: str = "", watched: bool = True) -> Iterator[Any]:
    """A driver of a browser that reaches no network but one host; `requests` is of one that is watched."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    but = f", EXCLUDE {reaches}" if reaches else ""
    options.add_argument(f"--host-resolver-rules=MAP * ~NOTFOUND{but}")
    logs = ("browser", "performance") if watched else ("browser",)
    options.set_capability("goog:loggingPrefs", dict.fromkeys(logs, "ALL"))
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        resize(driver, width, height)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int = 1000) -> None:
    """So many pixels, however small."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def opened(driver: Any, path: Path, hash: str = "") -> None:
    """Opens a file anew, and waits until it is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get("about:blank")
    driver.get(f"{path.as_uri()}{hash}")
    ready = "return document.documentElement.hasAttribute('data-ready')"
    WebDriverWait(driver, 20).until(lambda d: d.execute_script(ready))


def console(driver: Any) -> list[str]:
    """What was said there since the last time."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """The addresses that were asked for since the last time, of the page's own file too."""
    import json

    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    sent = (e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent")
    return [url for url in sent if not url.startswith("data:") and url != "about:blank"]


def settled(driver: Any) -> None:
    """Waits until all is drawn, and the address is that of what is shown."""
    driver.execute_async_script(SETTLED)


def off(found: Any, expected: Any) -> float:
    if found is None or expected is None or isinstance(expected, (str, bool)):
        return 0.0 if found == expected else math.inf
    return abs(found - expected) / max(abs(expected), 1e-30)


def program_of(model: str, setup: dict[str, Any]) -> llmir.Program:
    """A program by the passes themselves, in the order that the command line has.

    vLLM multiplies fp8 weights by fp8 activations on the devices of these tests.
    """
    types = {"fp8": "fp8, activations=fp8"}
    passes = [f"quantize{{weights={types.get(of, of)}}}"] if (of := setup.get("weights")) else []
    passes += [llmir.pipeline_of("vllm")]
    passes += [f"shard{{tp={setup['tp']}}}"] if setup.get("tp", 1) > 1 else []
    return llmir.run(llmir.load(model), ",".join(passes))


AXE = Path(__file__).parent.parent / "scripts" / "web" / "node_modules" / "axe-core" / "axe.min.js"
axe = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm --prefix scripts/web ci")


def faults(driver: Any) -> dict[str, list[str]]:
    """The serious faults that axe-core finds, each with the first elements that have it."""
    driver.execute_script(AXE.read_text("utf-8"))
    found = driver.execute_async_script("axe.run(document).then(arguments[0])")
    assert found["passes"]
    return {
        fault["id"]: [node["html"][:120] for node in fault["nodes"][:4]]
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    }
