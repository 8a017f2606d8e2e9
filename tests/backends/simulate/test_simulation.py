"""The simulator against one that is plain: an event a token, and lists of blocks."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import llmir
from llmir.api.deployment import Deployment
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.server import LOG, Capacity, token_gaps
from llmir.backends.simulate.step_times import ProgramEstimator, StepTimes, in_flight
from llmir.backends.step.composition import DecodeBatch
from llmir.base.errors import InputError
from llmir.cli.main import cli
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Min, ceildiv
from tests.flat import records

from .serving_cases import Case, Toy, alike, cases, in_use, left, load, naively, policy

MODEL = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))

# Eleven prompts of the same block, which decodes evict while two that have a copy of it run.
COPIES: Case = (
    Vllm(chunked=False, mixes=False, watermark=0.01),
    Load(
        np.ones(11, int),
        np.array([1] * 9 + [14, 21]),
        np.zeros(11, int),
        np.zeros(11),
        hashes=((1001,),) * 11,
    ),
    Capacity(blocks=24, block=1, tokens=22, sequences=2),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(cases(), st.sampled_from([0, 7, 30]))
@example(COPIES, 0)
def test_it_is_the_plain_simulator(case: Case, window: int) -> None:
    fills, load, capacity = case
    naive, reads = naively(case, Toy(window))
    server = serve(StepTimes(Toy(window)), fills, capacity, load)
    alike(server.course, reads)
    stay = [r.number for r in reads if len(r.times) == r.generate]  # others are looked up till they leave
    assert [server.cached[i] for i in stay] == [reads[i].cached for i in stay]
    in_use(server, naive)
    left(server)
    found = server.course
    seconds, counts = token_gaps(server.events, np.array(found.joined_s), np.array(found.resumed_s))
    made = [r.times for r in reads if r.times]
    assert counts.sum() == sum(len(times) - 1 for times in made)
    assert seconds @ counts == pytest.approx(sum(times[-1] - times[0] for times in made), rel=1e-9, abs=0)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_prefix_statistics_count_tokens_of_prompts_only(case: Case) -> None:
    """Not the answers that a preempted request finds in the cache when it is admitted again."""
    policy, given_load, capacity = case
    server = serve(StepTimes(Toy()), policy, capacity, given_load)
    tokens, started = np.array(server.prefix_tokens), np.isfinite(server.course.start_s)
    assert (tokens >= 0).all()
    assert (tokens < given_load.prompt).all()  # the last token is always read
    if not given_load.shares:
        assert tokens.tolist() == given_load.cached.tolist()
    else:
        assert not tokens[~started].any()
    if given_load.sessions is not None:  # nothing precedes the first turn of a session
        assert not tokens[given_load.after < 0].any()


def test_a_preempted_request_without_a_shared_prefix_has_no_prefix_hits() -> None:
    traffic = llmir.Traffic(rate=3, turns=1, prompt=20, generate="uniform:200,600", requests=60, seed=1)
    memory = llmir.Memory(reserve_bytes=18_061_721_600)
    found = llmir.simulate("llama3.2-1b", "l4", traffic, memory=memory)
    assert found.preemptions.sum() > 100
    assert found.prefix_hits == 0


def test_who_comes_as_a_prefill_step_ends_waits_for_the_step_after_the_next() -> None:
    """The next one is filled already, although it has room for the prompt."""
    case = policy("vllm", True, ahead=True), load([4, 20, 5], [1, 2, 2], users=2), Capacity(100, 4, 16, 4)
    _, reads = naively(case)
    fills, comes, capacity = case
    found = serve(StepTimes(Toy()), fills, capacity, comes).course
    alike(found, reads)
    assert found.start_s[2] > found.end_s[0]


@settings(max_examples=150, deadline=None)
@given(cases(shares=False, groups=True), st.integers(1, 3))
def test_groups_of_layers_take_and_free_blocks_as_in_the_plain_simulator(case: Case, ranks: int) -> None:
    fills, load, capacity = case
    fills = replace(fills, patience=0) if isinstance(fills, Trtllm) else fills
    capacity = capacity._replace(ranks=ranks)
    naive, reads = naively((fills, load, capacity))
    server = serve(StepTimes(Toy()), fills, capacity, load)
    alike(server.course, reads)
    in_use(server, naive)
    left(server)


@settings(max_examples=100, deadline=None)
@given(cases(groups=True), st.integers(1, 3))
def test_groups_of_layers_hold_no_more_than_there_is(case: Case, stages: int) -> None:
    """Also where requests share prefixes, and in a pipeline."""
    fills, load, capacity = case
    server = serve(StepTimes(Toy(stages=stages)), fills, capacity._replace(micro_batches=stages), load)
    assert server.most_held <= capacity.blocks
    assert load.stays_s is not None or np.isfinite(server.course.end_s).all()
    left(server)


@settings(max_examples=50, deadline=None)
@given(cases().filter(lambda case: case[0].mixes))
def test_the_log_says_how_many_requests_are_there(case: Case) -> None:
    """Little's law, sample by sample: requests over time are those in the plain simulator."""
    ways = {"ahead", "patience"} & {field.name for field in fields(case[0])}
    case = replace(case[0], **dict.fromkeys(ways, 0)), *case[1:]  # who is late or held has no column
    log = serve(StepTimes(Toy()), case[0], case[2], case[1]).events
    event = dict(zip(LOG, log.T, strict=True))
    inside = event["waiting"] + event["decodes"] + event["reads"]
    plain = sum(seconds * requests for _, seconds, requests, _ in naively(case)[0].log)
    assert inside @ event["time_s"] == pytest.approx(plain, rel=1e-9, abs=0)


