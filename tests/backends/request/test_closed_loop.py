"""A closed loop of users: what follows from its definition, and what bounds it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import llmir
from llmir.backends.request.closed_loop import ClosedLoop, ClosedLoopWorkload
from llmir.base.errors import HardwareError, InputError
from llmir.hw.engine_sections import scheduler
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records

ENGINES = ("vllm", "vllm@0.6", "sglang", "trtllm")


def built(*passes: str, model: str = "qwen3-4b") -> Program:
    return llmir.run(llmir.load(model), [llmir.pipeline_of(), *passes])


def served(
    program: Program, users: int, prompt: int = 1000, generate: int = 200, **how: Any
) -> ClosedLoopWorkload:
    found = llmir.workload(
        program, "h100", **records(llmir.workload, concurrency=users, prompt=prompt, generate=generate, **how)
    )
    assert isinstance(found, ClosedLoopWorkload)
    return found


def closed_form(loop: ClosedLoop) -> ClosedLoop:
    """The loop by the closed form, which engines without a simulated scheduler have."""
    return replace(loop, simulate=None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"chunk": 300}, {"cached": 500}])
def test_one_user_has_a_server_alone(engine: str, options: dict[str, int]) -> None:
    service = served(built(), 1, engine=engine, lengths="fixed", **options)
    assert service.loop.ttft_s == pytest.approx(service.ttft_s)
    assert service.loop.tpot_s == pytest.approx(service.tpot_s)
    assert service.loop.output_tokens_per_s == pytest.approx(service.output_tokens_per_s)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("users", "generate"), [(2, 2), (7, 200), (64, 200), (64, 20), (5000, 200), (32, 1)])
def test_requests_in_a_server_are_those_that_come_in_the_time_that_each_is_there(
    engine: str, users: int, generate: int
) -> None:
    """Little's law: L = λ W, of all users, and of those that decode; simulated, over ten answers of each."""
    loop = served(built(), users, generate=generate, engine=engine, lengths="fixed").loop
    per_s = loop.output_tokens_per_s / generate
    assert per_s * loop.e2e_s == pytest.approx(users, rel=0.04)
    assert closed_form(loop).output_tokens_per_s / generate * closed_form(loop).e2e_s == pytest.approx(users)
    if generate > 1:
        assert loop.tpot_s is not None
        assert loop.e2e_s == pytest.approx(loop.ttft_s + (generate - 1) * loop.tpot_s)
        assert loop.in_flight <= loop.max_in_flight


@pytest.mark.parametrize("engine", ENGINES)
def test_terms_add_up_to_the_time_of_a_token(engine: str) -> None:
    loop = served(built(), 32, engine=engine).loop
    assert sum(term.time_s for term in loop.terms) == pytest.approx(loop.tpot_s)
    assert all(term.time_s > 0 for term in loop.terms)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("prompt", "generate"), [(1000, 200), (4000, 50), (100, 1000)])
def test_more_users_take_longer_and_get_more_in_all(engine: str, prompt: int, generate: int) -> None:
    program = built()
    loops = [served(program, 2**n, prompt, generate, engine=engine).loop for n in range(8)]
    for few, many in pairwise(loops):
        assert few.tpot_s is not None and many.tpot_s is not None
        assert many.tpot_s >= few.tpot_s * 0.999
        assert many.e2e_s >= few.e2e_s
        assert many.output_tokens_per_s >= few.output_tokens_per_s * 0.99  # the host takes time for each
    assert all(loop.state.decoding <= loop.in_flight for loop in loops)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_token_takes_the_step_that_decodes_and_at_most_all_other_prompts(engine: str) -> None:
    """Of N users each waits for N − 1 prompts at most, over the G − 1 steps of an answer."""
    users, generate = 24, 300
    service = served(built(), users, generate=generate, engine=engine)
    alone = llmir.workload(
        service.program, "h100", prompt=1000, generate=1, estimation=llmir.Estimation(engine=engine)
    ).ttft_s
    batch, tpot = service.tpot_s, service.loop.tpot_s
    assert batch is not None and tpot is not None
    decode = llmir.analyze(
        service.program, "h100", batch=16, context=1000, estimation=llmir.Estimation(engine=engine)
    ).time_s
    assert decode < tpot < batch + (users - 1) / (generate - 1) * alone


def test_a_cached_prefix_spares_the_others() -> None:
    whole, part = (served(built(), 32, 4000, cached=n).loop for n in (0, 3900))
    assert part.tpot_s is not None and whole.tpot_s is not None
    assert part.tpot_s < whole.tpot_s
    assert part.ttft_s < whole.ttft_s / 3


def test_prompts_fill_what_a_budget_leaves() -> None:
    """Where prompts come as fast as they are read, steps are full: of n · P / (G − 1) tokens beside n."""
    prompt, generate, budget = 4000, 20, 512
    loop = served(built(), 64, prompt, generate, chunk=budget).loop
    decoding = loop.state.decoding
    assert decoding < 64
    assert decoding / (generate - 1) * prompt <= budget
    assert loop.tpot_s == pytest.approx(
        loop.step(round(decoding), loop.state.turns[1].chunks[0]).period_s.max(), rel=0.5
    )


