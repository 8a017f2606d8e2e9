"""Tiny models whose logits transformers was asked for, and the weights that both sides compute.

`python -m tests.frontends.families.transformers_cases` adds those that the files of `AREAS` lack,
and remakes those that are named (it needs torch and transformers).
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from . import gate_cases, gemma_cases, sparse_attention_cases, state_cases, window_cases
from .checkpoint_names import parts, stored
from .expert_cases import SIZES as _SIZES
from .expert_cases import SPARSE
from .pre_llama_cases import OLDER

FILE = Path(__file__).parents[2] / "data" / "transformers.json"

_LLAMA = {**_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_QWEN3 = {**_SIZES, "head_dim": 8, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
_MOE = {
    **_QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}
_QWEN2 = {**_SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN2_MOE = {
    **_QWEN2,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 14,
}
_PHI3 = {**_SIZES, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
_MISTRAL = {**_SIZES, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_LATENT = {
    **_SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}
_DEEPSEEK = {
    **_LATENT,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}
_DEEPSEEK_2 = {**_DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
_DEEPSEEK_3 = {
    **_DEEPSEEK,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "n_group": 4,
    "topk_group": 2,
}
_GLM_LITE = {**_DEEPSEEK, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
_DEEPSEEK_32 = {
    **_DEEPSEEK,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "n_group": 4,
    "topk_group": 2,
    "index_topk": 64,
    "index_n_heads": 4,
    "index_head_dim": 8,
}
_MINICPM_3 = {**_LATENT, "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3"}
_MIXTRAL = {
    **_SIZES,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}

_GLM = {**_SIZES, "architectures": ["GlmForCausalLM"], "model_type": "glm", "head_dim": 8, "pad_token_id": 0}
_GLM4 = {**_GLM, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4"}
_ERNIE = {**_SIZES, "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "head_dim": 8}
_JAIS = {**_SIZES, "architectures": ["Jais2ForCausalLM"], "model_type": "jais2", "layer_norm_eps": 1e-5}
_HUNYUAN = {
    **_SIZES,
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    "head_dim": 8,
}
_DOTS = {
    **_SIZES,
    "architectures": ["Dots1ForCausalLM"],
    "model_type": "dots1",
    "head_dim": 6,
    "num_hidden_layers": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
}
_CWM = {**_SIZES, "architectures": ["CwmForCausalLM"], "model_type": "cwm", "head_dim": 8}


def _stretched(kind: str, of: dict[str, Any] = _LLAMA, **more: Any) -> dict[str, Any]:
    return {**of, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more}}


def _yarn(of: dict[str, Any] = _LLAMA, **more: Any) -> dict[str, Any]:
    """Heads of 6, of whose 3 pairs the second is between the fast and the slow ones."""
    lengths = {"rope_theta": 100.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
    return _stretched("yarn", of, **{**lengths, **more})


_LONG = {
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.2, 2.5, 4.0],
    "original_max_position_embeddings": 12,
}

CASES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama, biases, tied": {**_LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama, head_dim 10, linear": {**_stretched("linear"), "head_dim": 10},
    "llama, dynamic": _stretched("dynamic"),
    "llama, dynamic, past the trained length": {**_stretched("dynamic"), "max_position_embeddings": 8},
    "llama, llama3": _stretched(
        "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8
    ),
    "llama, llama3, length beside it": {
        **_stretched("llama3", low_freq_factor=1.0, high_freq_factor=2.5, rope_theta=50.0),
        "original_max_position_embeddings": 32,
    },
    "llama, yarn": _stretched("yarn", original_max_position_embeddings=8),
    "llama, yarn, mscale": _yarn(mscale=0.707, mscale_all_dim=1.0),
    "llama, yarn, mscale alone": _yarn(mscale=0.707),
    "llama, yarn, mscale of nothing": _yarn(mscale=1.3, mscale_all_dim=0.0),
    "llama, yarn, mscale and attention_factor": _yarn(mscale=0.707, mscale_all_dim=1.0, attention_factor=1.5),
    "llama, yarn, attention_factor": _yarn(attention_factor=0.8),
    "llama, yarn, betas": _yarn(beta_fast=3.0, beta_slow=0.5),
    "llama, yarn, not truncated": _yarn(truncate=False),
    "llama, yarn, factor of the lengths": {
        **_yarn(factor=None, original_max_position_embeddings=8),
        "max_position_embeddings": 48,
    },
    "llama, yarn, length beside it": {
        **_LLAMA,
        "rope_theta": 100.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "mscale": 2.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 8.0,
        },
        "original_max_position_embeddings": 64,
    },
    "llama, yarn, no pair slow": _yarn(original_max_position_embeddings=2, rope_theta=4.0),
    "llama, yarn, all pairs slow": _yarn(original_max_position_embeddings=10**6, rope_theta=2.0),
    "llama, yarn, factor below one": _yarn(factor=0.5),
    "llama, longrope": {**_stretched("longrope", **_LONG), "max_position_embeddings": 48},
    "llama, longrope, factor of the lengths": {
        **_LLAMA,
        "rope_scaling": {"type": "longrope", **_LONG},
        "max_position_embeddings": 48,
    },
    "llama, longrope, attention_factor": _stretched("longrope", **_LONG, attention_factor=1.25),
    "qwen2": _QWEN2,
    "qwen2, yarn, mscale": _yarn(_QWEN2, mscale=1.0, mscale_all_dim=0.5),
    "qwen2, dynamic": {**_stretched("dynamic", _QWEN2), "max_position_embeddings": 8},
    "qwen2, a window in no layer": {**_QWEN2, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": _QWEN3,
    "qwen3, yarn, mscale": _yarn(_QWEN3, mscale=0.5, mscale_all_dim=1.0, truncate=False),
    "qwen3-moe": {**_MOE, "norm_topk_prob": True},
    "qwen3-moe, one dense layer, unnormalized": {**_MOE, "norm_topk_prob": False, "mlp_only_layers": [0]},
    "qwen3-moe, every second layer, yarn, mscale": {
        **_yarn(_MOE, mscale=0.707, mscale_all_dim=1.2),
        "decoder_sparse_step": 2,
    },
    "qwen2-moe": {**_QWEN2_MOE, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "qwen2-moe, a window of 3 in the first layer": {
        **_QWEN2_MOE,
        "use_sliding_window": True,
        "sliding_window": 3,
    },
    "mistral": {**_MISTRAL, "sliding_window": None, "head_dim": 8},
    "mistral, a window of 3": {**_MISTRAL, "sliding_window": 3},
    "mistral, the window of its class": _MISTRAL,
    "mixtral": _MIXTRAL,
    **SPARSE,
    "glm": _GLM,
    "jais2": {k: v for k, v in _JAIS.items() if k != "rms_norm_eps"},
    "hunyuan-dense": _HUNYUAN,
    "dots1, groups, windows of 3 at the end": {
        **_DOTS,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "max_window_layers": 2,
        "sliding_window": 3,
    },
    "glm, without biases, positions on all": {
        **_GLM,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
    "glm4": _GLM4,
    "ernie": _ERNIE,
    "ernie, biases, untied": {**_ERNIE, "use_bias": True, "tie_word_embeddings": False},
    "cwm, a window of 3": {**_CWM, "sliding_window": 3, "num_hidden_layers": 6, "rope_parameters": None},
    "phi3": _PHI3,
    "phi3, a window of 3": {**_PHI3, "sliding_window": 3},
    "phi3, longrope": {
        **_PHI3,
        "rope_scaling": {"type": "longrope", **{k: v for k, v in _LONG.items() if "factor" in k}},
        "original_max_position_embeddings": 12,
        "max_position_embeddings": 48,
    },
    "mixtral, a window of 3": {**_MIXTRAL, "sliding_window": 3},
    "qwen2, a window of 3 from the second layer": {
        **_QWEN2,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
    },
    "qwen3, a window of 3 in the first layer": {
        **_QWEN3,
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "deepseek-v2": {**_DEEPSEEK_2, "routed_scaling_factor": 2.0},
    "deepseek-v2, groups, biases, yarn": {
        **_yarn(_DEEPSEEK_2, mscale=0.707, mscale_all_dim=0.707),
        "attention_bias": True,
        "mlp_bias": True,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
    },
    "deepseek-v2, no latent of queries": {**_DEEPSEEK_2, "q_lora_rank": None},
    "deepseek-v3": _DEEPSEEK_3,
    "deepseek-v3, one group, yarn, biases": {
        **_yarn(_DEEPSEEK_3, mscale=1.0, mscale_all_dim=1.3),
        "attention_bias": True,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
    },
    "deepseek-v3, halves rotated": {**_DEEPSEEK_3, "rope_interleave": False, "q_lora_rank": None},
    "glm4-moe-lite": _GLM_LITE,
    "glm4-moe-lite, groups, layers by type": {
        **_GLM_LITE,
        "n_group": 4,
        "topk_group": 2,
        "mlp_layer_types": ["sparse", "dense"],
    },
    "deepseek-v3.2": _DEEPSEEK_32,
    "deepseek-v3.2, chosen keys, a window of few": {
        **_yarn(_DEEPSEEK_32, mscale=1.0, mscale_all_dim=1.0),
        "index_topk": 3,
        "mlp_layer_types": ["sparse", "dense"],
    },
    "minicpm3": _MINICPM_3,
    "minicpm3, nothing scaled": {**_MINICPM_3, "scale_depth": None, "dim_model_base": None, "scale_emb": 1},
    "qwen3-moe, a window of 3": {**_MOE, "use_sliding_window": True, "sliding_window": 3},
    **window_cases.CASES,
}

CASES |= OLDER
# Where logits lie.
AREAS = {
    FILE: CASES,
    FILE.with_name("transformers_front.json"): gate_cases.CASES,
    FILE.with_name("transformers_gemma.json"): gemma_cases.CASES,
    FILE.with_name("transformers_newest.json"): sparse_attention_cases.CASES,
    FILE.with_name("transformers_states.json"): state_cases.CASES,
}
CASES = CASES | gate_cases.CASES | gemma_cases.CASES | sparse_attention_cases.CASES | state_cases.CASES

_EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}

PROMPT = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]]
NEXT = [[9, 7, 9, 3], [9, 3, 2, 8]]


def steps(case: str) -> int:
    """Tokens that are decoded one by one: with windows as many as to leave the prompt's last ones."""
    return len(NEXT[0]) if chunked(case) else 1


