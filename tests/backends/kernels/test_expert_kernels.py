"""Rows and touched experts of the rank that is timed, against draws of the loads and of the router."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import llmir
from llmir.backends.kernels.base import kernel_calls
from llmir.backends.kernels.moe import TUNED, GroupedShape, Moe16Bit, MoeKernel, RoutedShape
from llmir.backends.work.rows import rows
from llmir.base.array_namespace import ARRAYS
from llmir.hw import library
from llmir.hw.device import Device
from llmir.ir.sizes.routing_laws import Even, GroupLimitedRouting
from tests.backends.silicon.table_fits import points_of
from tests.ir.sizes.test_routing_laws import shares

H100 = library.load("h100")


class Given(NamedTuple):
    """Tokens, rows of a rank, experts that they touch, and rows of other ranks."""

    tokens: float
    rows: float
    experts: float
    away: float


def layer(path: Path, framework: str, kernel: str, ranks: int, source: str = "aic", **sizes: int) -> Given:
    """What the kernels of a measured row are given."""
    numbers = {"num_tokens": 4096, "hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256} | sizes
    cells = {"gpu": "h100", "framework": framework, "kernel": kernel, "source": source, "dtype": "bfloat16"}
    cells |= {name: str(n) for name, n in numbers.items()} | {"moe_tp": "1", "moe_ep": str(ranks)}
    cells |= {"distribution": "balanced", "latency_us": "99"}
    (path / "moe.csv").write_text(f"{','.join(cells)}\n{','.join(cells.values())}\n")
    [points] = points_of(path / "moe.csv")
    shapes = [call.at(points.at) for row in rows(points.program) for call in kernel_calls(row)]
    [product, *_] = [shape for shape in shapes if isinstance(shape, GroupedShape)]
    others = [shape for shape in shapes if isinstance(shape, RoutedShape)]
    tokens = others[0].tokens.item() if others else float(numbers["num_tokens"])
    return Given(tokens, *(np.asarray(n).item() for n in (product.rows, product.experts, product.away)))


def test_rows_are_what_their_benchmark_ran(tmp_path: Path) -> None:
    plain = layer(tmp_path, "trtllm-1.3.0rc20", "deepgemm", 8)
    assert (plain.tokens, plain.rows, plain.experts) == (4096, *shares(Even(), 4096, 8, 256, 8))
    half = layer(tmp_path, "vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8)
    assert (half.tokens, half.rows, half.experts) == (4096, *shares(GroupLimitedRouting(), 4096, 8, 256, 8))
    mine = layer(tmp_path, "vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8, source="mine")
    assert (mine.rows, mine.experts) == (plain.rows, plain.experts)
    other = layer(tmp_path, "vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8, hidden=4096)
    assert (other.rows, other.experts) == (plain.rows, plain.experts)
    arrived = layer(tmp_path, "sglang-0.5.10", "sglang_fused_moe_triton", 32)
    assert (arrived.tokens, arrived.rows, arrived.away) == (1024, 8192, 0)
    alone = layer(tmp_path, "sglang-0.5.10", "sglang_fused_moe_triton", 1)
    assert (alone.tokens, alone.rows) == (4096, 4096 * 8)


def test_a_router_of_random_scores_is_chance(tmp_path: Path) -> None:
    drawn = layer(tmp_path, "aiter", "aiter_ck", 1, source="aiter", num_tokens=16)
    assert drawn.experts == pytest.approx(256 * (1 - (1 - 8 / 256) ** 16))
    assert drawn.rows == 16 * 8


def test_tiles_are_as_low_as_takes_least_time() -> None:
    """By brute force: each height's tiles, of which the last is a quarter more in the mean."""
    kernel = MoeKernel(fetch=40)
    each = np.array([1.0, 12, 13, 64, 100, 1000])
    took = {height: float(np.cbrt(height**3 + 40.0**3)) for height in (16, 32, 64, 128)}
    for many, found in zip(each, kernel.tiled(GroupedShape(8 * each, 8, 64, 64), ARRAYS), strict=True):
        times = [max(many / height + 0.25, 1) * tile for height, tile in took.items()]
        assert found == pytest.approx(min(times))