@pytest.mark.parametrize("fills", [Vllm(ahead=0), Vllm(ahead=0, chunked=False)])
@pytest.mark.parametrize("gap_s", [0.3, 0.03, 0.01])
def test_littles_law(gap_s: float, fills: Vllm) -> None:
    """Requests inside, over time, are how long each is there, from the step after it comes."""
    rng = np.random.default_rng(2)
    lengths = [rng.integers(low, high, 800) for low, high in ((1, 900), (1, 60))]
    arrival = np.cumsum(rng.exponential(gap_s, 800))
    server = serve(StepTimes(Toy()), fills, Capacity(900, 16, 1000, 20), load(*lengths, arrival))
    event = dict(zip(LOG, server.events.T, strict=True))
    inside = event["waiting"] + event["decodes"] + event["reads"]
    begins = event["start_s"][np.searchsorted(event["start_s"], arrival - 1e-12)]
    there = np.array(server.course.end_s) - begins
    assert inside @ event["time_s"] == pytest.approx(there.sum(), rel=1e-9, abs=0)


@pytest.mark.parametrize("busy", [0.1, 0.5, 0.9, 0.99])
def test_with_one_server_each_wait_is_lindleys(busy: float) -> None:
    rng = np.random.default_rng(1)
    prompt = rng.integers(1, 4000, 3000)
    service = 3e-3 + 2e-5 * prompt + 1e-8 * prompt * prompt
    arrival = np.cumsum(rng.exponential(service.mean() / busy, len(prompt)))
    one = Capacity(blocks=10_000, block=16, tokens=4000, sequences=1)
    found = serve(StepTimes(Toy()), Vllm(), one, load(prompt, np.ones(len(prompt)), arrival)).course
    wait, waits = 0.0, []
    for i in range(len(prompt)):
        waits.append(wait)
        if i + 1 < len(prompt):
            wait = max(0.0, wait + service[i] - (arrival[i + 1] - arrival[i]))
    assert np.array(found.start_s) - arrival == pytest.approx(np.array(waits), abs=1e-9)


def served(name: str, **asked: Any) -> llmir.Program:
    return llmir.run(llmir.load(name), Deployment.of(asked).around(llmir.pipeline_of("vllm")))


PROGRAMS = {
    "plain": MODEL,
    "windows": served("gemma3-27b", tp=2),
    "windows alone": served("mistral-7b"),
    "states": served("mamba-2.8b"),
    "stages": served("llama3.1-8b", pp=2),
    "micro-batches": served("llama3.1-8b", pp=2, tp=2, micro_batches=2),
    "data-parallel": served("qwen3-30b-a3b", dp=2, ep=2),
}


