"""quantize: bytes by closed form, the same before and after fusion, and the same FLOPs always."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given

import llmir
from llmir.base.errors import ParseError, PassError
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.tools.pipeline import parse_pipeline
from llmir.passes.quantize import Quantize
from tests.flat import records
from tests.strategies import FUSIONS, LOGITS, configs, points, quantizations

FUSE = "fuse-attention,fuse,dce"

# (in, out) of every product of a layer, and what a layer has beside them; experts apart.
LLAMA_8B = {
    "layers": 32,
    "products": [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096)]
    + [(4096, 14336)] * 2
    + [(14336, 4096)],
    "kept": 2 * 128256 * 4096 + 4096 + 32 * 2 * 4096,  # embedding, head, norms
}
LLAMA_405B = {
    "layers": 126,
    "products": [(16384, 16384), (16384, 1024), (16384, 1024), (16384, 16384)]
    + [(16384, 53248)] * 2
    + [(53248, 16384)],
    "kept": 2 * 128256 * 16384 + 16384 + 126 * 2 * 16384,
}
QWEN3_30B = {
    "layers": 48,
    "products": [(2048, 4096), (2048, 512), (2048, 512), (4096, 2048)]
    + [(2048, 768)] * 2 * 128
    + [(768, 2048)] * 128,
    # embedding, head; norms of the stream and of q and k; the router
    "kept": 2 * 151936 * 2048 + 2048 + 48 * (2 * 2048 + 2 * 128 + 128 * 2048),
}
MODELS = {"llama3.1-8b": LLAMA_8B, "llama3.1-405b": LLAMA_405B, "qwen3-30b-a3b": QWEN3_30B}

# Bytes of a matrix, from the definition of each format.
FORMATS = {
    "fp8": lambda i, o: i * o + 4 * o,
    "fp8_e5m2": lambda i, o: i * o + 4 * o,
    "fp8_b128x128": lambda i, o: i * o + 4 * math.ceil(i / 128) * math.ceil(o / 128),
    "int8": lambda i, o: i * o + 4 * o,
    "int4": lambda i, o: i * o // 2 + 2 * o * math.ceil(i / 128),
    "int4_g96": lambda i, o: i * o // 2 + 2 * o * math.ceil(i / 96),
    "int4_g128z": lambda i, o: i * o // 2 + 5 * o * math.ceil(i / 128) // 2,
    # GPTQ's qweight, scales, qzeros and g_idx
    "int4_g128zi": lambda i, o: 4 * (i // 8 * o) + 2 * (i // 128 * o) + 4 * (i // 128 * (o // 8)) + 4 * i,
    "int8_c16zi": lambda i, o: 4 * (i // 4 * o) + 2 * o + 4 * (o // 4) + 4 * i,
    # bitsandbytes' weight, absmax and quant_map; quantized again, absmax, nested_absmax, and two tables
    "nf4": lambda i, o: i * o // 2 + 4 * (i * o // 64) + 4 * 16,
    "nf4_dq": lambda i, o: i * o // 2 + i * o // 64 + 4 * math.ceil(i * o / 64 / 256) + 4 * (16 + 256),
    "mxfp4": lambda i, o: i * o // 2 + o * math.ceil(i / 32),
    "nvfp4": lambda i, o: i * o // 2 + o * math.ceil(i / 16) + 4,
    "fp32": lambda i, o: 4 * i * o,
    "bf16": lambda i, o: 2 * i * o,
}


def bytes_of(program: Program) -> tuple[int, int]:
    report = llmir.analyze(program, "h100", batch=3, new=1, context=100)
    return report.weight_bytes, report.kv_cache_bytes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", FORMATS)
def test_weight_bytes_by_closed_form(name: str, weights: str) -> None:
    model: dict[str, Any] = MODELS[name]
    matrices = model["layers"] * sum(FORMATS[weights](i, o) for i, o in model["products"])
    kept = model["kept"] * (4 if weights == "fp32" else 2)  # a wide type is for all weights
    program = llmir.run(llmir.load(name), f"quantize{{weights={weights}}}")
    assert bytes_of(program)[0] == matrices + kept


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv", ["fp8", "fp8_e5m2"])
def test_an_fp8_cache_has_half_the_bytes(name: str, kv: str) -> None:
    program = llmir.load(name)
    narrow = llmir.run(program, f"quantize{{kv={kv}}}")
    assert 2 * bytes_of(narrow)[1] == bytes_of(program)[1]
    assert 2 * narrow.kv_cache_bytes_per_token == program.kv_cache_bytes_per_token
    assert bytes_of(narrow)[0] == bytes_of(program)[0]


def test_an_int8_cache_has_a_scale_for_each_token_and_head() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "quantize{kv=int8}")
    assert program.kv_cache_bytes_per_token == 32 * 2 * 8 * (128 + 4)


def ops(program: Program) -> list[str]:
    return [at.node.op.opcode for at in program.instances()]


def test_one_quantize_serves_all_users() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "quantize{weights=fp8, activations=fp8}")
    # for q, k and v; for o; for gate and up; for down
    assert ops(program).count("quantize") == 4
    dtypes = {n.name: n.results[0].dtype.name for n in program["layer"].nodes}
    assert {dtypes[f"{n}_proj"] for n in ("q", "k", "v", "o", "gate", "up", "down")} == {"bf16"}
    assert dtypes["quantize_input_norm"] == "fp8_e4m3_c.mmk"


def test_a_token_is_quantized_once_and_not_for_each_of_its_experts() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), "quantize{weights=fp8, activations=fp8}")
    types = {n.name: str(n.results[0]) for n in program["layer"].nodes}
    assert types["quantize_post_norm"] == "fp8_e4m3_c.mmk[B, T, 2048]"
    assert types["dispatch"] == "fp8_e4m3_c.mk[8*B*T, 2048]"
    assert types["gate"] == "bf16[B, T, 128]"  # the router takes the token as it was
    assert ops(program).count("quantize") == 4


def test_the_router_and_the_experts_share_a_quantized_token() -> None:
    step = Quantize("fp8", "fp8", plan={"router": "fp8"})
    program = llmir.run(llmir.load("qwen3-30b-a3b"), step)
    assert ops(program).count("quantize") == 4
    takes = {n.name: n.operands[0].node for n in program["layer"].nodes if n.name in ("gate", "dispatch")}
    assert set(takes.values()) == {"quantize_post_norm"}
    assert llmir.run(program, step) is program


def test_weights_alone_change_no_op() -> None:
    program = llmir.load("qwen3-30b-a3b")
    assert ops(llmir.run(program, "quantize{weights=int4}")) == ops(program)


def test_what_computes_in_what() -> None:
    """Weight-only products run at the activations' rate, narrow ones at the narrow one."""
    program = llmir.run(llmir.load("llama3.1-8b"), FUSE)
    prefill = {"batch": 4, "new": 2048, "context": 0, "cost": "ideal"}
    plain = llmir.analyze(program, "h100", **records(llmir.analyze, **prefill))
    only = llmir.analyze(
        llmir.run(program, "quantize{weights=fp8}"), "h100", **records(llmir.analyze, **prefill)
    )
    both = llmir.analyze(
        llmir.run(program, "quantize{weights=fp8, activations=fp8}"),
        "h100",
        **records(llmir.analyze, **prefill),
    )
    times = [{op.name: op.time_s for op in r.ops}["layer.gate_up_proj"] for r in (plain, only, both)]
    assert times[0] == times[1]
    assert math.isclose(times[0] / times[2], 1978.9 / 989.4)
    assert only.notes == both.notes == ()


