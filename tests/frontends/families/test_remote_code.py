"""Classes of code that checkpoints bring along: most are transformers' classes under names of their own."""

from __future__ import annotations

import re
from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.op import OPS
from llmir.ir.core.program import Program

_WIDTH = {"hidden_size": 32, "vocab_size": 13, "torch_dtype": "bfloat16"}
_ALL = {**_WIDTH, "num_attention_heads": 4}
_SIZES = {**_ALL, "num_hidden_layers": 4, "intermediate_size": 20, "num_key_value_heads": 2}


def _model(architecture: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], **fields}


LLAMA = _model("LlamaForCausalLM", **_SIZES, rms_norm_eps=1e-5)
CHATGLM = _model(
    "ChatGLMModel",
    **_ALL,
    num_layers=4,
    ffn_hidden_size=20,
    multi_query_group_num=2,
    kv_channels=8,
    padded_vocab_size=13,
    layernorm_epsilon=1e-5,
    add_qkv_bias=True,
    rope_ratio=50,
    multi_query_attention=True,
    post_layer_norm=True,
)
EXAONE = _model(
    "ExaoneForCausalLM",
    **{**_SIZES, "num_layers": 4, "layer_norm_epsilon": 1e-5, "activation_function": "silu"},
    tie_word_embeddings=False,
)
del EXAONE["num_hidden_layers"]
QWEN = _model(
    "QWenLMHeadModel",
    **{**_SIZES, "intermediate_size": 40, "num_key_value_heads": 4, "kv_channels": 8},
    no_bias=True,
    layer_norm_epsilon=1e-6,
    rotary_pct=1.0,
    rotary_emb_base=100,
    use_dynamic_ntk=True,
)
MIMO = _model("MiMoForCausalLM", **_SIZES, attention_bias=True, sliding_window=8, use_sliding_window=False)
EPOCH = _model("StableLMEpochForCausalLM", **_SIZES, norm_eps=1e-4, rope_pct=0.5, use_qkv_bias=True)
MINICPM = _model("MiniCPMForCausalLM", **_SIZES, scale_emb=12, scale_depth=1.0, dim_model_base=8)
_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 12, "first_k_dense_replace": 1}
DEEPSEEK = _model("DeepseekForCausalLM", **_SIZES, **_EXPERTS, n_routed_experts=8, n_shared_experts=2)
LING = _model(
    "BailingMoeV2ForCausalLM",
    **_SIZES,
    **_EXPERTS,
    num_experts=8,
    num_shared_experts=1,
    n_group=4,
    topk_group=2,
    partial_rotary_factor=0.5,
    routed_scaling_factor=2.5,
)
JAIS = _model(
    "JAISLMHeadModel",
    n_embd=32,
    n_head=4,
    n_layer=4,
    n_inner=20,
    vocab_size=13,
    n_positions=64,
    activation_function="swiglu",
    position_embedding_type="alibi",
    mup_scale_qk_dot_by_d=True,
    mup_embeddings_scale=14.6,
    mup_output_alpha=2.0,
    mup_width_scale=0.25,
    torch_dtype="bfloat16",
)
_GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.5,  # 1 / √4
    "attention_multiplier": 8**-0.5,
    "logits_scaling": 4.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# Both of the same sizes; the second one's logits are held against transformers.
ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (_model("LLaMAForCausalLM", **_SIZES, rms_norm_eps=1e-5, model_type="llama"), LLAMA),
    (
        _model("PhiMoEForCausalLM", **_SIZES, num_local_experts=4, model_type="phimoe"),
        _model("PhimoeForCausalLM", **_SIZES, num_local_experts=4, model_type="phimoe"),
    ),
    (
        # As tiiuae/falcon-40b first said it, and as it does now.
        _model("RWForCausalLM", **_WIDTH, n_layer=2, n_head=4, n_head_kv=2, model_type="RefinedWeb"),
        _model(
            "FalconForCausalLM",
            **_WIDTH,
            num_attention_heads=4,
            num_hidden_layers=2,
            num_kv_heads=2,
            new_decoder_architecture=True,
            model_type="falcon",
        ),
    ),
    (_model("TeleFLMForCausalLM", **_SIZES, rms_norm_eps=1e-5, use_mup=False), LLAMA),
    (_model("Fairseq2LlamaForCausalLM", **_SIZES, rms_norm_eps=1e-5), LLAMA),
    (
        _model("PanguEmbeddedForCausalLM", **_SIZES, rms_norm_eps=1e-5, bias=True),
        {**LLAMA, "attention_bias": True},
    ),
    (_model("InternLM3ForCausalLM", **_SIZES, rms_norm_eps=1e-5, bias=False, qkv_bias=False), LLAMA),
    (
        _model("InternLM3ForCausalLM", **_SIZES, rms_norm_eps=1e-5, bias=True, qkv_bias=True),
        {**LLAMA, "attention_bias": True, "mlp_bias": True},
    ),
    # As transformers saves them, whose class for both is Llama's; and by their own classes.
    (_model("LlamaForCausalLM", **_SIZES, rms_norm_eps=1e-5, model_type="internlm3"), LLAMA),
    (_model("LlamaForCausalLM", **_SIZES, rms_norm_eps=1e-5, model_type="iquestcoder"), LLAMA),
    (_model("IQuestCoderForCausalLM", **_SIZES, rms_norm_eps=1e-5, clip_qkv=None), LLAMA),
    (
        _model("InternLM3ForCausalLM", **_SIZES, rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True),
        {**LLAMA, "attention_bias": True, "mlp_bias": True},
    ),
    (EXAONE, LLAMA),
    (
        QWEN,
        _model(
            "Qwen2ForCausalLM", **{**_SIZES, "num_key_value_heads": 4}, rms_norm_eps=1e-6, rope_theta=100.0
        ),
    ),
    (MIMO, _model("Qwen2ForCausalLM", **_SIZES)),
    (
        EPOCH,
        _model(
            "StableLmForCausalLM",
            **_SIZES,
            layer_norm_eps=1e-4,
            partial_rotary_factor=0.5,
            use_qkv_bias=True,
        ),
    ),
    (MINICPM, _model("GraniteForCausalLM", **_SIZES, **_GRANITE)),
    (_model("GritLM", **_SIZES, sliding_window=3), _model("MistralForCausalLM", **_SIZES, sliding_window=3)),
    (
        CHATGLM,
        _model("GlmForCausalLM", **_SIZES, rms_norm_eps=1e-5, head_dim=8, rope_theta=500000.0),
    ),
]