@pytest.mark.mostly_slow(6)
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.micro_batches == 1])
def test_one_request_alone_takes_what_a_workload_says(name: str) -> None:
    for prompt, generate in ((2, 2), (777, 1), (2048, 900)):
        asked: dict[str, Any] = {"prompt": prompt, "generate": generate}
        job = llmir.workload(PROGRAMS[name], "h100-sxm", **records(llmir.workload, **asked))
        found = llmir.simulate(
            PROGRAMS[name], "h100-sxm", **records(llmir.simulate, rate=1, requests=1, **asked)
        )
        assert found.ttft_s[0] == pytest.approx(job.ttft_s, rel=1e-12, abs=0)
        assert found.e2e_s[0] == pytest.approx(job.e2e_s, rel=1e-12, abs=0)


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if in_flight(program) == 1])
def test_a_static_batch_takes_what_a_workload_says(name: str) -> None:
    job = llmir.workload(PROGRAMS[name], "h100-sxm", batch=8, prompt=900, generate=300)
    found = llmir.simulate(
        PROGRAMS[name],
        "h100-sxm",
        llmir.Traffic(closed=8, prompt=900, generate=300, lengths="fixed", requests=8),
    )
    assert found.ttft_s == pytest.approx(np.full(8, job.ttft_s), rel=1e-12, abs=0)
    assert found.e2e_s == pytest.approx(np.full(8, job.e2e_s), rel=1e-12, abs=0)


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("llama3.1-8b", "vllm"),
        ("qwen3-30b-a3b", "sglang"),
        ("gemma-2-9b", "trtllm"),
        ("mistral-7b", "vllm"),
        ("llama4-scout", "vllm"),
    ],
)
def test_steps_are_those_of_sequences_given_one_by_one(name: str, engine: str) -> None:
    program = llmir.run(llmir.load(name), llmir.pipeline_of(engine))
    device = "b200" if "scout" in name else "h100-sxm"
    step = llmir.server(program, device, estimation=llmir.Estimation(engine=engine)).prices().step
    assert isinstance(step, ProgramEstimator)
    rng = np.random.default_rng(0)
    # New tokens of a prompt: one; as few as drafts; any number.
    for decodes, most in product((0, 1, 3, 40, 300), (2, 16, 800)):
        for reads in (0, 1, 2, 5)[not decodes :]:
            contexts = rng.integers(1, 9000, decodes).tolist()
            news, cached = rng.integers(1, most, reads), rng.integers(0, 2, reads) * rng.integers(900)
            chunks = list(zip(news.tolist(), cached.tolist(), strict=True))
            parts = [{"batch": 1, "new": 1, "context": c} for c in contexts]
            parts += [{"batch": 1, "new": new, "context": old} for new, old in chunks]
            whole = llmir.analyze(
                program, device, **records(llmir.analyze, engine=engine, **parts[0], beside=parts[1:])
            )
            sums = [sum(int(Binding(C=c)(f)) for c in contexts) for f in step.functions] if decodes else ()
            # Attention is linear between whole mean contexts.
            assert step(decodes, sums, chunks) == pytest.approx(whole.period_s, rel=2e-11, abs=0)


def test_a_seed_gives_the_same_and_another_one_other_requests() -> None:
    asked: dict[str, Any] = {"rate": 8, "prompt": "lognormal:300,0.6", "generate": "uniform:1,90"}
    one, two, three = (
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, requests=60, seed=seed, **asked))
        for seed in (7, 7, 8)
    )
    assert one.to_dict() == two.to_dict() != three.to_dict()
    assert np.array_equal(one.end_s, two.end_s)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "atom"])
def test_a_server_with_full_caches_does_not_preempt_without_end(engine: str) -> None:
    """512 users of 8,295 tokens: caches hold about 200 of them. A preempted request waits for free blocks."""
    model = llmir.run(llmir.load("minimax-m2.5"), f"{llmir.pipeline_of(engine)},shard{{tp=2}}")
    traffic = llmir.Traffic(closed=512, prompt=7373, generate=922, requests=1000)
    found = llmir.simulate(model, "mi355x", traffic, estimation=llmir.Estimation(engine=engine))
    assert found.preemptions.sum() < 1000


def test_users_of_a_closed_loop_are_as_many_as_they_are() -> None:
    found = llmir.simulate(MODEL, "h100-sxm", llmir.Traffic(closed=5, prompt=400, generate=60, requests=40))
    changes = sorted([(t, 1) for t in found.arrival_s] + [(t, -1) for t in found.end_s])
    assert np.max(np.cumsum([by for _, by in changes])) == 5
    assert found.events["decodes"].max() == 5


def test_who_never_waits_has_waits_of_no_time_in_each_run() -> None:
    asked: dict[str, Any] = {"prompt": 100, "generate": 3, "requests": 5}
    found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=0.01, **asked))
    assert found.queue_s.tolist() == [0.0] * 5
    assert found.latencies["queue"] == (0.0, 0.0, 0.0, 0.0)
    alone = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=0.01, **asked | {"generate": 1}))
    assert alone.latencies["tpot"] is None and alone.latencies["itl"] is None  # there are no such times
    runs = llmir.replicate(MODEL, "h100-sxm", **records(llmir.replicate, times=2, rate=0.01, **asked))
    assert runs.latencies["queue"]["mean"] == (0.0, 0.0)


