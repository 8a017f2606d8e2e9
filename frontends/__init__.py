"""From a model's config to a program. `FAMILIES` is what llmir can read."""

from __future__ import annotations

from collections.abc import Callable

from llmir.errors import InputError, UnsupportedError
from llmir.graph import Program
from llmir.names import plain

from . import blocks, quantization
from .blocks import Decoder
from .config import Config, read
from .llama import llama
from .qwen import qwen2, qwen3, qwen3_moe

# The class in HF's `architectures` -> its `model_type`, and who reads it.
FAMILIES: dict[str, tuple[str, Callable[[Config], Decoder]]] = {
    "LlamaForCausalLM": ("llama", llama),
    "Qwen2ForCausalLM": ("qwen2", qwen2),
    "Qwen3ForCausalLM": ("qwen3", qwen3),
    "Qwen3MoeForCausalLM": ("qwen3_moe", qwen3_moe),
}

LOGITS = ("last", "all")


def load(model: object, *, logits: str = "last", lenient: bool = False) -> Program:
    """The unfused, unsharded program of a model.

    `model` is a preset's name, an HF id, a path to a config.json or its folder, a dict, or an object
    with `.to_dict()`. `lenient` turns fields that llmir does not model from errors into notes.
    Raises `ConfigError`, or `UnsupportedError` for a model that llmir does not have.
    """
    if logits not in LOGITS:
        raise InputError(f"logits: expected {' or '.join(LOGITS)}, got {logits!r}")
    config = read(model, lenient=lenient)
    family = _family(config)
    program = blocks.decoder(family(config), logits, ())
    stored = quantization.scheme(config, program)
    config.finish()
    facts = {**program.facts, "quantization": stored} if stored else program.facts
    return program.replace(facts=facts, notes=tuple(config.notes))


def _family(config: Config) -> Callable[[Config], Decoder]:
    known = ", ".join(FAMILIES)
    for named in config.texts("architectures")[:1]:
        if named not in FAMILIES:
            fact = f"{plain(named)} is not supported; supported are {known}"
            raise config.error("architectures", fact, UnsupportedError)
        return FAMILIES[named][1]
    if "model_type" not in config:
        if "_class_name" in config:  # diffusers' way to say what a config is of
            fact = f"{plain(config.text('_class_name'))} is not supported; supported are {known}"
            raise config.error("_class_name", fact, UnsupportedError)
        raise config.error("architectures", "missing, and there is no model_type either")
    kind = config.text("model_type")
    for model_type, reader in FAMILIES.values():
        if kind == model_type:
            return reader
    raise config.error("model_type", f"{kind!r} is not supported; supported are {known}", UnsupportedError)
