"""Requests over time, on an engine that fills its steps as its policy does: `simulate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import convert
from .api import _model
from .errors import InputError
from .graph import Program
from .verify import checked_program

if TYPE_CHECKING:
    from .backends.cost import CostModel
    from .backends.simulation.load import Load
    from .backends.simulation.replications import Replications
    from .backends.simulation.simulation import Simulation

REQUESTS = 10_000_000  # at most: as many as memory holds what is known of


def simulate(
    program: Program,
    hw: Any,
    *,
    rate: float | None = None,
    closed: int | None = None,
    trace: str | os.PathLike[str] | None = None,
    speed: float = 1.0,
    prompt: int | str | None = None,
    generate: int | str | None = None,
    requests: int | None = None,
    prefix_hits: float = 0.0,
    seed: int | None = None,
    warm_up: int = 0,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    chunked_prefill: bool | None = None,
    memory_utilization: float | None = None,
    reserve_bytes: int = 0,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Simulation:
    """Requests that come one after another, served step by step as the engine's policy fills its steps.

    They come at random, `rate` a second; from as many users in a `closed` loop, each of whom asks again when
    answered; or as a `trace` has them, `speed` times as fast (formats: docs/serving.md). `prompt` (2048) and
    `generate` (128) are tokens, or laws such as `uniform:100,900` and `lognormal:512,0.6` (median, deviation
    of the logarithm), of 1000 `requests`; a trace says all three. A share `prefix_hits` of each prompt is
    cached already. `chunked_prefill` says whether prompts are read in chunks, by default as the engine does.
    The first `warm_up` requests do not count in latencies, nor in goodput, which is of requests within
    `max_ttft_s` and `max_tpot_s`. Memory and prices are as in `workload`; equal calls give equal results.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> served = llmir.simulate(model, "h100-sxm", rate=2, prompt=512, generate="uniform:10,50", requests=20)
    >>> len(served.ttft_s), served.latencies["tpot"].p99 < 0.02, int(served.preemptions.sum())
    (20, True, 0)
    """
    from .backends.analysis.workload import Workload
    from .backends.simulation.simulate import simulate as run

    model, program = _model(hw, cost, engine, efficiency), checked_program(program)
    drawn = {"prompt": prompt, "generate": generate, "requests": requests, "seed": seed}
    load = _load(rate, closed, trace, convert.number("speed", speed, 1e-6), drawn)
    load = load.hit(convert.number("prefix_hits", prefix_hits, most=1))
    counted = {
        "warm_up": convert.integer("warm_up", warm_up),
        "max_ttft_s": _limit("max_ttft_s", max_ttft_s),
        "max_tpot_s": _limit("max_tpot_s", max_tpot_s),
    }
    chunked = None if chunked_prefill is None else convert.flag("chunked_prefill", chunked_prefill)
    memory = memory_utilization, reserve_bytes, model, "exact"
    limits = max_model_len, max_num_seqs, max_batched_tokens
    return run(Workload(program, model.device, 1, 1, 1, *memory, *limits), load, chunked, **counted)


def replicate(program: Program, hw: Any, times: int, *, seed: int = 0, **asked: Any) -> Replications:
    """`simulate` so many times, by seeds one after another: means over the runs, with intervals of 95%.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> found = llmir.replicate(model, "h100-sxm", 5, rate=9, prompt="uniform:99,999", requests=200)
    >>> mean, half = found.latencies["ttft"]["p90"]
    >>> len(found.runs), 0 < half < mean
    (5, True)
    """
    from .backends.simulation.replications import Replications

    if asked.get("trace") is not None:
        raise InputError("replications: a trace is the same each time, leave one of them out")
    first, count = convert.integer("seed", seed), convert.integer("replications", times, 2, 1000)
    return Replications(tuple(simulate(program, hw, seed=first + run, **asked) for run in range(count)))


def _load(rate: Any, closed: Any, trace: Any, speed: float, drawn: dict[str, Any]) -> Load:
    """The requests; InputError where they come in no way, or in two, or are said twice."""
    from .backends.simulation.simulate import drawn as draw
    from .backends.simulation.trace import trace as read

    if sum(way is not None for way in (rate, closed, trace)) != 1:
        raise InputError("simulate: say how requests come, by one of rate, closed and trace")
    if trace is not None:
        if said := next((name for name, value in drawn.items() if value is not None), None):
            raise InputError(f"{said}: a trace says its requests, leave it out")
        return read(convert.path("trace", trace), speed)
    if speed != 1:
        raise InputError(f"speed: {speed:g}; it is of a trace, say rate instead")
    usual = {"prompt": 2048, "generate": 128, "requests": 1000, "seed": 0}
    asked = {name: usual[name] if value is None else value for name, value in drawn.items()}
    return draw(
        convert.integer("requests", asked["requests"], 1, REQUESTS),
        asked["prompt"],
        asked["generate"],
        rate=None if rate is None else convert.number("rate", rate, 1e-6, 1e9),  # a request a nanosecond
        users=None if closed is None else convert.integer("closed", closed, 1, REQUESTS),
        seed=convert.integer("seed", asked["seed"]),
    )


def _limit(name: str, value: Any) -> float | None:
    return None if value is None else convert.number(name, value, above=True)