@pytest.mark.parametrize(
    ("device", "options", "says"),
    [
        ("a100", "weights=fp8, activations=fp8", "has no fp8 matrix unit; fp8 runs at its bf16 rate"),
        ("h100", "weights=nvfp4, activations=nvfp4", "has no fp4 matrix unit; fp4 runs at its fp8 rate"),
        ("a100", "weights=mxfp4", ""),
        ("a100", "weights=int8, activations=int8", ""),
        ("b200", "weights=nvfp4, activations=nvfp4, kv=fp8", ""),
    ],
)
def test_a_unit_that_is_not_there_is_a_note(device: str, options: str, says: str) -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), f"quantize{{{options}}}")
    notes = " ".join(llmir.analyze(program, device, batch=1).notes)
    assert says in notes if says else notes == ""


def test_a_plan_is_by_op_block_checkpoint_name_or_pattern() -> None:
    program = llmir.load("qwen3-30b-a3b")

    def types(**options: Any) -> dict[str, str]:
        run = llmir.run(program, Quantize(**options))
        nodes = (n for g in run.graphs.values() for n in g.nodes if n.op.opcode == "weight")
        return {n.name.removesuffix(".weight"): n.results[0].dtype.scheme for n in nodes}

    base = types(weights="int4")
    assert {k for k, v in base.items() if v != "int4_g128"} == {
        *("embed", "lm_head", "gate", "final_norm", "input_norm", "post_norm", "q_norm", "k_norm")
    }
    for pattern, found in (
        ("down_proj", {"down_proj"}),
        ("layer.down_proj", {"down_proj"}),
        ("routed_experts", {"gate_proj", "up_proj", "down_proj"}),
        ("self_attn.k_proj", {"k_proj"}),
        ("model.layers.*.self_attn.*_proj", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("router", {"gate"}),
        ("lm_head", {"lm_head"}),
        ("embedding", {"embed"}),
    ):
        changed = types(weights="int4", plan={pattern: "fp8_e5m2"})
        assert {k for k, v in changed.items() if v == "fp8_e5m2_c"} == found, pattern
    assert types(weights="int4", plan={"*_proj": "fp8", "o_proj": "keep"})["o_proj"] == "bf16"


def test_a_narrow_table_gives_rows_of_the_models_type() -> None:
    """A tied table is lm_head's matrix too, and is stored once."""
    program = llmir.load("qwen3-0.6b")
    narrow = llmir.run(program, Quantize(plan={"lm_head": "int8"}))
    assert bytes_of(program)[0] - bytes_of(narrow)[0] == 151936 * 1024 - 4 * 151936
    assert str(narrow["main"]["embedding"].results[0]) == "bf16[B, T, 1024]"
    row = next(r for r in llmir.analyze(narrow, "h100", batch=1).plan.rows if r.name == "embedding")
    assert (row.read, row.write) == (
        parse_tensor("int8_c.nk[1, 1024]").bytes * _tokens() + 8 * _tokens(),
        row.write,
    )


def _tokens() -> Any:
    return parse_tensor("int8[B, T]").elements


@pytest.mark.parametrize(
    "text",
    [
        "quantize{weights=fp8, activations=fp8, kv=fp8}",
        "quantize{weights=int4_g64z, plan=(layer.down_proj:bf16, *.mlp:keep, lm_head:fp8_b128x128)}",
        "quantize{kv=int8}",
        "quantize",
    ],
)
def test_the_text_of_the_pass_is_read_back(text: str) -> None:

    [step] = parse_pipeline(text)
    assert str(step) == text
    assert parse_pipeline(str(step)) == [step]


def test_a_plan_is_the_same_as_a_mapping_and_as_text() -> None:
    plan = {"layer.down_proj": "bf16", "lm_head": "fp8"}
    assert Quantize(plan=plan) == Quantize(plan="(layer.down_proj:bf16, lm_head:fp8)")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("weights=fp9", "unknown dtype 'fp9'; did you mean fp8"),
        ("weights=int4_g0", "unknown dtype"),
        ("weights=int32", "unknown dtype"),
        ("weights=fp8_e4m3_c.kn", "unknown dtype"),
        ("kv=int4", "kv: unknown dtype 'int4'; did you mean"),
        ("activations=int4", "activations: unknown dtype"),
        ("activations=fp8", "requires weights of the same kind, at most as wide"),
        ("weights=fp8, activations=int8", "no kernel multiplies weights fp8 with activations int8"),
        ("weights=fp8, activations=nvfp4", "no kernel multiplies"),
        ("plan=(down_projj:fp8)", "no module 'down_projj'; did you mean down_proj"),
        ("plan=(down_proj:fp9)", "unknown dtype 'fp9'"),
        ("plan=(down_proj)", "expected module: dtype"),
    ],
)
def test_what_cannot_be_is_an_error(options: str, says: str) -> None:
    with pytest.raises(PassError, match=says.replace("(", r"\(")) as error:
        llmir.run(llmir.load("qwen3-0.6b"), f"quantize{{{options}}}")
    assert "\n" not in str(error.value)


