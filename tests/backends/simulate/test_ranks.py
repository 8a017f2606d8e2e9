"""Data-parallel ranks and micro-batches of a pipeline, in steps and in simulated servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.api.deployment import Deployment
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.result import ReplicaSimulation
from llmir.backends.simulate.server import LOG, Capacity
from llmir.backends.simulate.server_kinds import PipelinedServer
from llmir.backends.simulate.step_times import ProgramEstimator, StepTimes, in_flight
from llmir.backends.step.composition import Surface
from llmir.backends.step.evaluate import step_evaluator
from llmir.base.errors import InputError
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.ranks import independent_ranks
from llmir.ir.tools.text import parse_program
from llmir.ir.tools.verify import verify
from tests.flat import records

from .naive_micro_batches import Job, run
from .serving_cases import Case, Toy, alike, cases, in_use, left, load, naively


def served(name: str, engine: str = "vllm", **asked: Any) -> llmir.Program:
    return llmir.run(llmir.load(name), Deployment.of(asked).around(llmir.pipeline_of(engine)))


MODELS = {
    "experts": served("qwen3-30b-a3b", dp=2, ep=2),
    "experts by parts": served("qwen3-30b-a3b", tp=2, dp=4),
    "all to all": served("qwen3-30b-a3b", dp=4, ep=4, dispatch="rows"),
    "stages": served("qwen3-30b-a3b", pp=2, dp=2, ep=2),
    "latents": served("deepseek-v2-lite", dp=2, ep=2),
}


def surface(name: str) -> Surface:
    step = llmir.server(MODELS[name], "h100-sxm").prices().step
    assert isinstance(step, ProgramEstimator)
    return step.surface


@pytest.mark.parametrize("name", MODELS)
def test_a_rank_that_reads_alone_or_as_all_others_do_takes_what_analyze_says(name: str) -> None:
    of, dp = surface(name), MODELS[name].parallelism.dp
    for many, new in ((1, 900), (3, 500), (1, 12)):
        alone = of.on_rank(0, (), [(many, new, 0)], [])
        alike = of.on_rank(0, (), [(many, new, 0)], [(many * (dp - 1), new, 0)])
        each = llmir.analyze(MODELS[name], "h100-sxm", batch=dp * many, new=new)
        assert alike[0] == pytest.approx(float(each.time_s), rel=1e-12, abs=0)
        if many == 1:
            single = llmir.analyze(MODELS[name], "h100-sxm", batch=1, new=new)
            assert alone[0] == pytest.approx(float(single.time_s), rel=1e-12, abs=0)
        assert alone[0] <= alike[0]


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("name", MODELS)
def test_experts_see_what_all_ranks_read_and_the_rest_its_own(name: str) -> None:
    """Of 1 + x sequences on two ranks, rounded up, each has one, and experts see 1 + x times its tokens."""
    of, program = surface(name), MODELS[name].phase("prefill")
    priced = step_evaluator(program, of.model)
    for share in (0.25, 0.5):
        found = of.on_rank(0, (), [(1, 800, 300)], [(1, int(800 * share), 300)])
        expected = priced.timing(Binding(B=1 + share, T=800, C=300))
        assert found == pytest.approx((expected.step, *expected.stages), rel=1e-9, abs=0)


@pytest.mark.mostly_slow(8)
@pytest.mark.parametrize("asked", [{"dp": 2, "ep": 2}, {"dp": 4, "tp": 2}, {"pp": 2}, {"pp": 4}])
@pytest.mark.parametrize("prompt", [900, 8192])
def test_a_prompt_is_read_by_one_rank_in_one_micro_batch(asked: dict[str, int], prompt: int) -> None:
    """Alone it takes what a workload of one request does; and no less beside others."""
    program = served("qwen3-30b-a3b", **asked)
    alone = llmir.workload(program, "h100-sxm", prompt=prompt, generate=20)
    found = llmir.simulate(program, "h100-sxm", llmir.Traffic(rate=1, requests=1, prompt=prompt, generate=20))
    assert found.ttft_s[0] == pytest.approx(alone.ttft_s, rel=1e-12, abs=0)
    assert found.e2e_s[0] == pytest.approx(alone.e2e_s, rel=1e-12, abs=0)
    busy = llmir.simulate(
        program, "h100-sxm", llmir.Traffic(rate=40, requests=300, prompt=prompt, generate=20)
    )
    assert (busy.ttft_s >= alone.ttft_s * (1 - 1e-12)).all()


@pytest.mark.parametrize("dp", [2, 4])
def test_prompts_at_once_are_read_beside_one_another(dp: int) -> None:
    program = served("qwen3-30b-a3b", dp=dp, ep=dp)
    each = {"prompt": 6000, "generate": 1}
    together = llmir.simulate(program, "h100-sxm", **records(llmir.simulate, closed=dp, requests=dp, **each))
    step = llmir.analyze(program, "h100-sxm", batch=dp, new=6000)
    assert together.ttft_s == pytest.approx(np.full(dp, float(step.time_s)), rel=1e-12, abs=0)
    more = llmir.simulate(
        program, "h100-sxm", **records(llmir.simulate, closed=dp + 1, requests=dp + 1, **each)
    )
    assert more.ttft_s.max() > 1.5 * together.ttft_s.max()  # 8,192 tokens of a rank have no room for two


def test_chunks_of_a_prompt_follow_one_another_through_the_stages() -> None:
    """The makespan of a flow shop (Johnson 1954): each stage takes them one by one."""
    program = served("llama3.1-8b", pp=4)
    step = llmir.server(program, "h100-sxm").prices().step
    assert isinstance(step, ProgramEstimator)
    chunks = [(1000, 0), (1000, 1000), (1000, 2000), (1000, 3000), (1000, 4000), (1000, 5000), (500, 6000)]
    free = [0.0] * 4
    for chunk in chunks:
        time = free[0]
        for i, seconds in enumerate(step.surface.stages(0, (), [chunk])):
            time = free[i] = max(time, free[i]) + seconds
    asked: dict[str, Any] = {"rate": 1, "requests": 1, "prompt": 6500, "generate": 1}
    found = llmir.simulate(program, "h100-sxm", **records(llmir.simulate, max_batched_tokens=1000, **asked))
    assert found.ttft_s[0] == pytest.approx(free[-1], rel=1e-12, abs=0)


# Ranks that share nothing

DENSE: dict[str, dict[str, Any]] = {
    "llama3.1-8b": {},
    "gemma3-4b": {"tp": 2},
    "falcon-mamba-7b": {},
    "llama3.1-70b": {"pp": 2, "tp": 2},
}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", DENSE)
def test_one_of_the_ranks_that_share_nothing_runs_the_program_without_them(name: str, engine: str) -> None:
    for dp in (2, 6):
        ranks, (one,) = independent_ranks(served(name, engine, dp=dp, **DENSE[name]))
        assert ranks == dp
        assert verify(one) == served(name, engine, **DENSE[name])


@pytest.mark.parametrize("name", MODELS)
def test_ranks_that_share_experts_run_in_step(name: str) -> None:
    program = MODELS[name]
    assert independent_ranks(program) == (1, (program,))
    server = llmir.server(program, "h100-sxm")
    run = server.run(llmir.traffic(llmir.Traffic(closed=8, requests=16, prompt=300, generate=4)))
    assert not isinstance(run, ReplicaSimulation)
    assert server.ranks == 1 and run.capacity.ranks == program.parallelism.dp
    assert run.job.program == program


def test_ranks_that_some_op_joins_stay_together() -> None:
    """Of 2 × 3 ranks those along the first axis exchange sums; there are three such pairs."""
    text = """
    program "sum"
    mesh(dp0=2, dp1=3)
    graph @main {
      %x = input() {axes=(batch, embed)} : bf16[B@dp1, 64@dp0]
      %w = weight() {axes=(embed, mlp)} : bf16[64@dp0, 8]
      %y = linear(%x, %w) {einsum="b e, e m -> b m"} : bf16[B@dp1, 8]+dp0
      %sum = all_reduce(%y) {over=(dp0)} : bf16[B@dp1, 8]
      return %sum
    }
    """
    ranks, (one,) = independent_ranks(parse_program(text))
    assert ranks == 3 and one.parallelism.dp == 2
    assert verify(one) == parse_program(text.replace("@dp1", "").replace(", dp1=3", ""))


TRAFFIC = {
    "rate": llmir.Traffic(30, requests=120, prompt="lognormal:900,0.8", generate="uniform:20,120"),
    "users": llmir.Traffic(closed=24, requests=120, prompt="uniform:100,3000", generate=60),
}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("comes", TRAFFIC)
@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_ranks_that_share_nothing_are_replicas(engine: str, comes: str, router: str) -> None:
    def run(dp: int, replicas: int) -> Any:
        program = served("llama3.1-8b", engine, dp=dp)
        how: dict[str, Any] = {"estimation": llmir.Estimation(engine=engine)}
        servers = llmir.Servers(replicas=replicas, router=router)
        return llmir.simulate(program, "h100-sxm", TRAFFIC[comes], servers=servers, **how)

    alone, ranks, both = run(1, 6), run(6, 1), run(3, 2)
    for found in (ranks, both):
        assert found.to_dict() == alone.to_dict()
        assert (found.place == alone.place).all() and (found.end_s == alone.end_s).all()
        assert found.spending == alone.spending


def test_drafts_of_ranks_that_share_nothing_are_those_of_replicas() -> None:
    def run(dp: int, replicas: int) -> Any:
        parallel, servers = llmir.Parallel(dp=dp), llmir.Servers(replicas=replicas)
        drafts = llmir.Drafts(draft_tokens=3, acceptance=0.7, draft_model="llama3.2-1b")
        how: dict[str, Any] = {"drafts": drafts, "parallel": parallel, "servers": servers}
        return llmir.simulate("llama3.1-8b", "h100-sxm", TRAFFIC["users"], **how)

    assert run(2, 1).to_dict() == run(1, 2).to_dict()


def test_ranks_of_pools_that_share_nothing_are_replicas() -> None:
    def run(dp: int, replicas: int) -> Any:
        one = llmir.server(served("llama3.1-8b", dp=dp), "h100-sxm")
        how: dict[str, Any] = {"prefill_replicas": replicas, "decode_replicas": replicas}
        return llmir.pools(one, one, "50GBps,5us").run(llmir.traffic(TRAFFIC["rate"]), **how)

    assert run(2, 1).to_dict() == run(1, 2).to_dict()


def test_a_plan_counts_ranks_that_share_nothing_as_replicas() -> None:
    traffic = llmir.Traffic(rate=20, prompt=2000, generate=50, requests=100)

    def found(dp: int) -> dict[str, Any]:
        return llmir.plan(served("llama3.1-8b", dp=dp), "h100-sxm", traffic, gpus=2).to_dict()

    assert found(2) == found(1)


@st.composite
def abreast(draw: Any) -> Case:
    """Loads without shared prefixes on ranks, and on stages with as many micro-batches in flight."""
    fills, load, room = draw(cases(shares=False))
    fills = replace(fills, patience=0) if isinstance(fills, Trtllm) else fills
    ranks, stages = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    if stages > 1:  # the plain simulator counts no steps of a pipeline
        fills = replace(fills, receive_interval=1)
    return fills, load, room._replace(ranks=ranks, micro_batches=stages)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(abreast(), st.sampled_from([0, 7]))
def test_ranks_and_micro_batches_are_the_plain_simulators(case: Case, window: int) -> None:
    fills, load, room = case
    step = Toy(window, 1e-4 if window or room.micro_batches == 1 else 0.0, stages=room.micro_batches)
    naive, reads = naively(case, step)
    server = serve(StepTimes(step), fills, room, load)
    alike(server.course, reads)
    in_use(server, naive)
    left(server)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(1, 3), st.integers(2, 4))
def test_a_pipeline_makes_each_token_once(case: Case, ranks: int, stages: int) -> None:
    fills, load, capacity = case
    room = capacity._replace(ranks=ranks, micro_batches=stages)
    step = Toy(stages=stages)
    servers = [serve(StepTimes(step), fills, room, load) for _ in range(2)]
    server, course = servers[0], servers[0].course
    assert isinstance(server, PipelinedServer) and not server.busy
    left(server)
    assert server.most_held <= capacity.blocks
    events = dict(zip(LOG, server.events.T, strict=True))
    first = sum(np.isfinite(course.first_s))
    resumed = len(course.resumed_s)
    made = events["steps"] @ events["decodes"] + first + resumed
    assert sum(course.made) == made
    whole = np.isinf(course.end_s) | (np.array(course.made) == load.generate)
    assert load.stays_s is not None or whole.all()
    alone = [step(0, [], [(p - c, c)]) for p, c in zip(load.prompt, server.cached, strict=True)]
    if not fills.chunked and not load.hashes:  # read at once: no sooner than alone
        known = np.isfinite(course.first_s)
        took = np.array(course.first_s) - np.array(course.arrival_s)
        assert (took[known] >= np.array(alone)[known] - 1e-12).all()
    begin = events["start_s"]
    assert (np.diff(begin) >= -1e-12).all()
    assert begin[1:] == pytest.approx(
        np.maximum(begin[1:], (begin + events["time_s"])[:-1]), rel=1e-12, abs=0
    )
    assert servers[1].course.end_s == course.end_s


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(cases(shares=False), st.integers(2, 4), st.booleans())
def test_what_decodes_beside_nobody_is_as_in_an_uneven_pipeline(case: Case, stages: int, alone: bool) -> None:
    """Prompts that end with one token, and requests that come one after another."""
    _, given_load, room = case
    arrival = 10.0 * np.arange(len(given_load)) if alone else np.sort(given_load.arrival_s)
    generate = given_load.generate if alone else np.ones_like(given_load.generate)
    asked, step = load(given_load.prompt, generate, arrival), Toy(bend=0.0, stages=stages)
    many = Capacity(100_000, 16, room.tokens, 100, micro_batches=stages)
    course = serve(StepTimes(step), Vllm(), many, asked).course
    columns = asked.arrival_s, asked.prompt, asked.generate
    jobs = [Job(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    run(jobs, lambda contexts, chunks: step.flow(contexts, 1, [chunks]), room.tokens, stages, stages)
    assert course.first_s == pytest.approx([job.times[0] for job in jobs], rel=1e-9, abs=0)
    assert course.end_s == pytest.approx([job.times[-1] for job in jobs], rel=1e-9, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "rate"), [(2, 10), (2, 30), (4, 20)])
def test_a_pipeline_is_near_one_that_is_simulated_plainly(pp: int, rate: int) -> None:
    """There a micro-batch takes whoever is in none, so that they are not even; docs say how near that is."""
    server = llmir.server(served("llama3.1-8b", pp=pp), "h100-sxm")
    lengths = {"prompt": "uniform:500,3500", "generate": "uniform:100,300"}
    traffic = llmir.traffic(**records(llmir.traffic, rate=rate, requests=300, **lengths))
    columns = traffic.arrival_s, traffic.prompt, traffic.generate
    jobs = [Job(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    step = server.prices().step
    assert isinstance(step, ProgramEstimator)
    of = step.surface

    def each(contexts: list[int], chunks: list[tuple[int, int]]) -> tuple[float, ...]:
        return of.stages(len(contexts), of.kept(contexts) if contexts else (), chunks)

    run(jobs, each, 8192, pp, pp)
    found = server.run(traffic)
    ttft = np.mean([job.times[0] - job.arrival for job in jobs])
    tpot = np.mean([(job.times[-1] - job.times[0]) / (len(job.times) - 1) for job in jobs])
    assert found.ttft_s.mean() == pytest.approx(ttft, rel=0.5)
    assert found.tpot_s.mean() == pytest.approx(tpot, rel=0.25)


def test_in_flight_are_as_many_micro_batches_as_stages() -> None:
    stated = served("llama3.1-8b", pp=4, micro_batches=2)
    assert [in_flight(p) for p in (served("llama3.1-8b"), served("llama3.1-8b", pp=4), stated)] == [1, 4, 2]


def test_a_request_has_room_on_one_rank() -> None:
    program = served("qwen3-30b-a3b", dp=2, ep=2)
    room = llmir.server(program, "h100-sxm").capacity(2)
    most = room.blocks // 2 * room.block
    asked: dict[str, Any] = {"rate": 1, "requests": 1, "generate": 2, "max_model_len": 2 * most}
    with pytest.raises(InputError, match="does not fit: the cache holds"):
        llmir.simulate(program, "h100-sxm", **records(llmir.simulate, prompt=most + 1, **asked))


def test_no_rank_is_said_to_be_idle_for_a_batch_that_nobody_asked_for() -> None:
    found = llmir.simulate(
        served("qwen3-30b-a3b", dp=2, ep=2), "h100-sxm", llmir.Traffic(rate=5, requests=10)
    )
    assert not [note for note in found.notes if "idle" in note]
