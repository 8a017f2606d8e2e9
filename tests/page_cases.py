"""What pages compute, run by node, beside the workloads that they stand for.

    PYTHONPATH=. python -m tests.page_cases 400

compares so many programs; the tests take the first few.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import llmir
from llmir import hw
from llmir.backends.cost import model
from llmir.backends.cost.typed import with_rates
from llmir.backends.export import web
from llmir.backends.export.web.code import Functions
from llmir.backends.export.web.setups import document
from llmir.errors import LlmirError

from .browser import off
from .code_cases import AXES, asked, cases

CAPACITY = "memory_GB"
SPLITS = (
    *AXES["sharding"],
    "shard{dp=2, ep=2}",
    "shard{dp=2, tp=2}",
    "stages{pp=2, micro_batches=2},shard{tp=2}",
)
# Batch of a micro-batch, prompt, generate: corners, where tiles and waves jump, and prompts read in chunks.
POINTS = [(1, 1, 1), (1, 1, 2), (2, 9, 3), (8, 3000, 40), (48, 20_001, 2), (132, 4099, 9), (300, 64, 65)]
FIGURES = ("ttft_s", "ttft_mean_s", "tpot_s", "e2e_s", "output_tokens_per_s", "busy_output_tokens_per_s")
STEP = ("time_s", "ideal_time_s", "error")
AMOUNTS = ("flops", "read_bytes", "write_bytes", "comm_bytes")
OP = ("name", "time_s", "ideal_time_s", *AMOUNTS, "bound", "basis", "error")

# What a page says of a set-up `first` at each point, with each of the typed-in rates.
SAID = """const setups = typed.map((rates) => first.given(rates));
const found = setups.map((setup) => points.map(([batch, prompt, generate]) => {
  const at = { batch, prompt, generate }, { prefill, decode } = setup.steps(at);
  const said = (of) => of && { ...few(of, step), ops: of.ops.map((each) => few(each, op)) };
  const [figures, memory] = [setup.request(at), setup.memory(at)];
  return { figures, memory, prefill: said(prefill), decode: said(decode) };
}));
process.stdout.write(JSON.stringify(found));
"""

RUN = (
    """
import { readFileSync } from "fs";
import { Setup, once } from "./price.mjs";
const { told, points, typed, step, op } = JSON.parse(readFileSync("given.json"));
const few = (from, names) => Object.fromEntries(names.map((name) => [name, from[name]]));
(0, eval)(readFileSync("functions.js", "utf8"));
const first = new Setup(told.setups[0], told.tables, once(globalThis.llmirFunctions), told);
"""
    + SAID
)


def differs(priced: Any, job: Any) -> float:
    """The largest relative difference of what a page computes to a workload; bytes are whole numbers."""
    figures, memory = priced["figures"], priced["memory"]
    pairs = [(figures[name], getattr(job, name)) for name in FIGURES if name in figures]
    pairs += [(memory["bytes"], job.peak_bytes(job.batch)), (memory["fits"], job.fits)]
    pairs += [(memory["largest"], job.max_batch), (memory["capacity"], job.capacity_bytes)]
    for name in ("prefill", "decode"):
        step, own = getattr(job, name), priced[name]
        assert (step is None) == (own is None)
        if step is None:
            continue
        pairs += [(own[key], getattr(step, key)) for key in STEP]
        assert [op["name"] for op in own["ops"]] == [op.name for op in step.work]
        for one, op in zip(own["ops"], step.work, strict=True):
            pairs += [
                (value, str(op.basis) if key == "basis" else getattr(op, key)) for key, value in one.items()
            ]
    return max(off(found, expected) for found, expected in pairs)


def told_of(setup: web.Setup) -> tuple[Any, Functions]:
    """What the page of a set-up is told."""
    return document([setup], {"batch": 1, "prompt": 1, "generate": 1}, "")


def run(told: Any, functions: Functions, points: list[Any], typed: list[dict[str, float]]) -> Any:
    """What the page of a set-up computes at points, for each set of rates that are typed in."""
    given = json.dumps({"told": told, "points": points, "typed": typed, "step": STEP, "op": OP})
    price = files(web).joinpath("price.js").read_text(encoding="utf-8")
    texts = {
        "price.mjs": price,
        "functions.js": functions.source,
        "given.json": given,
        "run.mjs": RUN,
    }
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        ask = ["node", "run.mjs"]
        done = subprocess.run(ask, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


class Way(NamedTuple):
    """How a page comes to what it computes."""

    told_of: Callable[[web.Setup], tuple[Any, Any]]
    run: Callable[..., Any]


AS_A_FILE = Way(told_of, run)


def compared(case: dict[str, Any], points: list[Any], way: Way = AS_A_FILE) -> float | None:
    """The same of a case of `code_cases` at points; None of one that there is not."""
    try:
        program, priced = asked(case)
        device = hw.load(priced.pop("hw"))
        by = model(device, priced.get("cost"), priced.get("engine"), priced.get("efficiency"))
        told, functions = way.told_of(web.Setup({"hw": device.name}, program, by))
        points = [(batch * program.micro_batches, *rest) for batch, *rest in points]
        typed = [{}, *changes(told, random.Random(str(case)))]
        found = way.run(told, functions, points, typed)
        jobs = [
            [
                llmir.workload(
                    program, other, **dict(zip(("batch", "prompt", "generate"), at, strict=True)), **priced
                )
                for at in points
            ]
            for other in (changed(device, rates) for rates in typed)
        ]
    except LlmirError:
        return None
    return max(map(differs, chain(*found), chain(*jobs)))


def changes(told: Any, draw: random.Random) -> list[dict[str, float]]:
    """Rates that somebody may type in: one of them, and all."""
    (setup,) = told["setups"]
    rates, memory = told["tables"][setup["rates"]], setup["sizes"]
    one = draw.choice(rates)
    new = {of["key"]: max(of["value"] * draw.choice((0.3, 0.9, 1.1, 4)), of["least"] * 1.01) for of in rates}
    if memory:
        low, high = memory
        size = max(low, int(setup["capacity"] * draw.uniform(0.7, 1.5)))
        new[CAPACITY] = min(size, high - 1) if high else size
    return [{one["key"]: new[one["key"]]}, new]


def changed(device: hw.Device, rates: dict[str, float]) -> hw.Device:
    """The device with these, as a file would state them that extends its own."""
    other = with_rates(device, rates)
    if CAPACITY in rates:
        return replace(other, memory_bytes=int(rates[CAPACITY]), physical_bytes=None)
    return other


def known(points: list[Any], seed: int = 0, way: Way = AS_A_FILE) -> Iterator[tuple[dict[str, Any], float]]:
    """Cases that there are, each with its difference."""
    for case in cases(seed, {**AXES, "sharding": SPLITS}):
        if (found := compared(case, points, way)) is not None:
            yield case, found


def main(count: int) -> None:
    draw = random.Random(0)
    more = [
        (draw.choice((1, 7, 32, 100, 500)), int(2 ** draw.uniform(0, 16)), draw.choice((1, 2, 30)))
        for _ in range(20)
    ]
    for _, (case, found) in zip(range(count), known(POINTS + more), strict=False):
        if found > 1e-12:
            print(found, case, flush=True)
    print(f"{count} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]))
