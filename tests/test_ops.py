"""Every op's work by closed forms written out by hand, and rules that all ops keep."""

from __future__ import annotations

import math

import pytest

from llmir.dim import Binding, Size
from llmir.mesh import ONE_DEVICE
from llmir.op import KINDS, infer, work
from llmir.ops import OPS, make
from llmir.tensor import Tensor, parse_tensor

AT = Binding(B=3, T=5, C=7)
TOKENS = 3 * 5
# opcode -> attributes, operand types, and by hand: matmul FLOPs, vector FLOPs, bytes read, bytes written
CASES: dict[str, tuple[dict[str, object], tuple[str, ...], float, int, float, int]] = {
    "linear": (
        {"einsum": "b t h, h g r d, g r d -> b t g r d"},
        ("bf16[B, T, 8]", "bf16[8, 2, 3, 4]", "bf16[2, 3, 4]"),
        2 * TOKENS * 8 * 24,
        TOKENS * 24,
        2 * (TOKENS * 8 + 8 * 24 + 24),
        2 * TOKENS * 24,
    ),
    "embedding": ({}, ("bf16[100, 8]", "int64[B, T]"), 0, 0, 2 * TOKENS * 8 + 8 * TOKENS, 2 * TOKENS * 8),
    "positions": (
        {"offset": 2},
        ("bf16[B, T, 8]", "bf16[100, 8]"),
        0,
        TOKENS * 8,
        2 * (TOKENS * 8 + 5 * 8),
        2 * TOKENS * 8,
    ),
    "last_token": ({}, ("bf16[B, T, 8]",), 0, 0, 2 * 3 * 8, 2 * 3 * 8),
    "add": ({}, ("fp32[B, T, 8]", "fp32[B, T, 8]"), 0, TOKENS * 8, 8 * TOKENS * 8, 4 * TOKENS * 8),
    "mul": ({}, ("bf16[B, 8]", "bf16[B, 8]"), 0, 24, 4 * 24, 2 * 24),
    "silu": ({}, ("bf16[B, T, 8]",), 0, 4 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "sigmoid": ({}, ("bf16[B, T, 8]",), 0, 4 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "silu_mul": ({}, ("bf16[T, 8]", "bf16[T, 8]"), 0, 5 * 40, 4 * 40, 2 * 40),
    "sigmoid_mul": ({}, ("bf16[B, T, 8]", "bf16[B, T]"), 0, TOKENS * 12, 2 * TOKENS * 9, 2 * TOKENS * 8),
    "cast": ({"to": "fp32"}, ("bf16[B, T]",), 0, 0, 2 * TOKENS, 4 * TOKENS),
    "rms_norm": ({}, ("bf16[B, T, 8]", "bf16[8]"), 0, 4 * TOKENS * 8, 2 * (TOKENS * 8 + 8), 2 * TOKENS * 8),
    "layer_norm": (
        {},
        ("bf16[B, T, 8]", "bf16[8]", "bf16[8]"),
        0,
        7 * TOKENS * 8,
        2 * (TOKENS * 8 + 16),
        2 * TOKENS * 8,
    ),
    "add_rms_norm": (
        {},
        ("bf16[B, T, 8]", "bf16[B, T, 8]", "bf16[8]"),
        0,
        5 * TOKENS * 8,
        2 * (2 * TOKENS * 8 + 8),
        4 * TOKENS * 8,
    ),
    "softmax": ({}, ("fp32[B, T, 8]",), 0, 5 * TOKENS * 8, 4 * TOKENS * 8, 4 * TOKENS * 8),
    "rope": ({}, ("bf16[B, T, 2, 3, 4]",), 0, 6 * TOKENS * 24, 2 * TOKENS * 24, 2 * TOKENS * 24),
    "append": (
        {},
        ("bf16[B, C, 2, 4]", "bf16[B, T, 2, 4]"),
        0,
        0,
        2 * TOKENS * 8,
        2 * TOKENS * 8,
    ),
    "rope_append": (
        {},
        (
            "bf16[B, T, 2, 3, 4]",
            "bf16[B, T, 2, 4]",
            "bf16[B, T, 2, 6]",
            "bf16[B, C, 2, 4]",
            "bf16[B, C, 2, 6]",
        ),
        0,
        6 * TOKENS * (24 + 8),
        2 * TOKENS * (24 + 8 + 12),
        2 * TOKENS * (24 + 8 + 12),
    ),
    "attention_scores": (
        {},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, C + T, 2, 4]"),
        2 * 3 * 6 * 5 * 12 * 4,
        0,
        2 * (TOKENS * 24 + 3 * 12 * 8),
        2 * 3 * 6 * 5 * 12,
    ),
    "attention_mask": (
        {"mask": "causal"},
        ("bf16[B, 2, 3, T, C + T]",),
        0,
        18 * 5 * 12,
        2 * 18 * 60,
        2 * 18 * 60,
    ),
    "attention_mix": (
        {},
        ("bf16[B, 2, 3, T, C + T]", "bf16[B, C + T, 2, 6]"),
        2 * 3 * 6 * 5 * 12 * 6,
        0,
        2 * (18 * 60 + 3 * 12 * 12),
        2 * TOKENS * 36,
    ),
    "flash_attention": (
        {"mask": "causal"},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, C + T, 2, 4]", "bf16[B, C + T, 2, 6]"),
        2 * 3 * 6 * (4 + 6) * sum(7 + i for i in range(1, 6)),
        5 * 3 * 6 * sum(7 + i for i in range(1, 6)),
        2 * (TOKENS * 24 + 3 * 12 * 2 * 10),
        2 * TOKENS * 36,
    ),
    "top_k": ({"k": 2}, ("fp32[B, T, 8]",), 0, TOKENS * 8, 4 * TOKENS * 8, 8 * TOKENS * 2),
    "softmax_top_k": ({"k": 2}, ("bf16[B, T, 8]",), 0, 6 * TOKENS * 8, 2 * TOKENS * 8, 8 * TOKENS * 2),
    "sigmoid_top_k": (
        {"k": 2, "groups": 4, "kept": 2, "best": 2},
        ("fp32[B, T, 8]", "fp32[8]"),
        0,
        (4 + 3) * TOKENS * 8,
        4 * (TOKENS * 8 + 8),
        8 * TOKENS * 2,
    ),
    "dispatch": (
        {},
        ("bf16[B, T, 8]", "int32[B, T, 2]"),
        0,
        0,
        2 * TOKENS * 8 + 4 * TOKENS * 2,
        2 * TOKENS * 16 + 4 * TOKENS * 2,
    ),
    "grouped_linear": (
        {"einsum": "s h, [e] h f, s -> s f", "top_k": 2, "experts": 6},
        ("bf16[2*B*T, 8]", "bf16[6, 8, 10]", "int32[2*B*T]"),
        2 * 2 * TOKENS * 80,
        0,
        2 * 2 * TOKENS * 8 + 4 * 2 * TOKENS + 2 * 80 * 6 * (1 - (1 - 2 / 6) ** TOKENS),
        2 * 2 * TOKENS * 10,
    ),
    "combine": (
        {},
        ("bf16[2*B*T, 8]", "fp32[B, T, 2]"),
        0,
        2 * 2 * TOKENS * 8,
        2 * 2 * TOKENS * 8 + 4 * TOKENS * 2,
        2 * TOKENS * 8,
    ),
    "quantize": (
        {"to": "fp8_e4m3_c.mmk"},
        ("bf16[B, T, 8]",),
        0,
        2 * TOKENS * 8,
        2 * TOKENS * 8,
        TOKENS * (8 + 4),
    ),
    "dequantize": (
        {"to": "bf16"},
        ("int4_g4z.mmk[B, T, 10]",),
        0,
        TOKENS * 10,
        TOKENS * 5 + math.ceil(TOKENS * 3 * 20 / 8),
        2 * TOKENS * 10,
    ),
    "compress": (
        {"to": "int4_g128.mmk"},
        ("bf16[B, T, 256]",),
        0,
        2 * TOKENS * 256,
        2 * TOKENS * 256,
        TOKENS * (256 // 2 + 2 * 2),
    ),
    "decompress": (
        {"to": "bf16"},
        ("fp8_e4m3_b1x128.mmk[B, T, 200]",),
        0,
        TOKENS * 200,
        TOKENS * (200 + 2 * 4),
        2 * TOKENS * 200,
    ),
    "send": ({"to": 1}, ("bf16[B, T, 8]",), 0, 0, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "recv": ({}, ("bf16[B, T, 8]",), 0, 0, 0, 0),
}
WITHOUT_WORK = {"input", "weight", "buffer", "cache", "repeat"}
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice"}  # see test_shard


def test_every_op_is_here() -> None:
    assert CASES.keys() | WITHOUT_WORK | COLLECTIVES == {
        n for n, c in OPS.items() if c.__module__.startswith("llmir.")
    }


def _total(sizes: tuple[Size, ...]) -> float:
    return sum(float(AT(s)) for s in sizes)


@pytest.mark.parametrize("opcode", CASES)
def test_work_is_what_a_hand_count_gives(opcode: str) -> None:
    attributes, texts, matrix, vector, read, written = CASES[opcode]
    op = make(opcode, **attributes)
    operands = tuple(map(parse_tensor, texts))
    done = work(op, operands, infer(op, operands), ONE_DEVICE)
    assert (AT(done.matrix), AT(done.vector)) == (matrix, vector)
    assert math.isclose(_total(done.reads), read)
    assert _total(done.writes) == written
    assert len(done.reads) == len(operands)
    # A causal kernel skips part of its products; every other op does all of them.
    gemms = sum(AT(2 * g.batch * g.m * g.n * g.k) for g in done.gemms)
    assert gemms >= AT(done.matrix) if opcode == "flash_attention" else gemms == AT(done.matrix)


@pytest.mark.parametrize("opcode", OPS)
def test_every_op_says_what_it_is(opcode: str) -> None:
    assert OPS[opcode].kind in KINDS
    assert OPS[opcode].__doc__


def test_scales_are_part_of_the_bytes() -> None:
    assert Tensor((64,), parse_tensor("mxfp4[1]").dtype).bytes == 32 + 2
    assert Tensor((64,), parse_tensor("nvfp4[1]").dtype).bytes == 32 + 4
    assert Tensor((3,), parse_tensor("int4[1]").dtype).bytes == 2


def test_static_scales_need_no_maximum() -> None:
    x = (parse_tensor("bf16[B, T, 8]"),)
    op = make("quantize", to="fp8_e4m3_t", static=True)
    assert AT(work(op, x, infer(op, x), ONE_DEVICE).vector) == TOKENS * 8
