"""Requests over time, on an engine that fills its steps as its policy does: `simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import convert
from .api import _model
from .errors import InputError
from .graph import Program
from .verify import checked_program

if TYPE_CHECKING:
    from .backends.cost import CostModel
    from .backends.simulation.simulation import Simulation

REQUESTS = 10_000_000  # at most: as many as memory holds what is known of


def simulate(
    program: Program,
    hw: Any,
    *,
    rate: float | None = None,
    closed: int | None = None,
    prompt: int | str = 2048,
    generate: int | str = 128,
    requests: int = 1000,
    prefix_hits: float = 0.0,
    seed: int = 0,
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

    They come at random, `rate` a second, or from as many users in a `closed` loop, each of whom asks again
    when answered. `prompt` and `generate` are tokens, or laws such as `uniform:100,900` and
    `lognormal:512,0.6` (median, deviation of the logarithm). A share `prefix_hits` of each prompt is cached
    already. `chunked_prefill` says whether prompts are read in chunks, by default as the engine does. Limits,
    memory and prices are as in `workload`; equal calls give equal results.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> served = llmir.simulate(model, "h100-sxm", rate=2, prompt=512, generate="uniform:10,50", requests=20)
    >>> len(served.ttft_s), served.latencies["tpot"].p99 < 0.02, int(served.preemptions.sum())
    (20, True, 0)
    """
    from .backends.analysis.workload import Workload
    from .backends.simulation.simulate import drawn
    from .backends.simulation.simulate import simulate as run

    model, program = _model(hw, cost, engine, efficiency), checked_program(program)
    if (rate is None) == (closed is None):
        raise InputError("simulate: say how requests come, by rate or closed, and by one of them")
    if rate is not None:
        rate = convert.number("rate", rate, 1e-6)
    count = convert.integer("requests", requests, 1, REQUESTS)
    load = drawn(
        count,
        prompt,
        generate,
        rate=rate,
        users=None if closed is None else convert.integer("closed", closed, 1, REQUESTS),
        prefix_hits=convert.number("prefix_hits", prefix_hits, most=1),
        seed=convert.integer("seed", seed),
    )
    chunked = None if chunked_prefill is None else convert.flag("chunked_prefill", chunked_prefill)
    limits = max_model_len, max_num_seqs, max_batched_tokens
    memory = memory_utilization, reserve_bytes, model, "exact"
    return run(Workload(program, model.device, 1, 1, 1, *memory, *limits), load, chunked)
