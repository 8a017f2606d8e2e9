"""What a checkpoint calls the parameters of transformers, and what it holds apart or together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from . import sparse_attention_cases

# What a checkpoint calls modules that transformers calls otherwise.
_STORED = {
    "mixtral": {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", "down_proj": "w2"},
    "ernie4_5_moe": {"mlp.gate.moe_statics": "mlp.moe_statics"},
    "granitemoe": {
        "router.weight": "router.layer.weight",
        "experts.gate_up_proj": "input_linear.weight",
        "experts.down_proj": "output_linear.weight",
    },
}
_STORED["lfm2_moe"] = {
    r"(experts\.\d+\.)gate_proj": r"\1w1",
    r"(experts\.\d+\.)up_proj": r"\1w3",
    r"(experts\.\d+\.)down_proj": r"\1w2",
}
_STORED["kimi_linear"] = {
    r"mlp(\.experts|\.gate\.|\.shared)": r"block_sparse_moe\1",
    r"forget_gate\.": "",
    **_STORED["lfm2_moe"],
}
_STORED["gpt_neox"] = {"lm_head": "embed_out"}
_STORED["minimax_m2"] = _STORED["minimax"] = _STORED["mixtral"]
_STORED["granitemoehybrid"] = {  # and not of the shared MLP
    f"block_sparse_moe.{ours}": f"block_sparse_moe.{theirs}" for ours, theirs in _STORED["granitemoe"].items()
}
_STORED["exaone_moe"] = {"mlp.gate.e_score": "mlp.e_score"}
_STORED["mimo_v2_flash"] = {r"\.sinks": ".attention_sink_bias"}
_STORED["axk1"] = {"mlp.post_mlp_layernorm": "post_mlp_layernorm"}
_STORED["hy_v3"] = {
    r"mlp\.gate\.": "mlp.router.gate.",
    "mlp.e_score_correction_bias": "mlp.expert_bias",
    r"\.shared_experts\.": ".shared_mlp.",
}
_STORED["deepseek_v4"] = sparse_attention_cases.STORED
_STORED["minimax_m3_vl_text"] = {
    r"mlp\.(experts|gate|shared_experts)\.": r"block_sparse_moe.\1.",
    r"gate\.e_score": "e_score",
    r"self_attn\.indexer\.": "self_attn.index_",
    **_STORED["lfm2_moe"],
}
_STORED["flint"] = {r"\.sinks": ".softmax_offset"}
_STORED["nemotron_h"] = {"model.": "backbone."}
_STORED["phimoe"] = {".router.": ".gate.", **_STORED["mixtral"]}
# Whose checkpoints have all experts in one tensor.
_STORED["granitemoeshared"] = _STORED["granitemoe_swa"] = _STORED["granitemoehybrid"]
_STACKED = (
    "gpt_oss",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "granitemoe_swa",
    "llama4_text",
    "gemma4_text",
)


def stored(name: str, model_type: str) -> str:
    """The name in a checkpoint of a parameter of transformers."""
    for ours, theirs in _STORED.get(model_type, {}).items():
        name = re.sub(ours, theirs, name)
    return name


def parts(name: str, tensor: Any, model_type: str) -> Iterator[tuple[str, Any]]:
    """What a checkpoint holds apart of a parameter: experts, gate above up, and Kimi's convolutions."""
    stem, last = name.rsplit(".", 1)
    if stem.endswith(".experts") and model_type not in _STACKED:
        kinds = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
        for e, rows in enumerate(tensor):
            for kind, part in zip(kinds, rows.chunk(len(kinds)), strict=True):
                yield f"{stem}.{e}.{kind}.weight", part
    elif name.endswith("gate_up_proj.weight") and model_type == "minimax_m3_vl_text":
        for part, rows in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield name.replace("gate_up", part), rows
    elif stem.endswith(".conv1d") and model_type == "kimi_linear":
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("conv1d", f"{part}_conv1d"), rows
    else:
        yield name, tensor
