"""Servers whose steps verify drafts: against one that is plain, and against closed forms."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.request.speculation import accepted_tokens
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.load import AcceptedTokens
from llmir.backends.simulate.server import LOG, token_gaps
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records

from .serving_cases import Case, Toy, alike, cases, in_use, left, naively

LAST, EVERY, SMALL = (
    llmir.run(llmir.load(name, logits=logits), llmir.pipeline_of("vllm"))
    for name, logits in (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
)


class Exact(Toy):
    """Priced at the sum of contexts itself, not at whole mean contexts."""

    def naive(self, contexts: list[int], ranks: Any) -> float:
        return float(self(len(contexts), [sum(contexts)], ranks[0]))


@st.composite
def drafted(draw: Any) -> Case:
    """Loads whose steps verify some drafts, on engines with little room."""
    groups = draw(st.booleans())
    fills, load, room = draw(cases(shares=not groups, groups=groups))
    tokens = draw(st.integers(1, 6))
    chance = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    rows = tokens + 1
    blocks = room.blocks + 2 * -(-rows // room.block)
    each = max(room.tokens, rows + draw(st.integers(0, 20)))
    room = room._replace(blocks=blocks, tokens=each, sequences=min(room.sequences, each // rows), rows=rows)
    return fills, replace(load, drafts=(tokens, chance), seed=draw(st.integers(0, 9))), room


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(drafted())
def test_it_is_the_plain_simulator(case: Case) -> None:
    """Each step yields what was drawn; slots of drafts that were wrong stay the request's."""
    fills, load, room = case
    naive, reads = naively(case, Exact())
    server = serve(StepTimes(Exact()), fills, room, load)
    alike(server.course, reads)
    in_use(server, naive)
    left(server)
    steps = [len(load.yields(r.number)) - len(r.yields) for r in reads]
    log = dict(zip(LOG, server.events.T, strict=True))
    found = server.course
    _, counts = token_gaps(server.events, np.array(found.joined_s), np.array(found.resumed_s))
    assert log["steps"] @ log["decodes"] == sum(steps)
    assert counts.sum() == sum(len(set(r.times)) - 1 for r in reads if r.times)  # tokens come together


@settings(max_examples=50, deadline=None)
@given(drafted().filter(lambda case: case[0].mixes))
def test_the_log_says_how_many_requests_are_there(case: Case) -> None:
    """Little's law, sample by sample."""
    ways = {"ahead", "patience"} & {field.name for field in fields(case[0])}
    case = replace(case[0], **dict.fromkeys(ways, 0)), *case[1:]  # who is late or held has no column
    log = serve(StepTimes(Exact()), case[0], case[2], case[1]).events
    event = dict(zip(LOG, log.T, strict=True))
    inside = event["waiting"] + event["decodes"] + event["reads"]
    plain = sum(seconds * requests for _, seconds, requests, _ in naively(case, Exact())[0].log)
    assert inside @ event["time_s"] == pytest.approx(plain, rel=1e-9, abs=0)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_yields_have_the_law_of_drafts(acceptance: float) -> None:
    """The chance of n tokens and more is that of n - 1 drafts that are right (arXiv:2211.17192)."""
    drafts = 4
    lengths = np.full(1000, 200)
    every = AcceptedTokens(drafts, acceptance, 0, lengths)
    drawn = np.concatenate([every(i) for i in range(1000)])
    assert len(drawn) == 200_000 and drawn.mean() == pytest.approx(
        accepted_tokens(drafts, acceptance), rel=0.01
    )
    for n in range(1, drafts + 2):
        assert (drawn >= n).mean() == pytest.approx(acceptance ** (n - 1), abs=0.005)
    again = AcceptedTokens(drafts, acceptance, 0, lengths)
    assert all((again(i) == every(i)).all() for i in (999, 0, 500))  # in any order
    other = AcceptedTokens(drafts, acceptance, 1, lengths)
    assert acceptance in (0, 1) or any((other(i) != every(i)).any() for i in range(9))


def alone(acceptance: float, draft: Program | None, requests: int = 1) -> Any:
    return llmir.simulate(
        LAST,
        "h100-sxm",
        llmir.Traffic(closed=1, requests=requests, prompt=1000, generate=401, lengths="fixed"),
        drafts=llmir.Drafts(4, acceptance, draft, EVERY),
    )