def test_a_cache_that_is_not_there_is_an_error() -> None:
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    b.output(b.linear(x, b.weight("bf16[8, 8]", name="w"), einsum="b t h, h f -> b t f"))
    with pytest.raises(PassError, match="has no cache"):
        llmir.run(llmir.Program("p", {"main": b.graph()}), "quantize{kv=fp8}")


@pytest.mark.parametrize(
    "text", ["fp8_e4m3_c.k[4, 4]", "int4_g128.kx[4, 4]", "bf16_c.kn[4, 4]", "bf16.kn[2, 2]"]
)
def test_scales_that_do_not_fit_are_no_type(text: str) -> None:
    with pytest.raises((ParseError, llmir.LlmirError)):
        parse_tensor(text)


def test_wide_activations_undo_narrow_ones() -> None:
    program = llmir.load("qwen3-30b-a3b")
    narrow = llmir.run(program, "quantize{weights=fp8, activations=fp8}")
    undone = llmir.run(narrow, "quantize{activations=bf16}")
    assert undone == llmir.run(program, "quantize{weights=fp8}")
    assert llmir.run(undone, "quantize{weights=bf16}") == program


def test_another_wide_type_is_that_of_the_whole_model() -> None:
    program = llmir.load("llama3.1-8b")
    half = llmir.run(program, "quantize{weights=fp16, activations=fp16, kv=fp16}")
    again = llmir.run(half, "quantize{weights=bf16, activations=bf16, kv=bf16}")
    assert "bf16" not in llmir.print_program(half)
    assert again == program
    tf32 = llmir.run(program, "quantize{weights=tf32, activations=fp32}")
    rows = llmir.analyze(tf32, "h100", batch=1).plan.rows
    assert {r.work.dtype.name for r in rows if r.kind == "gemm"} == {"tf32"}


