"""Programs of measured layers of experts: their ops are given what the rank of the benchmark was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.kernels.base import kernel_calls
from llmir.backends.kernels.moe import GroupedShape
from llmir.backends.silicon.tables.gemm import PRODUCTS
from llmir.backends.silicon.tables.moe import layer as moe_program
from llmir.backends.silicon.tables.moe import products as moe_products
from llmir.backends.work.rows import rows
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.text import print_program
from llmir.ir.tools.verify import verify

TOKENS = np.array([1.0, 2, 7, 16, 100, 320, 4096])
HIDDEN, INTER = 2048, 768
ROUTERS = [(128, 8, 1), (128, 8, 8), (128, 8, 32), (16, 1, 2), (256, 6, 8), (256, 8, 64)]
FRAMEWORKS = {"even": "trtllm-1.3.0rc20", "groups": "vllm-0.24.0", "arrived": "sglang-0.5.10"}


def given(program: Program, tokens: Any = TOKENS) -> dict[str, Any]:
    """What each kernel is given, by the op's name, with numbers put in; of a collective nothing."""
    at = Binding(t=tokens, h=HIDDEN, f=INTER)
    return {
        r.name: c.at(at) for r in rows(program) if r.kind == "moe" or "act" in r.name for c in kernel_calls(r)
    }


def dealt(tokens: int, top_k: int, experts: int, ranks: int) -> tuple[int, int]:
    """Rows of the first rank and experts that they touch, where rows are dealt out like cards."""
    held = experts // ranks
    card = np.arange(tokens * top_k)
    first = card[card % ranks == 0] // ranks % held
    return len(first), len(set(first.tolist()))


@pytest.mark.parametrize(("experts", "top_k", "ranks"), ROUTERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4"])
def test_even_loads_are_dealt_cards_for_every_op(dtype: str, experts: int, top_k: int, ranks: int) -> None:
    found = given(verify(moe_program(dtype, experts, ranks, top_k)))
    counted, touched = zip(*(dealt(int(t), top_k, experts, ranks) for t in TOKENS), strict=True)
    away = TOKENS * top_k - np.array(counted)
    assert {*found} == {"dispatch", "grouped_linear", "activation", "grouped_linear_2", "combine"}
    for name, shape in found.items():
        assert shape.rows == pytest.approx(counted)
        assert shape.away == pytest.approx(away)
        if isinstance(shape, GroupedShape):
            sizes = (2 * INTER, HIDDEN) if name == "grouped_linear" else (HIDDEN, INTER)
            assert (shape.n, shape.k) == sizes
            assert shape.experts == pytest.approx(touched)
    for name in ("dispatch", "combine"):
        assert (found[name].tokens, found[name].width) == (pytest.approx(TOKENS), HIDDEN)
    assert found["activation"].width == INTER


@pytest.mark.parametrize("ranks", [1, 8])
def test_tokens_that_choose_by_chance_touch_what_a_draw_touches(ranks: int) -> None:
    random, experts, top_k, tokens = np.random.default_rng(3), 128, 8, 40
    draws = [random.random((tokens, experts)).argsort()[:, :top_k] for _ in range(400)]
    held = experts // ranks
    of_rank = [d // held for d in draws]
    touched = [
        max(len(np.unique(d[r == i])) for i in range(ranks)) for d, r in zip(draws, of_rank, strict=True)
    ]
    shape = given(moe_program("bfloat16", experts, ranks, top_k, "chance"), tokens)["grouped_linear"]
    assert shape.experts == pytest.approx(np.mean(touched), rel=0.02)
    assert shape.rows == pytest.approx(np.mean([np.bincount(r.ravel()).max() for r in of_rank]), rel=0.02)


@pytest.mark.parametrize("ranks", [8, 32])
def test_of_tokens_that_arrived_all_copies_are_multiplied(ranks: int) -> None:
    """As the benchmark deals: token i takes experts i, i + 16, …; those of others become the first."""
    experts, top_k, stride = 128, 8, 16
    held = experts // ranks
    for tokens in (16, 320, 4096):
        chosen = (np.arange(tokens)[:, None] + np.arange(top_k) * stride) % experts
        mine = chosen[(chosen < held).any(axis=1)]
        local = np.where(mine < held, mine, 0)
        found = given(moe_program("bfloat16", experts, ranks, top_k, f"arrived({ranks}, even)"), tokens)
        assert found["dispatch"].tokens == len(mine)
        for shape in found.values():
            assert (shape.rows, shape.away) == (local.size, 0)
        assert found["grouped_linear"].experts == len(np.unique(local))


@pytest.mark.parametrize("dtype", [d for d in PRODUCTS if d != "float32"])
@pytest.mark.parametrize("narrow", [False, True])
def test_x_is_narrowed_by_an_op_of_its_own_unless_it_comes_so(dtype: str, narrow: bool) -> None:
    program = verify(moe_program(dtype, 128, 8, 8, "power_law(1.2)", narrow=narrow))
    low = dtype not in ("bfloat16", "float16", "int8_wo", "int4_wo", "w4a16_mxfp4")
    narrowed = [r.name for r in rows(program) if r.node.op.opcode == "quantize"]
    assert narrowed == (["narrow_y"] if narrow else ["narrow_x", "narrow_y"]) * low
    assert llmir.parse_program(print_program(program)) == program
    last = program.graphs["main"].outputs[0]
    assert program.graphs["main"].type(last).dtype.name == ("fp16" if dtype == "float16" else "bf16")


def test_the_products_alone_are_those_of_the_layer() -> None:
    layer = given(moe_program("fp8_block", 128, 1, 8))
    alone = given(verify(moe_products("fp8_block", 128, 8)))
    assert {*alone} == {"grouped_linear", "grouped_linear_2"}
    for name, shape in alone.items():
        assert repr(shape) == repr(layer[name])
