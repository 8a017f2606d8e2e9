"""Programs that cover all pairs of model, device, engine, precision, sharding and cost model.

    PYTHONPATH=. python -m tests.backends.step.code_cases 400

compares the code of so many with their prices, and of each twentieth the loops that numba compiles; the tests
take the first few.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import llmir
from llmir.backends.step.evaluate import StepEvaluator
from llmir.backends.step.functions import LONGEST, StepFunction, StepFunctionPair
from llmir.backends.tape import numpy
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.base.errors import LlmirError
from llmir.ir.sizes.binding import Binding
from tests.flat import records

AXES: dict[str, tuple[Any, ...]] = {
    "model": (
        *("Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3-671B", "gpt-oss-20b", "Gemma-3-4B", "Mamba-1.4B"),
        *("Qwen3-Next-80B-A3B", "Jamba-v0.1", "MiniMax-M1", "Kimi-Linear-48B-A3B", "DeepSeek-V3.2-671B"),
        *("Llama-4-Scout-17B-16E", "GPT-2", "DeepSeek-V4-Flash", "Gemma-3n-E2B", "LFM2-350M", "Zamba2-1.2B"),
        *("MiMo-V2-Flash", "Falcon-7B", "Mixtral-8x7B-v0.1", "GLM-4.5-Air", "Command-R-7B", "Phi-4-14B"),
    ),
    "device": ("h100-sxm", "mi300x", "b200", "a100-80-sxm", "rtx4090", "h20", "cpu", "dgx-h100", "l40s"),
    "engine": (None, "vllm", "sglang", "trtllm"),
    "precision": ("", "quantize{weights=fp8, kv=fp8}", "quantize{weights=int4}"),
    "sharding": (
        "",
        "shard{tp=2}",
        "shard{tp=4, ep=4}",
        "stages{pp=2}",
        "stages{pp=2},shard{tp=2}",
        "shard{dp=2}",
    ),
    "cost": ("default", "ideal", "efficiency"),
}
# Batch, new tokens, context: corners, where tiles and waves jump, and beyond what tiles divide.
STEPS = [
    *itertools.product((1, 2, 8, 64, 132), (1,), (0, 1, 63, 4096)),
    *itertools.product((1, 2, 16), (2, 8, 9, 64, 65, 1000, 4099), (0, 1, 4095)),
]
NEW = {1: [step for step in STEPS if step[1] == 1], 9: [step for step in STEPS if step[1] > 1]}


def cases(seed: int = 0, axes: Mapping[str, tuple[Any, ...]] = AXES) -> Iterator[dict[str, Any]]:
    """Choices along all axes, of which each has a pair that none before has, and then any."""
    draw, seen = random.Random(seed), set[Any]()
    for fresh in (True, False):
        for _ in range(20_000):
            case = {axis: draw.choice(values) for axis, values in axes.items()}
            pairs = set(itertools.combinations(case.items(), 2))
            if not fresh or pairs - seen:
                seen |= pairs
                yield case


def asked(case: dict[str, Any]) -> tuple[llmir.Program, dict[str, Any]]:
    """Its program, and how it is priced; LlmirError for a kernel, a link or an axis that is not there."""
    how = ",".join(part for part in (case["precision"], case["sharding"]) if part)
    priced: dict[str, Any] = {
        "default": {"engine": case["engine"]},
        "ideal": {"cost": "ideal"},
        "efficiency": {"efficiency": {"memory": 0.8, "launch": 4e-6}},
    }[case["cost"]]
    program = llmir.run(llmir.load(case["model"]), llmir.pipeline_of())
    return llmir.run(program, how) if how else program, {"hw": case["device"], **priced}


def plans(case: dict[str, Any]) -> dict[int, StepEvaluator]:
    """The plans of its decode and of its prefill, by new tokens; none of what there is none of."""
    try:
        program, priced = asked(case)
        steps = {
            new: llmir.analyze(program, **records(llmir.analyze, batch=8, new=new, **priced)) for new in NEW
        }
        return {new: step.plan for new, step in steps.items() if step.plan.prices}
    except LlmirError:
        return {}


def differences(plan: StepEvaluator, new: int) -> tuple[float, float, float]:
    """Of code to prices at all steps: the largest relative ones of a row and of the step, and bytes."""
    code = StepFunction(lambda at: (plan.timing(at).step, peak(plan, at)), 1 if new == 1 else None)
    tape = Tape(SCALARS)
    symbols = Binding(**{name: tape.symbol(name) for name in "BTC"})
    prices = list(dict.fromkeys(plan.prices))
    ops = numpy.compiled(Function.of(tape, "BTC", [price.time(symbols) for price in prices]))
    columns = [np.array(column, dtype=float) for column in zip(*NEW[new], strict=True)]
    at = Binding(**dict(zip("BTC", columns, strict=True)))
    off = [_off(many, price.time(at)) for many, price in zip(ops(*columns), prices, strict=True)]
    whole, memory = 0.0, 0.0
    rows = StepFunctionPair(lambda at: plan.timing(at).stages, plan.figures, 1 if new == 1 else None)
    for after in (1 << 30, 0):  # kernels called, and what decides nothing left out
        code.after = rows.after = after
        code._kept.clear()
        rows._kept.clear()
        time, bytes = code.grid(*columns)
        whole = max(whole, _off(time, _step(plan, at)))
        memory = max(memory, float(np.abs(bytes - peak(plan, at)).max()))
        for step in NEW[new]:
            point = Binding(**dict(zip("BTC", step, strict=True)))
            off += map(_off, rows.both(point)[1](), plan.figures(point))
            time, bytes = code.point(*step)
            whole = max(whole, _off(time, _step(plan, point)))
            memory = max(memory, abs(bytes - peak(plan, point)))
    return max(off), whole, memory


def looped(plan: StepEvaluator, new: int) -> tuple[float, float]:
    """The same of a grid that numba loops over: of the step, and bytes."""
    code = StepFunction(
        lambda at: (plan.timing(at).step, peak(plan, at)), 1 if new == 1 else None, 0, "numba"
    )
    batch = np.arange(1, 321, dtype=float)[:, None]
    context = np.concatenate((np.arange(8.0), np.geomspace(8, 2e5, 312).round()))
    at = Binding(B=batch, T=new, C=context[None])
    time, bytes = code.grid(batch, new, context[None])
    found = _off(time, _step(plan, at)), float(np.abs(bytes - peak(plan, at)).max())
    assert (("last", "numba") in code.short._compiled) == (len(code.short["last"].live) <= LONGEST)
    return found


def _step(plan: StepEvaluator, at: Binding) -> Number:
    """The step by the prices, never by code."""
    return plan.timing(at, plan.busy(at)).step


def peak(plan: StepEvaluator, at: Binding) -> Number:
    return plan.fullest(lambda memory: memory.peak(at), at)


def _off(found: Number, expected: Number) -> float:
    return float(np.max(np.abs(np.asarray(found) - expected) / np.maximum(np.abs(expected), 1e-30)))


def main(count: int) -> None:
    compared = 0
    for case in cases():
        known = plans(case)
        for new, plan in known.items():
            off = differences(plan, new)
            loops = looped(plan, new) if compared % 20 == 0 else (0.0, 0.0)
            if max(*off[:2], loops[0]) > 1e-12 or off[2] or loops[1]:
                print(off, loops, new, case, flush=True)
        compared += bool(known)
        if compared == count:
            break
    print(f"{compared} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]))