@pytest.mark.parametrize("draft", [None, SMALL])
@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_one_request_alone_takes_the_steps_that_analyze_prices(
    acceptance: float, draft: Program | None
) -> None:
    """One token a step where no draft is right, and five where all are."""
    found = alone(acceptance, draft)
    contexts = 1000 + np.arange(0, 400, 5 if acceptance else 1)
    steps = llmir.analyze(EVERY, "h100-sxm", batch=1, new=5, context=contexts).period_s
    if draft:
        steps = steps + 4 * llmir.analyze(draft, "h100-sxm", batch=1, new=1, context=contexts).period_s
    assert found.tpot_s[0] == pytest.approx(np.sum(steps) / 400, rel=1e-12, abs=0)
    assert found.events["steps"][1:].sum() == len(contexts)
    job = llmir.workload(LAST, "h100-sxm", batch=1, prompt=1000, generate=401)
    said = llmir.speculate(
        job, llmir.Drafts(draft_tokens=4, acceptance=acceptance, draft_model=draft, verify=EVERY)
    )
    assert found.ttft_s[0] == pytest.approx(said.ttft_s, rel=1e-12, abs=0)
    assert found.tpot_s[0] == pytest.approx(said.tpot_s, rel=1e-5)


@pytest.mark.parametrize("draft", [None, SMALL])
def test_one_request_alone_takes_what_speculate_says_on_average(draft: Program | None) -> None:
    job = llmir.workload(LAST, "h100-sxm", batch=1, prompt=1000, generate=401)
    said = llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=0.7, draft_model=draft, verify=EVERY))
    found = alone(0.7, draft, requests=300).tpot_s
    assert found.mean() == pytest.approx(said.tpot_s, rel=0.01) and found.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [3000, 20_000])
def test_what_drafts_reads_a_prompt_in_the_steps_that_analyze_prices(prompt: int) -> None:
    """In chunks of 8,192 tokens; on GLM's 8 ranks its own layer reads it."""
    asked: dict[str, Any] = {"prompt": prompt, "generate": 2}
    glm, every = (
        llmir.run(
            llmir.load("glm-4.5-air", of, draft=of == "last"), llmir.pipeline_of("vllm") + ",shard{tp=8}"
        )
        for of in ("last", "all")
    )
    for program, verify, draft in ((LAST, EVERY, SMALL), (glm, every, None)):
        drafts: dict[str, Any] = {"verify": verify, "draft_tokens": 2, "acceptance": 0.5, "draft": draft}
        found = llmir.simulate(
            program,
            "h100-sxm",
            **records(llmir.simulate, closed=1, requests=1, lengths="fixed", **asked, **drafts),
        )
        said = llmir.speculate(
            llmir.workload(program, "h100-sxm", chunk=8192, **asked),
            llmir.Drafts(2, 0.5, draft, verify),
        )
        assert said.draft_read_s > 0
        assert found.ttft_s[0] == pytest.approx(said.ttft_s, rel=1e-12, abs=0)


def test_a_static_batch_of_which_all_drafts_are_right() -> None:
    found = llmir.simulate(
        LAST,
        "h100-sxm",
        llmir.Traffic(closed=8, requests=8, prompt=900, generate=301, lengths="fixed"),
        drafts=llmir.Drafts(3, 1.0, verify=EVERY),
    )
    steps = llmir.analyze(EVERY, "h100-sxm", batch=8, new=4, context=900 + np.arange(0, 300, 4)).period_s
    assert found.tpot_s == pytest.approx(np.full(8, np.sum(steps) / 300), rel=1e-12, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [None, SMALL])
def test_prompts_beside_drafts_take_no_less_than_either_and_no_more_than_both(draft: Program | None) -> None:
    engine = llmir.server(
        LAST, "h100-sxm", drafts=llmir.Drafts(verify=EVERY, draft_tokens=4, acceptance=0.7, draft_model=draft)
    )
    step = engine.prices().step
    for decodes, kept, chunk in ((1, 900, (512, 0)), (64, 64 * 3000, (2000, 500)), (200, 200 * 700, (16, 0))):
        verify, read = step(decodes, (kept,), ()), step(0, (), (chunk,))
        both = step(decodes, (kept,), (chunk,))
        assert max(verify, read) < both < verify + read


