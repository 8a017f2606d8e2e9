"""Steps that verify drafts: against texts drawn at random, and what their parts cost."""

from __future__ import annotations

import numpy as np
import pytest

import llmir
from llmir.backends.request.speculation import accepted_tokens
from llmir.backends.request.workload import Workload
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records


@pytest.fixture(scope="module")
def programs() -> tuple[Program, Program, Program]:
    """With logits of the last position and of all, and a model that drafts."""
    names = (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
    last, every, small = (
        llmir.run(llmir.load(name, logits=logits), llmir.pipeline_of("vllm")) for name, logits in names
    )
    return last, every, small


@pytest.fixture(scope="module")
def job(programs: tuple[Program, Program, Program]) -> Workload:
    return llmir.workload(programs[0], "h100-sxm", batch=16, prompt=1000, generate=400)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("drafts", [1, 4, 8])
def test_a_step_yields_the_drafts_before_the_first_wrong_one_and_one_more(
    drafts: int, acceptance: float
) -> None:
    rng = np.random.default_rng(0)
    right = rng.random((200_000, drafts)) < acceptance
    tokens = 1 + np.cumprod(right, axis=1).sum(axis=1)
    assert accepted_tokens(drafts, acceptance) == pytest.approx(tokens.mean(), rel=0.01)
    if acceptance < 1:
        assert accepted_tokens(drafts, acceptance) == pytest.approx(
            (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
        )


@pytest.mark.slow
@pytest.mark.parametrize("with_draft", [False, True])
def test_tpot_is_that_of_texts_drawn_at_random(
    programs: tuple[Program, Program, Program], job: Workload, with_draft: bool
) -> None:
    """Step by step, each at its own context, until the answer is there; the last step may yield too much."""
    _, every, small = programs
    drafts, acceptance = 4, 0.7
    found = llmir.speculate(
        job,
        llmir.Drafts(
            draft_tokens=drafts,
            acceptance=acceptance,
            draft_model=small if with_draft else None,
            verify=every,
        ),
    )
    contexts = np.arange(1000, 1000 + 400)
    verify = llmir.analyze(every, "h100-sxm", batch=16, new=drafts + 1, context=contexts).period_s
    draft = llmir.analyze(small, "h100-sxm", batch=16, new=1, context=contexts).period_s
    each = verify + drafts * draft * with_draft
    rng, spent, made = np.random.default_rng(1), 0.0, 0
    for _ in range(3000):
        context = 0
        while context < 399:
            right = rng.random(drafts) < acceptance
            spent += each[context]
            context += 1 + int(np.cumprod(right).sum())
        made += context
    assert found.tpot_s == pytest.approx(spent / made, rel=0.01)


@pytest.mark.parametrize("prompt", [1000, 20_000])
def test_what_drafts_reads_prompts_in_the_same_steps(
    programs: tuple[Program, Program, Program], prompt: int
) -> None:
    """After the model in each, so that the time is what both take alone; drafts looked up cost nothing."""
    last, every, small = programs
    asked = {"batch": 4, "prompt": prompt, "generate": 9, "chunk": 8192}
    job, own = (llmir.workload(of, "h100-sxm", **records(llmir.workload, **asked)) for of in (last, small))
    found = llmir.speculate(
        job, llmir.Drafts(draft_tokens=4, acceptance=0.7, draft_model=small, verify=every)
    )
    assert found.draft_read_s == own.ttft_s
    assert found.ttft_s == pytest.approx(job.ttft_s + own.ttft_s, rel=1e-12, abs=0)
    assert found.ttft_mean_s == pytest.approx(job.ttft_mean_s + own.ttft_mean_s, rel=1e-12, abs=0)
    assert found.to_dict()["speculation"]["draft_read_s"] == own.ttft_s
    none = llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=0.7, verify=every))
    assert (none.ttft_s, none.draft_read_s) == (job.ttft_s, 0.0)


def test_no_draft_that_is_right_costs_more_than_none(
    programs: tuple[Program, Program, Program], job: Workload
) -> None:
    wrong = llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=0.0, verify=programs[1]))
    assert wrong.tpot_s is not None and job.tpot_s is not None
    assert wrong.tpot_s > job.tpot_s
    shares = [
        llmir.speculate(
            job, llmir.Drafts(draft_tokens=4, acceptance=a, draft_model=programs[2], verify=programs[1])
        ).tpot_s
        for a in (0.0, 0.5, 0.9, 1.0)
    ]
    assert shares == sorted(shares, reverse=True)


def test_a_model_that_drafts_takes_its_weights_and_caches(
    programs: tuple[Program, Program, Program], job: Workload
) -> None:
    """Llama 3.2 1B: 1.24 billion weights of 2 bytes, and 32,768 bytes of cache a token."""
    with_none, with_small = (
        llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=0.7, draft_model=of, verify=programs[1]))
        for of in (None, programs[2])
    )
    taken = with_none.capacity_bytes - with_small.capacity_bytes
    assert taken == pytest.approx(1.2358e9 * 2 + 16 * 1399 * 32_768, rel=2e-3)
    assert with_small.max_batch < with_none.max_batch == job.max_batch


