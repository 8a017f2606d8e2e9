"""How fast pages are in Chromium: each redraw, the first figures, and how large files are.

    PYTHONPATH=. python benchmarks/pages.py

Milliseconds of a redraw are of the page's thread, so that a busy machine says the same; those of a fixed loop
stand beside them. Pages in files come first, then what a server sends, then timelines as they move.
"""

from __future__ import annotations

import sys
import tempfile
import time
from math import nan
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import llmir
from tests import browser
from tests.page_server.test_server_page import chosen, opened, serving

PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama-3.1-8B, one set-up": ("llama3.1-8b", {}),
    "Qwen3-32B, 16 set-ups": (
        "qwen3-32b",
        {"hw": "h100-sxm,h200", "tp": (1, 2, 4, 8), "weights": "bf16,fp8"},
    ),
    "Llama-3.1-405B, tp 8": ("llama3.1-405b", {"tp": 8}),
    "Qwen3-235B-A22B, tp 8, ep 8": ("qwen3-235b-a22b", {"tp": 8, "ep": 8}),
}
ASKED = {
    "Llama-3.1-405B, tp 8, served": {"model": "llama3.1-405b", "tp": "8"},
    "Qwen3-235B-A22B ep 8, served": {"model": "qwen3-235b-a22b", "tp": "8", "ep": "8"},
    "DeepSeek-V3 ep 8, served": {"model": "deepseek-v3", "tp": "8", "ep": "8"},
}
STAGES = "stages{pp=4, micro_batches=8},shard{tp=8}"
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
MOVE = "llmirPage.views[0].move(arguments[0] % 2 ? 0.3 : -0.3); document.body.offsetHeight"
WHOLE = "const strip = llmirPage.views[0]; strip.look(0, strip.data.end * (1 - arguments[0] / 1e3))"
LOOP = "let x = 0; for (let i = 0; i < 1e6; i++) x += Math.sqrt(i); globalThis.kept = x"


def spent(driver: Any, script: str, *arguments: Any) -> float:
    """Milliseconds of the page's thread that a script takes, layout and style among them."""

    def now() -> float:
        found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(m["value"] for m in found if m["name"] == "TaskDuration"))

    before = now()
    driver.execute_script(script, *arguments)
    return 1e3 * (now() - before)


def redraws(driver: Any, draw: str, *all_of_it: bool) -> list[float]:
    """Median and 95th percentile of redraws, then the median with all views, and of a fixed loop."""
    empty = median(spent(driver, "") for _ in range(20))

    def each(*more: bool) -> list[float]:
        return [spent(driver, draw, i, *more) - empty for i in range(REDRAWS)]

    for i in range(20):
        spent(driver, draw, i, *all_of_it)
    first = each(*(False for _ in all_of_it))
    found = [
        median(first),
        quantiles(first, n=20)[-1],
        median(each(*all_of_it)) if all_of_it else median(first),
    ]
    return [*found, median(spent(driver, LOOP) - empty for _ in range(20))]


def said(name: str, *figures: float) -> None:
    print(f"{name:30}", *(f"{figure:>10.4g}" for figure in figures), flush=True)


def filed(driver: Any, path: Path, name: str) -> None:
    model, axes = PAGES[name]
    llmir.page(model, axes)
    start = time.process_time()
    path.write_text(llmir.page(model, axes), encoding="utf-8")
    made = time.process_time() - start
    browser.opened(driver, path)
    first = driver.execute_script("return llmirPage.ready")
    said(name, path.stat().st_size / 1e3, made, first, *redraws(driver, DRAW, True))


def moved(driver: Any, path: Path) -> None:
    """A timeline of pipeline stages, of which a layer is enlarged, and then all of a stage."""
    program = llmir.run(llmir.load("llama3.1-405b"), f"{STAGES},{llmir.pipeline_of()}")
    llmir.trace(llmir.workload(program, "h100-sxm", batch=8, prompt=2000, generate=100), path)
    browser.opened(driver, path)
    for name, draw in (("timeline of 405B, a layer", MOVE), ("timeline of 405B, a stage", WHOLE)):
        said(name, path.stat().st_size / 1e3, nan, nan, *redraws(driver, draw))


def main() -> None:
    heads = "kB", "made, s", "first, ms", "redraw, ms", "p95", "all", "loop"
    print(" " * 30, *(f"{head:>10}" for head in heads))
    with tempfile.TemporaryDirectory() as folder, browser.browser(reaches="127.0.0.1") as driver:
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        for name in PAGES:
            filed(driver, Path(folder) / "page.html", name)
        moved(driver, Path(folder) / "step.html")
        with serving() as address:
            opened(driver, address)
            for name, fields in ASKED.items():
                if why := chosen(driver, **fields):
                    raise SystemExit(f"{name}: {why}")
                said(name, nan, nan, nan, *redraws(driver, DRAW, True))


if __name__ == "__main__":
    sys.exit(main())
