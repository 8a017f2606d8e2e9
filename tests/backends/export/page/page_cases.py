"""What pages compute, run by node, beside the workloads that they stand for.

    PYTHONPATH=. python -m tests.backends.export.page.page_cases 400

compares so many programs; the tests take the first few.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

import llmir
from llmir.backends.cost.models import model
from llmir.backends.cost.transfer import GIGA, rates, with_rates
from llmir.backends.export import page
from llmir.backends.export.page.functions import Functions
from llmir.backends.export.page.setups import Setup, document
from llmir.base.errors import LlmirError
from llmir.hw import library
from llmir.hw.device import Device
from tests.backends.step.code_cases import AXES, asked, cases
from tests.browser import off
from tests.flat import records

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

# What a page says of a set-up at each point, with factors of its device's rates typed in, as its fields
# take them: of the one that is `some`, or of all, in the order of the fields. Or why such cannot be.
SAID = """import { fields, fitting, wrong } from "./rates.js";
import { slices } from "./lanes.js";
const known = fields(first), { max, min } = Math;
const few = (from, names) => Object.fromEntries(names.map((name) => [name, from[name]]));
const inside = ({ usual, low, high }, by) => max(low * (1 + 1e-9), min(usual * by, high * (1 - 1e-9)));
const found = typed.map(({ factors = [], some }) => {
  const typed = ({ key }, i) => factors.length && [undefined, key, i].includes(some);
  const changed = known.filter(typed).map((field, i) => ({ field, value: inside(field, factors[i % 30]) }));
  const units = Object.fromEntries(changed.map(({ field, value }) => [field.key, value]));
  const why = changed.map(({ field, value }) => wrong(field, value, first)).filter(Boolean);
  if (why.length) return { why, units };
  const { rates } = fitting(first, units), setup = first.given(rates);
  return { units, rates, points: points.map(([batch, prompt, generate]) => {
    const at = { batch, prompt, generate }, { prefill, decode } = setup.steps(at);
    const ops = (of) => of.ops.map((each) => few(each, op));
    const said = (of) => of && { ...few(of, step), ops: ops(of), lanes: slices(of, setup.parts) };
    const [figures, memory] = [setup.request(at), setup.memory(at)];
    return { figures, memory, prefill: said(prefill), decode: said(decode) };
  }) };
});
process.stdout.write(JSON.stringify(found));
"""
MODULES = "price", "rates", "lanes", "format", "dom"

RUN = (
    """
import { readFileSync } from "fs";
import { Setup, once } from "./price.js";
const { told, points, typed, step, op } = JSON.parse(readFileSync("given.json"));
(0, eval)(readFileSync("functions.txt", "utf8"));
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


def told_of(setup: Setup) -> tuple[Any, Functions]:
    """What the page of a set-up is told."""
    return document([setup], {"batch": 1, "prompt": 1, "generate": 1}, "")


def run(told: Any, functions: Functions, points: list[Any], typed: list[Any]) -> Any:
    """What the page of a set-up computes at points, for each set of rates that are typed in."""
    given = {"told": told, "points": points, "typed": typed, "step": STEP, "op": OP}
    return by_node(
        {"functions.txt": functions.source, "given.json": json.dumps(given), "run.js": RUN}, MODULES
    )


