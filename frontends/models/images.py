"""Image models: DiT-XL/2 and LLaVA-OneVision.

Shapes: the released configs. Totals: the classes of diffusers and transformers. DiT-XL/2 has 675 million
parameters as published (arXiv:2212.09748, table 4); diffusers' class has the embedders of timestep and label
in each of its 28 blocks, and the original has them once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_DIT: Mapping[str, object] = {
    "architectures": ["DiTTransformer2DModel"],
    "model_type": "dit",
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "patch_size": 2,
    "num_embeds_ada_norm": 1000,
    "torch_dtype": "float32",
}
_LLAVA: Mapping[str, object] = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"],
    "model_type": "llava_onevision",
    "image_token_index": 151646,
    "text_config": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 152000,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}


def presets() -> Iterator[Preset]:
    """One for each size of image of DiT, and LLaVA-OneVision's smallest."""
    for edge in (256, 512):
        name = f"DiT-XL-2-{edge}"
        aliases = ("DiT-XL/2",) if edge == 256 else ()
        yield Preset(name, f"facebook/{name}", {**_DIT, "sample_size": edge // 8}, 749_826_464, aliases)
    name, hf_id = "LLaVA-OneVision-Qwen2-0.5B", "lmms-lab/llava-onevision-qwen2-0.5b-ov"
    yield Preset(name, hf_id, _LLAVA, 893_675_552, ("llava-onevision-qwen2-0.5b-ov-hf",))
