"""Engines to simulate: policy, capacity and step times, on one server or in pools.

Order of the file: the policy and capacity of an engine (`engine_policy`, `engine_capacity`); which prefill
and decode servers can be combined (`check_pools`); `Profile`, an engine that serves a program on a device and
simulates loads; and `Pools`, prefill and decode servers with a link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from llmir.backends.cost.channel import HOST, Channel, channel
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import CacheGroup
from llmir.backends.memory.kv_capacity import UNLIMITED, KvPool, largest_fit
from llmir.backends.memory.transfer import rank_bytes
from llmir.backends.request.workload import Workload
from llmir.base.arguments import integer, number, refuse
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.base.values import Immutable
from llmir.hw.engine_sections import Scheduler
from llmir.ir.core.program import Program
from llmir.ir.tools.ranks import independent_ranks

from .cluster import run_pools, run_replicas, serve
from .drafts import POOLS, Drafts
from .kv_blocks import BlockPool
from .load import Array, Load, closed_loop_warm_up
from .result import PoolSimulation, ReplicaSimulation, Simulation
from .router import ROUTERS, Router, check_router
from .server import FOREVER, POLICIES, Capacity, Policy, RequestTimeline, Server
from .server_kinds import decode_load, decode_server_of, server_of
from .step_times import ProgramEstimator, SpeculativeEstimator, StepTimes, in_flight

# Policy, capacity and step times of an engine


def has_policy(job: Workload) -> bool:
    """Whether the scheduling policy and the memory of the engine of a workload are known."""
    runs = cost_model_of(job).runs
    return bool(job.pool and runs and runs.name in POLICIES and cost_model_of(job).symbolic)


def engine_policy(job: Workload, chunked: bool | None = None) -> Policy:
    """The policy of the engine of a workload; `chunked` overrides its default."""
    _pool(job)
    engine = cost_model_of(job).runs
    name = engine.name if engine else ""
    if not engine or name not in POLICIES:
        why = f"simulate: how {name or 'no engine'} fills its steps is not known"
        raise InputError(f"{why}; engines are {', '.join(POLICIES)}")
    known = POLICIES[name]()
    scheduler = engine.section(Scheduler)
    if name == "vllm" and scheduler and not scheduler.mixes:
        older: dict[str, Any] = {"mixes": False, "watermark": 0.01}
        known = replace(known, **older)
    if scheduler:
        stated = ("ahead", "cautious", *(("patience", "enough") if name == "trtllm" else ()))
        known = replace(known, **{setting: getattr(scheduler, setting) for setting in stated})
        known = replace(known, receive_interval=scheduler.receive_interval or 1)
    if chunked is None:
        chunked = job.reads_chunks
    return replace(known, chunked=chunked)


def engine_capacity(job: Workload, drafts: Drafts | None = None) -> Capacity:
    """The capacity of the engine of a workload; InputError if it is unknown or zero.

    The number of running sequences is limited by the tokens of a step, drafts included.
    """
    pool, rows = _pool(job), drafts.rows if drafts else 1
    dp, pages = job.program.parallelism.dp, pool.pages  # each rank has a scheduler
    total = int(pages.total * (drafts.share(job.program) if drafts else 1))
    block = min((group.tokens for group in pages.groups), default=pool.rule.block)
    if total < pages.state + (pages.groups != ()):
        where = f"{job.program.devices} × {job.device.name}"
        raise InputError(f"does not fit: {job.program.name} on {where} leaves no memory for caches")
    if (sequences := min(pool.sequences, pool.tokens // rows)) < 1:
        asked = f"a step verifies {rows:,} tokens of a sequence, and has {pool.tokens:,}"
        raise InputError(f"draft_tokens: {rows - 1}; {asked}")
    sequences = min(sequences, total // pages.state if pages.state else UNLIMITED) * dp
    steps = pool.tokens, sequences, dp, in_flight(job.program), rows
    if not pages.groups:  # states alone, which limit the sequences
        return Capacity(UNLIMITED, block, *steps)
    if pages.groups == (CacheGroup(block),):
        return Capacity(total * dp, block, *steps, pages.state)
    return Capacity(total * dp, block, *steps, pages.state, pages.groups, pool.caches[0].rule.steps)


def step_times(program: Program, model: DeviceCostModel, drafts: Drafts | None) -> StepTimes:
    """The times of steps, including verification if there are drafts."""
    if drafts:
        return StepTimes(SpeculativeEstimator(program, model, drafts))
    return StepTimes(ProgramEstimator(program, model))


def cost_model_of(job: Workload) -> DeviceCostModel:
    """The cost model of a job."""
    return job.model or job.prefill.plan.model


def check_load(load: Load, room: Capacity, fills: Policy) -> None:
    """InputError for requests that can never run: they are too long for the cache, or for a step without
    chunks.
    """
    _within("the cache", load.reserved + room.rows - 1, max_request_tokens(room, fills, load.shares))
    if not fills.chunked:
        unread = load.prompt if load.shares else load.prompt - load.cached
        hint = "; chunked prefill reads longer prompts"
        _within("a step", fills.longest(unread, load.written), room.tokens, hint)


def max_request_tokens(room: Capacity, fills: Policy, shares: bool = False) -> int:
    """The largest number of tokens of one request in the cache of its rank, drafts included."""
    # One more token with shared prefixes: the block of the last token may be cached and processed again.
    blocks = room.pool(BlockPool, BlockPool)
    kept = fills.spare(room.blocks) + shares * blocks.pages_of_block + room.state
    most = room.blocks // room.ranks - kept
    return largest_fit(lambda tokens: blocks.prompt(tokens) <= most) if room.groups else most * room.block


def _within(what: str, tokens: Array, most: int, hint: str = "") -> None:
    """InputError for requests with more tokens; the message lists the first five by number."""
    long = np.flatnonzero(tokens > most)
    if long.size:
        rows = ", ".join(f"{i + 1:,} of {tokens[i]:,} tokens" for i in long[:5])
        more = f" and {long.size - 5:,} more" if long.size > 5 else ""
        raise InputError(f"does not fit: {what} holds at most {most:,} tokens; request {rows}{more}{hint}")


def _pool(job: Workload) -> KvPool:
    if job.program.patches:
        raise InputError(f"simulate: {job.program.name} is an image model; it has no tokens to serve")
    if job.pool is None:
        raise InputError(f"simulate: requires engine, one of {', '.join(POLICIES)}")
    return job.pool


# Rules for prefill and decode servers

Rule = Callable[[Program, Program], "str | None"]
SOME = 4096  # context in tokens for a comparison of the caches of two programs


def check_pools(engine: str, prefill: Program, decode: Program) -> None:
    """InputError for pools that the engine refuses, with its reason."""
    kept = [(p.cache_bytes(0), p.cache_bytes(SOME)) for p in (prefill, decode)]
    if prefill.facts.get("architecture") != decode.facts.get("architecture") or kept[0] != kept[1]:
        each = " and ".join(f"{p.name} keeps {p.kv_cache_bytes_per_token:,}" for p in (prefill, decode))
        raise InputError(
            f"pools: both servers must have the same model and caches of one dtype; {each} bytes a token"
        )
    few, many = sorted((prefill.parallelism.tp, decode.parallelism.tp))
    if many % few:
        why = "ranks of one side share those of the other evenly"
        raise InputError(f"pools: tp is {prefill.parallelism.tp} and {decode.parallelism.tp}; {why}")
    if engine in RULES and (refusal := RULES[engine](prefill, decode)):
        raise InputError(f"pools: {engine} {refusal}")


def check_drafts(prefill: Profile, decode: Profile) -> None:
    """InputError for drafts that the engine does not support in pools, or that differ between the two sides.

    "P and D instances must use compatible speculation configurations": method and model of drafts must match
    (docs/features/nixl_connector_compatibility.md of vLLM).
    """
    one, two = (side.drafts and side.drafts.made_by(side.job.program) for side in (prefill, decode))
    if one != two:
        each = " and ".join(repr(by or "no drafts") for by in (one, two))
        raise InputError(f"pools: both servers must have the same drafter, or none; got {each}")
    if decode.drafts and (why := POOLS.get((decode.policy.name, decode.drafts.kind(decode.job.program)))):
        raise InputError(f"draft_tokens: {decode.drafts.tokens}; {why}")


def _differ(prefill: Program, decode: Program) -> str:
    """The splits as text, if they differ and the caches are divided among ranks."""
    one, two = prefill.parallelism.tp, decode.parallelism.tp
    whole = all(rank_bytes(p, 1, SOME) == p.cache_bytes(SOME) for p in (prefill, decode))
    return "" if one == two or whole else f"; here it is {one} and {two}"


def _stages(prefill: Program, decode: Program) -> tuple[int, int]:
    return len(prefill.entries), len(decode.entries)


def _vllm(prefill: Program, decode: Program) -> str | None:
    """docs/features/nixl_connector_compatibility.md of vLLM: "P TP == D TP" for hybrids with states.

    Other models may differ in tp, in the size of blocks and in their number.
    """
    one, two = prefill.parallelism.tp, decode.parallelism.tp
    if (stages := _stages(prefill, decode))[0] != stages[1]:
        return f"joins servers of as many pipeline stages, tp may differ; pp is {stages[0]} and {stages[1]}"
    if prefill.state_bytes_per_sequence and one != two:
        return f"sends states only where tp is the same in prefill and decode; here it is {one} and {two}"
    return None


def _sglang(prefill: Program, decode: Program) -> str | None:
    """disaggregation/nixl/conn.py: "does NOT support PD different TP sizes for non-MLA … hybrid models".

    disaggregation/common/conn.py: "Decode pp size … should be equal to prefill pp size … or 1".
    """
    if (stages := _stages(prefill, decode))[1] not in (1, stages[0]):
        return f"has decode servers of one pipeline stage, or as many; pp is {stages[0]} and {stages[1]}"
    windows = prefill.kv_cache_bytes_per_later_token != prefill.kv_cache_bytes_per_token
    hybrid = windows or prefill.state_bytes_per_sequence
    if hybrid and (here := _differ(prefill, decode)):
        return f"sends windows and states only where tp is the same in prefill and decode{here}"
    return None


def _trtllm(prefill: Program, decode: Program) -> str | None:
    """docs/source/1.0/features/disagg-serving.md: caches of all layers have equal heads and one dtype."""
    if prefill.state_bytes_per_sequence:
        return "sends keys and values only; this model has states"
    return None


# SGLang supports other splits of non-hybrid models ("Performance is NOT guaranteed", common/conn.py),
# and TensorRT-LLM any tp and pp; with vLLM's NixlConnector either side may have more ranks.
RULES: dict[str, Rule] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


# One engine

REPLICAS = 1000  # at most


class Profile(Immutable):
    """An engine that serves a program on a device, with the limits of a `job`; `run` simulates a load.

    Independent data-parallel ranks run as `ranks` separate servers; job, drafts and step times then describe
    one of them. Tables of step times are cached between runs. `priced` are step times of another profile with
    equal steps, which are used again.
    """

    job: Workload
    ranks: int
    policy: Policy
    drafts: Drafts | None

    def __init__(
        self,
        job: Workload,
        chunked: bool | None = None,
        drafts: Drafts | None = None,
        priced: StepTimes | None = None,
    ) -> None:
        ranks, (program, *others) = independent_ranks(job.program, *(drafts.programs if drafts else ()))
        if ranks > 1:
            job, drafts = replace(job, program=program), drafts and drafts.of_programs(*others)
        vars(self).update(job=job, ranks=ranks, policy=engine_policy(job, chunked), drafts=drafts)
        if priced:
            vars(self).update(_prices=priced)

    def __repr__(self) -> str:
        return f"<Profile {self.job.program.name} on {self.job.device.name}: {self.policy.name}>"

    def of(self, longest: int, prompt: int = 0) -> Workload:
        """The job for requests of up to `longest` tokens, for which some engines reserve memory.

        If an engine mixes whole prompts with decodes, a step has space for one `prompt` and all sequences,
        unless the budget is stated. Otherwise, no sequence could decode in a step that the prompt fills.
        """
        job = replace(self.job, max_model_len=max(longest, 2))
        whole = self.policy.mixes and not self.policy.chunked and job.chunked_prefill is None
        if not whole or not job.pool or job.chunk or job.max_batched_tokens:
            return job
        budget = job.pool.tokens
        most = prompt + job.pool.sequences
        return replace(job, max_batched_tokens=most) if prompt <= budget < most else job

    def capacity(self, longest: int, prompt: int = 0) -> Capacity:
        """The capacity for requests of up to `longest` tokens; InputError if nothing fits."""
        return engine_capacity(self.of(longest, prompt), self.drafts)

    def prices(self) -> StepTimes:
        """The step times."""
        return self._prices

    @cached_property
    def _prices(self) -> StepTimes:
        return step_times(self.job.program, cost_model_of(self.job), self.drafts)

    def decoding(self) -> Profile:
        """The profile of a decode server: if a request was preempted, its prefill runs in mixed steps."""
        other = object.__new__(Profile)
        vars(other).update(vars(self) | {"policy": replace(self.policy, mixes=True), "_prices": self._prices})
        return other

    def admitted(self, load: Load) -> Load:
        """The requests that are short enough, with drafts; InputError if one of them can never run."""
        load = self.drafting(self.short(load))
        check_load(load, self.capacity(load.longest, load.longest_request[0]), self.policy)
        return load

    def drafting(self, load: Load) -> Load:
        """Return the requests with the drafts of this profile."""
        if self.drafts is None:
            return load
        return replace(load, drafts=(self.drafts.tokens, self.drafts.acceptance))

    def short(self, load: Load) -> Load:
        """The requests that are no longer than `max_model_len`, by default the positions of the model.

        InputError if all requests are longer.
        """
        if not isinstance(load, Load):
            refuse("load", load, "requests as llmir.traffic gives them")
        positions = self.job.program.facts.get("positions")
        limit = self.job.max_model_len or (positions if isinstance(positions, int) else None)
        if limit is not None and not (kept := load.reserved + 1 <= limit).all():
            if not kept.any():
                raise InputError(f"max_model_len: {limit:,} tokens; all {len(load):,} requests are longer")
            load = load.only(kept)
        return load

    def run(
        self,
        load: Load,
        *,
        warm_up: int | None = None,
        max_ttft_s: float | None = None,
        max_tpot_s: float | None = None,
        replicas: int = 1,
        router: str | None = None,
    ) -> Simulation:
        """Simulate a load. Requests that are too long are refused and counted.

        Args:
            load: The requests.
            warm_up: Number of first requests excluded from latencies and goodput. The default is 0, and two
                for each user in a closed loop.
            max_ttft_s, max_tpot_s: Limits in seconds; goodput counts the requests within them.
            replicas: Number of replicas; independent ranks of each count as servers, too.
            router: The router: round-robin (the default), random, least-loaded or prefix-aware.
        """
        copies = self.ranks * integer("replicas", replicas, 1, REPLICAS)
        deals = ROUTERS[check_router(router, copies)]
        asked, load = load, self.admitted(load)
        counted = result_fields(asked, load, warm_up, max_ttft_s, max_tpot_s)
        room = self.capacity(load.longest, load.longest_request[0])
        prices = self._prices
        if copies == 1:
            return Simulation.of(self, serve(prices, self.policy, room, load), load, **counted)
        one = server_of(prices, self.policy, room, load, RequestTimeline(load.arrival_s.tolist()))
        run = run_replicas(one, deals(copies, load, room), load)
        return ReplicaSimulation.of_run(self, run, load, **counted)


def result_fields(
    asked: Load, load: Load, warm_up: object, max_ttft_s: object, max_tpot_s: object
) -> dict[str, Any]:
    """The fields of a result that state which requests count; `asked` is the load including refused requests.

    InputError for a warm-up of all requests, and for invalid limits.
    """
    first = closed_loop_warm_up(load) if warm_up is None else integer("warm_up", warm_up)
    if first >= len(load):
        raise InputError(f"warm_up: {first:,} requests, there are {len(load):,}")
    limits = {"max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    known = {name: _limit(name, value) for name, value in limits.items()}
    return {"refused": len(asked) - len(load), "warm_up": first, **known}


def _limit(name: str, value: object) -> float | None:
    return None if value is None else number(name, value, above=True)


# Prefill and decode servers


class Pools(Immutable):
    """A prefill server, a decode server, and the channel over which caches are sent: `run` simulates
    loads.
    """

    prefill: Profile
    decode: Profile
    channel: Channel

    def __init__(self, prefill: Profile, decode: Profile, link: str) -> None:
        """Raise InputError for pools that the engine refuses, and for a link that does not lead to another
        server.
        """
        engines = [profile.policy.name for profile in (prefill, decode)]
        if engines[0] != engines[1]:
            raise InputError(
                f"pools: prefill is {engines[0]}'s and decode {engines[1]}'s; both must have the same engine"
            )
        check_pools(engines[0], prefill.job.program, decode.job.program)
        check_drafts(prefill, decode)
        if link == HOST:
            raise InputError(
                "link: host does not connect servers; expected nvlink, network, or a rate such as 25GBps,5us"
            )
        between = channel(cost_model_of(prefill.job), link)
        vars(self).update(prefill=prefill, decode=decode.decoding(), channel=between)

    def __repr__(self) -> str:
        return f"<Pools {self.prefill!r}, {self.decode!r}, {self.channel.name}>"

    def seconds(self, tokens: Array) -> Array:
        """The seconds to send the caches of requests, given their numbers of tokens.

        All ranks send at the same time; the side with more bytes per rank determines the time.
        """
        each = [np.broadcast_to(_rank_bytes(side, tokens), tokens.shape) for side in self._sides]
        return np.asarray(self.channel.seconds(np.maximum(*each)))

    def halves(self, load: Load) -> tuple[Load, Load]:
        """The load of prefill servers (one output token per request), and the load of decode servers (the
        other tokens).
        """
        read = replace(load, generate=np.ones_like(load.generate), asked=None, limit=None)
        rest = decode_load(load)
        return read, self.decode.drafting(rest)

    def run(
        self,
        load: Load,
        *,
        prefill_replicas: int = 1,
        decode_replicas: int = 1,
        router: str | None = None,
        warm_up: int | None = None,
        max_ttft_s: float | None = None,
        max_tpot_s: float | None = None,
    ) -> PoolSimulation:
        """The load that is served. A `router` chooses the prefill server of a prompt, and the decode server
        of a cache.

        Everything else is as in `Profile.run`.
        """
        said = {"prefill_replicas": prefill_replicas, "decode_replicas": decode_replicas}
        copies = (integer(name, value, 1, REPLICAS) for name, value in said.items())
        replicas = [side.ranks * count for side, count in zip(self._sides, copies, strict=True)]
        name = check_router(router, max(replicas))
        asked, load = load, self.decode.short(self.prefill.short(load))
        counted = result_fields(asked, load, warm_up, max_ttft_s, max_tpot_s)
        goes_on = load.generate > 1
        if not goes_on.any():
            raise InputError("pools: no request has a second token, so decode servers have no work")
        read, rest = self.halves(load)
        came = np.full(len(load), FOREVER)
        first = (
            _server(server_of, self.prefill, read, read, load.arrival_s),
            _server(decode_server_of, self.decode, rest, rest.only(goes_on), came),
        )
        routers = _routers(name, replicas, (read, rest), (first[0].capacity, first[1].capacity))
        sent = zip(goes_on.tolist(), self.seconds(load.prompt).tolist(), strict=True)
        run = run_pools(first, routers, load, [time_s if more else None for more, time_s in sent])
        if not any(place >= 0 for place in run.decode.place):
            raise InputError("pools: every client leaves before its cache is sent; nothing is decoded")
        one = ReplicaSimulation.of_run(self.prefill, run.prefill, read, counted["warm_up"])
        two = ReplicaSimulation.of_run(self.decode, run.decode, rest, counted["warm_up"])
        return PoolSimulation.of_run(one, two, run, load, self.channel, **counted)

    def routers(
        self, name: str, replicas: tuple[int, int], loads: tuple[Load, Load]
    ) -> tuple[Router, Router]:
        """The routers to prefill servers and to decode servers, for the two `halves` of a load."""
        rooms = tuple(
            side.capacity(load.longest, load.longest_request[0])
            for side, load in zip(self._sides, loads, strict=True)
        )
        return _routers(name, replicas, loads, (rooms[0], rooms[1]))

    @property
    def _sides(self) -> tuple[Profile, Profile]:
        return self.prefill, self.decode


def _server(
    kind: Callable[..., Server], profile: Profile, load: Load, checked: Load, arrival_s: Array
) -> Server:
    """A prefill or decode server; InputError if a request in `checked` does not fit."""
    room = profile.capacity(checked.longest, checked.longest_request[0])
    check_load(checked, room, profile.policy)
    return kind(profile.prices(), profile.policy, room, load, RequestTimeline(arrival_s.tolist()))


def _routers(
    name: str, replicas: Sequence[int], loads: tuple[Load, Load], rooms: tuple[Capacity, Capacity]
) -> tuple[Router, Router]:
    """The routers of prefill and of decode servers.

    Prompts can be routed by prefix, but caches cannot: they are sent to the least loaded decode server.
    """
    names = name, "least-loaded" if name == "prefix-aware" else name
    sides = zip(names, replicas, loads, rooms, strict=True)
    one, two = (ROUTERS[each](count, load, room) for each, count, load, room in sides)
    return one, two


def _rank_bytes(profile: Profile, tokens: Array) -> Number:
    """Cache bytes of `tokens` tokens on a rank, including the draft model."""
    own = rank_bytes(profile.job.program, 1, tokens)
    drafter = profile.drafts and profile.drafts.drafter
    return own + rank_bytes(drafter, 1, tokens) if drafter else own