def by_node(texts: dict[str, str], modules: Iterable[str]) -> Any:
    """What `run.js` prints beside some of the page's modules and other files."""
    texts = {**texts, "package.json": '{"type": "module"}'}
    texts |= {
        f"{name}.js": files(page).joinpath(f"{name}.js").read_text(encoding="utf-8") for name in modules
    }
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        ask = ["node", "run.js"]
        done = subprocess.run(ask, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


class Way(NamedTuple):
    """How a page comes to what it computes."""

    told_of: Callable[[Setup], tuple[Any, Any]]
    run: Callable[..., Any]


AS_A_FILE = Way(told_of, run)


class Compared(NamedTuple):
    """How far a page is from Python at most: at a device's rates, at others; how many of those cannot be."""

    plain: float
    typed: float
    sets: int
    refused: int


def compared(
    case: dict[str, Any], points: list[Any], way: Way = AS_A_FILE, typed: list[Any] | None = None
) -> Compared | None:
    """A case of `code_cases` at points, with rates as `changes` has them; None of one that there is not.

    What a page says cannot be, Python refuses too, and nothing else.
    """
    try:
        program, device, priced, told, functions = page_of(case, way)
    except LlmirError:
        return None
    points = [(batch * program.micro_batches, *rest) for batch, *rest in points]
    jobs = jobs_of(program, device, points, priced)
    typed = changes(random.Random(str(case))) if typed is None else typed
    first, *others = way.run(told, functions, points, [{}, *typed])
    plain, far, refused = max(map(differs, first["points"], jobs)), 0.0, 0
    for found in others:
        if "why" in found:
            with pytest.raises(LlmirError):
                units = {rate.key: rate.unit for rate in rates(device)}
                si = {key: value * units.get(key, GIGA) for key, value in found["units"].items()}
                jobs_of(program, changed(device, si), points, priced)[0].capacity_bytes  # noqa: B018
            refused += 1
        else:
            jobs = jobs_of(program, changed(device, found["rates"]), points, priced)
            far = max(far, *map(differs, found["points"], jobs))
    return Compared(plain, far, len(others), refused)


def page_of(case: dict[str, Any], way: Way = AS_A_FILE) -> tuple[Any, ...]:
    """A case's program, its device, how it is priced, and what its page is told; LlmirError of none."""
    program, priced = asked(case)
    device = library.load(priced.pop("hw"))
    by = model(device, priced.get("cost"), priced.get("engine"), priced.get("efficiency"))
    told, functions = way.told_of(Setup({"hw": device.name}, program, by))
    at = program.micro_batches, 1, 1
    jobs_of(program, device, [at], priced)[0].capacity_bytes  # noqa: B018  it may have none
    return program, device, priced, told, functions


def jobs_of(
    program: llmir.Program, device: Device, points: list[Any], priced: dict[str, Any]
) -> list[llmir.Workload]:
    """Workloads at points."""
    names = "batch", "prompt", "generate"
    return [
        llmir.workload(
            program, device, **records(llmir.workload, **dict(zip(names, at, strict=True)), **priced)
        )
        for at in points
    ]


def changes(draw: random.Random) -> list[dict[str, Any]]:
    """Factors of rates that somebody may type in: of one of them, of all, near their own and anywhere."""
    near, far = ([math.exp(draw.uniform(-wide, wide)) for _ in range(30)] for wide in (0.25, math.log(100)))
    return [{"factors": far[:1], "some": draw.randrange(3)}, {"factors": near}, {"factors": far}]


def changed(device: Device, rates: dict[str, float]) -> Device:
    """The device with these, as a file would state them that extends its own."""
    other = with_rates(device, rates)
    if CAPACITY in rates:
        return replace(other, memory_bytes=int(rates[CAPACITY]), physical_bytes=None)
    return other


def known(
    points: list[Any], seed: int = 0, way: Way = AS_A_FILE
) -> Iterator[tuple[dict[str, Any], Compared]]:
    """Cases that there are, each with its differences."""
    for case in cases(seed, {**AXES, "sharding": SPLITS}):
        if (found := compared(case, points, way)) is not None:
            yield case, found


def main(count: int) -> None:
    draw = random.Random(0)
    more = [
        (draw.choice((1, 7, 32, 100, 500)), int(2 ** draw.uniform(0, 16)), draw.choice((1, 2, 30)))
        for _ in range(20)
    ]
    all_of_them = []
    for _, (case, found) in zip(range(count), known(POINTS + more), strict=False):
        all_of_them.append(found)
        if max(found.plain, found.typed) > 1e-12:
            print(found, case, flush=True)
    plain, typed, sets, refused = zip(*all_of_them, strict=True)
    print(f"{len(plain)} programs at {len(POINTS + more)} points: at most {max(plain):.1e} off")
    print(f"{sum(sets)} times with rates typed in: {max(typed):.1e}; {sum(refused)} refused by both")


if __name__ == "__main__":
    main(int(sys.argv[1]))
