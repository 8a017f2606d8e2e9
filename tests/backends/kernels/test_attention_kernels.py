"""Times of attention and of experts: never falling, and what closed forms say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.backends.kernels.attention import AttentionShape, DecodeAttention, PrefillAttention, visible_keys
from llmir.backends.kernels.base import Kernel
from llmir.backends.kernels.moe import GroupedShape, MoeKernel, RoutedShape
from llmir.base.array_namespace import ARRAYS, SCALARS
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.ir.sizes.routing_laws import Even, PowerLaw
from tests.backends.silicon.table_fits import cases_of, fitted
from tests.ir.sizes.test_routing_laws import shares

from .kernel_strategies import GPUS, kernels

H100 = library.load("h100-sxm")


@st.composite
def attentions(draw: st.DrawFn) -> AttentionShape:
    bits, dtype = draw(st.sampled_from([((16, 16), "bf16"), ((16, 8), "bf16"), ((8, 8), "fp8")]))
    sizes = [
        draw(st.integers(low, high)) for low, high in ((1, 512), (1, 1 << 14), (0, 1 << 17), (1, 32), (1, 48))
    ]
    head, window = draw(st.sampled_from([64, 128, 192, 256])), draw(st.sampled_from([np.inf, 128, 4096]))
    return AttentionShape(*sizes, head, window, q_bits=bits[0], kv_bits=bits[1], dtype=dtype)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[int, int, GroupedShape]:
    """Tokens, how many experts each chooses, and the product of the rows of a rank."""
    tokens, top_k, experts, ranks = draw(st.integers(1, 1 << 15)), draw(st.integers(1, 8)), 128, 8
    n, k = draw(st.sampled_from([(1536, 2048), (4096, 7168), (2048, 5120)]))
    x, w, dtype = draw(st.sampled_from([(16, 16, "bf16"), (8, 8, "fp8"), (16, 4.25, "bf16")]))
    rows, touched = shares(Even(), tokens, top_k, experts, ranks)
    return tokens, top_k, GroupedShape(rows, touched, n, k, tokens * top_k - rows, x, w, dtype=dtype)


# --- counts, by brute force ----------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(0, 80), st.sampled_from([1, 3, 17, 64, np.inf]))
def test_keys_are_those_that_a_loop_counts(new: int, cached: int, window: float) -> None:
    shape = AttentionShape(1, new, cached, 1, 1, 64, window)
    visible = [[k for k in range(cached + new) if q - window < k <= q] for q in range(cached, cached + new)]
    assert float(visible_keys(SCALARS, new, cached, window, 1)) == sum(map(len, visible))
    assert float(shape.keys(SCALARS)) == len(set().union(*visible))


@given(st.integers(1, 40), st.floats(0, 30), st.floats(0.5, 50), st.floats(0.1, 4))
def test_what_rows_see_is_the_sum_over_them(rows: int, before: float, most: float, step: float) -> None:
    by_hand = sum(min(before + i * step, max(most, before * 0)) for i in range(1, rows + 1))
    assert float(visible_keys(SCALARS, rows, before, most, step)) == pytest.approx(by_hand)


# --- attention -----------------------------------------------------------------------------------


@given(
    st.data(),
    st.sampled_from(GPUS),
    st.sampled_from([PrefillAttention, DecodeAttention]),
    attentions(),
    st.sampled_from(["batch", "new", "cached", "kv_heads"]),
    st.integers(1, 5000),
)
def test_more_attention_takes_no_less(
    data: Any, device: Device, kind: type[Kernel], shape: AttentionShape, axis: str, more: int
) -> None:
    kernel = data.draw(kernels(kind))
    larger = replace(shape, **{axis: getattr(shape, axis) + more})
    assert kernel.seconds(device, larger) >= kernel.seconds(device, shape) * (1 - 1e-9)


@given(st.data(), st.sampled_from([PrefillAttention, DecodeAttention]), attentions())
def test_a_grid_is_its_points(data: Any, kind: type[Kernel], shape: AttentionShape) -> None:
    kernel = data.draw(kernels(kind))
    batch, cached = np.array([[1.0], [shape.batch], [256.0]]), np.array([0.0, shape.cached, 70000.0])
    grid = np.asarray(kernel.seconds(H100, replace(shape, batch=batch, cached=cached)))
    for i, j in np.ndindex(3, 3):
        point = replace(shape, batch=float(batch[i, 0]), cached=float(cached[j]))
        assert grid[i, j] == pytest.approx(float(kernel.seconds(H100, point)), rel=1e-12, abs=0)


def test_a_long_prefill_runs_at_its_rates_and_a_chunk_of_it_at_its_share() -> None:
    # By hand: half a square of pairs, 4·128 FLOPs each at 0.7 of the peak beside 5 at 0.4 of fp32's.
    kernel = PrefillAttention(matrix=0.7, softmax=0.4, block_us=0.02, tail=0.01)
    shape = AttentionShape(4, 16384, 0, 8, 4, 128)
    products, exponentials = 4 * 128 / (0.7 * 989.4e12), 5 / (0.4 * 66.9e12)
    a_pair = np.cbrt(products**3 + exponentials**3)
    whole = 4 * 32 * 16384**2 / 2 * a_pair
    assert kernel.seconds(H100, shape) == pytest.approx(whole, rel=0.07)  # beside launch, edges, what moves
    last = kernel.seconds(H100, replace(shape, new=4096, cached=12288))
    assert last / whole == pytest.approx(7 / 16, rel=0.07)  # 1 − (3/4)²


def test_a_window_makes_prefill_linear() -> None:
    kernel, shape = PrefillAttention(), AttentionShape(1, np.array([32768.0, 65536.0]), 0, 8, 4, 128, 1024)
    short, long = kernel.seconds(H100, shape)
    assert long / short == pytest.approx(2, rel=0.05)


def test_few_queries_of_a_group_fill_one_tile_if_it_packs_them() -> None:
    shape = AttentionShape(512, 8, 0, 8, 8, 128)
    apart, packed = (PrefillAttention(packs=p).seconds(H100, shape) for p in (0, 1))
    assert 3.5 < apart / packed < 8  # eight tiles or one; what moves is the same


def test_a_long_cache_streams_at_the_bandwidth_and_one_sequence_is_cut() -> None:
    kernel = DecodeAttention(bandwidth=0.9, alone=1)
    full = kernel.seconds(H100, AttentionShape(64, 1, 32767, 8, 8, 128))
    assert full == pytest.approx(2 * 64 * 8 * 32768 * 128 * 2 / (0.9 * 3350e9), rel=0.03)
    one = AttentionShape(1, 1, 131071, 1, 8, 128)
    ratio = replace(kernel, pieces=2).seconds(H100, one) / replace(kernel, pieces=64).seconds(H100, one)
    assert 10 < ratio < 32  # 32, but for launches


def test_what_begins_and_ends_blocks_hides_behind_traffic_as_far_as_it_is_not_exposed() -> None:
    # By hand: 512 sequences of 32 heads, each of a block on one of 132 multiprocessors, and their keys.
    shape = AttentionShape(512, 1, 511, 32, 8, 128)
    blocks, traffic = 512 * 32 * 4e-6 / 132, 512 * 32 * (2 * 512 * 128 * 2 + 8 * 128 * 4) / 3350e9
    for exposed in (0.01, 0.5, 1):
        kernel = DecodeAttention(bandwidth=1, block_us=4, exposed=exposed, launch_us=0.5, combine_us=0.01)
        by_hand = max(blocks, traffic) + exposed * min(blocks, traffic)
        assert kernel.seconds(H100, shape) == pytest.approx(by_hand, rel=0.03)


def test_single_heads_have_a_kernel_of_their_own_where_groups_are_packed_to_a_limit() -> None:
    shape = AttentionShape(4096, 1, 0, 8, np.array([1, 2]), 128)  # a key each: only blocks count
    one, two = DecodeAttention(packs=32, block_us=4, lone=0.25).seconds(H100, shape)
    assert two / one == pytest.approx(4, rel=0.05)
    one, two = DecodeAttention(packs=1024, block_us=4, lone=0.25).seconds(H100, shape)
    assert two == pytest.approx(one, rel=0.05)


def test_a_kernel_that_masks_a_window_takes_as_long_as_without_one() -> None:
    free = AttentionShape(1, 65536, 0, 8, 4, 128)
    narrow = replace(free, window=512)
    masking, passing = PrefillAttention(masked=1), PrefillAttention(masked=0)
    assert masking.seconds(H100, narrow) == pytest.approx(float(masking.seconds(H100, free)), rel=1e-3)
    assert passing.seconds(H100, narrow) < 0.1 * passing.seconds(H100, free)


def test_a_group_too_large_to_pack_reads_its_keys_once_a_head() -> None:
    kernel, shape = DecodeAttention(packs=32), AttentionShape(64, 1, 8191, 2, np.array([32, 48]), 128)
    packed, apart = kernel.seconds(H100, shape)
    assert apart / packed > 10


# --- experts -------------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(GPUS), grouped(), st.integers(1, 5000))
def test_more_tokens_to_experts_take_no_less(
    data: Any, device: Device, shape: tuple[int, int, GroupedShape], more: int
) -> None:
    kernel = data.draw(kernels(MoeKernel))
    tokens, top_k, product = shape
    for law in (Even(), PowerLaw(1.2)):
        few, many = (
            replace(product, rows=rows, experts=touched, away=t * top_k - rows)
            for t in (tokens, tokens + more)
            for rows, touched in (shares(law, t, top_k, 128, 8),)
        )
        assert kernel.seconds(device, many) >= kernel.seconds(device, few) * (1 - 1e-9)


def test_rows_between_products_go_through_memory() -> None:
    # By hand: 4096 tokens copied 8 times, 2048 values of 2 bytes, half of the rows foreign and half as dear.
    kernel = MoeKernel(between=0.5, launch_us=3, foreign=0.5)
    shape = RoutedShape(4096, 16384, 2048, away=16384)
    moved = (4096 + 16384 + 8192) * 2048 * 2
    assert kernel.dispatch(H100, shape) == pytest.approx(3e-6 + moved / (0.5 * 3350e9))
    assert kernel.combine(H100, shape) == pytest.approx(3e-6 + (moved + 24576 * 4) / (0.5 * 3350e9))
    assert kernel.activation(H100, shape) == pytest.approx(3e-6 + 3 * 24576 * 2048 * 2 / (0.5 * 3350e9))


def test_few_rows_read_weights_and_many_multiply() -> None:
    # By hand: 16 touched experts of 4096×3072 in bf16 at 0.9 of the bandwidth; full tiles at 0.6 of the peak.
    kernel = MoeKernel(matrix=0.6, bandwidth=0.9, exposed=0.01, walk=0.01, fill=1, launch_us=0.3)
    few = kernel.seconds(H100, GroupedShape(16, 16, 3072, 4096))
    assert few == pytest.approx(16 * 3072 * 4096 * 2 / (0.9 * 3350e9), rel=0.05)
    many = kernel.seconds(H100, GroupedShape(16 * 8192, 16, 3072, 4096))
    assert many == pytest.approx(2 * 16 * 8192 * 3072 * 4096 / (0.6 * 989.4e12), rel=0.05)


def test_an_expert_with_a_row_multiplies_a_tile_and_one_with_many_hardly_more_than_they_are() -> None:
    kernel = MoeKernel(matrix=0.1, fetch=40, exposed=0.01)
    one, many = kernel.tiled(GroupedShape(np.array([1.0, 4096.0]), 1, 2048, 2048), ARRAYS)
    assert one == pytest.approx(np.cbrt(16**3 + 40**3))  # what its columns take to arrive
    assert many == pytest.approx(4096, rel=0.03)


# --- choices and fits ----------------------------------------------------------------------------


def test_a_kernel_is_built_one_of_a_few_ways() -> None:
    with pytest.raises(HardwareError, match=r"x\.packs must be one of 0, 1, got 0\.5"):
        PrefillAttention.of({"packs": 0.5}, "x")


def drawn(seed: int, *ranges: tuple[int, int]) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return [2.0 ** random.integers(low, high, 400) for low, high in ranges]


@pytest.mark.parametrize(
    ("made", "shape", "found_again"),
    [
        (
            PrefillAttention(matrix=0.5, bandwidth=0.4, block_us=2.5, launch_us=12, packs=1),
            AttentionShape(*drawn(1, (0, 8), (0, 14), (0, 1), (0, 4), (0, 4)), 128),
            ("matrix", "launch_us", "packs"),
        ),
        (
            DecodeAttention(bandwidth=0.7, block_us=3, launch_us=12, packs=32),
            AttentionShape(*drawn(2, (0, 11), (0, 1), (0, 17), (0, 4), (0, 7)), 128),
            ("bandwidth", "block_us", "launch_us", "packs"),
        ),
        (
            MoeKernel(matrix=0.4, bandwidth=0.7, launch_us=7),
            GroupedShape(*drawn(3, (3, 17), (0, 3), (6, 13), (7, 13))),
            ("matrix", "bandwidth", "launch_us"),
        ),
    ],
)
def test_a_fit_finds_what_made_noisy_times(made: Kernel, shape: Any, found_again: tuple[str, ...]) -> None:
    pytest.importorskip("scipy")
    from llmir.backends.silicon.rows import error_statistics

    noise = np.random.default_rng(5).lognormal(0, 0.03, 400)
    times = np.asarray(made.seconds(H100, shape))
    found = fitted(type(made), H100, shape, times * noise, starts=2)
    assert error_statistics(np.asarray(found.seconds(H100, shape)), times).mape < 0.03
    for name in found_again:
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=0.15), name


def test_rows_of_attention_and_experts_are_read(tmp_path: Any) -> None:
    header = "gpu,dtype,kv_dtype,batch,q_len,context,num_heads,num_kv_heads,head_dim,window,latency_us,"
    row = "h100_sxm,bfloat16,fp8,2,1,{},{},8,128,{},99,vllm-0.24.0,vllm_{},test\n"
    sizes = (
        (100, 32, 0, "a"),
        (9, 64, 4, "a"),
        (9, 64, 0, "a"),
        (7, 32, 0, "b"),
        (7, 64, 0, "b"),
        (0, 32, 0, "a"),
    )
    lines = [row.format(*v) for v in sizes]
    path = tmp_path / "attention_decode.csv"
    path.write_text(header + "framework,kernel,source\n" + "".join(lines))
    found, problems = cases_of(path, "attention_decode_kv8")
    assert [(c.engine, len(c.seconds)) for c in found] == [("vllm", 3), ("vllm-b", 2)]
    assert "row 6: context must be" in problems[0]
    [term] = found[0].clock.terms
    shape = term.call.shape
    assert isinstance(shape, AttentionShape)
    order = np.argsort(term.rows)
    read = zip(shape.cached[order], shape.window[order], shape.group[order], strict=True)
    assert sorted(read) == [(8, 4, 8), (8, np.inf, 8), (99, np.inf, 4)]

    header = "gpu,dtype,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep,distribution,latency_us,op,"
    row = "h100_sxm,bfloat16,{},{},768,8,128,1,8,{},99,moe_layer,vllm-0.24.0,vllm_a,test\n"
    sizes = (1, 2048, "balanced"), (64, 4096, "power_law_1.2"), (64, 2048, "uniform")
    lines = [row.format(*v) for v in sizes]
    (tmp_path / "moe.csv").write_text(header + "framework,kernel,source\n" + "".join(lines))
    [case], problems = cases_of(tmp_path / "moe.csv", "moe_bf16")
    products = [term.call.shape for term in case.clock.terms if isinstance(term.call.shape, GroupedShape)]
    rows = {
        (float(r), float(e)) for shape in products for r, e in zip(shape.rows, shape.experts, strict=True)
    }
    (one, touched), (many, all_held) = sorted(rows)
    assert (one, touched, all_held) == (1, 1, 16)
    assert many > 64
    assert problems == [
        "moe.csv: row 3: distribution must be balanced or power_law_ and its exponent, got 'uniform'",
    ]