@pytest.mark.parametrize("budget", [8, 64, 512])
@pytest.mark.parametrize("prompt", [1, 500, 4000])
def test_full_steps_are_full_whoever_waits(prompt: int, budget: int) -> None:
    """Requests that wait for their prompt take no token of a step: only those that decode do."""
    later = 40
    loop = served(built(), 600, prompt, later + 1, chunk=budget).loop
    most = budget * later / (prompt + later)  # decodes and the prompts that come for them fill the budget
    assert loop.state.decoding <= most * 1.01 + 1
    if loop.in_flight > 2 * most + 2:
        assert loop.state.decoding >= 0.9 * most - 1


def test_no_more_decode_than_there_are() -> None:
    loop = served(built("shard{dp=3}"), 8).loop
    assert loop.terms[0].what == "decode step, batch 8"


def test_an_engine_of_whole_batches_serves_them_one_after_another() -> None:
    """`generate` of transformers reads all prompts, and all are done at once."""
    service = served(built(), 8, engine="hf-transformers")
    assert service.loop.tpot_s == pytest.approx(service.tpot_s)
    assert service.loop.ttft_s == pytest.approx(service.ttft_s)
    assert service.loop.max_in_flight == service.max_batch


def test_data_parallel_ranks_are_servers_of_their_own() -> None:
    one = served(built(), 8, cost="ideal").loop
    four = served(built("shard{dp=4}"), 32, cost="ideal").loop
    assert four.tpot_s == pytest.approx(one.tpot_s)
    assert four.output_tokens_per_s == pytest.approx(4 * one.output_tokens_per_s)


def test_ranks_that_share_experts_wait_for_one_anothers_prompts() -> None:
    model = "qwen3-30b-a3b"
    apart, shared = (served(built(f"shard{{dp=4, ep={n}}}", model=model), 64).loop for n in (1, 4))
    assert (apart.coupled, shared.coupled) == (1, 4)
    read = [closed_form(loop).terms[-1].time_s for loop in (apart, shared)]
    assert read[1] > read[0]


def test_the_most_users_within_a_limit_are_the_most() -> None:
    service = served(built(), 8, max_tpot_s=0.02)
    assert service.most is not None
    users = service.most.concurrency
    within, beyond = (served(service.program, users + n).loop.tpot_s for n in (0, 1))
    assert within is not None and beyond is not None
    assert within <= 0.02 < beyond or users == service.loop.max_in_flight
    assert served(service.program, 8, max_tpot_s=1e-6).most is None
    assert service.to_dict()["serving"]["within"]["concurrency"] == users


def test_users_that_memory_does_not_hold_wait() -> None:
    held = served(built(), 1, 30000).loop.max_in_flight
    full, queued = (served(built(), n * held, 30000).loop for n in (1, 3))
    exact = [closed_form(loop) for loop in (full, queued)]
    assert exact[0].tpot_s == exact[1].tpot_s
    assert exact[1].output_tokens_per_s == exact[0].output_tokens_per_s
    assert exact[1].ttft_s == pytest.approx(exact[0].ttft_s + 2 * exact[0].e2e_s)
    assert queued.ttft_s - full.ttft_s == pytest.approx(2 * full.e2e_s, rel=0.1)
    assert queued.output_tokens_per_s == pytest.approx(full.output_tokens_per_s, rel=0.1)


def test_what_limits_those_in_flight_is_named(run: Run) -> None:
    """The engine's sequences, or memory: there at the mean length, so more than at the full one."""
    program = built()
    service = served(program, 4, 4000, 4000)
    loop = service.loop
    assert loop.limit == "that fit, of mean length"
    assert loop.max_in_flight > service.max_batch
    loop = served(program, 4, max_num_seqs=8).loop
    assert (loop.max_in_flight, loop.limit) == (8, "that the engine runs")
    assert served(program, 4, engine="hf-transformers").loop.limit == "that fit"
    said = run("analyze", "qwen3-4b", "--concurrency", "4", "--max-num-seqs", "8").out
    assert "4 of 8 that the engine runs" in said
    said = run("analyze", "qwen3-4b", "--concurrency", "4", "--cost", "ideal").out
    assert "steps without a limit of tokens (--chunk): whole prompts mixed with decodes" in said
    assert "Requests arrive one by one" in " ".join(said.split())
    said = run("analyze", "qwen3-4b", "--concurrency", "4", "--engine", "sglang").out
    assert "Simulated as by serve-sim --closed: 40 requests, without the first 8" in " ".join(said.split())