@pytest.mark.slow
@given(configs(), LOGITS, quantizations(), FUSIONS, points())
def test_before_fusion_is_after_fusion(
    config: dict[str, object], logits: str, step: Quantize, pipeline: str, point: dict[str, int]
) -> None:
    program = llmir.load(config, logits=logits)
    before = llmir.run(program, [step, "fuse-attention,fuse,dce"])
    after = llmir.run(program, ["fuse-attention,fuse,dce", step])
    first, second = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (before, after))
    assert first.time_s == second.time_s
    assert (first.flops, first.read_bytes, first.write_bytes) == (
        second.flops,
        second.read_bytes,
        second.write_bytes,
    )
    assert first.activation_peak_bytes == second.activation_peak_bytes
    assert bytes_of(before) == bytes_of(after) == bytes_of(llmir.run(program, [pipeline, step]))


@pytest.mark.slow
@given(configs(), LOGITS, quantizations(), FUSIONS, points())
def test_matmul_flops_never_change(
    config: dict[str, object], logits: str, step: Quantize, pipeline: str, point: dict[str, int]
) -> None:
    program = llmir.run(llmir.load(config, logits=logits), pipeline)
    plain, quantized = (
        llmir.analyze(p, "h100", **records(llmir.analyze, **point))
        for p in (program, llmir.run(program, step))
    )
    assert quantized.matmul_flops_by_kind == plain.matmul_flops_by_kind
    assert llmir.run(program, step).parameters_by_kind == program.parameters_by_kind
    assert llmir.run(program, step).active_parameters == program.active_parameters
    extra = sum(
        op.repeat * op.flops for op in quantized.ops if op.name.rpartition(".")[2].startswith("quantize")
    )
    widened = sum(op.repeat * op.flops for op in quantized.ops if "dequantize_" in op.name)
    assert quantized.flops == plain.flops + extra + widened


@pytest.mark.slow
@given(configs(), quantizations(), quantizations(), FUSIONS)
def test_twice_is_once_and_the_last_one_counts(
    config: dict[str, object], first: Quantize, last: Quantize, pipeline: str
) -> None:
    program = llmir.run(llmir.load(config), pipeline)
    once = llmir.run(program, last)
    assert llmir.run(once, last) is once
    plans = first.plan or last.plan  # `keep` keeps what the first one gave
    if last.weights and last.kv and not plans and (last.activations or not first.activations):
        both = llmir.run(program, [first, last])
        one, other = (llmir.analyze(p, "h100", batch=2, new=3, context=5) for p in (both, once))
        assert bytes_of(both) == bytes_of(once)
        assert (one.time_s, one.flops) == (other.time_s, other.flops)
        assert tuple(note for note in one.notes if "are widened" not in note) == other.notes


@pytest.mark.slow
@given(configs(), FUSIONS)
def test_to_the_types_that_it_has_leaves_a_program_as_it_is(config: dict[str, Any], pipeline: str) -> None:
    own = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[config["torch_dtype"]]
    program = llmir.run(llmir.load(config), pipeline)
    assert llmir.run(program, f"quantize{{weights={own}, activations={own}, kv={own}}}") is program


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_decode_gets_faster(name: str) -> None:
    program = llmir.run(llmir.load(name), FUSE)
    narrower = ("", "quantize{kv=fp8}", "quantize{weights=fp8, kv=fp8}", "quantize{weights=int4, kv=fp8}")
    times = [
        llmir.analyze(llmir.run(program, p), "h200", batch=16, new=1, context=4096).time_s for p in narrower
    ]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ("fp8", ["weights of routed_experts are widened from mxfp4 to fp8_e4m3_c"]),
        ("mxfp4", []),
        ("bf16", []),
    ],
)
def test_narrow_weights_that_become_less_narrow_are_noted(weights: str, says: list[str]) -> None:
    """gpt-oss, whose experts are mxfp4; what is asked for in a wide type is widened without a word."""
    program = llmir.run(llmir.load("gpt-oss-20b"), f"quantize{{weights={weights}}}")
    assert [note.partition(";")[0] for note in program.notes] == says
    kept = llmir.run(llmir.load("gpt-oss-20b"), "quantize{weights=fp8, plan=(routed_experts:keep)}")
    assert kept.notes == ()
