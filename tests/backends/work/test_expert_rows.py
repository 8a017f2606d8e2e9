"""What kernels of experts are given: one family for a layer, rows of other ranks where they pass by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import llmir
from llmir.backends.kernels.base import Call, kernel_calls
from llmir.backends.kernels.moe import GroupedShape, RoutedShape
from llmir.backends.work.rows import rows
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

PARTS = ("dispatch", "seconds", "activation", "combine")


def of_experts(program: Program) -> Iterator[Call]:
    for row in rows(program):
        for call in kernel_calls(row):
            if isinstance(call.shape, GroupedShape | RoutedShape):
                yield call


@pytest.mark.parametrize("law", ["chance", "even", "zipf(1.0)"])
def test_rows_of_others_pass_where_ranks_slice_and_not_where_they_exchange(law: str) -> None:
    model = llmir.run(llmir.load("qwen3-30b-a3b"), ["fuse-attention,fuse", f"route{{routing={law}}}"])
    at = Binding(B=64, T=3, C=0)
    for over, tokens in (("shard{tp=8, ep=8}", 64 * 3), ("shard{dp=8, ep=8}", 0), ("shard{tp=8}", 0)):
        found = list(of_experts(llmir.run(model, over)))
        assert {call.part for call in found} == {*PARTS}
        for call in found:
            shape = call.at(at)
            assert isinstance(shape, GroupedShape | RoutedShape)
            assert shape.away == max(tokens * 8 - shape.rows, 0)


@pytest.mark.parametrize(("over", "layer"), [("tp=4", (8, 3584)), ("tp=2, ep=2", (4, 14336))])
def test_products_know_how_many_experts_a_rank_holds_and_how_wide(over: str, layer: tuple[int, int]) -> None:
    """Up and down alike: Mixtral's 8 experts are 14,336 wide, its hidden size of 4,096 is not asked."""
    program = llmir.run(llmir.load("mixtral-8x7b"), ["fuse-attention,fuse", f"shard{{{over}}}"])
    products = [call.shape for call in of_experts(program) if isinstance(call.shape, GroupedShape)]
    assert {shape.k for shape in products} == {4096, layer[1]}
    assert {(shape.held, shape.width) for shape in products} == {layer}


@pytest.mark.parametrize(
    ("narrow", "family"),
    [
        ("weights=fp8, activations=fp8", "moe_fp8"),
        ("weights=fp8_b128x128, activations=fp8", "moe_fp8_block"),
        ("weights=int4", "moe_int4_weights"),
        ("weights=mxfp4", "moe_mxfp4_weights"),
        ("weights=nvfp4, activations=nvfp4", "moe_nvfp4"),
        ("kv=fp8", "moe_bf16"),
    ],
)
@pytest.mark.parametrize("over", ["dce", "shard{tp=4, ep=2}", "shard{dp=4, ep=4}"])
def test_a_layer_has_the_kernels_of_one_family(narrow: str, family: str, over: str) -> None:
    program = llmir.run(
        llmir.load("qwen3-30b-a3b"), [f"quantize{{{narrow}}}", "fuse-attention,fuse,dce", over]
    )
    assert {call.families[0] for call in of_experts(program)} == {family}


def test_narrow_weights_are_read_by_kernels_for_them_before_an_engine_s_own() -> None:
    """Of 8-bit rows and 4-bit weights TensorRT-LLM's kernel is measured, SGLang's with 8-bit weights too."""
    from llmir.backends.cost.calibrated import CalibratedModel
    from llmir.backends.silicon.tables.moe import layer as moe_program
    from llmir.hw import library

    program = moe_program("w4a8_mxfp4_mxfp8", 128, 1, 8)
    prices = [
        CalibratedModel(library.load("b200"), "sglang").price(row)
        for row in rows(program)
        if row.kind == "moe"
    ]
    assert {price.fit.family for price in prices} == {"moe_mxfp4"}  # type: ignore[attr-defined]
