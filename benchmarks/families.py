"""What families cost llmir itself: loading each beside Llama-3.1-8B, and grids with windows beside none.

    python benchmarks/families.py [--format table|json] [--only WORD]

Of each class the bundled model with the most layers is loaded from its config, in turns with Llama-3.1-8B,
and the ratio of the medians stands before it, worst first. A grid is 1000 contexts × 100 batches of a program
with windows, against the same program whose windows were taken out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # however it is run

from speed import timed

YARDSTICK = "llama3.1-8b"
LOADING, WINDOWS = 3.0, 1.5  # times as long, at most
WINDOWED = {
    "mistral-7b-v0.1": {"sliding_window": None},
    "gemma-3-12b": {"layer_types": ["full_attention"] * 48},
    "gpt-oss-20b": {"layer_types": ["full_attention"] * 24},
}


@dataclass(frozen=True)
class Ratio:
    """Of what was timed, how many times as long as the yardstick it took, and its own seconds."""

    name: str
    target: float
    ratio: float
    seconds: float


def loading(only: str) -> Iterator[Ratio]:
    """For each class that has a preset."""
    import llmir
    from llmir.frontends.models.presets import PRESETS, find

    deepest: dict[str, tuple[int, str]] = {}
    for name in PRESETS:
        facts = llmir.load(name).facts
        found = int(facts["layers"]), name
        deepest[str(facts["architecture"])] = max(deepest.get(str(facts["architecture"]), (0, "")), found)
    base = find(YARDSTICK)
    assert base
    for architecture, (_, name) in sorted(deepest.items()):
        preset = find(name)
        assert preset
        if only in architecture:
            # In turns, in pairs: a machine that slows down slows both.
            pairs = [(_once(base.config), _once(preset.config)) for _ in range(9)][2:]
            ratio = median(its / llamas for llamas, its in pairs)
            yield Ratio(f"{architecture} ({name})", LOADING, ratio, median(its for _, its in pairs))


def _once(config: Any) -> float:
    """Processor seconds to load it, the mean of three."""
    import llmir

    start = process_time()
    for _ in range(3):
        llmir.load(config)
    return (process_time() - start) / 3


def grids(only: str) -> Iterator[Ratio]:
    """A step at each of many contexts, of models whose layers have windows."""
    import numpy as np

    import llmir
    from llmir.frontends.models.presets import find

    batch, context = np.arange(1, 101)[:, None], np.arange(1, 1001)[None, :] * 128
    for name, without in WINDOWED.items():
        preset = find(name)
        assert preset
        if only not in name:
            continue
        times = []
        for config in (preset.config, {**preset.config, **without}):
            program = llmir.run(llmir.load(config), llmir.pipeline_of())

            def grid(program: llmir.Program = program) -> object:
                step = llmir.analyze(program, "h100-sxm", batch=batch, new=1, context=context)
                return step.time_s, step.peak_memory_bytes

            times.append(timed(grid, 0.5))
        yield Ratio(f"grid over contexts, {name}", WINDOWS, times[0] / times[1], times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="What families cost llmir itself.")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    arguments = parser.parse_args()
    found = [*sorted(loading(arguments.only), key=lambda r: -r.ratio), *grids(arguments.only)]
    if arguments.format == "json":
        print(json.dumps([asdict(r) for r in found], indent=2))
        return
    print(f"{'ratio':>6}{'target':>8}{'ms':>9}  what")
    for r in found:
        over = "  over target" if r.ratio > r.target else ""
        print(f"{r.ratio:6.2f}{r.target:8.1f}{1e3 * r.seconds:9.2f}  {r.name}{over}")


if __name__ == "__main__":
    main()