def test_longer_requests_than_the_model_takes_are_counted() -> None:
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        llmir.Traffic(rate=5, prompt="uniform:10,200", generate=10, requests=50),
        memory=llmir.Memory(max_model_len=110),
    )
    assert found.refused + len(found.load) == 50
    assert 0 < found.refused < 50
    assert found.load.prompt.max() <= 100
    assert any(f"{found.refused:,} requests have more tokens" in note for note in found.notes)


def test_a_prompt_that_fills_a_step_decodes_beside_others() -> None:
    """TensorRT-LLM runs whole prompts: its step has room for the longest one beside all that decode."""
    traffic = llmir.Traffic(rate=1e4, prompt=8192, generate=64, requests=40)
    trtllm = llmir.Estimation(engine="trtllm")
    served = llmir.simulate("llama3.1-8b", "h100-sxm", traffic, estimation=trtllm)
    stated = llmir.Memory(max_batched_tokens=8192)
    alone = llmir.simulate("llama3.1-8b", "h100-sxm", traffic, estimation=trtllm, memory=stated)
    assert alone.decodes == 1 and not any("a prompt beside" in note for note in alone.notes)
    assert served.decodes > 5
    assert any("--max-batched-tokens 8,192 is trtllm's default" in note for note in served.notes)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "simulate: requires one of rate, closed or trace"),
        ({"rate": 1, "closed": 2}, "simulate: requires one of"),
        ({"rate": 0}, "rate: expected a number from 0.000001 to 1,000,000,000, got 0"),
        ({"closed": 1, "burstiness": 2}, "burstiness: requires rate"),
        ({"rate": 1, "burstiness": 0}, "burstiness: expected a number from 0.001 to 1,000,000, got 0"),
        ({"rate": 1, "prompt": "pareto:3"}, "prompt: expected constant, uniform, normal"),
        ({"rate": 1, "generate": "lognormal:100"}, "generate: lognormal takes median and sigma"),
        ({"rate": 1, "generate": "uniform:9,3"}, "the least goes first"),
        ({"rate": 1, "prompt": 0}, "prompt: expected an integer from 1"),
        ({"rate": 1, "prefix_hits": 1.5}, "prefix_hits: expected a number from 0 to 1"),
        ({"rate": 1, "max_model_len": 5}, "all 1,000 requests are longer"),
        ({"rate": 1, "cost": "ideal"}, "simulate: requires engine"),
        (
            {"rate": 1, "prompt": 9000, "chunked_prefill": False},
            "a step holds at most 8,192 tokens; request 1",
        ),
        ({"rate": 1, "memory_utilization": 0.26, "prompt": 100000}, "request 1 of 100,127 tokens"),
    ],
)
def test_what_cannot_be_simulated_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **asked))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_images_is_refused() -> None:
    images = llmir.load("DiT-XL-2-256")
    for asked in ({}, {"engine": "vllm"}):
        with pytest.raises(InputError, match="DiT-XL-2-256 is an image model; it has no tokens to serve"):
            llmir.simulate(images, "h100-sxm", **records(llmir.simulate, rate=1, **asked))
        with pytest.raises(InputError, match="is an image model"):
            llmir.plan(images, **records(llmir.plan, rate=1, **asked))


@pytest.mark.parametrize("servers", [1, 2, 7])
def test_gaps_are_what_a_server_in_turn_sees(servers: int) -> None:
    """By `burstiness` n, and by every nth request of Poisson's law."""
    each = llmir.traffic(llmir.Traffic(rate=5, burstiness=servers, requests=20_000)).arrival_s
    every = llmir.traffic(llmir.Traffic(rate=5 * servers, requests=20_000 * servers, seed=1)).arrival_s[
        ::servers
    ]
    gaps = [np.diff(arrival_s) for arrival_s in (each, every)]
    for found in gaps:
        assert found.mean() == pytest.approx(1 / 5, rel=0.03)
        assert found.std() / found.mean() == pytest.approx(servers**-0.5, rel=0.03)
    for share in (0.1, 0.5, 0.9):
        low, high = (np.quantile(found, share) for found in gaps)
        assert low == pytest.approx(high, rel=0.1)


