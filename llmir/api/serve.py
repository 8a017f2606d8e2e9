"""Simulate an engine that serves requests over time: `simulate`, and its parts.

`traffic` makes requests, `server` and `pools` serve them, and `replicate` repeats a simulation by seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .estimate import deployed, drafted, verified
from .options import Drafts, Estimation, Memory, Parallel, Precision, Servers, Traffic, of

if TYPE_CHECKING:
    from llmir.backends.simulate.engine import Pools, Profile
    from llmir.backends.simulate.load import Load
    from llmir.backends.simulate.replications import RateSeries, Replications
    from llmir.backends.simulate.result import Simulation


def simulate(
    model: Program | object,
    hw: Any,
    traffic: Traffic,
    *,
    warm_up: int = 0,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    chunked_prefill: bool | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Simulation:
    """Requests that come one after another, served step by step as the engine's policy fills its steps.

    It is `server(model, hw, …).run(traffic(…))`, which say what the records mean. The first `warm_up`
    requests do not count in latencies, nor in goodput, which is of requests within `max_ttft_s` and
    `max_tpot_s`. `servers` are replicas behind a router, or pools joined by a link (`llmir.Servers`).

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> traffic = llmir.Traffic(rate=2, prompt=512, generate="uniform:10,50", requests=20)
    >>> served = llmir.simulate(model, "h100-sxm", traffic)
    >>> len(served.ttft_s), served.latencies["tpot"].p99 < 0.02, int(served.preemptions.sum())
    (20, True, 0)
    """
    how = chunked_prefill, memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    return run(_load(traffic), warm_up=warm_up, max_ttft_s=max_ttft_s, max_tpot_s=max_tpot_s)


def server(
    model: Program | object,
    hw: Any = None,
    *,
    chunked_prefill: bool | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Profile:
    """An engine that serves a program on a device; its `run` simulates one load after another.

    Its tables of prices are made once, and serve all runs: the way to try many rates or seeds.
    `chunked_prefill` says whether prompts are read in chunks, by default as the engine does. The model, the
    memory and other records are as in `workload`. With `drafts` a step verifies drafted tokens of each
    sequence, as in `speculate`; the seed of the traffic draws how many tokens steps yield.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> server = llmir.server(model, "h100-sxm")
    >>> records = [llmir.Traffic(rate, prompt=512, generate=64, requests=300) for rate in (1, 10, 30)]
    >>> loads = [llmir.traffic(record) for record in records]
    >>> waits = [server.run(load).latencies["queue"].mean for load in loads]
    >>> waits == sorted(waits)
    True
    """
    from llmir.backends.request.workload import Workload
    from llmir.backends.simulate.drafts import Drafts as DraftSteps
    from llmir.backends.simulate.engine import Profile

    program, priced = deployed(model, hw, estimation, parallel, precision)
    chunked = None if chunked_prefill is None else arguments.flag("chunked_prefill", chunked_prefill)
    limits = of(Memory, memory)
    if limits.cache_policy != "exact":
        raise InputError("cache_policy: a simulation has the blocks of the engine; leave it out")
    said = verified(drafted(model, drafts, hw, estimation, parallel, precision))
    steps = DraftSteps.of(program, *said, priced.runs.name if priced.runs else "") if said else None
    job = Workload(program, priced.device, program.micro_batches, 1, 1, model=priced, **limits.values)
    return Profile(steps.beside(job) if steps else job, chunked, steps)


def traffic(traffic: Traffic) -> Load:
    """Requests with their tokens, and when they come; equal calls give equal ones.

    `llmir.Traffic` says what its options mean. InputError where requests come in no way, or in two, or are
    said twice.

    >>> len(traffic(Traffic(rate=2, requests=50)).arrival_s)
    50
    """
    from llmir.backends.simulate.load import sample_load, session_turns
    from llmir.backends.simulate.load import trace_load as read

    asked = _traffic(traffic)
    rate, closed, trace, share = asked.rate, asked.closed, asked.trace, asked.cancel
    names = ("prompt", "generate", "requests", "seed", *("cancel",) * (share is not None))
    said: dict[str, Any] = {name: getattr(asked, name) for name in names}
    if sum(way is not None for way in (rate, closed, trace)) != 1:
        raise InputError("simulate: say how requests come, by one of rate, closed and trace")
    thinks, turns = asked.think_s, asked.turns
    if turns is None and thinks is not None:
        raise InputError(f"think_s: {thinks:g}; it is of sessions, say turns too")
    if turns is not None and rate is None:
        other = "closed" if closed is not None else "trace"
        raise InputError(f"turns: sessions come at a rate, leave out {other}")
    if asked.burstiness is not None and rate is None:
        raise InputError("burstiness: is of requests that come at a rate, say rate too")
    if trace is not None:
        if twice := next((name for name, value in said.items() if value is not None), None):
            raise InputError(f"{twice}: a trace says its requests, leave it out")
        load = read(Path(trace), asked.speed)
        return replace(load.hit(asked.prefix_hits), timeout_s=asked.timeout_s)
    if asked.speed != 1:
        raise InputError(f"speed: {asked.speed:g}; it is of a trace, say rate instead")
    usual = {"prompt": 2048, "generate": 128, "requests": 1000, "seed": 0}
    drawn_by = {name: usual[name] if said[name] is None else said[name] for name in usual}
    load = sample_load(
        drawn_by["requests"],
        drawn_by["prompt"],
        drawn_by["generate"],
        rate=rate,
        burstiness=1.0 if asked.burstiness is None else asked.burstiness,
        users=closed,
        seed=drawn_by["seed"],
        cancel=share or 0.0,
    )
    if turns is not None:
        load = session_turns(load, turns, 10.0 if thinks is None else thinks, drawn_by["seed"])
    return replace(load.hit(asked.prefix_hits), timeout_s=asked.timeout_s)


_load = traffic  # where an argument has its name


def _traffic(traffic: object) -> Traffic:
    """The record of an argument; InputError for another value."""
    return (
        traffic if isinstance(traffic, Traffic) else arguments.refuse("traffic", traffic, "llmir.Traffic(…)")
    )


def replicate(
    model: Program | object,
    hw: Any,
    traffic: Traffic,
    times: int,
    *,
    warm_up: int = 0,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    chunked_prefill: bool | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Replications:
    """`simulate` so many times, by seeds one after another: means over the runs, with intervals of 95%.

    The first seed is that of the traffic; all else is as in `simulate`.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> traffic = llmir.Traffic(rate=9, prompt="uniform:99,999", requests=200)
    >>> found = llmir.replicate(model, "h100-sxm", traffic, 5)
    >>> mean, half = found.latencies["ttft"]["p90"]
    >>> len(found.runs), 0 < half < mean
    (5, True)
    """
    from llmir.backends.simulate.replications import Replications

    if _traffic(traffic).trace is not None:
        raise InputError("replications: a trace is the same each time, leave one of them out")
    count = arguments.integer("replications", times, 2, 1000)
    how = chunked_prefill, memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    counted = {"warm_up": warm_up, "max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    return Replications(tuple(run(_load(each), **counted) for each in _seeds(traffic, count)))


def _seeds(traffic: Traffic, times: int) -> list[Traffic]:
    """The same traffic by seeds one after another."""
    return [replace(traffic, seed=(traffic.seed or 0) + n) for n in range(times)]


def simulate_rates(
    model: Program | object,
    hw: Any,
    traffic: Traffic,
    rates: Sequence[float],
    times: int | None,
    *,
    warm_up: int = 0,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    chunked_prefill: bool | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> RateSeries:
    """`simulate` at each of some rates, or so many `times` as `replicate` does; prices are made once."""
    from llmir.backends.simulate.replications import RateSeries, Replications

    how = chunked_prefill, memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    counted = {"warm_up": warm_up, "max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    loads = [replace(_traffic(traffic), rate=rate) for rate in rates]
    if times is None:
        return RateSeries(tuple(run(_load(each), **counted) for each in loads))
    return RateSeries(
        tuple(
            Replications(tuple(run(_load(one), **counted) for one in _seeds(each, times))) for each in loads
        )
    )


def pools(prefill: Profile, decode: Profile, link: str) -> Pools:
    """Prefill servers, and decode servers that go on, with caches sent over a link; its `run` simulates.

    `link` is `nvlink` or what else joins two such devices, `network`, or a rate such as `25GBps,5us`.
    InputError for pools that the engine refuses (docs/serving.md).

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> one = llmir.server(model, "h100-sxm")
    >>> pools = llmir.pools(one, one, "50GBps,5us")
    >>> load = llmir.traffic(llmir.Traffic(rate=30, prompt=1000, generate=100, requests=300))
    >>> found = pools.run(load, prefill_replicas=2)
    >>> found.latencies["itl"].p99 < one.run(load, replicas=3).latencies["itl"].p99
    True
    """
    from llmir.backends.simulate.engine import Pools, Profile

    for name, given in (("prefill", prefill), ("decode", decode)):
        if not isinstance(given, Profile):
            arguments.refuse(name, given, "a server as llmir.server gives it")
    return Pools(prefill, decode, arguments.text("link", link))


def _serving(
    model: object,
    hw: Any,
    servers: Servers | None,
    chunked_prefill: bool | None,
    memory: Memory | None,
    drafts: Drafts | None,
    parallel: Parallel | None,
    precision: Precision | None,
    estimation: Estimation | None,
) -> Callable[..., Simulation]:
    """What runs a load: a server, or pools where one of their options is given."""
    said = of(Servers, servers)
    how: dict[str, Any] = {"chunked_prefill": chunked_prefill, "memory": memory, "estimation": estimation}
    one = server(model, hw, drafts=drafts, parallel=parallel, precision=precision, **how)
    if not said.given.keys() - {"replicas", "router"}:
        return partial(one.run, **_dealt(said, "replicas", "router"))
    other = said.decode_program
    decode = {"decode_verify": said.decode_verify, "decode_draft": said.decode_draft}
    given = [name for name, value in decode.items() if value is not None]
    if given and (other is None or of(Drafts, drafts).draft_tokens is None):
        raise InputError(f"{given[0]}: is of drafts on decode_program, say that and draft_tokens too")
    if said.link is None:
        raise InputError(
            "link: pools send caches over one; say nvlink, network, or a rate such as 25GBps,5us"
        )
    if other is not None:
        its = replace(of(Drafts, drafts), verify=said.decode_verify, draft_model=said.decode_draft)
    both = pools(one, one if other is None else server(other, hw, drafts=its, **how), said.link)
    many = _dealt(said, "router", "prefill_replicas", "decode_replicas")

    def run(load: Load, **counted: Any) -> Simulation:
        if said.replicas != 1:
            raise InputError("replicas: of pools, prefill_replicas and decode_replicas say how many")
        return both.run(load, **many, **counted)

    return run


def _dealt(servers: Servers, *names: str) -> dict[str, Any]:
    """Those of some options that are given."""
    return {name: value for name, value in servers.given.items() if name in names}
