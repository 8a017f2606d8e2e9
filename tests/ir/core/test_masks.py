"""Masks: pairs and keys by closed form against who sees whom, and caches that keep what a mask needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import ParseError, VerifyError
from llmir.ir.core.masks import MASKS, ChosenBlocks, ChosenEntries, Entries, Mask, mask
from llmir.ir.core.mesh import ONE_DEVICE
from llmir.ir.core.op import infer, work
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops import make
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import B, C, T, after_step
from llmir.ir.tools.build import Builder
from tests.logits import same, weight

SIZES = st.integers(1, 30)
KINDS = st.one_of(
    st.sampled_from(("full", "causal", "alibi(1)", "alibi(64)")),
    st.builds("{}({})".format, st.sampled_from(("window", "chunk", "prefix")), SIZES),
).map(mask)
# A cache that keeps all tokens has the keys of any mask; these keep fewer.
SHORT = st.builds("{}({})".format, st.sampled_from(("window", "chunk")), st.integers(2, 9)).map(mask)


def seen(by: Mask, new: int, cached: int) -> np.ndarray[Any, Any]:
    """Who sees whom: [new, cached + new]."""
    return by.sees(cached + np.arange(new)[:, None], np.arange(cached + new))


def by_hand(by: Mask, query: int, key: int) -> bool:
    size = next(iter(vars(by).values()), 0)
    return {
        "full": True,
        "causal": key <= query,
        "alibi": key <= query,
        "window": key in range(query - size + 1, query + 1),
        "chunk": key in range(query - query % size, query + 1) if size else False,
        "prefix": key <= query or (key in range(size) and query in range(size)),
    }[by.word]


@given(KINDS, st.integers(1, 40), st.integers(0, 60))
def test_who_sees_whom_is_what_a_mask_is_called_for(by: Mask, new: int, cached: int) -> None:
    expected = [[by_hand(by, q, k) for k in range(cached + new)] for q in range(cached, cached + new)]
    assert seen(by, new, cached).tolist() == expected


@given(KINDS, st.integers(1, 40), st.integers(0, 60))
def test_pairs_and_keys_are_those_that_are_seen(by: Mask, new: int, cached: int) -> None:
    sees, at = seen(by, new, cached), Binding(T=new, C=cached)
    assert at(by.pairs(T, C)) == by.pairs(new, cached) == 2 * sees.sum()
    assert at(by.keys(T, C)) == by.keys(new, cached)
    # Nothing before the keys that are counted is seen, and the first of them is.
    first = cached + new - at(by.keys(T, C))
    assert not sees[:, :first].any() and sees[:, first].any()
    assert sees.sum(axis=1).max() <= by.most or by.word == "chunk"


@given(KINDS, st.integers(0, 60))
def test_a_cache_keeps_what_tokens_to_come_see(by: Mask, cached: int) -> None:
    later = seen(by, 60, cached)[:, :cached].any(axis=0)
    assert Binding(C=cached)(by.kept(C)) == cached - later.argmax() if later.any() else by.kept(cached) == 0


@given(KINDS, st.integers(1, 30), st.integers(0, 30))
def test_a_flash_op_does_the_pairs_and_reads_the_keys_that_its_mask_leaves(
    by: Mask, new: int, cached: int
) -> None:
    op = make("flash_attention", mask=str(by), to="bf16")
    operands = tuple(map(parse_tensor, ("bf16[b, t, 1, 2, 4]", "bf16[b, c, 1, 4]", "bf16[b, c, 1, 4]")))
    at, done = Binding(b=3, t=new, c=new + cached), work(op, operands, infer(op, operands), ONE_DEVICE)
    sees = seen(by, new, cached)
    assert at(done.matrix) == 3 * 2 * sees.sum() * 2 * (4 + 4)
    assert at(done.vector) == 3 * 2 * sees.sum() * (7 if by.word == "alibi" else 5)
    assert at(done.reads[1]) == at(done.reads[2]) == 3 * (new + cached - sees.any(axis=0).argmax()) * 4 * 2


@given(KINDS)
def test_what_a_mask_prints_is_the_mask(by: Mask) -> None:
    assert mask(str(by)) == by and str(mask(f" {by} ")) == str(by)


@pytest.mark.parametrize(
    "text", ["", "causall", "window", "window()", "window(0)", "window(-1)", "window(4.5)", "window(1, 2)"]
)
def test_what_is_no_mask_is_an_error_with_those_that_are(text: str) -> None:
    for op in ("attention_mask", "flash_attention"):
        operand = parse_tensor("bf16[B, T, 2, 1, 4]")
        with pytest.raises(VerifyError) as error:
            infer(make(op, mask=text), (operand,) * (1 if op == "attention_mask" else 3))
        assert "window" in str(error.value) or "causal" in str(error.value)
    with pytest.raises(ParseError, match="line 3"):
        llmir.parse_program(
            f'program "x"\ngraph @main {{\n  %y = attention_mask() {{mask={text}((}} : bf16[B]\n}}'
        )


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 60))
def test_entries_are_seen_from_their_last_token_on(stride: int, new: int, cached: int) -> None:
    by, at = Entries(stride), Binding(T=new, C=cached)
    count = (cached + new) // stride
    assert at(by.kept(C)) == cached // stride and at(by.keys(T, C)) == count
    query = cached + np.arange(new)[:, None]
    sees = by.sees(query, by.positions(count, cached + new))
    assert sees.tolist() == [[q >= e * stride + stride - 1 for e in range(count)] for q in query[:, 0]]
    assert at(by.pairs(T, C)) == 2 * sees.sum()
    for width in (1, 3, 50):
        few = ChosenEntries(stride, width)
        assert at(few.pairs(T, C)) == 2 * np.minimum(sees.sum(axis=1), width).sum()
        assert at(few.keys(T, C)) == min(count, new * width)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 40), st.integers(0, 60))
def test_of_blocks_a_query_sees_its_own_and_so_many_before(
    length: int, width: int, new: int, cached: int
) -> None:
    by, at = ChosenBlocks(length, width), Binding(T=new, C=cached)
    each = [q % length + 1 + length * min(q // length, width - 1) for q in range(cached, cached + new)]
    assert at(by.pairs(T, C)) == 2 * sum(each)
    assert max(each) <= by.most and at(by.keys(T, C)) == min(cached + new, new * length * width)


# --- ALiBi --------------------------------------------------------------------------------------


def slopes(heads: int) -> list[float]:
    """As the authors of arXiv:2108.12409 wrote it (github.com/ofirpress/attention_with_linear_biases)."""

    def powers(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(np.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if np.log2(heads).is_integer():
        return powers(heads)
    below = int(2 ** np.floor(np.log2(heads)))
    return powers(below) + slopes(2 * below)[0::2][: heads - below]


@given(SIZES, st.integers(1, 9), st.integers(1, 64))
def test_alibi_has_the_slopes_of_its_paper(heads: int, distance: int, spread: int) -> None:
    by = mask(f"alibi({spread})")
    found = by.bias(np.arange(heads), heads, np.array(20), np.array(20 - distance))
    np.testing.assert_allclose(found, -distance / np.sqrt(spread) * np.array(slopes(heads)))


@pytest.mark.parametrize("spec", ["shard{tp=2}", "shard{tp=4}", "shard{tp=2,sp=1}"])
@pytest.mark.parametrize("flash", [False, True])
def test_alibi_and_learned_positions_are_the_same_on_each_rank(spec: str, flash: bool) -> None:
    """4 query heads for 2 keys and values; to the sums that a split table leaves, rows are added once."""
    b = Builder()
    ids = b.input("int64[B, T]", name="x", axes=("batch", "seq"))
    table = b.weight("fp32[8, 4]", name="embed", axes=("vocab", "embed"))
    x = b.positions(
        b.embedding(table, ids), b.weight("fp32[12, 4]", name="wpe", axes=("position", "embed")), offset=2
    )
    y = b.rms_norm(x, b.weight("fp32[4]", name="norm", axes=("embed",)))
    heads = ("kv_heads", "heads", "head_dim")
    q = b.linear(
        y,
        b.weight("fp32[4, 2, 2, 4]", name="q", axes=("embed", *heads)),
        einsum="b t h, h g r d -> b t g r d",
    )
    k, v = (
        b.linear(
            y,
            b.weight("fp32[4, 2, 4]", name=n, axes=("embed", "kv_heads", "head_dim")),
            einsum="b t h, h g d -> b t g d",
        )
        for n in "kv"
    )
    axes = ("batch", "cached", "kv_heads", "head_dim")
    keys, values = (
        b.append(b.cache("fp32[B, C, 2, 4]", name=f"{n}c", axes=axes), y) for n, y in (("k", k), ("v", v))
    )
    scores = b.attention_mask(b.attention_scores(q, keys), mask="alibi(4)")
    mixed = b.attention_mix(b.softmax(scores), values)
    out = b.weight("fp32[2, 2, 4, 4]", name="o", axes=(*heads, "embed"))
    b.output(b.add(x, b.linear(mixed, out, einsum="b t g r d, g r d h -> b t h")))
    program = llmir.run(Program("alibi", {"main": b.graph()}), "fuse-attention" if flash else "")
    tokens = np.random.default_rng(0).integers(0, 8, (2, 7))
    whole = outputs(program, tokens, [7])
    assert same(outputs(llmir.run(program, spec), tokens, [3, 4]), whole)
    # It is not what a causal mask gives.
    plain = llmir.parse_program(llmir.print_program(program).replace("alibi(4)", "causal"))
    assert not same(outputs(plain, tokens, [7]), whole)


# --- caches --------------------------------------------------------------------------------------


def attention(by: Mask, kept: object, flash: bool) -> Program:
    """A layer of attention alone, over caches of `kept` rows."""
    b = Builder()
    x = b.input("fp32[B, T, 4]", name="x", axes=("batch", "seq", "embed"))
    q, k, v = (
        b.linear(x, b.weight("fp32[4, 1, 4]", name=f"w{n}"), einsum="b t h, h g d -> b t g d") for n in "qkv"
    )
    q = b.linear(x, b.weight("fp32[4, 1, 2, 4]", name="wq2"), einsum="b t h, h g r d -> b t g r d")
    q, k = b.rope(q, theta=10.0), b.rope(k, theta=10.0)
    shape = Tensor((B, kept, 1, 4), parse_tensor("fp32[1]").dtype)  # type: ignore[list-item]
    axes = ("batch", "cached", "kv_heads", "head_dim")
    keys, values = (b.append(b.cache(shape, name=n, axes=axes), y) for n, y in (("kc", k), ("vc", v)))
    if flash:
        out = b.flash_attention(q, keys, values, mask=str(by))
    else:
        scores = b.attention_mask(b.attention_scores(q, keys), mask=str(by))
        out = b.attention_mix(b.softmax(scores), values)
    b.output(out)
    return llmir.run(Program("attention", {"main": b.graph()}), "dce")


def outputs(program: Program, x: np.ndarray[Any, Any], pieces: list[int]) -> np.ndarray[Any, Any]:
    caches: dict[str, Any] = {}
    found, start = [], 0
    for size in pieces:
        step = {"x": x[:, start : start + size]}
        (out,), caches = interpret(program, step, weight, caches, context=start)
        found.append(out)
        start += size
        due = Binding(B=len(x), C=start)(program["main"]["kc"].results[0].shape[1])
        assert caches["kc"][0].shape[1] == due
    return np.concatenate(found, axis=1)


@pytest.mark.slow
@given(SHORT, st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_a_cache_of_what_is_kept_is_one_of_all_tokens_in_any_chunks(
    by: Mask, pieces: list[int], flash: bool
) -> None:
    """Ring = full cache under the mask; chunked prefill and token by token = in one piece."""
    x = np.random.default_rng(len(pieces)).normal(size=(2, sum(pieces), 4))
    ring, full = attention(by, by.kept(C), flash), attention(by, C, not flash)
    whole = outputs(full, x, [sum(pieces)])
    for steps in (pieces, [1] * sum(pieces), [sum(pieces)]):
        assert same(outputs(ring, x, steps), whole) and same(outputs(full, x, steps), whole)


@given(SHORT, st.integers(1, 40), st.integers(0, 40))
def test_a_cache_after_a_step_is_its_type_after_the_step(by: Mask, new: int, cached: int) -> None:
    assert Binding(T=new, C=cached)(after_step(by.kept(C))) == Binding(C=cached + new)(by.kept(C))


def test_every_kind_of_mask_is_drawn() -> None:
    assert set(MASKS) == {"full", "causal", "window", "chunk", "prefix", "alibi"}


@given(SHORT, st.integers(1, 30), st.integers(0, 60))
def test_memory_keeps_the_ring_and_holds_what_is_read_beyond_it(by: Mask, new: int, cached: int) -> None:
    ring = attention(by, by.kept(C), True)
    step = llmir.analyze(ring, "h100-sxm", batch=3, new=new, context=cached)
    rows = by.kept(cached + new)
    assert step.kv_cache_bytes == 2 * 3 * rows * 4 * 4
    read = 2 * 3 * (by.kept(cached) + new - rows) * 4 * 4
    q, out = (3 * new * 2 * 4 * 4 for _ in range(2))
    assert step.activation_peak_bytes >= read + q + out
    full = llmir.analyze(attention(by, C, True), "h100-sxm", batch=3, new=new, context=cached)
    assert step.matmul_flops == full.matmul_flops
    assert step.kv_cache_bytes <= full.kv_cache_bytes
