"""How fast pages are in Chromium: each redraw, the first figures, and how large files are.

    PYTHONPATH=. python benchmarks/pages.py

Milliseconds of a redraw are of the page's thread, so that a busy machine says the same; those of a fixed loop
stand beside them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import llmir
from tests import browser

PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama-3.1-8B, one set-up": ("llama3.1-8b", {}),
    "Qwen3-32B, 16 set-ups": (
        "qwen3-32b",
        {"hw": "h100-sxm,h200", "tp": (1, 2, 4, 8), "weights": "bf16,fp8"},
    ),
    "Llama-3.1-405B, tp 8": ("llama3.1-405b", {"tp": 8}),
    "Qwen3-235B-A22B, tp 8, ep 8": ("qwen3-235b-a22b", {"tp": 8, "ep": 8}),
}
REDRAWS = 100
DRAW = """
const page = llmirPage, { parts } = page.setups[page.state.setup];
page.state.batch = (1 + (arguments[0] * 7) % 200) * parts;
page.draw();
clearTimeout(page.waiting);
page.waiting = null;
for (const view of arguments[1] ? page.later : []) view.draw(page.view);
document.body.offsetHeight;
"""
LOOP = "let x = 0; for (let i = 0; i < 1e6; i++) x += Math.sqrt(i); globalThis.kept = x"


def spent(driver: Any, script: str, *arguments: Any) -> float:
    """Milliseconds of the page's thread that a script takes, layout and style among them."""

    def now() -> float:
        found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(m["value"] for m in found if m["name"] == "TaskDuration"))

    before = now()
    driver.execute_script(script, *arguments)
    return 1e3 * (now() - before)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser.browser() as driver:
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        heads = "kB", "made, s", "first, ms", "redraw, ms", "p95", "all", "loop"
        print(" " * 30, *(f"{head:>10}" for head in heads))
        for name, (model, axes) in PAGES.items():
            path = Path(folder) / "page.html"
            llmir.page(model, axes)
            start = time.process_time()
            path.write_text(llmir.page(model, axes), encoding="utf-8")
            made = time.process_time() - start
            browser.opened(driver, path)
            first = driver.execute_script("return llmirPage.ready")
            empty = median(spent(driver, "") for _ in range(20))
            for i in range(20):
                spent(driver, DRAW, i, True)
            redraws = [spent(driver, DRAW, i, False) - empty for i in range(REDRAWS)]
            everything = median(spent(driver, DRAW, i, True) - empty for i in range(REDRAWS))
            loop = median(spent(driver, LOOP) - empty for _ in range(20))
            most = quantiles(redraws, n=20)[-1]
            figures = path.stat().st_size / 1e3, made, first, median(redraws), most, everything, loop
            print(f"{name:30}", *(f"{figure:>10.4g}" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