def _graphs(program: Program) -> str:
    """Its text without what checkpoints call things."""
    text = llmir.print_program(program)
    return re.sub(r', param=("[^"]*"|[^,}]*)', "", text[text.index("graph ") :])


@pytest.mark.parametrize(("own", "known"), ALIKE, ids=[row[0]["architectures"][0] for row in ALIKE])
def test_a_class_of_own_code_is_one_of_transformers(own: dict[str, Any], known: dict[str, Any]) -> None:
    assert _graphs(llmir.load(own)) == _graphs(llmir.load(known))


HELD: list[tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = [
    (
        CHATGLM,
        {
            "transformer.embedding.word_embeddings.weight": (13, 32),
            "transformer.encoder.layers.3.self_attention.query_key_value.weight": (64, 32),
            "transformer.encoder.layers.3.self_attention.query_key_value.bias": (64,),
            "transformer.encoder.layers.3.mlp.dense_h_to_4h.weight": (40, 32),
            "transformer.output_layer.weight": (13, 32),
        },
    ),
    (
        EXAONE,
        {
            "transformer.h.3.attn.attention.out_proj.weight": (32, 32),
            "transformer.h.3.mlp.c_fc_1.weight": (20, 32),
            "transformer.ln_f.weight": (32,),
        },
    ),
    (
        QWEN,
        {"transformer.h.3.attn.c_attn.bias": (96,), "transformer.h.3.mlp.w2.weight": (20, 32)},
    ),
    (
        JAIS,
        {
            "transformer.h.3.attn.c_attn.weight": (32, 96),
            "transformer.h.3.mlp.c_fc2.weight": (32, 20),
            "transformer.h.3.mlp.c_proj.bias": (32,),
            "transformer.ln_f.bias": (32,),
        },
    ),
    (
        DEEPSEEK,
        {
            "model.layers.0.mlp.up_proj.weight": (20, 32),
            "model.layers.1.mlp.gate.weight": (8, 32),
            "model.layers.1.mlp.shared_experts.up_proj.weight": (24, 32),
        },
    ),
    (
        LING,
        {
            "model.word_embeddings.weight": (13, 32),
            "model.layers.1.attention.query_key_value.weight": (64, 32),
            "model.layers.1.attention.key_layernorm.weight": (8,),
            "model.layers.1.mlp.gate.expert_bias": (8,),
        },
    ),
]


@pytest.mark.parametrize(("config", "shapes"), HELD, ids=[row[0]["architectures"][0] for row in HELD])
def test_names_and_shapes_are_those_of_its_checkpoints(
    config: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    found = expected(llmir.load(config))
    assert {name: found[name].shape for name in shapes} == shapes


@pytest.mark.parametrize("config", [DEEPSEEK, LING], ids=["deepseek", "ling"])
@pytest.mark.parametrize("pipeline", ["fuse-attention,fuse", "shard{tp=2}", "shard{tp=2, ep=2}"])
def test_experts_of_own_code_shard_and_fuse(config: dict[str, Any], pipeline: str) -> None:
    program = llmir.load(config)
    assert llmir.equivalent(program, llmir.run(program, pipeline))


def test_tele_flm_is_scaled_by_mup() -> None:
    config = _model(
        "TeleFLMForCausalLM", **_SIZES, use_mup=True, input_mult=2, output_mult=3, mup_scale_factor=6
    )
    main = llmir.load(config)["main"]
    assert (main["embedding_scale"].op, main["logits_scale"].op) == (
        OPS["scale"](2.0, block="embedding"),
        OPS["scale"](0.5, block="lm_head"),
    )


def test_jais_is_scaled_by_mup_and_has_no_table_of_positions() -> None:
    program = llmir.load(JAIS)
    text = llmir.print_program(program)
    assert "scale(%embedding) {block=embedding, factor=14.6}" in text
    assert "scale(%lm_head) {block=lm_head, factor=0.5}" in text
    assert "scale=0.125" in text and 'mask="alibi(1)"' in text
    assert not [name for name in expected(program) if "wpe" in name or "lm_head" in name]


def test_minicpm_2b_has_the_published_total() -> None:
    """2.44 billion parameters and tied embeddings: 2,724,880,896 at openbmb/MiniCPM-2B-sft-bf16."""
    sizes = {"hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36, "vocab_size": 122753}
    of_40 = {**MINICPM, **sizes, "num_hidden_layers": 40, "num_key_value_heads": 36}
    assert llmir.load(of_40).parameters == 2_724_880_896


REFUSED: list[tuple[dict[str, Any], str, object]] = [
    (CHATGLM, "post_layer_norm", False),
    (CHATGLM, "pre_seq_len", 128),
    (QWEN, "no_bias", False),
    (JAIS, "position_embedding_type", "learned"),
    (JAIS, "activation_function", "gelu_new"),
    (MIMO, "use_sliding_window", True),
    (EPOCH, "qk_layernorm", True),
    (MINICPM, "num_experts", 8),
    (DEEPSEEK, "topk_method", "noaux_tc"),
    (LING, "score_function", "softmax"),
    (LING, "norm_head", True),
]


@pytest.mark.parametrize(("config", "key", "value"), REFUSED, ids=[f"{r[1]}-{r[2]}" for r in REFUSED])
def test_what_changes_the_computation_is_refused_by_name(
    config: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError, match=rf"^\$\.{key}: "):
        llmir.load({**config, key: value})


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**MINICPM, "scale_depth": None}, "$.scale_depth: expected a number above 0, got null"),
        ({k: v for k, v in EXAONE.items() if "tie" not in k}, "$.tie_word_embeddings: missing"),
        (
            {**CHATGLM, "multi_query_group_num": 3},
            "$.multi_query_group_num: 3 does not divide 4 attention heads",
        ),
        ({**LING, "num_experts": 2}, "$.num_experts_per_tok: 3 is more than the 2 experts"),
    ],
    ids=["scale_depth", "tie_word_embeddings", "multi_query_group_num", "num_experts"],
)
def test_what_contradicts_is_one_line(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load(config)
    assert str(error.value).startswith(says)
