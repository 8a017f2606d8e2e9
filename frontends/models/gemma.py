"""Gemma 1, 2 and 3 (text), and the language models of the multimodal releases.

Shapes: the technical reports (arXiv:2403.08295 table 1, 2408.00118 table 1, 2503.19786 table 1) and the
released configs. Totals: the checkpoints on huggingface.co/google; for Gemma 3 from 4B on, without the vision
tower and its projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "query_pre_attn_scalar", "sliding_window"),
)
_GEMMA = {  # parameters, then the columns
    "Gemma-2B": (2_506_172_416, 18, 2048, 8, 1, 256, 16384, 256000, None, None),
    "Gemma-7B": (8_537_680_896, 28, 3072, 16, 16, 256, 24576, 256000, None, None),
}
_GEMMA_2 = {
    "Gemma-2-2B": (2_614_341_888, 26, 2304, 8, 4, 256, 9216, 256000, 256, 4096),
    "Gemma-2-9B": (9_241_705_984, 42, 3584, 16, 8, 256, 14336, 256000, 256, 4096),
    "Gemma-2-27B": (27_227_128_320, 46, 4608, 32, 16, 128, 36864, 256000, 144, 4096),
}
_GEMMA_3 = {
    "Gemma-3-270M": (268_098_176, 18, 640, 4, 1, 256, 2048, 262144, 256, 512),
    "Gemma-3-1B": (999_885_952, 26, 1152, 4, 1, 256, 6912, 262144, 256, 512),
    "Gemma-3-4B": (3_880_263_168, 34, 2560, 8, 4, 256, 10240, 262208, 256, 1024),
    "Gemma-3-12B": (11_766_034_176, 48, 3840, 16, 8, 256, 15360, 262208, 256, 1024),
    "Gemma-3-27B": (27_009_346_304, 62, 5376, 32, 16, 128, 21504, 262208, 168, 1024),
}
_EVERY: Mapping[str, object] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_TANH, _SHORT = "gelu_pytorch_tanh", {"max_position_embeddings": 8192, "rope_theta": 10000.0}
_LOCAL = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
_STRETCHED = {
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}

_Rows = Mapping[str, tuple[int | None, ...]]
# class, model type, common fields, the models
_ALL: tuple[tuple[str, str, Mapping[str, object], _Rows], ...] = (
    ("GemmaForCausalLM", "gemma", {**_SHORT, "hidden_act": _TANH}, _GEMMA),
    ("Gemma2ForCausalLM", "gemma2", {**_SHORT, **_CAPS, "hidden_activation": _TANH}, _GEMMA_2),
    ("Gemma3ForCausalLM", "gemma3_text", {**_LOCAL, "hidden_activation": _TANH}, _GEMMA_3),
)


def presets() -> Iterator[Preset]:
    """Every bundled Gemma, by age and size."""
    for architecture, kind, shared, models in _ALL:
        for name, (parameters, *values) in models.items():
            own: dict[str, object] = {
                key: value for key, value in zip(_COLUMNS, values, strict=True) if value is not None
            }
            if kind == "gemma3_text":
                own |= _STRETCHED if own["sliding_window"] == 1024 else {"max_position_embeddings": 32768}
            config = {"architectures": [architecture], "model_type": kind, **_EVERY, **shared, **own}
            aliases = [f"{name}-it"]
            aliases += [name.replace("-", "-1.1-") + "-it"] if kind == "gemma" else []
            aliases += [f"{name}-text"] if "rope_scaling" in own else []
            end = "-pt" if "rope_scaling" in own or name == "Gemma-3-1B" else ""
            yield Preset(name, f"google/{name.lower()}{end}", config, parameters or 0, tuple(aliases))
