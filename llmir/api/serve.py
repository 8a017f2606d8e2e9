"""Simulate an engine that serves requests over time: `simulate` and its parts.

`traffic` generates requests, `server` and `pools` serve them, and `replicate` repeats a simulation with
different seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.budget import Pace, check_work
from llmir.base.errors import InputError, LlmirError
from llmir.ir.core.program import Program

from .estimate import deploy, draft_programs, draft_values, or_default
from .options import Drafts, Estimation, Memory, Parallel, Precision, Servers, Traffic, record_or_default

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
    warm_up: int | None = None,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Simulation:
    """Simulate an engine that serves requests over time, step by step, with the engine's scheduler.

    The result equals `server(model, hw, …).run(traffic(…))`.

    Args:
        model, hw: As in `analyze`.
        traffic: The requests (`Traffic`).
        warm_up: Number of first requests excluded from latencies and goodput. The default is 0, and two for
            each user in a closed loop.
        max_ttft_s: Limit of TTFT in seconds. Goodput counts the requests within all limits.
        max_tpot_s: Limit of TPOT in seconds.
        servers: Replicas behind a router, or pools of prefill and decode servers (`Servers`).
        memory: The usable memory and the limits of a step (`Memory`).
        drafts: Speculative decoding (`Drafts`), as in `server`.
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`).

    Returns:
        A `Simulation`.

    Raises:
        InputError: An argument is invalid, or the simulation exceeds the work budget.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> traffic = llmir.Traffic(rate=2, prompt=512, generate="uniform:10,50", requests=20)
    >>> served = llmir.simulate(model, "h100-sxm", traffic)
    >>> len(served.ttft_s), served.latencies["tpot"].p99 < 0.02, int(served.preemptions.sum())
    (20, True, 0)
    """
    how = memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    load = _check_work(run, traffic) or _load(traffic)
    return run(load, warm_up=warm_up, max_ttft_s=max_ttft_s, max_tpot_s=max_tpot_s)


REQUEST_BYTES = 1200  # per simulated request, measured on runs of 200,000
PILOT = 1000  # requests of the run that measures the time per request


def _check_work(run: Callable[..., Simulation], traffic: Traffic, times: int = 1) -> Load | None:
    """Raise InputError if runs exceed the work budget; a short run of the first requests shows how long they
    take.

    Return the load of a trace, so that the file is read only once; None for other traffic.
    """
    import numpy as np

    load = _load(traffic) if _traffic(traffic).trace is not None else None
    requests = _requests(traffic) if load is None else len(load)
    what = f"{f'{times:,} runs' if times > 1 else 'a run'} of {requests:,} requests"
    advice = "simulate fewer of them"
    check_work(what, advice, memory=times * requests * REQUEST_BYTES)
    if requests >= 10 * PILOT:
        pilot = _load(replace(traffic, requests=PILOT)) if load is None else load.only(np.arange(PILOT))
        check_work(what, advice, seconds=times * requests * _request_s(run, pilot))
    return load


def _request_s(run: Callable[..., Simulation], pilot: Load) -> float:
    """Seconds per simulated request; 0 if the short run fails, so that the full run reports the error."""
    try:
        run(pilot)  # builds the table of step times
    except LlmirError:
        return 0.0
    start = time.process_time()
    run(pilot)
    return (time.process_time() - start) / len(pilot)


def _requests(traffic: Traffic) -> int:
    """The number of requests of traffic that is not a trace."""
    from llmir.backends.simulate.load import closed_loop_requests

    default = 1000 if traffic.closed is None else closed_loop_requests(traffic.closed)
    return int(or_default(traffic.requests, default))


def _repeated(run: Callable[..., Simulation], each: Sequence[Traffic], **counted: Any) -> list[Simulation]:
    """Simulate each traffic; InputError if all runs together exceed the work budget."""
    _check_work(run, each[0], len(each))
    pace = Pace(f"a series of {len(each):,} runs", "simulate fewer of them", len(each))
    found = []
    for traffic in each:
        found.append(run(_load(traffic), **counted))
        pace.step()
    return found


def server(
    model: Program | object,
    hw: Any = None,
    *,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Profile:
    """Build a server for a program on a device; its `run` simulates a load.

    All runs share one table of step times, so use one server to try many rates or seeds.

    Args:
        model, hw: As in `analyze`.
        memory: The usable memory and the limits of a step (`Memory`).
        drafts: Speculative decoding (`Drafts`), as in `speculate`. The number of accepted tokens of each step
            is random, with the seed of the traffic.
        parallel: The ranks that share the model (`Parallel`).
        precision: The dtypes (`Precision`).
        estimation: The cost model (`Estimation`).

    Returns:
        The server as a `Profile`.

    Raises:
        InputError: An argument is out of range, or the engine does not support the options.

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

    program, cost_model = deploy(model, hw, estimation, parallel, precision)
    limits = record_or_default(Memory, memory)
    if limits.cache_policy != "exact":
        raise InputError("cache_policy: a simulation has the blocks of the engine; leave it out")
    values = draft_values(draft_programs(model, drafts, hw, estimation, parallel, precision))
    engine = cost_model.runs.name if cost_model.runs else ""
    steps = DraftSteps.of(program, *values, engine) if values else None
    job = Workload(program, cost_model.device, program.micro_batches, 1, 1, model=cost_model, **limits.values)
    return Profile(steps.beside(job) if steps else job, drafts=steps)


def traffic(traffic: Traffic) -> Load:
    """Generate the arrival times and tokens of requests; equal records give equal requests.

    Args:
        traffic: The description of the requests.

    Returns:
        A `Load`.

    Raises:
        InputError: Not exactly one of rate, closed and trace is set, or two options exclude each other.

    >>> len(traffic(Traffic(rate=2, requests=50)).arrival_s)
    50
    """
    from llmir.backends.simulate.load import sample_load, session_turns, trace_load

    traffic = _traffic(traffic)
    rate, closed, trace = traffic.rate, traffic.closed, traffic.trace
    if sum(way is not None for way in (rate, closed, trace)) != 1:
        raise InputError("simulate: requires one of rate, closed or trace")
    think_s, turns = traffic.think_s, traffic.turns
    if turns is None and think_s is not None:
        raise InputError(f"think_s: {think_s:g}; it requires turns")
    if turns is not None and rate is None:
        other = "closed" if closed is not None else "trace"
        raise InputError(f"turns: sessions arrive at a rate; leave out {other}")
    if traffic.burstiness is not None and rate is None:
        raise InputError("burstiness: requires rate")
    if trace is not None:
        in_trace = ("prompt", "generate", "lengths", "requests", "seed", "cancel")
        if twice := next((name for name in in_trace if getattr(traffic, name) is not None), None):
            raise InputError(f"{twice}: has no effect on a trace, which states its requests; leave it out")
        load = trace_load(Path(trace), traffic.speed)
        return replace(load.hit(traffic.prefix_hits), timeout_s=traffic.timeout_s)
    if traffic.speed != 1:
        raise InputError(f"speed: {traffic.speed:g}; it applies only to a trace, use rate instead")
    seed = or_default(traffic.seed, 0)
    load = sample_load(
        _requests(traffic),
        or_default(traffic.prompt, 2048),
        _answers(traffic),
        rate=rate,
        burstiness=or_default(traffic.burstiness, 1.0),
        users=closed,
        seed=seed,
        cancel=or_default(traffic.cancel, 0.0),
    )
    if turns is not None:
        load = session_turns(load, turns, or_default(think_s, 10.0), seed)
    return replace(load.hit(traffic.prefix_hits), timeout_s=traffic.timeout_s)


def _answers(traffic: Traffic) -> int | str:
    """The number of output tokens or its distribution; InputError for a distribution with `lengths`."""
    from llmir.backends.request.workload import LONGEST
    from llmir.backends.simulate.load import spread_lengths

    said, lengths = or_default(traffic.generate, 128), traffic.lengths
    tokens = arguments.parse_field(said) if isinstance(said, str) else said
    if isinstance(tokens, str):
        if lengths is not None:
            law = f"generate {said!r} says how answers differ"
            raise InputError(f"lengths: {lengths}; {law}, leave lengths out")
        return tokens
    tokens = arguments.integer("generate", tokens, 1, LONGEST)
    spread = traffic.closed is not None if lengths is None else lengths == "spread"
    return spread_lengths(tokens) if spread else tokens


_load = traffic  # for functions with an argument named `traffic`


def _traffic(traffic: object) -> Traffic:
    """Return the record of an argument; InputError for another value."""
    return (
        traffic if isinstance(traffic, Traffic) else arguments.refuse("traffic", traffic, "llmir.Traffic(…)")
    )


def replicate(
    model: Program | object,
    hw: Any,
    traffic: Traffic,
    times: int,
    *,
    warm_up: int | None = None,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> Replications:
    """Repeat `simulate` with consecutive seeds and return means with 95% confidence intervals.

    Args:
        model, hw: As in `analyze`.
        traffic: The requests (`Traffic`); the first run uses its seed.
        times: Number of runs, from 2 to 1000.
        warm_up, max_ttft_s, max_tpot_s: As in `simulate`.
        servers, memory, drafts, parallel, precision, estimation: As in `simulate`.

    Returns:
        A `Replications`.

    Raises:
        InputError: An argument is out of range, or the engine does not support the options.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> traffic = llmir.Traffic(rate=9, prompt="uniform:99,999", requests=200)
    >>> runs = llmir.replicate(model, "h100-sxm", traffic, 5)
    >>> mean, half = runs.latencies["ttft"]["p90"]
    >>> len(runs.runs), 0 < half < mean
    (5, True)
    """
    from llmir.backends.simulate.replications import Replications

    if _traffic(traffic).trace is not None:
        raise InputError(
            "replications: has no effect on a trace, which is the same in each run; leave one of them out"
        )
    count = arguments.integer("replications", times, 2, 1000)
    how = memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    counted = {"warm_up": warm_up, "max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    return Replications(tuple(_repeated(run, _seeds(traffic, count), **counted)))


def _seeds(traffic: Traffic, times: int) -> list[Traffic]:
    """The traffic, once for each of several consecutive seeds."""
    return [replace(traffic, seed=(traffic.seed or 0) + n) for n in range(times)]


def simulate_rates(
    model: Program | object,
    hw: Any,
    traffic: Traffic,
    rates: Sequence[float],
    times: int | None,
    *,
    warm_up: int | None = None,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    servers: Servers | None = None,
    memory: Memory | None = None,
    drafts: Drafts | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    estimation: Estimation | None = None,
) -> RateSeries:
    """Run `simulate` at each of `rates`, repeated `times` times as by `replicate`; runs share step times."""
    from llmir.backends.simulate.replications import RateSeries, Replications

    how = memory, drafts, parallel, precision, estimation
    run = _serving(model, hw, servers, *how)
    counted = {"warm_up": warm_up, "max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    loads = [replace(_traffic(traffic), rate=rate) for rate in rates]
    if times is None:
        return RateSeries(tuple(_repeated(run, loads, **counted)))
    runs = _repeated(run, [one for each in loads for one in _seeds(each, times)], **counted)
    series = [runs[first : first + times] for first in range(0, len(runs), times)]
    return RateSeries(tuple(Replications(tuple(each)) for each in series))


def pools(prefill: Profile, decode: Profile, link: str) -> Pools:
    """Combine prefill servers and decode servers that send caches over a link; `run` simulates a load.

    Args:
        prefill: A server that runs prefill, made by `llmir.server`.
        decode: A server that decodes, made by `llmir.server`.
        link: A link between two devices of this kind such as `nvlink`, `network`, or a rate such as
            `25GBps,5us`.

    Returns:
        A `Pools`.

    Raises:
        InputError: The engine does not support these pools (docs/ranks.md).

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> one = llmir.server(model, "h100-sxm")
    >>> pools = llmir.pools(one, one, "50GBps,5us")
    >>> load = llmir.traffic(llmir.Traffic(rate=30, prompt=1000, generate=100, requests=300))
    >>> served = pools.run(load, prefill_replicas=2)
    >>> served.latencies["itl"].p99 < one.run(load, replicas=3).latencies["itl"].p99
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
    memory: Memory | None,
    drafts: Drafts | None,
    parallel: Parallel | None,
    precision: Precision | None,
    estimation: Estimation | None,
) -> Callable[..., Simulation]:
    """The function that simulates a load: on a server, or on pools if one of their options is set."""
    servers = record_or_default(Servers, servers)
    if servers.emit is not None:
        raise InputError(f"emit: {servers.emit}; it applies only to a plan; leave it out")
    how: dict[str, Any] = {"memory": memory, "estimation": estimation}
    one = server(model, hw, drafts=drafts, parallel=parallel, precision=precision, **how)
    if not servers.given.keys() - {"replicas", "router"}:
        return partial(one.run, **servers.given)
    other = servers.decode_program
    decode = {"decode_verify": servers.decode_verify, "decode_draft": servers.decode_draft}
    given = [name for name, value in decode.items() if value is not None]
    if given and (other is None or record_or_default(Drafts, drafts).draft_tokens is None):
        raise InputError(f"{given[0]}: requires decode_program and draft_tokens")
    if servers.link is None:
        raise InputError(
            "link: required by pools, to send caches; expected nvlink, network, or a rate such as 25GBps,5us"
        )
    if other is not None:
        drafts = record_or_default(Drafts, drafts)
        drafts = replace(drafts, verify=servers.decode_verify, draft_model=servers.decode_draft)
    both = pools(one, one if other is None else server(other, hw, drafts=drafts, **how), servers.link)
    run_options = ("router", "prefill_replicas", "decode_replicas")
    counts = {name: value for name, value in servers.given.items() if name in run_options}

    def run(load: Load, **counted: Any) -> Simulation:
        if servers.replicas != 1:
            raise InputError("replicas: pools use prefill_replicas and decode_replicas instead")
        return both.run(load, **counts, **counted)

    return run