def chunked(case: str) -> bool:
    """Whether tokens go through in uneven chunks too: with windows, and with states."""
    return "window of" in case or case in {**state_cases.CASES, **sparse_attention_cases.CASES}


def parameter(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The weight that a checkpoint holds under `name`: random, and a function of the name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("tid2eid"):  # the experts of each token, of eight
        return rng.permuted(np.tile(np.arange(8), (shape[0], 1)), axis=1)[:, : shape[1]]
    noise = rng.normal(size=shape)
    return 1 + 0.1 * noise if "norm" in name or "layer_scalar" in name else noise / np.sqrt(shape[-1])


def main() -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    for file, cases in AREAS.items():
        _write(file, cases)


def _write(file: Path, cases: dict[str, dict[str, Any]]) -> None:
    import torch
    import transformers

    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for case, fields in cases.items():
        if case in found and case not in sys.argv:
            continue
        stated = {k: v for k, v in fields.items() if k != "architectures"}
        config = transformers.AutoConfig.for_model(**stated)
        # transformers' eager Falcon adds ALiBi twice, with the mask and before it.
        how = {"attn_implementation": "sdpa"} if fields.get("alibi") else _EAGER
        kind = getattr(transformers, fields["architectures"][0])  # which AutoModel may not have
        model = kind._from_config(config, dtype=torch.float64, **how).eval()
        with torch.no_grad():
            for whole, tensor in model.named_parameters():
                for name, part in parts(whole, tensor, fields["model_type"]):
                    own = stored(name, fields["model_type"])
                    part.copy_(torch.tensor(parameter(own, tuple(part.shape))))
            for name, tensor in model.named_buffers():
                if name.endswith(("e_score_correction_bias", "expert_bias", "tid2eid", "layer_scalar")):
                    own = stored(name, fields["model_type"])
                    tensor.copy_(torch.tensor(parameter(own, tuple(tensor.shape))))
            prefill = model(torch.tensor(PROMPT), use_cache=True)
            kept = "past_key_values" if "past_key_values" in prefill else "cache_params"
            cache, tokens, start = {kept: prefill[kept]}, torch.tensor(NEXT), len(PROMPT[0])
            places = [{"position_ids": torch.tensor([[start + i]])} for i in range(steps(case))]
            if fields["model_type"] not in ("bamba", "minimax"):  # whose classes start again at 0
                places = [{} for _ in places]
            decode = [model(tokens[:, i : i + 1], **cache, **place) for i, place in enumerate(places)]
        found[case] = {
            "prefill": prefill.logits[:, -3:].numpy().round(7).tolist(),
            "decode": torch.cat([step.logits for step in decode], dim=1).numpy().round(7).tolist(),
        }
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(found[case])}" for case in cases)
    file.write_text("{\n" + lines + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
