"""Every op's work by closed forms written out by hand, and rules that all ops keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32
from llmir.ir.core.mesh import ONE_DEVICE
from llmir.ir.core.op import KINDS, OPS, ExecutionPlace, infer, work
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops import make
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .attention_work import ATTENTION
from .image_work import IMAGES
from .norm_work import NORMS, REDUCED
from .stream_work import STREAMS

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
    "stack": ({}, ("bf16[B, T, 8]",) * 2, 0, 0, 2 * TOKENS * 16, 2 * TOKENS * 16),
    "last_token": ({}, ("bf16[B, T, 8]",), 0, 0, 2 * 3 * 8, 2 * 3 * 8),
    "cut": ({"elements": 5}, ("bf16[B, T, 8]",), 0, 0, 0, 0),
    "add": ({}, ("fp32[B, T, 8]", "fp32[B, T, 8]"), 0, TOKENS * 8, 8 * TOKENS * 8, 4 * TOKENS * 8),
    "mul": ({}, ("bf16[B, 8]", "bf16[B, 8]"), 0, 24, 4 * 24, 2 * 24),
    "silu": ({}, ("bf16[B, T, 8]",), 0, 4 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "gelu": ({}, ("bf16[B, T, 8]",), 0, 8 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "gelu_tanh": ({}, ("bf16[B, T, 8]",), 0, 8 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "relu": ({}, ("bf16[B, T, 8]",), 0, TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "relu2": ({}, ("bf16[B, T, 8]",), 0, 2 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "xielu": ({}, ("bf16[B, T, 8]", *["bf16[1]"] * 2), 0, 6 * TOKENS * 8, 2 * TOKENS * 8 + 4, 2 * TOKENS * 8),
    "scale": ({"factor": 0.5}, ("bf16[B, T, 8]",), 0, TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "clip": ({"limit": 6.0}, ("bf16[B, T, 8]",), 0, 2 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "soft_cap": ({"cap": 30.0}, ("fp32[B, T, 8]",), 0, 6 * TOKENS * 8, 4 * TOKENS * 8, 4 * TOKENS * 8),
    "sigmoid": ({}, ("bf16[B, T, 8]",), 0, 4 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "silu_mul": ({}, ("bf16[T, 8]", "bf16[T, 8]"), 0, 5 * 40, 4 * 40, 2 * 40),
    "causal_conv": (
        {},
        ("bf16[B, T, 8]", "bf16[8, 4]", "bf16[B, 3, 8]", "bf16[8]"),
        0,
        TOKENS * 8 * (2 * 4 + 1),
        2 * (TOKENS * 8 + 32 + 3 * 24 + 8),
        2 * (TOKENS * 8 + 3 * 24),
    ),
    "causal_conv_silu": (
        {},
        ("bf16[B, T, 2, 4]", "bf16[2, 4, 4]", "bf16[B, 3, 2, 4]"),
        0,
        TOKENS * 8 * (2 * 4 + 4),
        2 * (TOKENS * 8 + 32 + 3 * 24),
        2 * (TOKENS * 8 + 3 * 24),
    ),
    "selective_scan": (
        {},
        ("bf16[B, T, 8]",) * 2 + ("bf16[B, T, 4]",) * 2 + ("bf16[8, 4]", "bf16[8]", "fp32[B, 8, 4]"),
        0,
        8 * TOKENS * 32,
        2 * (TOKENS * 24 + 40) + 4 * 3 * 32,
        2 * TOKENS * 8 + 4 * 3 * 32,
    ),
    "ssd_scan": (  # two chunks of 4 tokens, 2 groups of 3 heads of 4, states of 6
        {"chunk": 4},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, T, 2, 3]", "bf16[B, T, 2, 6]", "bf16[B, T, 2, 6]")
        + ("bf16[2, 3]",) * 3
        + ("fp32[B, 2, 3, 4, 6]",),
        2 * 3 * 2 * 2 * (4 * 4 * 6 + 3 * (4 * 4 * 4 + 2 * 4 * 4 * 6)),
        3 * 16 * 3 * 2 * 6 + 4 * TOKENS * 24 + 2 * 2 * 3 * 144,
        2 * (TOKENS * (24 + 6 + 24) + 18) + 4 * 3 * 144,
        2 * TOKENS * 24 + 4 * 3 * 144,
    ),
    "gated_delta": (  # two chunks of 4 tokens, 2 key heads of 4, 6 value heads of 5
        {"chunk": 4},
        ("bf16[B, T, 2, 4]",) * 2
        + ("bf16[B, T, 2, 3, 5]", "fp32[B, T, 2, 3]", "bf16[B, T, 2, 3]", "fp32[B, 2, 3, 4, 5]"),
        2 * 3 * 2 * 6 * (3 * 4 * 4 * 4 + 2 * 4 * 4 * 5 + 3 * 4 * 4 * 5),
        6 * 16 * 3 * 2 * 6 + 2 * TOKENS * 30 + 2 * 2 * 3 * 120,
        TOKENS * (2 * 16 + 2 * 30 + 4 * 6 + 2 * 6) + 4 * 3 * 120,
        2 * TOKENS * 30 + 4 * 3 * 120,
    ),
    "lightning_attention": (
        {"chunk": 4},
        ("bf16[B, T, 1, 2, 4]",) * 2 + ("bf16[B, T, 1, 2, 5]", "bf16[B, 1, 2, 4, 5]"),
        2 * 3 * 2 * 2 * (4 * 4 * 4 + 4 * 4 * 5 + 2 * 4 * 4 * 5),
        16 * 3 * 2 * 2 + 2 * 2 * 3 * 40,
        2 * (TOKENS * 26 + 3 * 40),
        2 * (TOKENS * 10 + 3 * 40),
    ),
    "l2_norm": ({}, ("bf16[B, T, 2, 4]",), 0, 3 * TOKENS * 8, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "decay_gate": (
        {},
        ("bf16[B, T, 2, 3]", "bf16[2, 3]", "bf16[2, 3]"),
        0,
        6 * TOKENS * 6,
        2 * (TOKENS * 6 + 12),
        4 * TOKENS * 6,
    ),
    "key_decay_gate": (
        {},
        ("bf16[B, T, 2, 3, 4]", "bf16[2, 3]", "bf16[2, 3, 4]"),
        *(0, 6 * TOKENS * 24, 2 * (TOKENS * 24 + 6 + 24), 4 * TOKENS * 24),
    ),
    "square_sum": ({}, ("bf16[B, T, 2, 3, 4]",), 0, 2 * TOKENS * 24, 2 * TOKENS * 24, 4 * TOKENS * 2),
    "group_norm": (
        {},
        ("bf16[B, T, 2, 3, 4]", "fp32[B, T, 2]", "bf16[2, 3, 4]"),
        0,
        2 * TOKENS * 24,
        2 * (TOKENS * 24 + 24) + 4 * TOKENS * 2,
        2 * TOKENS * 24,
    ),
    "pair_squares": (
        {},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, T, 2, 4]"),
        *(0, 2 * TOKENS * 32, 2 * TOKENS * 32, 4 * TOKENS * 2),
    ),
    "pair_norm": (
        {},
        ("bf16[B, T, 2, 3, 4]", "bf16[B, T, 2, 4]", "fp32[B, T, 2]", "bf16[2, 3, 4]", "bf16[2, 4]"),
        *(0, 2 * TOKENS * 32, 2 * (TOKENS * 32 + 32) + 4 * TOKENS * 2, 2 * TOKENS * 32),
    ),
    "norm_rope_append_index": (
        {},
        (
            *("bf16[B, T, 2, 3, 4]", "bf16[B, T, 2, 4]", "bf16[B, T, 2, 4]", *["bf16[B, C, 2, 4]"] * 2),
            *(
                "bf16[4]",
                "bf16[4]",
                "bf16[B, T, 2, 4]",
                "bf16[B, T, 4]",
                "bf16[B, C, 4]",
                "bf16[4]",
                "bf16[4]",
            ),
        ),
        *(0, 10 * TOKENS * (24 + 8 + 8 + 4), 2 * (TOKENS * (24 + 8 + 8 + 8 + 4) + 4 * 4)),
        2 * TOKENS * (24 + 8 + 8 + 8 + 4),
    ),
    "gelu_mul": ({}, ("bf16[T, 8]", "bf16[T, 8]"), 0, 9 * 40, 4 * 40, 2 * 40),
    "gelu_tanh_mul": ({}, ("bf16[T, 8]", "bf16[T, 8]"), 0, 9 * 40, 4 * 40, 2 * 40),
    "temper": (
        {"beta": 0.1, "length": 4.0},
        ("bf16[B, T, 2, 4]",),
        0,
        TOKENS * 8,
        2 * TOKENS * 8,
        2 * TOKENS * 8,
    ),
    "clamped_glu": (
        {"limit": 7.0, "slope": 1.702},
        ("bf16[T, 8]", "bf16[T, 8]"),
        0,
        11 * 40,
        4 * 40,
        2 * 40,
    ),
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
        {"experts": 6},
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
    "sparse_mixer": ({"jitter": 0.1}, ("fp32[B, T, 8]",), 0, 22 * TOKENS * 8, 4 * TOKENS * 8, 8 * TOKENS * 2),
    "scaled_dispatch": (
        {"experts": 6},
        ("bf16[B, T, 8]", "int32[B, T, 2]", "fp32[B, T, 2]"),
        0,
        2 * TOKENS * 8,
        2 * TOKENS * 8 + (4 + 4) * TOKENS * 2,
        2 * TOKENS * 16 + 4 * TOKENS * 2,
    ),
    "sum_experts": (
        {},
        ("bf16[2*B*T, 8]", "fp32[B, T, 2]"),
        0,
        2 * TOKENS * 8,
        2 * 2 * TOKENS * 8,
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
    **ATTENTION,
    **STREAMS,
    **IMAGES,
    **NORMS,
    "send": ({"to": 1}, ("bf16[B, T, 8]",), 0, 0, 2 * TOKENS * 8, 2 * TOKENS * 8),
    "recv": ({}, ("bf16[B, T, 8]",), 0, 0, 0, 0),
}
WITHOUT_WORK = {"input", "weight", "buffer", "cache", "repeat"}
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice"}  # see test_shard
EXCHANGES = {"send_tokens", "return_tokens"} | REDUCED  # see test_dispatch


def test_every_op_is_here() -> None:
    assert CASES.keys() | WITHOUT_WORK | COLLECTIVES | EXCHANGES == {
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
    part = opcode.endswith("_attention")
    assert gemms >= AT(done.matrix) if part else gemms == AT(done.matrix)


def _sizes(type: Tensor) -> tuple[int, ...]:
    return tuple(int(AT(size)) for size in type.shape)


@pytest.mark.parametrize("opcode", CASES)
def test_values_have_the_shapes_of_their_types(opcode: str) -> None:
    """Of random operands; ids are 0. In-place results extend their operands."""
    attributes, texts, *_ = CASES[opcode]
    op, operands = make(opcode, **attributes), tuple(map(parse_tensor, texts))
    results = infer(op, operands)
    rng = np.random.default_rng(3)
    values = [
        np.zeros(_sizes(x), dtype=int) if x.dtype.name in ("int32", "int64") else rng.uniform(size=_sizes(x))
        for x in operands
    ]
    local = [Tensor(_sizes(x), x.dtype) for x in results]
    found = op.evaluate(values, local, ExecutionPlace(cached=7, new=5))
    assert [x.shape for x in found] == [x.shape for x in local]
    assert not any(np.isnan(x).any() for x in found)
    for result, operand in op.aliases.items():
        one, other = results[result], operands[operand]
        assert one.dtype == other.dtype
        assert len(one.shape) == len(other.shape)
        assert sum(map(int.__ne__, _sizes(one), _sizes(other))) <= 1
    for one, other in op.alike.items():  # two factors of a product
        assert {*operands[one].shape} & {*operands[other].shape}


@pytest.mark.parametrize("opcode", OPS)
def test_every_op_says_what_it_is(opcode: str) -> None:
    assert OPS[opcode].kind in KINDS
    assert OPS[opcode].__doc__


@pytest.mark.parametrize(
    ("opcode", "attributes", "texts", "vector"),
    [
        ("rms_norm", {"offset": 1.0}, ("bf16[B, T, 8]", "bf16[8]"), 4 * TOKENS * 8),
        ("rms_norm", {}, ("bf16[B, T, 8]",), 3 * TOKENS * 8),
        ("rms_norm", {"over": 3}, ("bf16[B, T, 2, 3, 4]", "bf16[2, 3, 4]"), 4 * TOKENS * 24),
        ("layer_norm", {}, ("bf16[B, T, 8]", "bf16[8]"), 6 * TOKENS * 8),
        ("layer_norm", {}, ("bf16[B, T, 2, 3, 4]", "bf16[2, 3, 4]"), 6 * TOKENS * 24),
        ("layer_norm", {}, ("bf16[B, T, 8]",), 5 * TOKENS * 8),
        ("softmax", {}, ("bf16[B, 2, 3, T, 8]", "bf16[2, 3]"), 5 * TOKENS * 6 * 9),
        (
            "flash_attention",
            {"mask": "full", "cap": 50.0},
            ("bf16[B, T, 2, 3, 4]", "bf16[B, T, 2, 4]", "bf16[B, T, 2, 4]", "bf16[2, 3]"),
            3 * 6 * ((5 + 6) * 5 * 5 + 5 * 5),
        ),
        ("rope", {"size": 2}, ("bf16[B, T, 2, 3, 4]",), 6 * TOKENS * 12),
        (  # the entries that end at or before each of the positions 7 to 11, and a window and a sink
            "compressed_attention",
            {"mask": "window(3)", "stride": 4},
            ("bf16[B, T, 2, 3, 8]", "bf16[B, 7, 8]", "fp32[2, 3]", "bf16[B, 3, 8]"),
            5 * 3 * 6 * ((2 + 2 + 2 + 2 + 3) + 5 * (3 + 1)),
        ),
    ],
)
def test_vector_flops_follow_from_what_is_there(
    opcode: str, attributes: dict[str, Any], texts: tuple[str, ...], vector: int
) -> None:
    op, operands = make(opcode, **attributes), tuple(map(parse_tensor, texts))
    assert AT(work(op, operands, infer(op, operands), ONE_DEVICE).vector) == vector


def _value(opcode: str, *operands: Any, **attributes: Any) -> Any:
    types = tuple(Tensor(a.shape, FP32) for a in operands)
    op = make(opcode, **attributes)
    return op.evaluate(operands, infer(op, types), ExecutionPlace())[0]


def test_norms_are_over_the_last_axes_with_weights_of_more() -> None:
    rng = np.random.default_rng(1)
    x, w, b = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    flat = x.reshape(2, 3, 20)
    whole = flat / np.sqrt((flat**2).mean(-1, keepdims=True) + 0.1) * (w.ravel() + 1)
    assert np.allclose(_value("rms_norm", x, w, eps=0.1, over=2, offset=1.0), whole.reshape(x.shape))
    centred = x - x.mean(-1, keepdims=True)
    heads = centred / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    assert np.allclose(_value("layer_norm", x, w, b, eps=0.1), heads * w + b)
    assert np.allclose(_value("layer_norm", x, w, eps=0.1), heads * w)
    assert np.allclose(_value("layer_norm", x, eps=0.1), heads)
    assert np.allclose(_value("rms_norm", x, eps=0), x / np.sqrt((x**2).mean(-1, keepdims=True)))
    for over, weight in ((3, w), (1, rng.normal(size=(2, 3, 4, 5, 6)))):
        with pytest.raises(VerifyError, match="a norm over"):
            _value("rms_norm", x, weight, over=over)


def test_activations_are_those_of_their_papers() -> None:
    """The values that torch 2.13 gives for ±1 and 2 (gelu exact and by tanh, relu², a soft cap of 3)."""
    x = np.array([-1.0, 1.0, 2.0])
    assert np.allclose(_value("gelu", x), [-0.15865525, 0.84134475, 1.95449974])
    assert np.allclose(_value("gelu_tanh", x), [-0.15880801, 0.84119199, 1.95459769])
    assert np.allclose(_value("relu", x), [0, 1, 2]) and np.allclose(_value("relu2", x), [0, 1, 4])
    assert np.allclose(_value("soft_cap", x, cap=3.0), 3 * np.tanh(x / 3))
    assert np.allclose(_value("scale", x, factor=0.25), x / 4)


def test_the_best_continuations_are_those_of_log_probabilities() -> None:
    """As torch.log_softmax and topk: e^scores of all entries sum to 1."""
    logits = np.random.default_rng(4).normal(size=(2, 3, 6))
    op = make("log_softmax_top_k", k=6)
    scores, chosen = op.evaluate([logits], infer(op, (Tensor(logits.shape, FP32),)), ExecutionPlace())
    assert np.allclose(np.exp(scores).sum(-1), 1)
    assert (np.diff(scores) <= 0).all()
    spread = np.take_along_axis(logits, chosen, -1) - scores
    assert np.allclose(spread, np.log(np.exp(logits).sum(-1, keepdims=True)))


def test_half_a_row_is_joined_with_the_first_half_of_another() -> None:
    rows = np.arange(16.0).reshape(1, 2, 8)
    joined = np.concatenate([-rows[..., :4], rows[..., :4]], axis=-1)
    assert np.array_equal(_value("join_half", rows, -rows[..., :4]), joined)


def test_each_copy_of_an_expert_has_its_turn() -> None:
    """10 places of 4 experts: three copies of the first two, two of the others."""
    for expert, copies in enumerate(([0, 4, 8], [1, 5, 9], [2, 6], [3, 7])):
        found = _value("pick_replica", np.full((1, 6, 1), expert), experts=4, places=10)
        assert sorted(found.ravel()) == sorted(copies * (6 // len(copies)))


def test_a_block_has_the_largest_score_of_its_keys() -> None:
    """Of those that a query sees; blocks of one key have the score itself, and blocks of none are refused."""
    rng = np.random.default_rng(5)
    q, k = rng.normal(size=(1, 5, 2, 4)), rng.normal(size=(1, 5, 4))
    scores = np.einsum("btgy,bcy->bgtc", q, k)
    scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    assert np.allclose(_value("block_scores", q, k, length=1), scores)
    blocks = np.stack([scores[..., i : i + 2].max(-1) for i in (0, 2, 4)], axis=-1)
    assert np.allclose(_value("block_scores", q, k, length=2), blocks)
    with pytest.raises(VerifyError, match="expected keys from 1 up, got 0"):
        _value("block_scores", q, k, length=0)


@pytest.mark.parametrize(("layer", "layers"), [(0, 2), (1, 2), (3, 5)])
def test_decays_are_those_of_minimax(layer: int, layers: int) -> None:
    """`_build_slope_tensor` and its factor in transformers' modeling_minimax.py."""
    op: Any = make("lightning_attention", layers=layers, layer=layer)
    rate = 1 / 2 ** (8 / 4)
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    assert op.slopes(0, 4, 4) == pytest.approx([rate ** (i + 1) * factor for i in range(4)], rel=1e-6)


