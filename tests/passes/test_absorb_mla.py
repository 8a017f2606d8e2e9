"""Latent attention: naive and absorbed mean the same, cost what their products cost, and run by phase."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.base.errors import InputError, PassError, VerifyError
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.program import Program
from tests.flat import records
from tests.frontends.families.test_torch_counts import CONFIGS, ORACLE

DEFAULT = llmir.pipeline_of()
NAIVE = "fuse-attention,fuse,dce"


@st.composite
def latent_models(draw: st.DrawFn) -> dict[str, Any]:
    """A small MiniCPM3, DeepSeek V3 or V3.2, or GLM-5, whose heads four ranks can share."""
    architecture = draw(st.sampled_from(("MiniCPM3", "DeepseekV3", "DeepseekV32", "GlmMoeDsa")))
    deepseek, sparse = architecture != "MiniCPM3", architecture in ("DeepseekV32", "GlmMoeDsa")
    config: dict[str, Any] = {
        "architectures": [f"{architecture}ForCausalLM"],
        "hidden_size": draw(st.integers(4, 20)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": draw(st.sampled_from((4, 8))),
        "intermediate_size": 4 * draw(st.integers(1, 3)),
        "vocab_size": 4 * draw(st.integers(1, 4)),
        "q_lora_rank": draw(st.integers(1, 9) if sparse else st.none() | st.integers(1, 9)),
        "kv_lora_rank": draw(st.integers(1, 9)),
        "qk_nope_head_dim": draw(st.integers(1, 7)),
        "qk_rope_head_dim": 2 * draw(st.integers(1, 3)),
        "v_head_dim": draw(st.integers(1, 7)),
        "torch_dtype": "float32",
    }
    if deepseek:
        config |= {
            "attention_bias": draw(st.booleans()),
            "first_k_dense_replace": draw(st.integers(0, config["num_hidden_layers"] - 1)),
            "n_routed_experts": 8,
            "num_experts_per_tok": draw(st.integers(1, 3)),
            "moe_intermediate_size": 4,
            "n_shared_experts": draw(st.integers(1, 2)),
            "n_group": 4,
            "topk_group": draw(st.integers(2, 4)),
        }
    if sparse:
        config |= {"index_topk": draw(st.integers(1, 8)), "index_n_heads": draw(st.integers(1, 3))}
        config |= {"index_head_dim": config["qk_rope_head_dim"] + draw(st.integers(0, 3))}
    return config


@pytest.mark.slow
@settings(max_examples=25)
@given(
    latent_models(),
    st.sampled_from(("absorb-mla", "absorb-mla{phase=decode}", "absorb-mla{phase=prefill}")),
    st.sampled_from(("", "fuse-attention", "fuse-attention,fuse,dce", "unroll")),
    st.booleans(),
)
def test_absorbed_is_naive(config: dict[str, Any], absorb: str, others: str, last: bool) -> None:
    program = llmir.load(config, logits="all")
    steps = [others, absorb] if last else [absorb, others]
    after = llmir.run(program, steps)
    assert llmir.equivalent(program, after)
    assert llmir.parse_program(llmir.print_program(after)) == after


@pytest.mark.slow
@settings(max_examples=25)
@given(
    latent_models(),
    st.sampled_from(("shard{tp=2}", "shard{tp=4, sp=1}", "shard{dp=2, ep=2}", "shard{tp=2, dp=2, ep=4}")),
    st.sampled_from((DEFAULT, NAIVE, "absorb-mla")),
)
def test_sharded_is_one_device(config: dict[str, Any], shard: str, pipeline: str) -> None:
    if "n_group" not in config:
        shard = "shard{tp=4, dp=2}"
    program = llmir.load(config)
    after = llmir.run(program, [pipeline, shard])
    assert llmir.equivalent(program, after)
    # Every rank holds all latents, as engines have it, and its share of the heads.
    for phase in (after, *after.phases.values()):
        for at in phase.instances():
            if at.node.op.role == "cache":
                assert at.node.results[0].placements[1:] == ((), ())


@pytest.mark.slow
@settings(max_examples=10)
@given(latent_models(), st.sampled_from(("stages{pp=2}", "stages{pp=2, micro_batches=2}")))
def test_staged_in_both_phases(config: dict[str, Any], stages: str) -> None:
    program = llmir.load({**config, "num_hidden_layers": 3})
    assert llmir.equivalent(program, llmir.run(program, [stages, DEFAULT]))
    assert llmir.equivalent(program, llmir.run(program, [DEFAULT, stages]))


def _decode(pipeline: str, model: str = "DeepSeek-V3") -> llmir.Report:
    program = llmir.run(llmir.load(_wide(CONFIGS[model])), pipeline)
    return llmir.analyze(
        program, "h100-sxm", batch=1, new=1, context=32768, estimation=llmir.Estimation(cost="ideal")
    )


def _wide(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "quantization_config"}


def test_one_token_at_32k_takes_67_tflop_naive_and_two_thirds_of_one_absorbed() -> None:
    naive, absorbed = _decode(NAIVE), _decode(DEFAULT)
    assert naive.matmul_flops == sum(ORACLE["DeepSeek-V3"]["matmul_flops"]["b1_c32768"])
    assert naive.matmul_flops == 67_307_209_113_600
    layers, heads, latent, rotary, nope, value, keys = 61, 128, 512, 64, 128, 128, 32769
    expanded = 2 * keys * latent * heads * (nope + value)
    core = 2 * keys * heads * (nope + rotary + value)
    both = 2 * latent * heads * (nope + value) + 2 * keys * heads * (2 * latent + rotary)
    assert absorbed.matmul_flops == naive.matmul_flops + layers * (both - expanded - core)
    assert round(absorbed.matmul_flops / 1e12, 2) == 0.63


def test_a_sparse_step_reads_the_keys_that_it_chooses_and_all_of_the_index() -> None:
    step = _decode(DEFAULT, "DeepSeek-V3.2")
    assert step.bytes_by_role["kv_cache_read_bytes"] == 2 * 61 * (2048 * 576 + 32769 * 128)
    assert step.kv_cache_bytes == 32769 * 85888


def test_an_absorbed_step_reads_each_latent_once() -> None:
    assert _decode(DEFAULT).bytes_by_role["kv_cache_read_bytes"] == 32769 * 70272


@pytest.mark.slow
def test_tensors_are_stored_as_in_the_released_checkpoint() -> None:
    """Heads of q_b_proj and kv_b_proj hold their pieces one after another (huggingface.co/deepseek-ai)."""
    program = llmir.load(_wide(CONFIGS["DeepSeek-V3"]))
    tensors = expected(program)
    stored = {
        "self_attn.q_a_proj.weight": (1536, 7168),
        "self_attn.q_a_layernorm.weight": (1536,),
        "self_attn.q_b_proj.weight": (24576, 1536),
        "self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
        "self_attn.kv_a_layernorm.weight": (512,),
        "self_attn.kv_b_proj.weight": (32768, 512),
        "self_attn.o_proj.weight": (7168, 16384),
        "mlp.gate.weight": (256, 7168),
        "mlp.gate.e_score_correction_bias": (256,),
        "mlp.experts.255.down_proj.weight": (7168, 2048),
        "mlp.shared_experts.up_proj.weight": (2048, 7168),
    }
    assert {name: tensors[f"model.layers.60.{name}"].shape for name in stored} == stored
    moe, layers = 58 * (256 * 3 + 3 + 2), 61 * 9
    assert len(tensors) == moe + layers + 3 * 3 + 3


def test_a_phase_that_needs_no_weights_of_its_own_takes_no_memory() -> None:
    assert _decode(DEFAULT).weight_bytes == _decode(NAIVE).weight_bytes == 2 * 671_026_404_352 + 14848 * 4


def test_matrices_that_are_kept_wide_for_decode_lie_beside_the_narrow_ones() -> None:
    """vLLM and SGLang hold those of the absorbed products in bf16 when the checkpoint is in fp8."""
    config = {**CONFIGS["DeepSeek-V3"], "quantization_config": QUANTIZED}
    program = llmir.load(config)
    naive, both = llmir.run(program, NAIVE), llmir.run(program, DEFAULT)
    one = llmir.run(program, f"absorb-mla,{NAIVE}")
    prefill, decode = ({"batch": 1, "new": new, "context": 512} for new in (64, 1))
    held = [
        llmir.analyze(p, "h200", **records(llmir.analyze, **decode)).weight_bytes for p in (naive, both, one)
    ]
    matrices = 61 * 128 * 256 * 512
    scales = 4 * matrices // 128**2
    assert held[1] - held[0] == 2 * matrices
    assert held[1] - held[2] == matrices + scales
    assert llmir.analyze(both, "h200", **records(llmir.analyze, **prefill)).weight_bytes == held[1]
    # Latents are not narrowed for a product that no longer reads them.
    read = llmir.analyze(both, "h200", **records(llmir.analyze, **decode)).bytes_by_role[
        "kv_cache_read_bytes"
    ]
    assert read == 513 * 70272


def test_deepseek_v3_fits_on_six_boxes_of_eight_rtx_4090(tmp_path: Path) -> None:
    """In fp8, tp 8, pp 6, ep 8: 10.7 to 16.1 GB of weights a rank."""
    box = tmp_path / "boxes.yaml"
    node = "{name: box, devices: 8, network: {GBps: 12.5, latency_us: 5, direct: false}}"
    box.write_text(f"extend: rtx4090\nname: boxes\nnode: {node}\nsources: {{node: made up}}\n")
    program = llmir.run(llmir.load("DeepSeek-V3"), ["stages{pp=6}", DEFAULT, "shard{tp=8, ep=8}"])
    job = llmir.workload(program, box, batch=1, prompt=80, generate=512)
    held = [round(stage.weight_bytes / 1e9, 1) for stage in job.prefill.stages]
    assert (min(held), max(held)) == (10.7, 16.1) and job.fits and program.devices == 48


QUANTIZED = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


@pytest.mark.parametrize("kv", ["", ", kv=fp8"])
def test_a_narrow_cache_is_read_narrow(kv: str) -> None:
    program = llmir.run(llmir.load(_wide(CONFIGS["DeepSeek-V3"])), f"quantize{{weights=fp8{kv}}}")
    step = llmir.analyze(llmir.run(program, DEFAULT), "h100-sxm", batch=1, new=1, context=32768)
    each = 35136 if kv else 70272
    assert step.bytes_by_role["kv_cache_read_bytes"] == 32769 * each
    assert step.kv_cache_bytes == 32769 * each


def _tiny() -> Program:
    sizes = {
        "q_lora_rank": 6,
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
    }
    config = {"architectures": ["MiniCPM3ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2, **sizes}
    more = {"num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8, "torch_dtype": "bfloat16"}
    return llmir.load({**config, **more})


def _opcodes(program: Program) -> set[str]:
    return {at.node.op.opcode for at in program.instances()}


def test_steps_run_in_their_phase_and_what_is_asked_for_goes_first() -> None:
    program = llmir.run(_tiny(), DEFAULT)
    assert list(program.phases) == ["decode"] and not program.phase("decode").phase(
        "decode"
    ).phases.keys() - {"prefill"}
    job = llmir.workload(program, "h100-sxm", prompt=16, generate=4)
    assert job.decode is not None
    for step, absorbed in ((job.prefill, False), (job.decode, True)):
        assert any(op.name == "layer.q_to_latent" for op in step.ops) is absorbed
        assert any(op.name == "layer.kv_b_proj" for op in step.ops) is not absorbed
    one = llmir.analyze(program, "h100-sxm", new=1, context=9, phase="prefill")
    assert any(op.name == "layer.kv_b_proj" for op in one.ops)
    assert one.flops == llmir.analyze(llmir.run(_tiny(), NAIVE), "h100-sxm", new=1, context=9).flops


def test_a_step_of_both_phases_does_the_work_of_each() -> None:
    """Weights that both read are read once, rows of shared products are summed, attention is apart.

    All three steps are within what the engine captured: beyond, it launches kernels one by one.
    """
    program = llmir.run(llmir.load("DeepSeek-V3"), [DEFAULT, "shard{tp=8}"])
    decode, chunk = {"batch": 32, "new": 1, "context": 4096}, {"batch": 1, "new": 256, "context": 1024}
    both = llmir.analyze(program, "h200", **records(llmir.analyze, **decode, beside=[chunk]))
    one, other = (
        llmir.analyze(program, "h200", **records(llmir.analyze, **step)) for step in (decode, chunk)
    )
    for figure in ("flops", "matmul_flops", "kv_cache_bytes", "write_bytes"):
        assert getattr(both, figure) == getattr(one, figure) + getattr(other, figure)
    assert both.weight_bytes == one.weight_bytes == other.weight_bytes
    assert max(one.time_s, other.time_s) < both.time_s < one.time_s + other.time_s
    assert max(one.ideal_time_s, other.ideal_time_s) < both.ideal_time_s
    held = [step.activation_peak_bytes for step in (one, other, both)]
    assert max(held[:2]) < held[2] <= sum(held[:2])
    times = {op.name: op.time_s for op in both.ops}
    assert times["moe_layer.q_to_latent"] == next(
        op.time_s for op in one.ops if op.name.endswith("q_to_latent")
    )
    assert times["moe_layer.kv_b_proj"] == next(
        op.time_s for op in other.ops if op.name == "moe_layer.kv_b_proj"
    )
    assert {"moe_layer.latent_attention", "moe_layer.latent_attention (decode)"} <= times.keys()
    assert len(times) == len({*(op.name for op in one.ops), *(op.name for op in other.ops)}) + 2
    assert pickle.loads(pickle.dumps(both)).time_s == both.time_s
    grid = llmir.analyze(program, "h200", batch=[16, 32], new=1, context=4096, beside=[chunk])
    assert grid.time_s[1] == pytest.approx(both.time_s)
    with pytest.raises(InputError, match="one and of several new tokens mixes two phases"):
        llmir.analyze(program, "h200", new=[1, 2])


def test_a_few_new_tokens_after_others_read_latents_as_a_step_does() -> None:
    """As engines verify drafts: keys and values of what is cached are not made anew for two tokens."""
    program = llmir.run(llmir.load("DeepSeek-V3"), [DEFAULT, "shard{tp=8}"])
    at: dict[str, Any] = {"batch": 1, "context": 32768}
    one, two, eight, many = (
        llmir.analyze(program, "h200", **records(llmir.analyze, new=n, **at)) for n in (1, 2, 8, 9)
    )
    assert [step.phase for step in (one, two, eight, many)] == ["decode"] * 3 + ["prefill"]
    assert one.time_s < two.time_s < 1.3 * one.time_s + two.ideal_time_s - one.ideal_time_s
    assert llmir.analyze(program, "h200", new=2).phase == "prefill"
    grid = llmir.analyze(program, "h200", batch=1, new=[1, 2, 8], context=32768)
    assert grid.time_s.tolist() == pytest.approx([one.time_s, two.time_s, eight.time_s])


def test_a_phase_changes_nothing_of_a_model_without_latents() -> None:
    program = llmir.load("llama3.2-1b")
    assert llmir.run(program, "absorb-mla{phase=decode}") is program
    assert llmir.run(program, "absorb-mla") is program


def test_a_pass_runs_in_each_phase_unless_it_names_one() -> None:
    program = llmir.run(_tiny(), "absorb-mla{phase=decode}")
    fused = llmir.run(program, "fuse-attention{phase=decode}")
    assert "latent_attention" not in _opcodes(fused) and "latent_attention" in _opcodes(fused.phase("decode"))
    both = llmir.run(program, "fuse-attention")
    assert all("latent_attention" in _opcodes(p) for p in (both, both.phase("decode")))
    apart = llmir.run(program, "fuse-attention{phase=prefill},fuse-attention{phase=decode}")
    assert {name: apart.phase(name).graphs for name in ("prefill", "decode")} == {
        name: both.phase(name).graphs for name in ("prefill", "decode")
    }


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("fuse-attention{phase=verify}", "expected encode, prefill, decode or draft, got 'verify'"),
        ("fuse-attention{phase=decode, phase=decode}", "option 'phase' is given twice"),
        ("shard{tp=2, phase=decode}", "phase decode: mesh is"),
        ("stages{pp=2, phase=decode}", "phase decode: takes other inputs, or has other stages"),
        ("quantize{kv=fp8, phase=decode}", "phase decode: cache"),
    ],
)
def test_a_phase_that_does_not_share_what_phases_share_is_refused(step: str, says: str) -> None:
    with pytest.raises((PassError, VerifyError), match=says.replace("(", "\\(")):
        llmir.run(_tiny(), step)


def test_phases_know_the_weights_of_the_program() -> None:
    program = _tiny()
    other = llmir.load({**dict(CONFIGS["Llama-3.1-8B"]), "num_hidden_layers": 1})
    with pytest.raises(VerifyError, match="phase decode: name is"):
        llmir.run(program.replace(phases={"decode": other}), [])
    with pytest.raises(VerifyError, match="phases: expected encode, prefill, decode or draft, got 'verify'"):
        program.replace(phases={"verify": program})
    with pytest.raises(VerifyError, match="phase encode: takes no patches of images"):
        llmir.run(program.replace(phases={"encode": program}), [])
    with pytest.raises(PassError, match=r"fuse\{phase=encode\}: .* has no phase encode"):
        llmir.run(program, "fuse{phase=encode}")
    with pytest.raises(VerifyError, match="expected a Program without phases"):
        program.replace(phases={"decode": llmir.run(program, "absorb-mla{phase=decode}")})