def test_json_and_tables_have_both_answers(run: Run) -> None:
    sizes = ["--prompt", "1000", "--generate", "200", "--concurrency", "16", "--max-tpot", "50"]
    asked = ["analyze", "qwen3-4b", "--hw", "h100", *sizes]
    serving = json.loads(run(*asked, "--format", "json").out)["serving"]
    program = llmir.run(llmir.load("qwen3-4b"), llmir.pipeline_of("vllm"))
    loop = served(program, 16, max_tpot_s=0.05).loop
    keys = ("concurrency", "ttft_s", "tpot_s", "output_tokens_per_s", "max_in_flight")
    assert {key: serving[key] for key in keys} == {key: getattr(loop, key) for key in keys}
    shown = run(*asked)
    assert shown.code == 0
    for words in (
        "one batch of 16",
        "16 users in a closed loop",
        "prefill chunks of other requests",
        "most at 50.0 ms",
    ):
        assert words in shown.out
    for form in ("md", "html"):
        assert "16 users in a closed loop" in run(*asked, "--format", form).out
    limited = run(*asked[:-1], "1")
    assert (limited.code, "--max-tpot 1 ms" in limited.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency: expected an integer from 1"),
        ({"concurrency": 4, "batch": 4}, "concurrency: 4 requests; leave batch out"),
        ({"concurrency": 4, "chunk": 512, "max_batched_tokens": 256}, "chunk: 512 tokens of a step are"),
        ({"max_tpot_s": 0.1}, "max_tpot_s: 0.1; it requires concurrency"),
        ({"concurrency": 4, "max_tpot_s": 0.0}, "max_tpot_s: expected a number above 0"),
        (
            {"concurrency": 4, "max_tpot_s": 0.1, "generate": 1},
            "with 1 token to generate there is no later one",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        loop = llmir.workload(built(), "h100", **records(llmir.workload, **options))
        loop.to_dict()


def test_a_batch_and_users_are_not_both(run: Run) -> None:
    said = run("analyze", "qwen3-4b", "--batch", "4", "--concurrency", "4")
    assert (said.code, said.err) == (
        2,
        "error: --concurrency 4: sets the number of requests; leave --batch out\n",
    )


def test_budgets_are_the_engines() -> None:
    """As vLLM's `get_batch_defaults` and SGLang's `chunked_prefill_size` have them."""
    budgets = {
        "vllm": {"h100": 8192, "a100": 2048, "l4": 2048, "mi300x": 8192},
        "sglang": {"l4": 2048, "l40s": 4096, "h100": 8192, "b200": 16384},
        "trtllm": {"h100": 8192},
    }
    program = built(model="qwen3-0.6b")
    for engine, devices in budgets.items():
        for device, tokens in devices.items():
            job = llmir.workload(program, device, concurrency=2, estimation=llmir.Estimation(engine=engine))
            assert isinstance(job, ClosedLoopWorkload)
            assert job.loop.chunk == tokens


@pytest.mark.parametrize(
    ("engine", "mixes"), [("vllm", True), ("vllm@0.9", True), ("vllm@0.7", False), ("sglang", False)]
)
def test_who_reads_prompts_beside_decodes(engine: str, mixes: bool) -> None:
    assert served(built(), 2, engine=engine).loop.scheduler.mixes is mixes


def test_transformers_pads_so_that_a_step_has_one_length() -> None:
    """It runs a rectangle of tokens: no step of its has sequences of two lengths."""
    program = llmir.load("qwen3-0.6b")
    at: dict[str, Any] = {"batch": 2, "new": 1, "context": 100, "engine": "hf-transformers"}
    alike = llmir.analyze(
        program, "a100", **records(llmir.analyze, **at, beside=[{"batch": 3, "new": 1, "context": 100}])
    )
    assert alike.time_s == pytest.approx(
        llmir.analyze(program, "a100", **records(llmir.analyze, **{**at, "batch": 5})).time_s
    )
    longest = (
        "pads the sequences of a step to the longest; price one batch, with new and context of the longest"
    )
    for other in ({"new": 1, "context": 101}, {"new": 50, "context": 0}):
        with pytest.raises(InputError, match=f"beside: hf-transformers 4 {longest}"):
            llmir.analyze(program, "a100", **records(llmir.analyze, **at, beside=[{"batch": 1, **other}]))
    with pytest.raises(InputError, match=f"surface: hf-transformers 4 {longest}"):
        llmir.surface(program, "a100", estimation=llmir.Estimation(engine="hf-transformers"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("fast", "x must be a mapping"),
        ({}, "x must be a mapping"),
        ({"new": {}}, "x: expected the first release of each"),
        ({1: {}}, "x: expected the first release of each"),
        ({"1": {"mixes": True}}, "x.1: missing key source"),
        ({"1": {"mixes": 1, "source": "s"}}, "x.1: mixes must be true or false"),
        ({"1": {"mixes": True, "source": "s", "chunk": 1}}, "x.1: unknown key 'chunk'"),
    ],
)
def test_what_a_scheduler_may_not_say(value: object, says: str) -> None:
    with pytest.raises(HardwareError, match=says):
        scheduler(value, "x")