@pytest.mark.parametrize(
    ("opcode", "attributes", "texts", "message"),
    [
        ("all_reduce", {}, ("bf16[B, T, 8]+dp",), "is not a partial sum over tp"),
        (
            "all_reduce_add_rms_norm",
            {},
            ("bf16[B, T, 8]+dp", "bf16[B, T, 8]", "bf16[8]"),
            "is not a partial sum over tp",
        ),
        ("send_tokens", {"top_k": 2, "experts": 8}, ("bf16[B@dp, T, 8]",), "are not split over tp"),
    ],
)
def test_a_collective_joins_what_is_apart(
    opcode: str, attributes: dict[str, Any], texts: tuple[str, ...], message: str
) -> None:
    """Over the axis that a sum or split has, and over no other."""
    operands = tuple(map(parse_tensor, texts))
    with pytest.raises(VerifyError, match=message):
        infer(make(opcode, over=("tp",), **attributes), operands)
    assert not infer(make(opcode, over=("dp",), **attributes), operands)[0].partial


def test_tokens_return_to_where_they_were() -> None:
    """Sums of what was sent have the type of the tokens."""
    x, weights = parse_tensor("bf16[B@dp, T, 8]"), parse_tensor("fp32[B@dp, T, 2]")
    (sent,) = infer(make("send_tokens", over=("dp",), top_k=2, experts=8), (x,))
    assert infer(make("return_tokens", over=("dp",)), (sent, weights)) == (x,)


