"""Apertus, K-EXAONE and other recent families.

Shapes: the defaults of transformers' classes, which equal the checkpoint named in each class; for Apertus
table 1 of its report (arXiv:2509.14233), for K-EXAONE its model card. Totals: transformers' classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_APERTUS: Mapping[str, object] = {
    "architectures": ["ApertusForCausalLM"],
    "model_type": "apertus",
    "hidden_act": "xielu",
    "num_key_value_heads": 8,
    "vocab_size": 131072,
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}
_APERTUS_8B = {
    **_APERTUS,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_APERTUS_70B = {
    **_APERTUS,
    "hidden_size": 8192,
    "intermediate_size": 43008,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
_EXAONE: Mapping[str, object] = {
    "architectures": ["ExaoneMoeForCausalLM"],
    "model_type": "exaone_moe",
    "hidden_size": 6144,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "sliding_window": 128,
    "rope_theta": 1000000.0,
    "vocab_size": 153600,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}
_EXPERTS: Mapping[str, object] = {
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "torch_dtype": "bfloat16",
}
_MIMO: Mapping[str, object] = {
    **_EXPERTS,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "sliding_window": 129,
    "vocab_size": 152576,
    "max_position_embeddings": 131072,
}
_SOLAR: Mapping[str, object] = {
    **_EXPERTS,
    "architectures": ["SolarOpenForCausalLM"],
    "model_type": "solar_open",
    "hidden_size": 4096,
    "moe_intermediate_size": 1280,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 196608,
    "max_position_embeddings": 131072,
}
_LATENT: Mapping[str, object] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_AXK1: Mapping[str, object] = {
    **_EXPERTS,
    **_LATENT,
    "architectures": ["AXK1ForCausalLM"],
    "model_type": "axk1",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 192,
    "vocab_size": 163840,
    "max_position_embeddings": 32768,
}
_YOUTU: Mapping[str, object] = {
    **_LATENT,
    "architectures": ["YoutuForCausalLM"],
    "model_type": "youtu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

# id, total, config, releases with the same shapes
_ALL: tuple[tuple[str, int, Mapping[str, object], tuple[str, ...]], ...] = (
    ("swiss-ai/Apertus-8B-2509", 8_053_338_176, _APERTUS_8B, ("Apertus-8B-Instruct-2509",)),
    ("swiss-ai/Apertus-70B-2509", 70_599_864_480, _APERTUS_70B, ("Apertus-70B-Instruct-2509",)),
    ("LGAI-EXAONE/K-EXAONE-236B-A23B", 236_571_150_336, _EXAONE, ()),
    ("XiaomiMiMo/MiMo-V2-Flash", 308_778_768_832, _MIMO, ()),
    ("upstage/Solar-Open-100B", 102_651_793_408, _SOLAR, ()),
    ("skt/A.X-K1", 518_983_052_288, _AXK1, ()),
    ("tencent/Youtu-LLM-2B", 1_961_560_064, _YOUTU, ("Youtu-LLM-2B-Base",)),
)


def presets() -> Iterator[Preset]:
    """All models of this file."""
    for hf_id, parameters, config, aliases in _ALL:
        yield Preset(hf_id.partition("/")[2], hf_id, config, parameters, aliases)