def test_weights_that_an_engine_widened_as_it_loaded_them_are_read_in_16_bits(tmp_path: Path) -> None:
    """SGLang's Triton kernel has none for mxfp4; another engine's reads 4.25 bits a weight."""
    sizes = "num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep"
    said = (("sglang-0.5.14", "sglang_fused_moe_triton"), ("vllm-0.24.0", "marlin"))
    lines = "".join(f"h100,w4a16_mxfp4,64,2880,2880,4,128,1,1,999,{of},{by},aic\n" for of, by in said)
    path = tmp_path / "moe.csv"
    path.write_text(f"gpu,dtype,{sizes},latency_us,framework,kernel,source\n{lines}")
    wide, narrow = llmir.validate(path, cost="ideal").rows
    assert wide.ideal_s / narrow.ideal_s == pytest.approx(16 / 4.25, rel=0.02)


def test_where_tokens_outnumber_experts_weights_take_longer_by_the_token_and_never_by_more() -> None:
    fast, slow = (Moe16Bit(coarse=coarse, matrix=1, fill=1) for coarse in (1, 1.5))
    tokens = np.arange(1.0, 1025)
    shape = GroupedShape(8 * tokens, 128 * (1 - (1 - 8 / 128) ** tokens), 4096, 2048, top_k=8)
    ours, least = slow.seconds(H100, shape), fast.seconds(H100, shape)
    assert np.allclose(ours[:100], least[:100])
    assert 1.3 < ours[300] / least[300] <= 1.5
    assert (np.diff(ours) >= 0).all()
    assert (ours[1:] <= ours[:-1] * (1 + 1 / tokens[:-1])).all()


def test_layers_with_tuned_tiles_read_weights_as_fast_however_many_tokens() -> None:
    """On the device that they are tuned for, and for their width in their number alone."""
    fast, slow = (Moe16Bit(coarse=coarse) for coarse in (1, 1.5))
    a100, small, tokens = library.load("a100"), library.load("a100-40"), np.array([4.0, 64, 256])

    def ratio(device: Device, held: int, width: int) -> list[float]:
        shape = GroupedShape(2 * tokens, held, 2 * width, 4096, top_k=2, held=held, width=width)
        return list(slow.seconds(device, shape) / fast.seconds(device, shape))

    assert ratio(a100, 8, 3584) == ratio(small, 8, 3584) == ratio(a100, 8, 7168) == [1, 1, 1]
    for others in (ratio(small, 8, 7168), ratio(a100, 8, 3072), ratio(a100, 7, 3584), ratio(H100, 8, 3584)):
        assert others[0] == 1 and min(others[1:]) > 1.1
    assert all(name == library.load(name).name for name in TUNED)


def test_the_lower_bound_of_a_row_is_of_the_experts_that_it_touches(tmp_path: Path) -> None:
    """All 256 of them, or the half that a router of groups keeps to; the calibrated time is never below."""
    sizes = "num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep"
    lines = "".join(f"b200,fp8,64,7168,2048,8,256,1,1,999,{by},aic\n" for by in ("x", "vllm-0.24.0"))
    path = tmp_path / "moe.csv"
    path.write_text(f"gpu,dtype,{sizes},latency_us,framework,source\n{lines}")
    weights = 3 * 7168 * 2048 / library.load("b200").memory_Bps
    bounds, found = (llmir.validate(path, cost=cost).rows for cost in ("ideal", "calibrated"))
    for touched, bound, one in zip((256, 128), bounds, found, strict=True):
        assert touched * weights <= bound.ideal_s == one.ideal_s <= bound.predicted_s <= one.predicted_s
        assert bound.predicted_s < 1.01 * touched * weights