def test_a_part_of_a_head_is_rotated_and_pairs_may_be_neighbours() -> None:
    """Each pair is a complex number that is multiplied by e^(i·position·frequency)."""
    x = np.random.default_rng(2).normal(size=(1, 3, 2, 8))
    angles = np.arange(3)[:, None] * 100.0 ** -(np.arange(0, 6, 2) / 6)
    turn = np.exp(1j * angles)[None, :, None]
    for interleaved in (False, True):
        left, right = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
        turned = (left + 1j * right) * turn
        out = _value("rope", x, theta=100.0, size=6, interleaved=interleaved)
        pairs = (out[..., 0:6:2], out[..., 1:6:2]) if interleaved else (out[..., :3], out[..., 3:6])
        assert np.allclose(pairs, (turned.real, turned.imag))
        assert np.array_equal(out[..., 6:], x[..., 6:])
    for size in (10, 3, -2):
        with pytest.raises(VerifyError, match="of a head of 8 cannot be rotated"):
            _value("rope", x, size=size)


def test_scales_are_part_of_the_bytes() -> None:
    assert Tensor((64,), parse_tensor("mxfp4[1]").dtype).bytes == 32 + 2
    assert Tensor((64,), parse_tensor("nvfp4[1]").dtype).bytes == 32 + 4
    assert Tensor((3,), parse_tensor("int4[1]").dtype).bytes == 2


def test_static_scales_need_no_maximum() -> None:
    x = (parse_tensor("bf16[B, T, 8]"),)
    op = make("quantize", to="fp8_e4m3_t", static=True)
    assert AT(work(op, x, infer(op, x), ONE_DEVICE).vector) == TOKENS * 8
