"""Table of the bundled models: parameters, heads, and KV-cache bytes per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from llmir.base.names import normalize
from llmir.frontends.models.presets import PRESETS, Preset
from llmir.ir.core.graph import Node
from llmir.ir.core.program import Program

from .load import load


def rows(part: str = "") -> list[dict[str, Any]]:
    """The models with `part` in their name, Hugging Face id or architecture."""
    return [bundled_row(preset) for preset in PRESETS.values() if _matches(preset, part)]


def _matches(preset: Preset, wanted: str) -> bool:
    fields = (preset.name, preset.hf_id, *preset.architectures)
    # Normalized, an alias such as Distill-Qwen-32B would pass for a qwen3.
    loose = any(normalize(wanted) in normalize(f) for f in fields)
    return loose or any(wanted.lower() in f.lower() for f in (*fields, *preset.aliases))


def bundled_row(preset: Preset) -> dict[str, Any]:
    """A bundled model's sizes."""
    return dict(_cached_row(preset.name))


@cache
def _cached_row(name: str) -> Mapping[str, Any]:
    preset = PRESETS[name]
    return row(load(preset.config), preset.name, preset.hf_id)


def row(program: Program, name: str, hf_id: str) -> dict[str, Any]:
    """The sizes of a model; 0 heads without attention, and a head size if all parts of a head have
    the same.
    """
    weights = [at.node for at in program.instances() if at.node.op.role == "weight"]
    sizes = _sizes(weights)
    heads, kv_heads = _heads(weights) or (
        sizes.get("kv_heads", 0) * sizes.get("heads", 1),
        sizes.get("kv_heads", 0),
    )
    return {
        "name": name,
        "hf_id": hf_id,
        "architecture": program.facts["architecture"],
        "parameters": program.parameters,
        "active_parameters": program.active_parameters,
        "layers": program.facts["layers"],
        "hidden": sizes["embed"],
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": sizes.get("head_dim", 0),
        "experts": sizes.get("expert", 0),
        "vocab": sizes.get("vocab", 0),
        "positions": program.facts.get("positions", 0),
        "kv_cache_bytes_per_token": program.kv_cache_bytes_per_token,
        "kv_cache_bytes_per_later_token": program.kv_cache_bytes_per_later_token,
        "state_bytes_per_sequence": program.state_bytes_per_sequence,
    }


def _heads(weights: Sequence[Node]) -> tuple[int, int] | None:
    """The heads of queries, and of keys and values; a single number if no weight distinguishes them."""
    found: dict[bool, int] = {}
    for node in weights:
        if node.op.block != "attention":
            continue
        axes = dict(zip(node.op.axes, node.results[0].shape, strict=True))
        kv, each = axes.get("kv_heads"), axes.get("heads", 1)
        if "head_dim" in axes and isinstance(kv, int) and isinstance(each, int):
            found["heads" in axes] = kv * each
    if not found:
        return None
    kv_heads = found.get(False, 1)
    return found.get(True, kv_heads), kv_heads


def _sizes(weights: Sequence[Node]) -> dict[str, int]:
    """The size of each logical axis of the weights."""
    found: dict[str, int] = {}
    for node in weights:
        pairs = zip(node.op.axes, node.results[0].shape, strict=True)
        found |= {axis: n for axis, n in pairs if isinstance(n, int)}
    return found
