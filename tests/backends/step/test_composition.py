"""`llmir.surface`: a step of any composition is what a report says of its sequences, given one by one."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.step.composition import DecodeBatch, KvSums, Surface, split_size
from llmir.base.errors import InputError
from llmir.ir.core.masks import Chunk, Entries, Mask, Window
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, UnevenBinding
from llmir.ir.sizes.polynomial import B, C, Dim, Min, Size, T, ceildiv
from tests.flat import records

FUSED = llmir.pipeline_of()
# A kind of state each: full, windowed, chunked, selected, latent, fixed; and unfused, sharded, in stages.
PROGRAMS = {
    "full": ("llama3.1-8b", FUSED),
    "windowed": ("gpt-oss-20b", FUSED),
    "chunked": ("llama4-scout", FUSED),
    "selected": ("deepseek-v3.2", FUSED),
    "latent": ("deepseek-v3", FUSED),
    "fixed": ("Qwen3-Next-80B-A3B", FUSED),
    "unfused": ("llama3.2-1b", ""),
    "dp": ("deepseek-v3", f"{FUSED},shard{{tp=4,dp=2,ep=8}}"),
    "stages": ("gpt-oss-20b", f"{FUSED},stages{{pp=2}}"),
}
# What an engine runs: steps as graphs, and two programs of one model.
PROGRAMS |= {
    "engine": ("llama3.1-8b", llmir.pipeline_of("vllm")),
    "two programs": ("deepseek-v3", f"{llmir.pipeline_of('vllm')},shard{{tp=8}}"),
    "micro-batches": ("llama3.1-8b", f"{FUSED},stages{{pp=2,micro_batches=2}}"),
}
KEEPS = {
    "full": {"C"},
    "windowed": {"C", "min(C, 127)"},
    "selected": {"C", "min(C, 2047)"},
    "latent": {"C"},
    "fixed": {"C"},
}


@cache
def program(name: str) -> Program:
    model, pipeline = PROGRAMS[name]
    return llmir.run(llmir.load(model), pipeline) if pipeline else llmir.load(model)


@cache
def surface(name: str, cost: str | None = None) -> Surface:
    return llmir.surface(program(name), "h100-sxm", estimation=llmir.Estimation(cost=cost))


def one_by_one(name: str, contexts: list[int], chunks: list[tuple[int, int]], cost: str | None) -> float:
    """The report of a step in which each sequence is given alone."""
    each = [{"batch": 1, "new": 1, "context": c} for c in contexts]
    each += [{"batch": 1, "new": new, "context": cached} for new, cached in chunks]
    report = llmir.analyze(
        program(name), "h100-sxm", **records(llmir.analyze, **each[0], beside=each[1:], cost=cost)
    )
    return float(report.time_s)


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("cost", [None, "ideal"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_each_sequence_with_its_own_context(name: str, cost: str | None) -> None:
    rng, of = random.Random(name), surface(name, cost)
    parts = program(name).micro_batches
    for _ in range(6):
        some = (0, 1, 126, 127, 2047, 8191, 8192, rng.randrange(60_000))
        contexts = [rng.choice(some) for _ in range(rng.choice((1, 2, 40, 300)))] * parts
        prompts = [(rng.choice((1, 2, 9, 512, 700)), rng.choice((0, 0, 300, 9000))) for _ in range(3)]
        prompts = sorted(prompts[: rng.randrange(4)] * parts)
        for chunks in (prompts, []):
            found = of.step(len(contexts), of.kept(contexts), chunks)
            assert found == pytest.approx(one_by_one(name, contexts, chunks, cost), rel=1e-12, abs=0)
        prompts = prompts or [(300, 7)] * parts
        assert of.step(0, (), prompts) == pytest.approx(one_by_one(name, [], prompts, cost), rel=1e-12, abs=0)
    assert of.whole == ()


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_the_report_of_sequences_that_are_alike(name: str) -> None:
    of = surface(name)
    for batch, context in ((2, 0), (8, 100), (64, 5000), (300, 40_000)):
        plain = llmir.analyze(program(name), "h100-sxm", batch=batch, new=1, context=context)
        assert of.step(batch, of.kept([context] * batch)) == pytest.approx(
            float(plain.time_s), rel=1e-12, abs=0
        )
        read = llmir.analyze(program(name), "h100-sxm", batch=batch, new=300, context=context)
        assert of.step(0, (), [(300, context)] * batch) == pytest.approx(float(read.time_s), rel=1e-12, abs=0)


@pytest.mark.parametrize("name", KEEPS)
def test_asks_for_a_sum_of_each_mask_and_state(name: str) -> None:
    for cost in (None, "ideal"):
        assert {str(function) for function in surface(name, cost).keeps} == KEEPS[name]


def test_a_mean_context_is_not_what_windows_keep() -> None:
    """Half of the sequences are short: at the mean context all would fill their windows."""
    of, contexts = surface("windowed"), [0, 2000] * 32
    mean = [sum(contexts) // 64] * 64
    assert of.kept(contexts)[0] == of.kept(mean)[0]
    assert of.step(64, of.kept(contexts)) < of.step(64, of.kept(mean))


sizes = st.sampled_from([Window(128), Window(2), Chunk(64), Entries(4)])


@given(mask=sizes, contexts=st.lists(st.integers(0, 300), min_size=1, max_size=9))
def test_pairs_of_a_step_follow_from_what_is_kept(mask: Mask, contexts: list[int]) -> None:
    """Brute force: who sees whom, query by query."""
    pairs, kept = mask.pairs(T, C), mask.kept(C)
    assert isinstance(pairs, Dim) and isinstance(kept, Dim)
    keeps = KvSums([pairs_at(pairs), kept])
    constant, *often = keeps.of(pairs_at(pairs))
    found = constant * len(contexts)
    found += sum(times * total for times, total in zip(often, keeps.sums(contexts), strict=True))
    seen = sum(2 * int(Binding(T=1, C=c)(pairs) / 2) for c in contexts)
    assert found == seen
    if isinstance(mask, Window):
        assert seen == 2 * sum(min(c + 1, mask.width) for c in contexts)


def pairs_at(size: Size) -> Dim:
    (found,) = split_size(size).values()
    assert isinstance(found, Dim)
    return found


@given(contexts=st.lists(st.integers(0, 5000), min_size=1, max_size=20), ranks=st.integers(1, 4))
def test_uneven_sequences_are_sums(contexts: list[int], ranks: int) -> None:
    at, each = UnevenBinding(contexts), np.array(contexts)
    assert at(B) == len(contexts)
    assert at(B * C) == each.sum()
    assert at(B * T * Min.of(C + T, 100)) == np.minimum(each + 1, 100).sum()
    assert at(ceildiv(B * T, ranks)) == -(-len(contexts) // ranks)
    assert at(C * ceildiv(B, ranks)) == pytest.approx(-(-len(contexts) // ranks) * each.mean())
    assert at.capped(C, 30) == pytest.approx(np.minimum(each, 30).mean())


FUNCTIONS = (
    C,
    Min.of(C, 127),
    ceildiv(C + 1, 4),
    Min.of(ceildiv(C, 4), 9) + 3 * C,
    ceildiv(C, 4) + ceildiv(C + 2, 6),
    Min.of(2 * C - 128 * ceildiv(C + 1, 64) + 128, 63),
)
starts = st.sampled_from([0, 1, 62, 126, 4000]) | st.integers(0, 300)
events = st.lists(st.just(None) | starts | st.tuples(st.integers(0, 30)), max_size=60)


@given(first=st.lists(starts, max_size=5), events=events)
def test_a_batch_keeps_what_its_sequences_do(first: list[int], events: list[Any]) -> None:
    """Steps, joins and leaves in any order."""
    batch, contexts = DecodeBatch(FUNCTIONS, first), list(first)
    for event in events:
        if event is None:
            batch.advance()
            contexts = [c + 1 for c in contexts]
        elif isinstance(event, int):
            batch.join(event)
            contexts.append(event)
        elif contexts:
            batch.leave(contexts.pop(event[0] % len(contexts)))
        assert sorted(batch) == sorted(contexts) and len(batch) == len(contexts)
        assert batch.kept == tuple(sum(int(Binding(C=c)(f)) for c in contexts) for f in FUNCTIONS)


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_batch_keeps_what_a_surface_asks(name: str) -> None:
    of, rng = surface(name), random.Random(name)
    contexts = [0, 126, 2046, 4095, 8190, *(rng.randrange(100_000) for _ in range(9))]
    batch = of.batch(contexts)
    for step in range(300):
        if step % 50 == 0:
            assert batch.kept == of.kept(c + step for c in contexts)
        batch.advance()
    assert batch.kept == of.kept(batch)
    with pytest.raises(InputError, match="context: no sequence of the batch has 5 cached tokens"):
        batch.leave(5)
    with pytest.raises(InputError, match="context"):
        batch.join(-1)


def test_what_is_wrong_is_said() -> None:
    of = surface("windowed")
    for given_, message in (
        (
            (2, (1, 2, 3)),
            "kept: 2 sequences decode, expected the sums of C, min(C, 127), got (1, 2, 3)",
        ),
        ((0, (1, 2)), "kept: 0 sequences decode, expected none, got (1, 2)"),
        ((0, ()), "surface: the step has no sequences; pass decodes or chunks"),
        ((0, (), [5]), "chunks: expected pairs of new and cached tokens, got 5"),
        ((0, (), [(0, 5)]), "chunks: new"),
    ):
        with pytest.raises(InputError) as error:
            of.step(*given_)  # type: ignore[arg-type]
        assert message in str(error.value)
    with pytest.raises(InputError, match=r"surface: DiT.* reads images"):
        llmir.surface(llmir.load("DiT-XL/2"), "h100-sxm")
