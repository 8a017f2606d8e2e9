"""What collectives carry: bytes by closed form, errors within the bounds of the formats, on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import PassError, VerifyError
from llmir.ir.core.program import Program
from llmir.passes.quantize import Quantize
from tests.flat import records
from tests.logits import ids, logits, same
from tests.strategies import LOGITS, configs, degrees, wide

from .test_quantize_results import CONFIG, EXPERTS

Array = np.ndarray[Any, np.dtype[Any]]
# Error bounds of an element: relative to itself, and to the largest magnitude under its scale
# (docs/interpret.md).
MOVES = {
    "fp8": (1 / 16, 1 / 448 / 1024),
    "fp8_e5m2": (1 / 8, 1 / 57344 / 131072),
    "int8": (0, 1 / 254),
    "int4": (0, 1 / 14),
}
NARROW = st.sampled_from(tuple(MOVES))


def moved(size: Array, name: str) -> Array:
    """The most that elements up to `size` move, with a scale for each 128 along the last axis."""
    of_itself, of_largest = MOVES[name]
    largest = np.zeros_like(size)
    for start in range(0, size.shape[-1], 128):
        tile = (..., slice(start, start + 128))
        largest[tile] = size[tile].max(axis=-1, keepdims=True)
    return np.maximum(of_itself * size, of_largest * largest) * (1 + 1e-9)


def product(features: int, hidden: int, *, gathers: bool) -> Program:
    """One product: of split features, so that its result is a sum, or of tokens that are split."""
    b = llmir.Builder()
    split = ("embed", "mlp") if gathers else ("mlp", "embed")
    x = b.input(f"bf16[B, T, {features}]", name="x", axes=("batch", "seq", split[0]))
    w = b.weight(f"bf16[{features}, {hidden}]", name="w", axes=split)
    b.output(b.linear(x, w, einsum="b t f, f h -> b t h"))
    return llmir.Program("product", {"main": b.graph()})


@st.composite
def operands(draw: st.DrawFn) -> tuple[Array, Array, int]:
    """x and w with columns of very different size, and the ranks."""
    ranks = draw(st.sampled_from((2, 3, 4)))
    batch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    features, hidden = (ranks * draw(st.integers(1, n)) for n in (5, 100))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from((0.0, 1.0, 5.0)))
    x = rng.normal(size=(batch, tokens, features)) * np.exp(spread * rng.normal(size=features))
    w = rng.normal(size=(features, hidden)) * np.exp(spread * rng.normal(size=hidden))
    return x, w, ranks


def run(program: Program, x: Array, w: Array) -> Array:
    return interpret(program, {"x": x}, lambda *_: w)[0][0]


@given(operands(), NARROW)
def test_a_narrow_sum_is_within_the_bounds_of_its_two_roundings(
    given_: tuple[Array, Array, int], name: str
) -> None:
    x, w, ranks = given_
    program = llmir.run(
        product(*w.shape, gathers=False), f"shard{{tp={ranks}}},quantize{{collectives={name}}}"
    )
    opcodes = [n.op.opcode for n in program["main"].nodes]
    assert opcodes[3:] == ["compress", "reduce_scatter", "compress", "all_gather", "decompress"]
    piece = len(w) // ranks
    summands = [x[..., i : i + piece] @ w[i : i + piece] for i in range(0, len(w), piece)]
    first = sum(moved(np.abs(s), name) for s in summands)
    second = moved(np.abs(x @ w) + first, name)
    assert (np.abs(run(program, x, w) - x @ w) <= first + second).all()


@given(operands(), NARROW)
def test_a_narrow_gather_is_within_the_bound_of_its_rounding(
    given_: tuple[Array, Array, int], name: str
) -> None:
    """Tokens are gathered before the product, its columns after it."""
    x, w, ranks = given_
    how = f"shard{{tp={ranks}, sp=1}},quantize{{collectives={name}}}"
    program = llmir.run(product(*w.shape, gathers=True), how)
    assert [n.op.opcode for n in program["main"].nodes].count("all_gather") == 2
    first = moved(np.abs(x), name) @ np.abs(w)
    piece = w.shape[1] // ranks  # each rank has scales of its own
    size = np.abs(x @ w) + first
    second = np.concatenate(
        [moved(size[..., i : i + piece], name) for i in range(0, w.shape[1], piece)], axis=-1
    )
    assert (np.abs(run(program, x, w) - x @ w) <= first + second).all()


@pytest.mark.slow
@given(configs(), LOGITS, st.sampled_from(("fp32", "bf16", "fp16")), st.data())
@settings(max_examples=40)
def test_wide_collectives_change_no_value(
    config: dict[str, Any], which: str, name: str, data: st.DataObject
) -> None:
    config, sharded = laid(config, which, data)
    carried = llmir.run(sharded, f"quantize{{collectives={name}}}")
    tokens = ids(2, 4, config["vocab_size"])
    assert same(logits(sharded, tokens, 3, 1), logits(carried, tokens, 3, 1))


def laid(config: dict[str, Any], which: str, data: st.DataObject) -> tuple[dict[str, Any], Program]:
    """A config whose sizes divide, and its program on ranks that send something."""
    config = wide(config, 12)
    program = llmir.run(
        llmir.load(config, logits=which), data.draw(st.sampled_from(("", "fuse-attention,fuse")))
    )
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or program.active_parameters < program.parameters))
    sharded = llmir.run(program, how)
    sends = any(
        n.op.kind == "collective" and n.op.opcode != "slice" and n.results[0].dtype.kind == "float"
        for g in sharded.graphs.values()
        for n in g.nodes
    )
    assume(sends)
    return config, sharded


@pytest.mark.slow
@given(configs(), LOGITS, NARROW, st.data())
@settings(max_examples=60)
def test_narrow_collectives_keep_what_they_must(
    config: dict[str, Any], which: str, name: str, data: st.DataObject
) -> None:
    """Once is twice, printed is parsed, rolled is unrolled, a new layout starts afresh, products stay."""
    config, sharded = laid(config, which, data)
    step = Quantize(collectives=name)
    program = llmir.run(sharded, step)
    assert llmir.run(program, step) is program
    assert llmir.parse_program(llmir.print_program(program)) == program
    if program.parallelism.tp > 1:
        assert llmir.run(program, "shard{sp=1}") == llmir.run(sharded, "shard{sp=1}")
    point = {"batch": 5, "new": 7, "context": 3}
    before, after, flat = (
        llmir.analyze(p, "h100", **records(llmir.analyze, **point))
        for p in (sharded, program, llmir.run(program, "unroll"))
    )
    assert after.matmul_flops_by_kind == before.matmul_flops_by_kind
    assert (after.comm_bytes, after.flops, after.peak_memory_bytes) == (
        flat.comm_bytes,
        flat.flops,
        flat.peak_memory_bytes,
    )
    rows = {(op.name, op.kind) for op in before.ops} - {(op.name, op.kind) for op in after.ops}
    assert {kind for _, kind in rows} <= {"collective"}
    assert np.isfinite(logits(program, ids(2, 3, config["vocab_size"]), 3)).all()


@pytest.mark.parametrize(("name", "scale_bytes", "bits"), [("fp8", 4, 8), ("int8", 4, 8), ("int4", 2, 4)])
@pytest.mark.parametrize(
    ("model", "hidden", "layers"), [("llama3.1-8b", 4096, 32), ("llama3.1-405b", 16384, 126)]
)
@pytest.mark.parametrize("sp", [0, 1])
def test_bytes_on_the_wire_by_closed_form(
    model: str, hidden: int, layers: int, sp: int, name: str, scale_bytes: int, bits: int
) -> None:
    """Two sums a layer, of which each token is sent twice, less a rank's own share."""
    how = f"shard{{tp=8, sp={sp}}},quantize{{collectives={name}}}"
    program = llmir.run(llmir.load(model), [llmir.pipeline_of(), how])
    step = llmir.analyze(program, "h100", batch=4, new=512)
    token = hidden * bits // 8 + hidden // 128 * scale_bytes
    sent = sum(op.comm_bytes * op.repeat for op in step.ops if op.repeat > 1)
    assert sent == layers * 2 * 2 * 7 * (4 * 512 * token) // 8
    wide_ = llmir.analyze(llmir.run(llmir.load(model), "shard{tp=8}"), "h100", batch=4, new=512)
    kept = [{op.name: op.comm_bytes for op in s.ops if op.kind == "collective"} for s in (step, wide_)]
    assert kept[0]["all_gather_lm_head"] == kept[1]["all_gather_lm_head"]