def test_memory_has_room_for_what_drafts() -> None:
    """Llama 3.2 1B: 2.47 GB of weights, 32 KiB a token beside 128 KiB of the 8B."""
    rooms = [
        llmir.server(LAST, "h100-sxm", **records(llmir.server, **more)).capacity(4096)
        for more in (
            {},
            {"verify": EVERY, "draft_tokens": 4, "acceptance": 0.7},
            {"verify": EVERY, "draft_tokens": 4, "acceptance": 0.7, "draft": SMALL},
        )
    ]
    block = 16 * 131_072
    assert rooms[0].blocks == rooms[1].blocks and (rooms[0].rows, rooms[1].rows) == (1, 5)
    expected = (rooms[0].blocks * block - 1.2358e9 * 2) / (16 * (131_072 + 32_768))
    assert rooms[2].blocks == pytest.approx(expected, rel=1e-3)


def test_no_more_run_than_a_step_has_tokens_for() -> None:
    asked: dict[str, Any] = {"verify": EVERY, "acceptance": 0.7, "max_batched_tokens": 100}
    assert (
        llmir.server(LAST, "h100-sxm", **records(llmir.server, draft_tokens=9, **asked))
        .capacity(500)
        .sequences
        == 10
    )
    few = llmir.server(
        LAST, "h100-sxm", **records(llmir.server, draft_tokens=64, **asked | {"max_batched_tokens": 64})
    )
    with pytest.raises(InputError, match="a step verifies 65 tokens of a sequence, and has 64"):
        few.capacity(500)


@pytest.mark.slow
def test_more_right_drafts_answer_sooner_and_more() -> None:
    traffic = llmir.traffic(llmir.Traffic(rate=10, prompt=512, generate="lognormal:200,0.6", requests=200))
    found = [
        llmir.server(
            LAST, "h100-sxm", drafts=llmir.Drafts(verify=EVERY, draft_tokens=4, acceptance=share)
        ).run(traffic)
        for share in (0.0, 0.5, 0.9, 1.0)
    ]
    times = [each.latencies["tpot"].mean for each in found]
    rates = [each.largest_rate for each in found]
    assert times == sorted(times, reverse=True) and rates == sorted(rates)
    assert "a step verifies 4 drafts of each sequence, each right 50 times in 100" in found[1].notes[-1]
    assert found[1].to_dict()["speculation"]["tokens_per_step"] == 1.9375


def test_all_is_equal_by_seed_on_any_replica() -> None:
    server = llmir.server(LAST, "h100-sxm", drafts=llmir.Drafts(verify=EVERY, draft_tokens=2, acceptance=0.6))
    load = llmir.traffic(llmir.Traffic(rate=30, prompt=300, generate=80, requests=120, seed=3))
    one, two = (server.run(load, replicas=2, router="least-loaded") for _ in range(2))
    assert (one.end_s == two.end_s).all()
    other = server.run(
        llmir.traffic(llmir.Traffic(rate=30, prompt=300, generate=80, requests=120, seed=4)), replicas=2
    )
    assert (one.tpot_s != other.tpot_s).any()


STAGES, RANKS = (
    llmir.run(llmir.load("qwen3-30b-a3b"), f"{head}{llmir.pipeline_of('vllm')}{tail}")
    for head, tail in (("stages{pp=2},", ""), ("", ",shard{dp=2,ep=2}"))
)