def test_the_layer_of_the_model_drafts() -> None:
    last, every = (
        llmir.run(
            llmir.load("glm-4.5-air", logits=of, draft=of == "last"),
            llmir.pipeline_of("vllm") + ",shard{tp=8}",
        )
        for of in ("last", "all")
    )
    job = llmir.workload(last, "h100-sxm", batch=8)
    found = llmir.speculate(job, llmir.Drafts(draft_tokens=2, acceptance=0.8, verify=every))
    assert found.draft is not None and found.decode is not None
    assert found.drafted_s == pytest.approx(2 * float(found.draft.period_s))
    assert 0 < found.drafted_s < float(found.decode.period_s)
    reads = llmir.analyze(last, "h100-sxm", batch=4, new=2048, phase="draft").period_s  # of 8192 tokens
    assert found.ttft_s == pytest.approx(job.ttft_s + 2 * float(reads), rel=1e-12, abs=0)


def test_what_cannot_be_verified(programs: tuple[Program, Program, Program], job: Workload) -> None:
    last, every, small = programs
    with pytest.raises(InputError, match="with logits of all positions"):
        llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=0.7, verify=small))
    with pytest.raises(InputError, match="acceptance: expected a number from 0 to 1"):
        llmir.speculate(job, llmir.Drafts(draft_tokens=4, acceptance=1.5, verify=every))
    with pytest.raises(InputError, match="draft_tokens: expected an integer from 1 to 64"):
        llmir.speculate(job, llmir.Drafts(draft_tokens=0, acceptance=0.5, verify=every))
    one = llmir.workload(last, "h100-sxm", generate=1)
    with pytest.raises(InputError, match="drafts start with the second token"):
        llmir.speculate(one, llmir.Drafts(draft_tokens=4, acceptance=0.5, verify=every))
    loop = llmir.workload(last, "h100-sxm", concurrency=8)
    with pytest.raises(InputError, match="only a batch of requests can have drafts"):
        llmir.speculate(loop, llmir.Drafts(draft_tokens=4, acceptance=0.5, verify=every))


@pytest.mark.parametrize(
    ("engine", "model", "draft", "says"),
    [
        ("vllm", "llama3.1-8b", "llama3.2-1b", None),
        (
            "sglang",
            "llama3.1-8b",
            "gpt2",
            "^GPT-2 cannot draft for Llama-3.1-8B: its vocabulary has 50,257 tokens, not 128,256$",
        ),
        ("sglang", "qwen2.5-72b", "qwen2.5-0.5b", None),  # one tokenizer, whose tables are padded otherwise
        (
            "vllm",
            "qwen2.5-72b",
            "qwen2.5-0.5b",
            "its vocabulary has 151,936 tokens, not 152,064, and vllm comp",
        ),
    ],
)
def test_what_drafts_has_the_models_vocabulary(engine: str, model: str, draft: str, says: str | None) -> None:
    """vLLM compares sizes (vllm/config/speculative.py); llama.cpp allows 128 ids of padding."""
    last, every, small = (
        llmir.run(llmir.load(name, logits=logits), f"{llmir.pipeline_of(engine)},shard{{tp=2}}")
        for name, logits in ((model, "last"), (model, "all"), (draft, "last"))
    )
    drafts = {"verify": every, "draft_tokens": 4, "acceptance": 0.7, "draft": small}
    job = llmir.workload(last, "h200", estimation=llmir.Estimation(engine=engine))
    asked = [
        lambda: llmir.speculate(job, **records(llmir.speculate, **drafts)),
        lambda: llmir.server(last, "h200", **records(llmir.server, engine=engine, **drafts)),
    ]
    for ask in asked:
        if says is None:
            ask()
            continue
        with pytest.raises(InputError, match=says):
            ask()


ASKED = ("analyze", "llama3.1-8b", "--draft-tokens", "4")


def test_the_command_says_what_a_step_yields(run: Run) -> None:
    done = run(*ASKED, "--acceptance", "0.7", "--draft-model", "llama3.2-1b", "--batch", "8")
    assert done.code == 0
    text = " ".join((done.out + done.err).split())
    assert "a step verifies 4 drafts, of which each is right 70 times in 100, and yields 2.77 tokens" in text
    assert "Llama-3.2-1B drafts them in" in text and "5 new tokens each" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "--draft-tokens: requires --acceptance"),
        (("--acceptance", "0.7", "--logits", "all"), "--logits all: --draft-tokens implies it"),
        (("--acceptance", "0.7", "--generate", "1"), "generate: 1; drafts start with the second token"),
        (("--acceptance", "2"), "--acceptance: expected a number"),
        (("--acceptance", "0.7", "--concurrency", "8"), "only a batch of requests can have drafts"),
    ],
)
def test_what_means_nothing_is_one_line(run: Run, more: tuple[str, ...], says: str) -> None:
    done = run(*ASKED, *more)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--acceptance", "--draft-model"])
def test_options_of_drafts_without_drafts_are_refused(run: Run, option: str) -> None:
    done = run("analyze", "llama3.1-8b", option, "0.5")
    assert done.code == 2 and "needs --draft-tokens" in done.err