def test_rows_go_to_their_experts_narrow_and_are_narrowed_once_a_token() -> None:
    base = llmir.run(llmir.load("qwen3-30b-a3b"), llmir.pipeline_of())
    program = llmir.run(base, "route{routing=even},shard{dp=8, ep=8},quantize{collectives=fp8}")
    types = {n.name: str(n.results[0]) for n in program["layer"].nodes}
    assert types["compress_add_post_norm"] == "fp8_e4m3_b1x128.mmk[B@dp0.dp1.dp2, T, 2048]"
    assert types["dispatch"].startswith("fp8_e4m3_b1x128.mk[8*B*T@")
    step = llmir.analyze(program, "h200", batch=64, new=100)
    sent = {op.name: op.comm_bytes for op in step.ops}
    rows = 8 * 64 * 100 // 8
    assert sent["layer.all_to_all_dispatch"] == rows * (2048 + 16 * 4) * 7 // 8
    assert sent["layer.all_to_all_combine"] == rows * (2048 + 16 * 4) * 7 // 8
    assert sent["layer.all_to_all_dispatch_2"] == rows * 4 * 7 // 8  # which expert: int32


def test_rows_that_are_narrow_already_are_sent_as_they_are() -> None:
    narrow = llmir.run(
        llmir.load("qwen3-30b-a3b"), "quantize{weights=fp8, activations=fp8},shard{dp=8, ep=8}"
    )
    carried = llmir.run(narrow, "quantize{collectives=fp8}")
    kept = [{n.name: n.results[0].dtype for n in p["layer"].nodes} for p in (narrow, carried)]
    assert kept[0]["all_to_all_dispatch"] == kept[1]["all_to_all_dispatch"]
    assert [n.name for n in carried["layer"].nodes if n.op.opcode == "compress"] == ["compress_down_proj"]


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b"])
def test_activations_are_sent_narrow_whichever_pass_comes_first(model: str) -> None:
    steps = [
        "quantize{weights=fp8, activations=fp8}",
        "shard{dp=4, ep=4}" if "a3b" in model else "shard{tp=4}",
    ]
    base = llmir.run(llmir.load(model), llmir.pipeline_of())
    one, other = (llmir.analyze(llmir.run(base, s), "h200", batch=8, new=5) for s in (steps, steps[::-1]))
    assert (one.comm_bytes, one.time_s) == (other.comm_bytes, other.time_s)


