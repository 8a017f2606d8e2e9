"""Chromium without a window and without a network, for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def browser(width: int = 1440, height: int = 1000) -> Iterator[Any]:
    """A driver of a browser that reaches no network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
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
