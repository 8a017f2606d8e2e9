"""Tiny models of images, and what transformers and diffusers make of the same weights and pixels.

`python -m tests.frontends.families.image_cases` writes data/images.json
(it needs torch, transformers and diffusers).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .transformers_cases import parameter

FILE = Path(__file__).parents[2] / "data" / "images.json"
IMAGE, TILE, SIDE = 60, 8, 4  # the id of an image's tokens; pixels of a tile's edge, and of a patch's

LLAVA: dict[str, Any] = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"],
    "model_type": "llava_onevision",
    "image_token_index": IMAGE,
    "video_token_index": 61,
    "image_grid_pinpoints": [[TILE, TILE]],
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen2",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": TILE,
        "patch_size": SIDE,
        "vision_use_head": False,
    },
}
DIT: dict[str, Any] = {
    "_class_name": "DiTTransformer2DModel",
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 3,
    "out_channels": 6,
    "num_layers": 3,
    "sample_size": 8,
    "patch_size": 2,
    "num_embeds_ada_norm": 10,
}
PROMPT = [[3, 1, *[IMAGE] * 5, 4, 1], [2, IMAGE, 7, *[IMAGE] * 4, 1, 8]]  # 4 patches and a newline each
NEXT = [9, 7]
TIMESTEPS, LABELS = [3, 700], [4, 10]  # 10 is that of no label
_STORED = {
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.language_model.": "language_model.model.",
    "model.": "",
}


def pixels(batch: int, channels: int, edge: int) -> np.ndarray[Any, Any]:
    """Images of noise, rows after columns after channels."""
    return np.random.default_rng(7).normal(size=(batch, channels, edge, edge))


def cut(images: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """The patches of images, row by row: [images, patches, channels, side, side]."""
    batch, channels, edge, _ = images.shape
    n = edge // side
    parts = images.reshape(batch, channels, n, side, n, side).transpose(0, 2, 4, 1, 3, 5)
    return parts.reshape(batch, n * n, channels, side, side)


def stored(name: str) -> str:
    """The name in a checkpoint of a parameter of LLaVA-OneVision's class."""
    start = next((ours for ours in _STORED if name.startswith(ours)), "")
    return _STORED.get(start, "") + name.removeprefix(start)


def _fill(model: Any, named: Any) -> None:
    import torch

    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(torch.tensor(parameter(named(name), tuple(tensor.shape))))


def _plain(tensor: Any) -> Any:
    return tensor.detach().numpy().round(8).tolist()


def main() -> None:
    import torch
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    torch.set_default_dtype(torch.float64)
    config = LlavaOnevisionConfig(**{k: v for k, v in LLAVA.items() if k != "architectures"})
    config._attn_implementation = "eager"
    llava = LlavaOnevisionForConditionalGeneration(config).double().eval()
    _fill(llava, stored)
    images = torch.tensor(pixels(2, 3, TILE))[:, None]  # one tile each, which is taken whole
    how = {"pixel_values": images, "image_sizes": torch.tensor([[TILE, TILE]] * 2)}
    how["batch_num_images"] = torch.tensor([2, 2])  # of several images none is cut
    prompt = torch.tensor(PROMPT)
    features = llava.model.get_image_features(**how)
    first = llava(input_ids=prompt, **how, use_cache=True)
    later = [llava(input_ids=torch.tensor([[t], [t]]), past_key_values=first.past_key_values) for t in NEXT]
    text = llava(input_ids=torch.where(prompt == IMAGE, 5, prompt))
    found = {
        "features": [_plain(f) for f in getattr(features, "pooler_output", features)],
        "prefill": _plain(first.logits),
        "decode": [_plain(step.logits) for step in later],
        "text": _plain(text.logits),
        "parameters": {stored(n): list(p.shape) for n, p in llava.named_parameters()},
    }
    dit = DiTTransformer2DModel(**{k: v for k, v in DIT.items() if k != "_class_name"}).double().eval()
    _fill(dit, str)
    noise = torch.tensor(pixels(2, DIT["in_channels"], DIT["sample_size"]))
    out = dit(noise, timestep=torch.tensor(TIMESTEPS), class_labels=torch.tensor(LABELS)).sample
    found |= {"dit": _plain(out), "dit_positions": _plain(dit.pos_embed.pos_embed[0])}
    found["dit_parameters"] = {n: list(p.shape) for n, p in dit.named_parameters()}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    FILE.write_text("{\n" + lines + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
