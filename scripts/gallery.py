"""Write the gallery: one page per model that computes its estimates in the browser, and an index.

    python scripts/gallery.py build/site/gallery

Each page is that of `llmir report MODEL --hw …,… --tp 1,2,4,8`. A cell of the index shows the decode time of
the smallest split that fits on a device, and links to the page with this device and split selected.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import llmir
from llmir.backends.export import units
from llmir.base.errors import LlmirError
from llmir.hw import library

MODELS = (
    "llama3.1-8b",
    "llama3.1-70b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "gemma-3-27b",
    "mistral-small-24b",
    "deepseek-v3-671b",
    "glm-4.5-air",
)
DEVICES = ("h100-sxm", "h200", "b200", "mi300x")
TP = (1, 2, 4, 8)
START = {"batch": 16, "prompt": 2000, "generate": 300}

INDEX = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Gallery of llmir</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child { text-align: left; }
small { opacity: .75; display: block; }
</style>
<h1>Gallery</h1>
<p>Each page contains the cost model of llmir, and computes its results in the browser for any batch, prompt
and output length. A cell shows the mean time per output token with the fewest GPUs (of $tp) that hold
$batch requests of $prompt prompt tokens and $generate output tokens. It opens the page at this device and
split.</p>
<table>
<thead><tr><th scope="col">model</th>$head</tr></thead>
<tbody>
$rows
</tbody>
</table>
<p><code>llmir report MODEL --hw $devices --tp $tp</code> writes such a page for any model.
<a href="../index.html">Documentation</a></p>
</html>
""")


@dataclass(frozen=True)
class Cell:
    """The first configuration of a device that fits: its number in the page, ranks and time per token."""

    setup: int
    tp: int
    tpot_s: float


def cell(model: str, device: str) -> Cell | None:
    """Find the smallest number of ranks that holds the requests; None if no number does."""
    for number, tp in enumerate(TP):
        try:
            job = llmir.workload(model, device, parallel=llmir.Parallel(tp=tp), **START)
        except LlmirError:
            continue
        if job.fits:
            return Cell(DEVICES.index(device) * len(TP) + number, tp, float(job.tpot_s))
    return None


def shown(page: str, found: Cell | None) -> str:
    """A cell of the index, with its link."""
    if found is None:
        return "<td>does not fit</td>"
    gpus = f"{found.tp} GPU{'s' if found.tp > 1 else ''}"
    return (
        f'<td><a href="{page}#setup={found.setup}">{units.time(found.tpot_s)}</a><small>{gpus}</small></td>'
    )


def gallery(folder: Path) -> None:
    """Write the pages and their index into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in MODELS:
        page = f"{model}.html"
        text = llmir.page(model, {"hw": DEVICES, "tp": TP}, **START)
        (folder / page).write_text(text, "utf-8")
        cells = "".join(shown(page, cell(model, device)) for device in DEVICES)
        rows.append(
            f'<tr><th scope="row"><a href="{page}">{escape(llmir.load(model).name)}</a></th>{cells}</tr>'
        )
    index = INDEX.substitute(
        START,
        head="".join(f'<th scope="col">{escape(library.load(device).name)}</th>' for device in DEVICES),
        rows="\n".join(rows),
        devices=",".join(DEVICES),
        tp=",".join(map(str, TP)),
    )
    (folder / "index.html").write_text(index, "utf-8")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"gallery: {len(MODELS)} models on {len(DEVICES)} devices, {size / 1e6:.1f} MB, in {folder}")


if __name__ == "__main__":
    gallery(Path(sys.argv[1]))
