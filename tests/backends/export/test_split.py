"""One split of a step: table, JSON, CSV, timeline, trace and page have equal rows, and no row is below 0."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import llmir
from llmir.backends.export import units, wording
from llmir.backends.export.page.setups import Setup
from llmir.backends.export.timeline import trace
from llmir.backends.step.report import Report
from llmir.base.errors import LlmirError
from llmir.base.formats import export
from llmir.frontends.models.presets import PRESETS

from . import emit_cases
from .page import page_cases

AXES: Mapping[str, tuple[Any, ...]] = {
    "model": tuple(PRESETS),
    "engine": ("vllm", "sglang", "trtllm", "hf-transformers"),
    "device": ("h100-sxm", "b200", "a100-80-sxm", "l40s", "mi300x", "rtx4090"),
    "types": ("", "quantize{weights=fp8, activations=fp8}", "quantize{weights=int4}", "quantize{kv=fp8}"),
    "split": (
        *("", "shard{tp=2}", "shard{tp=8}", "shard{dp=2}", "shard{tp=2, dp=2}", "shard{dp=4, ep=4}"),
        *("shard{tp=2, sp=1}", "stages{pp=2, micro_batches=2}", "shard{tp=2},stages{pp=2}"),
    ),
    "batch": (1, 8, 64),
    "prompt": (1, 100, 3000),
}
QUICK, ALL = 12, 400
PAGES = 5  # programs, of which one has a page: its functions take a second
SUM, EQUAL = 1e-15, 1e-12  # relative to the step

SCRIPT = """
import { readFileSync } from "fs";
import { Setup, once } from "./price.js";
const { told, at } = JSON.parse(readFileSync("given.json"));
(0, eval)(readFileSync("functions.txt", "utf8"));
const setup = new Setup(told.setups[0], told.tables, once(globalThis.llmirFunctions), told);
const row = ({ name, total_s, share }) => [name, total_s, share];
const rows = (of) => of && [...of.ops, ...of.extras].map(row);
const { prefill, decode } = setup.steps(at);
process.stdout.write(JSON.stringify({ prefill: rows(prefill), decode: rows(decode) }));
"""


def jobs(count: int, seed: int = 24) -> Iterator[llmir.Workload]:
    """So many workloads of bundled models, as an engine runs them; LlmirErrors are no workloads."""
    draw = random.Random(seed)
    while count:
        case = {axis: draw.choice(values) for axis, values in AXES.items()}
        passes = [*filter(None, [case["types"], llmir.pipeline_of(case["engine"]), case["split"]])]
        try:
            program = llmir.run(llmir.load(case["model"]), passes)
            yield llmir.workload(
                program,
                case["device"],
                batch=case["batch"] * program.micro_batches,
                prompt=case["prompt"],
                generate=3,
                estimation=llmir.Estimation(engine=case["engine"]),
            )
        except LlmirError:
            continue
        count -= 1


def check_rows(step: Report) -> dict[str, float]:
    """Seconds of all repeats by row; they add up to the step on every stage."""
    assert min(row.time_s for row in step.ops) >= 0
    assert all(0 <= row.share <= 1 for row in step.ops)
    for stage in step.stages:
        times = [row.total_s for row in step.ops if row.stage == stage.stage]
        assert math.fsum(times) == pytest.approx(step.time_s, rel=SUM, abs=0)
        parts = (stage.ops_s, stage.overhead_s, stage.bubble_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(step.time_s, rel=SUM, abs=0)
    assert sum(step.bound.values()) == pytest.approx(1, rel=EQUAL)
    assert min(step.overhead.values()) >= 0
    return {row.name: row.total_s for row in step.ops}


def check_exports(job: llmir.Workload, rows: Mapping[str, Mapping[str, float]]) -> None:
    """JSON and CSV have the rows of each phase."""
    phases = json.loads(str(export(job, "json")))["phases"]
    lines = list(csv.DictReader(io.StringIO(str(export(job, "csv")))))
    for phase, expected in rows.items():
        assert {op["name"]: op["time_s"] * op["repeat"] for op in phases[phase]["ops"]} == expected
        of = [line for line in lines if line["phase"] == phase]
        assert {line["name"]: float(line["time_s"]) * int(line["repeat"]) for line in of} == expected


def check_table(step: Report) -> None:
    """The printed table has the time of each row."""
    words = {op.name: units.time(op.time_s) for op in step.ops}
    headings, cells, _ = wording.flat(step)
    shown = [dict(zip(headings, line, strict=True)) for line in cells[:-1]]
    assert {line["op"]: line["time"] for line in shown} == words
    assert "-" not in "".join(line["time"] + line["share"] for line in shown)


def check_timeline(step: Report, rows: Mapping[str, float]) -> None:
    """Slices of a row add up to it, and so do the events of a trace, which has whole nanoseconds."""
    sums, events = defaultdict[str, float](float), defaultdict[str, list[float]](list)
    slices = step.timeline()
    for s in slices:
        assert s.time_s >= 0
        sums[s.op] += s.time_s
    assert dict(sums) == pytest.approx(dict(rows), rel=0, abs=EQUAL * step.time_s)
    ops = {s.path: s.op for s in slices}
    for event in trace(step)["traceEvents"]:
        if event["ph"] == "X" and "micro_batch" in event["args"]:
            events[ops[event["args"]["path"]]].append(event["dur"])
    for name, found in events.items():
        assert 1e-6 * sum(found) == pytest.approx(rows[name], rel=EQUAL, abs=1e-9 * len(found))


def check_page(job: llmir.Workload, rows: Mapping[str, Mapping[str, float]]) -> None:
    """What the page of the set-up computes in node."""
    told, functions = page_cases.told_of(Setup({"hw": job.device.name}, job.program, job.model))
    at = {"batch": job.batch, "prompt": job.prompt, "generate": job.generate}
    given = json.dumps({"told": told, "at": at})
    texts = {"functions.txt": functions.source, "given.json": given, "run.js": SCRIPT}
    found = page_cases.by_node(texts, ["price"])
    for phase, expected in rows.items():
        times = {name: total_s for name, total_s, _ in found[phase]}
        assert times == pytest.approx(dict(expected), rel=0, abs=EQUAL * job.steps[phase].time_s)
        assert min(times.values()) >= 0
        assert all(0 <= share <= 1 for _, _, share in found[phase])


def check_job(job: llmir.Workload, *, page: bool) -> None:
    """All that shows the steps of a workload; a page needs node."""
    rows: dict[str, dict[str, float]] = {}
    for phase, step in job.steps.items():
        rows[phase] = check_rows(step)
        check_table(step)
        check_timeline(step, rows[phase])
    check_exports(job, rows)
    if page and emit_cases.available():
        try:
            check_page(job, rows)
        except LlmirError:
            return  # a page has no images, and no prompt of which layers see a part


def check(count: int) -> None:
    for number, job in enumerate(jobs(count)):
        check_job(job, page=number % PAGES == 0)


def test_a_step_has_one_split() -> None:
    check(QUICK)


@pytest.mark.slow
def test_steps_of_many_programs_have_one_split() -> None:
    check(ALL)
