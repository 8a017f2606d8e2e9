"""Requests over time, served by an engine: `simulate`, and its parts `server`, `pools` and `traffic`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.tools.verify import checked_program

from .estimate import _model

if TYPE_CHECKING:
    from llmir.backends.cost.models import CostModel
    from llmir.backends.simulate.engine import Pools, Profile
    from llmir.backends.simulate.load import Load
    from llmir.backends.simulate.replications import RateSeries, Replications
    from llmir.backends.simulate.result import Simulation

REQUESTS = 10_000_000  # at most, for memory


POOLS = (
    *("prefill_replicas", "decode_replicas", "link"),
    *("decode_program", "decode_verify", "decode_draft"),
)


def simulate(
    program: Program,
    hw: Any,
    *,
    rate: float | None = None,
    burstiness: float | None = None,
    closed: int | None = None,
    trace: str | os.PathLike[str] | None = None,
    speed: float = 1.0,
    prompt: int | str | None = None,
    generate: int | str | None = None,
    requests: int | None = None,
    prefix_hits: float = 0.0,
    cancel: float | None = None,
    timeout_s: float | None = None,
    turns: int | str | None = None,
    think_s: float | None = None,
    seed: int | None = None,
    warm_up: int = 0,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    chunked_prefill: bool | None = None,
    replicas: int = 1,
    router: str | None = None,
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    link: str | None = None,
    decode_program: Program | None = None,
    decode_verify: Program | None = None,
    decode_draft: Program | None = None,
    memory_utilization: float | None = None,
    reserve_bytes: int = 0,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    verify: Program | None = None,
    draft_tokens: int | None = None,
    acceptance: float | None = None,
    draft: Program | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Simulation:
    """Requests that come one after another, served step by step as the engine's policy fills its steps.

    It is `server(program, hw, …).run(traffic(…))`, which say what the options mean. The first `warm_up`
    requests do not count in latencies, nor in goodput, which is of requests within `max_ttft_s` and
    `max_tpot_s`. A `router` sends each request to one of so many `replicas`. With a `link` there are `pools`:
    `prefill_replicas` servers read prompts, and `decode_replicas` go on, with `decode_program` where that is
    another. Drafts are then verified by `decode_verify`, and made by `decode_draft`.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> served = llmir.simulate(model, "h100-sxm", rate=2, prompt=512, generate="uniform:10,50", requests=20)
    >>> len(served.ttft_s), served.latencies["tpot"].p99 < 0.02, int(served.preemptions.sum())
    (20, True, 0)
    """
    asked = dict(locals())
    of_traffic, of_run = _taken(asked)
    return _serving(**asked)(traffic(**of_traffic), **of_run)


def server(
    program: Program,
    hw: Any,
    *,
    chunked_prefill: bool | None = None,
    memory_utilization: float | None = None,
    reserve_bytes: int = 0,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_batched_tokens: int | None = None,
    verify: Program | None = None,
    draft_tokens: int | None = None,
    acceptance: float | None = None,
    draft: Program | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Profile:
    """An engine that serves a program on a device; its `run` simulates one load after another.

    Its tables of prices are made once, and serve all runs: the way to try many rates or seeds.
    `chunked_prefill` says whether prompts are read in chunks, by default as the engine does. Memory and
    prices are as in `workload`. With `draft_tokens` a step verifies so many drafts of each sequence, as in
    `speculate`: `verify` is the program with logits of all positions, `acceptance` the chance that a draft is
    right, and `draft` the model that makes drafts. The seed of the traffic draws how many tokens steps yield.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> server = llmir.server(model, "h100-sxm")
    >>> loads = [llmir.traffic(rate=rate, prompt=512, generate=64, requests=300) for rate in (1, 10, 30)]
    >>> waits = [server.run(load).latencies["queue"].mean for load in loads]
    >>> waits == sorted(waits)
    True
    """
    from llmir.backends.request.workload import Workload
    from llmir.backends.simulate.drafts import Drafts
    from llmir.backends.simulate.engine import Profile

    model, program = _model(hw, cost, engine, efficiency), checked_program(program)
    chunked = None if chunked_prefill is None else arguments.flag("chunked_prefill", chunked_prefill)
    memory = memory_utilization, reserve_bytes, model, "exact"
    limits = max_model_len, max_num_seqs, max_batched_tokens
    said = check_drafts(verify, draft_tokens, acceptance, draft)
    drafts = Drafts.of(program, *said, model.runs.name if model.runs else "") if said else None
    job = Workload(program, model.device, program.micro_batches, 1, 1, *memory, *limits)
    return Profile(drafts.beside(job) if drafts else job, chunked, drafts)


def check_drafts(
    verify: Program | None, draft_tokens: int | None, acceptance: float | None, draft: Program | None
) -> tuple[int, float, Program, Program | None] | None:
    """The arguments of drafts, checked; None without drafts, InputError where some are missing."""
    from llmir.backends.request.speculation import check_drafts

    if draft_tokens is None:
        said = {"verify": verify, "acceptance": acceptance, "draft": draft}
        if name := next((name for name, value in said.items() if value is not None), None):
            raise InputError(f"{name}: is of drafts, say draft_tokens too")
        return None
    if verify is None:
        raise InputError("draft_tokens: say verify too, the program with logits of all positions")
    if acceptance is None:
        raise InputError("draft_tokens: say acceptance too, the chance that a draft is right")
    own = None if draft is None else checked_program(draft)
    return *check_drafts(draft_tokens, acceptance), checked_program(verify), own


def traffic(
    *,
    rate: float | None = None,
    burstiness: float | None = None,
    closed: int | None = None,
    trace: str | os.PathLike[str] | None = None,
    speed: float = 1.0,
    prompt: int | str | None = None,
    generate: int | str | None = None,
    requests: int | None = None,
    prefix_hits: float = 0.0,
    cancel: float | None = None,
    timeout_s: float | None = None,
    turns: int | str | None = None,
    think_s: float | None = None,
    seed: int | None = None,
) -> Load:
    """Requests with their tokens, and when they come; equal calls give equal ones.

    They come at random, `rate` a second, with gaps of a gamma law of the shape `burstiness`: 1 is
    Poisson's, less has bursts, n is what each of n servers gets that are dealt them in turn. Or they come
    from as many users in a `closed` loop, each of whom asks again when answered; or as a `trace` has them,
    `speed` times as fast (formats: docs/serving.md). `prompt` (2048) and `generate` (128) are tokens, or
    laws such as `uniform:100,900` and `lognormal:512,0.6` (median, deviation of the logarithm), of 1000
    `requests`; a trace says all three. A share `prefix_hits` of each prompt is cached already. A share
    `cancel` of requests is cancelled after a random part of the answer, which nobody knows before, and each
    is given up that has not ended `timeout_s` after it came. With `turns`, a number or a law, requests are
    turns of sessions, of which `rate` come a second: each prompt begins with all that was said before, and
    comes after an exponential time of mean `think_s` (10). InputError where they come in no way, or in two,
    or are said twice.
    """
    from llmir.backends.simulate.load import sample_load, session_turns
    from llmir.backends.simulate.load import trace_load as read

    times = arguments.number("speed", speed, 1e-6)
    hits = arguments.number("prefix_hits", prefix_hits, most=1)
    share = None if cancel is None else arguments.number("cancel", cancel, most=1)
    patience = None if timeout_s is None else arguments.number("timeout_s", timeout_s, above=True)
    said: dict[str, Any] = {"prompt": prompt, "generate": generate, "requests": requests, "seed": seed}
    if share is not None:
        said["cancel"] = share
    if sum(way is not None for way in (rate, closed, trace)) != 1:
        raise InputError("simulate: say how requests come, by one of rate, closed and trace")
    thinks = None if think_s is None else arguments.number("think_s", think_s)
    if turns is None and thinks is not None:
        raise InputError(f"think_s: {thinks:g}; it is of sessions, say turns too")
    if turns is not None and rate is None:
        other = "closed" if closed is not None else "trace"
        raise InputError(f"turns: sessions come at a rate, leave out {other}")
    if burstiness is not None and rate is None:
        raise InputError("burstiness: is of requests that come at a rate, say rate too")
    if trace is not None:
        if twice := next((name for name, value in said.items() if value is not None), None):
            raise InputError(f"{twice}: a trace says its requests, leave it out")
        return replace(read(arguments.path("trace", trace), times).hit(hits), timeout_s=patience)
    if times != 1:
        raise InputError(f"speed: {times:g}; it is of a trace, say rate instead")
    usual = {"prompt": 2048, "generate": 128, "requests": 1000, "seed": 0}
    asked = {name: usual[name] if said[name] is None else said[name] for name in usual}
    load = sample_load(
        arguments.integer("requests", asked["requests"], 1, REQUESTS),
        asked["prompt"],
        asked["generate"],
        rate=None if rate is None else arguments.number("rate", rate, 1e-6, 1e9),  # a request a nanosecond
        burstiness=1.0 if burstiness is None else arguments.number("burstiness", burstiness, 1e-3, 1e6),
        users=None if closed is None else arguments.integer("closed", closed, 1, REQUESTS),
        seed=arguments.integer("seed", asked["seed"]),
        cancel=share or 0.0,
    )
    if turns is not None:
        load = session_turns(load, turns, 10.0 if thinks is None else thinks, asked["seed"])
    return replace(load.hit(hits), timeout_s=patience)


def replicate(program: Program, hw: Any, times: int, *, seed: int = 0, **asked: Any) -> Replications:
    """`simulate` so many times, by seeds one after another: means over the runs, with intervals of 95%.

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> found = llmir.replicate(model, "h100-sxm", 5, rate=9, prompt="uniform:99,999", requests=200)
    >>> mean, half = found.latencies["ttft"]["p90"]
    >>> len(found.runs), 0 < half < mean
    (5, True)
    """
    from llmir.backends.simulate.replications import Replications

    if asked.get("trace") is not None:
        raise InputError("replications: a trace is the same each time, leave one of them out")
    first, count = arguments.integer("seed", seed), arguments.integer("replications", times, 2, 1000)
    of_traffic, of_run = _taken(asked)
    run = _serving(program, hw, **asked)
    return Replications(tuple(run(traffic(seed=first + n, **of_traffic), **of_run) for n in range(count)))


def simulate_rates(
    program: Program, hw: Any, rates: Sequence[float], times: int | None, *, seed: int = 0, **asked: Any
) -> RateSeries:
    """`simulate` at each of some rates, or so many `times` as `replicate` does; prices are made once."""
    from llmir.backends.simulate.replications import RateSeries, Replications

    of_traffic, of_run = _taken(asked)
    run = _serving(program, hw, **asked)
    of_traffic.pop("rate", None)

    def once(rate: float, number: int) -> Simulation:
        return run(traffic(rate=rate, seed=seed + number, **of_traffic), **of_run)

    if times is None:
        return RateSeries(tuple(once(rate, 0) for rate in rates))
    return RateSeries(tuple(Replications(tuple(once(rate, n) for n in range(times))) for rate in rates))


def pools(prefill: Profile, decode: Profile, link: str) -> Pools:
    """Prefill servers, and decode servers that go on, with caches sent over a link; its `run` simulates.

    `link` is `nvlink` or what else joins two such devices, `network`, or a rate such as `25GBps,5us`.
    InputError for pools that the engine refuses (docs/serving.md).

    >>> import llmir
    >>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    >>> one = llmir.server(model, "h100-sxm")
    >>> pools = llmir.pools(one, one, "50GBps,5us")
    >>> load = llmir.traffic(rate=30, prompt=1000, generate=100, requests=300)
    >>> found = pools.run(load, prefill_replicas=2)
    >>> found.latencies["itl"].p99 < one.run(load, replicas=3).latencies["itl"].p99
    True
    """
    from llmir.backends.simulate.engine import Pools, Profile

    for name, given in (("prefill", prefill), ("decode", decode)):
        if not isinstance(given, Profile):
            arguments.refuse(name, given, "a server as llmir.server gives it")
    return Pools(prefill, decode, arguments.text("link", link))


def _serving(program: Program, hw: Any, **asked: Any) -> Callable[..., Simulation]:
    """What runs a load: a server, or pools where one of their arguments is given."""
    said = {name: asked.pop(name, None) for name in POOLS}
    one = server(program, hw, **asked)
    if all(value is None for value in said.values()):
        return one.run
    link, other = said.pop("link"), said.pop("decode_program")
    drafts = {name: said.pop(f"decode_{name}") for name in ("verify", "draft")}
    given = [f"decode_{name}" for name, value in drafts.items() if value is not None]
    if given and (other is None or asked.get("draft_tokens") is None):
        raise InputError(f"{given[0]}: is of drafts on decode_program, say that and draft_tokens too")
    if link is None:
        raise InputError(
            "link: pools send caches over one; say nvlink, network, or a rate such as 25GBps,5us"
        )
    both = pools(one, one if other is None else server(other, hw, **asked | drafts), link)
    many = {name: value for name, value in said.items() if value is not None}

    def run(load: Load, replicas: int = 1, **counted: Any) -> Simulation:
        if replicas != 1:
            raise InputError("replicas: of pools, prefill_replicas and decode_replicas say how many")
        return both.run(load, **many, **counted)

    return run


def _taken(asked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `traffic`, and those of a server's `run`, taken out of all that is asked."""
    from llmir.backends.simulate.engine import Profile

    each = (of.__kwdefaults__ or {} for of in (traffic, Profile.run))
    of_traffic, of_run = ({name: asked.pop(name) for name in names if name in asked} for names in each)
    return of_traffic, of_run