@pytest.mark.parametrize(
    ("program", "asked", "says"),
    [
        (LAST, {"draft_tokens": 4, "acceptance": 0.5}, "requires verify"),
        (LAST, {"draft_tokens": 4, "verify": EVERY}, "requires acceptance"),
        (LAST, {"acceptance": 0.5}, "acceptance: requires draft_tokens"),
        (LAST, {"draft": SMALL}, "draft_model: requires draft_tokens"),
        (LAST, {"draft_tokens": 0, "acceptance": 0.5, "verify": EVERY}, "^draft_tokens: "),
        (LAST, {"draft_tokens": 4, "acceptance": 2, "verify": EVERY}, "^acceptance: "),
        (LAST, {"draft_tokens": 4, "acceptance": 0.5, "verify": SMALL}, "with logits of all positions"),
        (STAGES, {"draft_tokens": 4, "acceptance": 0.5, "verify": STAGES}, "no drafts in pipeline stages"),
    ],
)
def test_what_cannot_be_is_one_line(program: Program, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        llmir.server(program, "h100-sxm", **records(llmir.server, **asked))
    assert "\n" not in str(error.value)


def test_sglang_takes_drafts_on_ranks_of_the_models_own_layer_alone() -> None:
    asked: dict[str, Any] = {"draft_tokens": 4, "acceptance": 0.5, "engine": "sglang"}
    with pytest.raises(InputError, match="such drafts with data-parallel attention"):
        llmir.server(RANKS, "h100-sxm", **records(llmir.server, verify=RANKS, **asked))
    pipeline = f"{llmir.pipeline_of('sglang')},shard{{tp=2,dp=2,ep=4}}"
    glm, every = (
        llmir.run(llmir.load("glm-4.5-air", of, draft=of == "last"), pipeline) for of in ("last", "all")
    )
    assert llmir.server(glm, "h100-sxm", **records(llmir.server, verify=every, **asked)).drafts


RANKS_EVERY, RANKS_SMALL = (
    llmir.run(llmir.load(name, logits), f"{llmir.pipeline_of('vllm')},shard{{dp=2{more}}}")
    for name, logits, more in (("qwen3-30b-a3b", "all", ",ep=2"), ("qwen3-0.6b", "last", ""))
)


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize("draft", [None, RANKS_SMALL])
@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_ranks_verify_abreast(acceptance: float, draft: Program | None) -> None:
    """Of a static batch each has half: the steps are those that `analyze` prices of the whole."""
    drafts: dict[str, Any] = {"verify": RANKS_EVERY, "draft_tokens": 3, "acceptance": acceptance}
    asked: dict[str, Any] = {"prompt": 900, "generate": 301}
    found = llmir.simulate(
        RANKS,
        "h100-sxm",
        **records(llmir.simulate, closed=8, requests=8, lengths="fixed", **asked, **drafts, draft=draft),
    )
    contexts = 900 + np.arange(0, 300, 4 if acceptance else 1)
    steps = llmir.analyze(RANKS_EVERY, "h100-sxm", batch=8, new=4, context=contexts).period_s
    if draft:
        steps = steps + 3 * llmir.analyze(draft, "h100-sxm", batch=8, new=1, context=contexts).period_s
    assert found.tpot_s == pytest.approx(np.full(8, np.sum(steps) / 300), rel=1e-12, abs=0)
    job = llmir.workload(RANKS, "h100-sxm", batch=8, **asked)
    said = llmir.speculate(job, **records(llmir.speculate, **drafts, draft=draft))
    assert found.ttft_s == pytest.approx(np.full(8, said.ttft_s), rel=1e-12, abs=0)


def test_prompts_beside_drafts_of_ranks_take_no_less_than_either_and_no_more_than_both() -> None:
    engine = llmir.server(
        *(RANKS, "h100-sxm"),
        drafts=llmir.Drafts(verify=RANKS_EVERY, draft_tokens=4, acceptance=0.7, draft_model=RANKS_SMALL),
    )
    step = engine.prices().step
    for decodes, kept, chunk in ((1, 900, (3000, 0)), (63, 63 * 3000, (2000, 500))):  # beyond graphs
        verify = float(step(decodes, (kept,), ()))
        alone, both = (step.micro_batch(n, (kept,), ([chunk], []))[0] for n in (0, decodes))
        assert max(verify, alone) < both < verify + alone


def apart(acceptance: float, draft: Program | None, **more: Any) -> Any:
    asked = {"prompt": 1000, "generate": 402, "link": "50GBps,5us"} | more
    drafts = {"verify": EVERY, "draft_tokens": 4, "acceptance": acceptance, "draft": draft}
    return llmir.simulate(LAST, "h100-sxm", **records(llmir.simulate, **asked, **drafts))


@pytest.mark.parametrize("draft", [None, SMALL])
@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_a_decode_server_verifies_from_its_second_token_on(acceptance: float, draft: Program | None) -> None:
    """Both sides read what the drafter reads, and its cache goes over the link too."""
    found = apart(acceptance, draft, rate=1, requests=1)
    job = llmir.workload(LAST, "h100-sxm", prompt=1000, generate=402)
    assert found.ttft_s[0] == pytest.approx(
        llmir.speculate(
            job, llmir.Drafts(draft_tokens=4, acceptance=0.5, draft_model=draft, verify=EVERY)
        ).ttft_s,
        rel=1e-12,
        abs=0,
    )
    sent = sum(of.cache_bytes(1000) for of in (LAST, draft) if of)
    assert found.transfer_s[0] == pytest.approx(5e-6 + sent / 50e9, rel=1e-9, abs=0)
    contexts = 1001 + np.arange(0, 400, 5 if acceptance else 1)
    rest = np.sum(llmir.analyze(EVERY, "h100-sxm", new=5, context=contexts).period_s)
    rest += llmir.analyze(LAST, "h100-sxm", new=1, context=1000).period_s
    if draft:
        rest += 4 * np.sum(llmir.analyze(draft, "h100-sxm", new=1, context=contexts).period_s)
        rest += llmir.analyze(draft, "h100-sxm", new=1, context=1000).period_s
    assert found.e2e_s[0] - found.ttft_s[0] - found.transfer_s[0] == pytest.approx(
        float(rest), rel=1e-9, abs=0
    )


@pytest.mark.slow
def test_pools_with_drafts_make_every_token() -> None:
    asked: dict[str, Any] = {"rate": 30, "requests": 200, "prompt": "uniform:10,3000", "decode_replicas": 2}
    found = [apart(share, SMALL, **asked, generate="uniform:1,90") for share in (0.0, 0.5, 1.0)]
    for each in found:
        assert each.made.tolist() == each.load.generate.tolist() and np.isfinite(each.e2e_s).all()
        assert "a step verifies 4 drafts of each sequence" in " ".join(each.notes)
    times = [each.latencies["tpot"].mean for each in found]
    assert times == sorted(times, reverse=True)
    again = apart(0.5, SMALL, **asked, generate="uniform:1,90")
    assert (again.end_s == found[1].end_s).all()


@pytest.mark.slow
def test_decode_servers_of_another_split_verify_by_programs_of_their_own(run: Run) -> None:
    split = ("--tp", "1", "--decode-tp", "2", "--link", "nvlink", "--format", "json")
    drafts = ("--draft-tokens", "4", "--acceptance", "0.7", "--draft-model", "llama3.2-1b")
    done = run(*ASKED, *drafts, *split)
    two, every, small = (
        llmir.run(llmir.load(name, logits), f"{llmir.pipeline_of('vllm')},shard{{tp=2}}")
        for name, logits in (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
    )
    asked: dict[str, Any] = {"draft_tokens": 4, "acceptance": 0.7}
    one = llmir.server(LAST, "h100-sxm", **records(llmir.server, verify=EVERY, draft=SMALL, **asked))
    other = llmir.server(two, "h100-sxm", **records(llmir.server, verify=every, draft=small, **asked))
    load = llmir.traffic(llmir.Traffic(rate=5, requests=50, generate=40))
    said = json.loads(done.out)
    assert said == json.loads(json.dumps(llmir.pools(one, other, "nvlink").run(load).to_dict()))


def test_drafts_that_pools_do_not_take() -> None:
    one = llmir.server(LAST, "h100-sxm", drafts=llmir.Drafts(verify=EVERY, draft_tokens=4, acceptance=0.5))
    for other in (
        llmir.server(LAST, "h100-sxm"),
        llmir.server(
            *(LAST, "h100-sxm"),
            drafts=llmir.Drafts(verify=EVERY, draft_tokens=4, acceptance=0.5, draft_model=SMALL),
        ),
    ):
        with pytest.raises(
            InputError, match="pools: both servers must have the same drafter, or none; got 'lookup' and"
        ):
            llmir.pools(one, other, "nvlink")
    more = llmir.server(LAST, "h100-sxm", drafts=llmir.Drafts(verify=EVERY, draft_tokens=2, acceptance=0.5))
    assert llmir.pools(more, one, "nvlink")  # "The number of speculative tokens may differ"
    last, every = (
        llmir.run(llmir.load("llama3.1-8b", logits=of), llmir.pipeline_of("trtllm")) for of in ("last", "all")
    )
    trtllm = llmir.server(
        *(last, "h100-sxm"),
        drafts=llmir.Drafts(verify=every, draft_tokens=4, acceptance=0.5),
        estimation=llmir.Estimation(engine="trtllm"),
    )
    with pytest.raises(InputError, match="trtllm does not support such drafts in pools"):
        llmir.pools(trtllm, trtllm, "nvlink")


ASKED = ("serve-sim", "llama3.1-8b", "--rate", "5", "--requests", "50", "--generate", "40")


@pytest.mark.slow
def test_the_command_simulates_drafts(run: Run) -> None:
    done = run(*ASKED, "--draft-tokens", "4", "--acceptance", "0.7", "--draft-model", "llama3.2-1b")
    text = " ".join((done.out + done.err).split())
    assert done.code == 0 and "and yields 2.77 tokens; Llama-3.2-1B drafts them" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--draft-tokens", "4"), "--draft-tokens: requires --acceptance"),
        (("--acceptance", "0.7"), "needs --draft-tokens"),
        (("--draft-tokens", "4", "--acceptance", "0.7", "--pp", "2"), "no drafts in pipeline stages"),
    ],
)
def test_what_means_nothing_is_one_line(run: Run, more: tuple[str, ...], says: str) -> None:
    done = run(*ASKED, *more)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1