@pytest.mark.slow
def test_one_of_some_replicas_in_turn_is_as_all_of_them() -> None:
    """On average over requests, of lengths by a law; at random they wait longer."""
    asked: dict[str, Any] = {"prompt": "lognormal:800,0.6", "generate": "lognormal:100,0.6"}
    all_of_them = llmir.simulate(
        MODEL, "h100-sxm", **records(llmir.simulate, rate=60, replicas=4, requests=8000, **asked)
    )
    one = llmir.simulate(
        MODEL, "h100-sxm", **records(llmir.simulate, rate=15, burstiness=4, requests=8000, seed=9, **asked)
    )
    chance = llmir.simulate(
        MODEL, "h100-sxm", **records(llmir.simulate, rate=15, requests=8000, seed=9, **asked)
    )
    for figure in ("ttft", "tpot"):
        each, whole, rough = (run.latencies[figure] for run in (one, all_of_them, chance))
        assert each.mean == pytest.approx(whole.mean, rel=0.05)
        assert each.p90 == pytest.approx(whole.p90, rel=0.1)
        assert rough.p90 > each.p90


@pytest.mark.slow
def test_the_command_says_what_the_api_says(tmp_path: Any) -> None:
    asked = "--rate 4 --requests 1e2 --prompt uniform:1,500 --generate 40 --seed 3"
    runner = CliRunner()
    printed = runner.invoke(cli, ["serve-sim", "llama3.1-8b", *asked.split(), "--format", "json"])
    found = llmir.simulate(
        MODEL, "h100-sxm", llmir.Traffic(rate=4, requests=100, prompt="uniform:1,500", generate=40, seed=3)
    )
    assert json.loads(printed.output) == found.to_dict()
    for form in ("table", "csv", "md", "html"):
        shown = runner.invoke(cli, ["serve-sim", "llama3.1-8b", *asked.split(), "--format", form])
        assert shown.exit_code == 0
        assert "ttft" in shown.output.lower()
    assert runner.invoke(cli, ["serve-sim", "llama3.1-8b", "--rate", "0"]).exit_code == 2


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
)
def test_many_steps_of_a_batch_are_as_one_by_one(contexts: list[int], runs: list[int]) -> None:
    functions = (C, Min.of(C, 7), ceildiv(C + 1, 8), Min.of(2 * C - 32 * ceildiv(C + 1, 16) + 32, 15))
    many, single = DecodeBatch(functions, contexts), DecodeBatch(functions, contexts)
    for steps in runs:
        before = []
        for _ in range(steps):
            before.append(single.kept)
            single.advance()
        assert [tuple(sums) for sums in np.transpose(many.ahead(steps)).tolist()] == before
        many.advance(steps)
        assert many.kept == single.kept
        many.join(3)
        single.join(3)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.sampled_from([1, 16]), st.integers(1, 4), st.integers(60, 400))
def test_turns_come_after_answers_and_find_what_was_said(
    seed: int, size: int, most: int, blocks: int
) -> None:
    given_load = llmir.traffic(
        llmir.Traffic(
            rate=20,
            prompt="uniform:1,30",
            generate="uniform:1,20",
            turns=f"uniform:1,{most}",
            think_s=0.1,
            requests=40,
            seed=seed,
        )
    )
    least = -(-given_load.longest // size) + 1
    server = serve(StepTimes(Toy()), Vllm(), Capacity(max(blocks // size, least), size, 64, 8), given_load)
    found, after, written = server.course, given_load.after, given_load.written
    left(server)
    assert server.most_held <= server.capacity.blocks
    first = after < 0
    assert np.array(found.arrival_s)[first] == pytest.approx(given_load.arrival_s[first])
    waited = np.array(found.arrival_s) - np.array(found.end_s)[after]
    assert waited[~first] == pytest.approx(given_load.think_s[~first], abs=1e-9)
    whole = np.where(first, 0, written[after] // size * size)
    again = np.array(found.preemptions) > 0  # which may find their own tokens
    assert (again | (np.array(server.cached) <= whole)).all()
    assert (np.array(server.prefix_tokens) <= whole).all()  # of the prompt alone
    roomy = serve(StepTimes(Toy()), Vllm(), Capacity(100_000, size, 64, 8), given_load)
    assert roomy.cached == whole.tolist()
    assert (given_load.prompt[~first] > (given_load.prompt + given_load.generate)[after][~first]).all()