def distance(config: dict[str, Any], how: str, name: str) -> float:
    sharded = llmir.run(llmir.load(config, logits="all"), how)
    tokens = ids(4, 16, config["vocab_size"])
    exact = logits(sharded, tokens, 16)
    found = logits(llmir.run(sharded, f"quantize{{collectives={name}}}"), tokens, 16)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
    ("config", "how"),
    [
        (CONFIG, "shard{tp=2}"),
        (CONFIG, "shard{tp=2, sp=1}"),
        (EXPERTS, "shard{tp=2, ep=2}"),
        (EXPERTS, "shard{dp=2, ep=2}"),
        (EXPERTS, "shard{dp=2, tp=2, ep=2}"),
    ],
)
def test_fewer_bits_move_the_logits_further(config: dict[str, Any], how: str) -> None:
    config = {**config, "vocab_size": 62}
    found = [distance(config, how, name) for name in ("bf16", "int8", "fp8", "fp8_e5m2")]
    assert found == sorted(found)
    assert found[0] < 1e-9 < found[1]
    assert found[-1] < 0.3


def test_the_precision_of_a_program_names_them() -> None:
    from llmir.backends.step.facts import precision

    sharded = llmir.run(llmir.load("qwen3-30b-a3b"), "shard{tp=2, dp=2, ep=4}")
    found = [precision(p)["collectives"] for p in (llmir.load("qwen3-0.6b"), sharded)]
    found += [
        precision(llmir.run(sharded, f"quantize{{collectives={n}}}"))["collectives"] for n in ("int8", "int4")
    ]
    assert found == [None, "bf16", "int8", "int4"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("collectives=fp9", "collectives: unknown dtype 'fp9'; did you mean fp"),
        ("collectives=nvfp4", "unknown dtype"),
        (
            "collectives=fp8",
            "reduce_scatter_o_proj carries int8_b1x128 already, so not fp8_e4m3_b1x128; "
            "shard the program again",
        ),
        ("plan=(o_porj:(collectives=fp8))", "no collective of 'o_porj'; did you mean o_proj"),
    ],
)
def test_what_cannot_be_is_an_error(options: str, says: str) -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), "shard{tp=2},quantize{collectives=int8}")
    with pytest.raises(PassError) as error:
        llmir.run(program, f"quantize{{{options}}}")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_sent_is_an_error() -> None:
    for how in ("", "shard{dp=2}"):
        with pytest.raises(PassError, match="no collective joins ranks"):
            llmir.run(llmir.load("qwen3-0.6b"), [how, "quantize{collectives=fp8}"])


@pytest.mark.parametrize("opcode", ["all_reduce", "reduce_scatter"])
def test_narrow_numbers_cannot_be_added(opcode: str) -> None:
    text = llmir.print_program(
        llmir.run(llmir.load("qwen3-0.6b"), f"shard{{tp=2, sp={int('sc' in opcode)}}}")
    )
    line = next(x for x in text.splitlines() if f"= {opcode}(%o_proj)" in x)
    narrow = "  %n = compress(%o_proj) {to=fp8_e4m3} : fp8_e4m3[B, T, 1024]+tp0\n" + line.replace(
        "%o_proj)", "%n)"
    )
    with pytest.raises(VerifyError, match="too low a precision for a sum"):
        llmir.run(llmir.parse_program(text.replace(line, narrow)), [])


def test_narrow_sums_are_not_added_on_the_way() -> None:
    """Over nodes each narrow summand crosses, where a sum in steps sends one of its node's pieces."""
    base = llmir.run(llmir.load("llama3.1-405b"), llmir.pipeline_of())
    narrow, plain = (
        llmir.analyze(llmir.run(base, f"shard{{tp=16, sp=1}}{more}"), "dgx-h100", batch=32, new=512)
        for more in (",quantize{collectives=fp8}", "")
    )
    time = {s: {op.name: op.time_s for op in s.ops} for s in (narrow, plain)}
    name = "layer.reduce_scatter_o_proj"
    assert time[narrow][name] > time[plain][name]
    assert time[narrow]["layer.all_gather_input_norm"] < time[plain]["layer.all_gather_input_norm"]
